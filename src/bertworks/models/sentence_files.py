"""The files of sentence-transformers in a model folder: the folder in, their content by name out.

They state how token vectors become one vector: modules.json, a folder for each of its modules, the prompt and the
maximum length. They do not depend on the weights of the encoder, so that a fine-tuned model keeps those of its base.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertworks.disk import read_json
from bertworks.errors import FolderError, show_value
from bertworks.reading import check_path, unreadable_reason

MODULES_FILE = "modules.json"
SETTINGS_FILE = "sentence_bert_config.json"
# Older versions named it by the family of the encoder: the first that there is counts.
SETTINGS_FILES = (
    SETTINGS_FILE,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
PROMPTS_FILE = "config_sentence_transformers.json"
_MODULE_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
# transformers writes 10**30 for a tokenizer without a limit.
_NO_LIMIT = 10**6


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json, each with type and path; none if there is no such file."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return []
    modules = read_json(path, "a sentence-transformers model")
    if not isinstance(modules, list) or not modules or not all(map(_is_module, modules)):
        raise FolderError(f"{path} must be a list of modules, each with type and path; copy the model's own file")
    modules = [{**module, "path": "" if module["path"] == "." else module["path"]} for module in modules]
    for module in modules:
        if Path(module["path"]).name != module["path"] or module["path"] == "..":
            raise FolderError(f"{path} names '{module['path']}', which is no folder of this one; copy the file again")
    return modules


def _is_module(module: Any) -> bool:
    return isinstance(module, dict) and {"type", "path"} <= set(module) and isinstance(module["path"], str)


def read_sentence_files(folder: Path) -> dict[str, bytes]:
    """Return the files of sentence-transformers by name, the maximum length among them; none in another folder.

    The first module is the encoder, whose own files are not among them.
    """
    modules = read_modules(folder)
    if not modules:
        return {}
    paths = [str(module["path"]) for module in modules[1:] if module["path"]]
    names = [PROMPTS_FILE, *(f"{path}/{file}" for path in paths for file in _MODULE_FILES)]
    files = {name: _read_bytes(folder / name) for name in names if (folder / name).is_file()}
    modules[0] = {**modules[0], "path": ""}
    files[MODULES_FILE] = (json.dumps(modules, indent=2) + "\n").encode()
    settings, max_length = read_encoder_settings(folder), read_max_length(folder)
    if max_length is not None:  # it may be in tokenizer_config.json, which is written anew
        settings["max_seq_length"] = max_length
    if settings:
        files[SETTINGS_FILE] = (json.dumps(settings, indent=2) + "\n").encode()
    return files


def encoder_folder(folder: Path) -> Path:
    """Return where the files of the encoder are: the folder itself, or a folder in it that modules.json names."""
    modules = read_modules(folder)
    return folder / str(modules[0]["path"]) if modules else folder


def read_encoder_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the module of the encoder, such as max_seq_length; an empty dict without any."""
    names = SETTINGS_FILES if read_modules(folder) else ()  # of a folder of sentence-transformers alone
    path = encoder_folder(folder)
    return next((settings for name in names if (settings := read_settings(path / name))), {})


def read_max_length(folder: Path) -> int | None:
    """Return the maximum sequence length that the files state, None if they state none."""
    max_length = read_encoder_settings(folder).get("max_seq_length")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise FolderError(
            f"{encoder_folder(folder) / SETTINGS_FILE}: max_seq_length is {show_value(max_length)}; it must be a "
            f"number of tokens, or null"
        )
    max_length = max_length or read_settings(encoder_folder(folder) / "tokenizer_config.json").get("model_max_length")
    return max_length if isinstance(max_length, int) and 0 < max_length < _NO_LIMIT else None


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of settings; an empty dict if there is none."""
    check_path(path)
    if not path.is_file():
        return {}
    settings = read_json(path, "a file of a sentence-transformers model")
    if not isinstance(settings, dict):
        raise FolderError(f"{path} must contain a JSON object, but contains a {type(settings).__name__}")
    return settings


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from None
