"""Copy a model: a loaded model in, a new folder with its files out."""

from __future__ import annotations

import shutil
from pathlib import Path

from bertworks.disk import read_json, staged_folder, write_text
from bertworks.exporters.folder import check_output
from bertworks.folder_lock import lock_output
from bertworks.inference.model import LoadedModel
from bertworks.models.card import CARD, card_text


def copy_files(model: LoadedModel, folder: Path) -> None:
    """Copy the files of a model into a folder, hidden ones excepted; add a model card if there is none."""
    shutil.copytree(model.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    if not (folder / CARD).exists():
        config = read_json(folder / "config.json", "a model folder")
        write_text(folder / CARD, card_text(config, model.metadata, model.tokenizer))


def copy_model(model: LoadedModel, output: Path) -> Path:
    """Copy the folder of a model to `output`, with a model card, and return `output`."""
    with lock_output(output):
        check_output(output)
        with staged_folder(output) as staged:
            copy_files(model, staged)
    return output
