"""Copy a model: a loaded model in, a new folder with its files out."""

from __future__ import annotations

import shutil
from pathlib import Path

from bertworks.disk import staged_folder
from bertworks.exporters.folder import check_output
from bertworks.folder_lock import lock_output
from bertworks.inference.model import LoadedModel


def copy_model(model: LoadedModel, output: Path) -> Path:
    """Copy the folder of a model to `output`, hidden files excepted, and return `output`."""
    with lock_output(output):
        check_output(output)
        with staged_folder(output) as staged:
            shutil.copytree(model.folder, staged, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    return output
