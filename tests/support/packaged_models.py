"""A packaged model written by hand: the files of a model folder inside the source folder of a package."""

from __future__ import annotations

import shutil
from pathlib import Path


def write_package(package: Path, module: str, model: Path) -> Path:
    """Copy `model` into the package folder `package` and return the model folder there."""
    folder = package / module / "model"
    shutil.copytree(model, folder)
    (package / "pyproject.toml").write_text("[project]\n")
    (package / module / "__init__.py").write_text("raise ImportError('a package is found without importing it')\n")
    return folder
