"""Export folders: a model folder in, all of its files but the weights and bertworks.json copied out."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path
from typing import Any

from bertworks.disk import is_vacant, write_bytes, write_json
from bertworks.errors import FolderError
from bertworks.integrity.model_files import METADATA_FILE
from bertworks.models.hub import CONFIG_AND_TOKENIZER_FILES
from bertworks.models.sentence_files import encoder_folder, read_sentence_files
from bertworks.vocabulary.tokenizer import Tokenizer

# Files other than weights that we, transformers, sentence-transformers or people read.
_COPY_PATTERNS = (*CONFIG_AND_TOKENIZER_FILES, "LICENSE*")


def check_output(path: Path) -> None:
    """Refuse an output folder that is not empty."""
    if not is_vacant(path):
        raise FolderError(f"{path} already exists; choose another output folder, or remove it")


def copy_settings(model: Path, output: Path, config: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Copy the files of a model folder but weights and metadata. A TensorFlow 1 release gets Hugging Face files."""
    encoder = encoder_folder(model)
    for file in sorted(model.rglob("*")):
        name = file.relative_to(model).as_posix()
        is_copied = name != METADATA_FILE and any(fnmatch.fnmatchcase(name, pattern) for pattern in _COPY_PATTERNS)
        if file.is_file() and is_copied and (encoder == model or encoder not in file.parents):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, output / name)
    if encoder != model:  # the encoder of the output is in the folder itself
        for name, content in read_sentence_files(model).items():
            write_bytes(output / name, content)
    if not (output / "config.json").is_file():
        tokenizer.save(output)
        write_json(output / "config.json", {"pad_token_id": tokenizer.specials.pad, **config})


def folder_size(folder: Path) -> int:
    """Return the total size of the files of a folder in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
