"""The folder of a model in, a new folder with all of it but the weights out; it appears whole, or not at all."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertworks.disk import explain_os_error, flush_folder, write_json
from bertworks.errors import FolderError
from bertworks.models.hub import CONFIG_AND_TOKENIZER_FILES
from bertworks.vocabulary.tokenizer import Tokenizer

# Of the files that are no weights those that we, transformers or sentence-transformers read, and what people read.
_COPY_PATTERNS = (*CONFIG_AND_TOKENIZER_FILES, "README.md", "LICENSE*")


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; when the block ends well it becomes `path`, otherwise nothing is left of it."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FolderError(f"{path} is there already; choose another folder with --out, or remove it")
    staged = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        yield staged
        if path.is_dir():
            path.rmdir()
        staged.rename(path)
        flush_folder(path.parent)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def copy_settings(model: Path, output: Path, config: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Copy what a model folder says besides its weights. A release of TensorFlow 1 gets the files of today."""
    for file in sorted(model.rglob("*")):
        name = file.relative_to(model).as_posix()
        if file.is_file() and any(fnmatch.fnmatchcase(name, pattern) for pattern in _COPY_PATTERNS):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, output / name)
    if not (output / "config.json").is_file():
        tokenizer.save(output)
        write_json(output / "config.json", {"pad_token_id": tokenizer.specials.pad, **config})


def folder_size(folder: Path) -> int:
    """Return how many bytes the files of a folder have."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
