"""The config.json and bertworks.json of a model folder in, their content out; values that we read have a known type.

A key that is in neither table is not read, and so not checked. The sizes of the encoder are checked by its family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertworks.disk import read_json
from bertworks.errors import FolderError, SettingsError, show_value
from bertworks.integrity.model_files import METADATA_FILE, check_model_files
from bertworks.models.graph_config import GraphConfig
from bertworks.sampling.windows import WindowRule
from bertworks.settings import convert_value

MAX_LABELS = 2**17

CONFIG_TYPES: Mapping[str, Any] = {
    "architectures": tuple[str, ...] | None,
    "id2label": dict[str, str] | None,
    "num_labels": int | None,
    "problem_type": str | None,
    "decoder_start_token_id": int | None,
}
METADATA_TYPES: Mapping[str, Any] = {
    "task": str,
    "objective": str,
    "attention": str,
    "base": str,
    "metrics": tuple[str, ...],
    "temperature": float,
    "scale": tuple[float, ...],
    "context": bool,
    "no_answer": bool,
    "null_threshold": float,
    "max_answer_tokens": int,
    "scoring": str,
    "bleu_tokenizer": str,
    "search_settings": dict[str, Any],
    "recurrent_head": dict[str, Any],
    "window": WindowRule,
    "graph": GraphConfig,
    "columns": dict[str, str],
    "recipe": dict[str, Any],
    "scores": dict[str, Any] | None,
    "languages": tuple[str, ...] | None,
}


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config.json."""
    content = read_json(path, "a model folder")
    if isinstance(content, dict) and isinstance(content.get("id2label"), dict):
        content["id2label"] = {key: _label_text(key, label) for key, label in content["id2label"].items()}
    config = _check_object(content, path, CONFIG_TYPES)
    if any(not key.isdecimal() for key in config.get("id2label") or {}):
        raise FolderError(f"{path}, id2label: expected a label for each number; use the model's own config.json")
    if not 0 <= (config.get("num_labels") or 0) <= MAX_LABELS:
        raise FolderError(f"{path}: num_labels is {config['num_labels']}; it must be from 0 to {MAX_LABELS:,}")
    return config


def read_metadata(folder: Path) -> dict[str, Any]:
    """Compare the files of a model folder with its hashes and return the content of its bertworks.json.

    It is without the hashes, and empty for a folder of others, which has none.
    """
    return check_metadata(check_model_files(folder), folder / METADATA_FILE)


def check_metadata(content: Any, path: Path) -> dict[str, Any]:
    """Return the content of a bertworks.json; refuse values of other types."""
    metadata = _check_object(content, path, METADATA_TYPES)
    temperature, scale = metadata.get("temperature", 1.0), metadata.get("scale", (0.0, 1.0))
    if not 0 < temperature < math.inf:
        raise FolderError(f"{path}: temperature is {temperature}; it must be above 0")
    means, deviations = scale[: len(scale) // 2], scale[len(scale) // 2 :]
    if not (scale and len(means) == len(deviations) and all(map(math.isfinite, means))) or not all(
        0 < deviation < math.inf for deviation in deviations
    ):
        raise FolderError(f"{path}: scale is {show_value(scale)}; it must be a mean and a standard deviation above 0")
    if metadata.get("metrics") == []:
        raise FolderError(f"{path}: metrics is empty; name at least one")
    return metadata


def _label_text(key: str, label: Any) -> Any:
    """Return a label as text: transformers takes numbers, true, false and null as they are."""
    if label is None:
        return f"LABEL_{key}"  # the name that transformers gives a class without one
    return str(label) if isinstance(label, int | float) else label


def _check_object(content: Any, path: Path, types: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise FolderError(f"{path} should hold a JSON object, but holds a {type(content).__name__}")
    try:
        for key, kind in types.items():
            if key in content:
                convert_value(kind, content[key], f"{path}, {key}")
    except SettingsError as error:
        raise FolderError(f"{error}; correct the file, or copy it again") from None
    return content
