"""Copies of a model: every file but hidden ones, and no existing folder is replaced."""

from pathlib import Path

import pytest
from small_models import write_pretrained

from bertworks.errors import FolderError
from bertworks.exporters.copy import copy_model
from bertworks.inference.model import load


def test_a_copy_has_the_files_of_the_model(tmp_path: Path):
    folder = write_pretrained(tmp_path / "model")
    (folder / ".cache").mkdir()
    model = load(folder)
    copy = copy_model(model, tmp_path / "copy")
    assert {path.name for path in copy.iterdir()} == {path.name for path in folder.iterdir()} - {".cache"}
    assert (copy / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    with pytest.raises(FolderError, match="already exists"):
        copy_model(model, copy)
