"""The manifests of a corpus: a corpus folder in, its validated manifest.json and that of its tokens out.

A manifest is refused with the first entry that has another type or range than `prepare` writes, that names a file
outside the folder, or whose counts contradict others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertworks.corpus.shard import REGIONS, SPLITS
from bertworks.disk import read_json
from bertworks.errors import FolderError, show_value
from bertworks.integrity.hashing import is_digest, is_file_name

MANIFEST = "manifest.json"
_TEXT_COUNTS = ("documents", "sentences", "characters")
_REGION_COUNTS = ("tokens", "sentences", "documents")
_TOKENS_KEY = re.compile(r"[0-9a-f]{16}-[a-z]+")

# What a value must be, and whether it is.
Rule = tuple[str, Callable[[Any], bool]]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a corpus folder; raise FolderError if it is not one."""
    path = folder / MANIFEST
    manifest = read_json(path, "a prepared corpus (see `bertworks prepare`)")
    if not isinstance(manifest, dict) or "tokens" not in manifest:
        raise FolderError(f"{path} is not the manifest of a prepared corpus; give a folder of `bertworks prepare`")
    try:
        _check_table(manifest, _MANIFEST_RULES)
        for number, source in enumerate(manifest["sources"]):
            _check_table(source, _SOURCE_RULES, f"source {number}: ")
        for shard in manifest["shards"]:
            _check_table(shard, _TEXT_SHARD_RULES, "a shard: ")
            if shard["source"] >= len(manifest["sources"]):
                raise ValueError(f"the shard {shard['file']} is of source {shard['source']}, which is not listed")
        _check_distinct([shard["file"] for shard in manifest["shards"]])
        for name in _TEXT_COUNTS:
            _check_sum(name, manifest[name], sum(shard[name] for shard in manifest["shards"]))
    except ValueError as error:
        raise FolderError(_invalid(path, error)) from None
    return manifest


def read_tokens_manifest(folder: Path, key: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of the tokens `key` of a corpus folder with this manifest."""
    path = folder / "tokens" / key / MANIFEST
    tokens_manifest = read_json(path, "the tokens of a prepared corpus")
    try:
        _check_table(tokens_manifest, _TOKENS_RULES)
        _check_regions(tokens_manifest["splits"], "splits: ")
        weights = {
            Path(shard["file"]).stem: manifest["sources"][shard["source"]]["weight"] for shard in manifest["shards"]
        }
        for shard in tokens_manifest["shards"]:
            _check_table(shard, _TOKEN_SHARD_RULES, "a shard: ")
            _check_regions(shard["regions"], f"the shard {shard['file']}: ")
            if weights.get(Path(shard["file"]).stem) != shard["weight"]:
                raise ValueError(f"the shard {shard['file']} has another weight than its source, or no text")
        _check_distinct([shard["file"] for shard in tokens_manifest["shards"]])
        _check_totals(tokens_manifest)
    except ValueError as error:
        raise FolderError(_invalid(path, error)) from None
    valid: dict[str, Any] = tokens_manifest
    return valid


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _is_list_of(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_COUNT: Rule = ("an integer of at least 0", _is_count)
_WEIGHT: Rule = ("a number above 0", _is_weight)
_SHA256: Rule = ("64 hexadecimal digits", is_digest)
_TABLE: Rule = ("an object", _is_table)
_TABLES: Rule = ("a list of objects", _is_list_of(_is_table))
_STRING: Rule = ("a string", _is_text)
_COUNTS: Rule = (
    "an object of integers of at least 0",
    lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
)
_MANIFEST_RULES: dict[str, Rule] = {
    "sources": _TABLES,
    "counts": _COUNTS,
    "documents": _COUNT,
    "sentences": _COUNT,
    "characters": _COUNT,
    "shards": _TABLES,
    "tokens": (
        "a list of names such as 0123456789abcdef-jieba",
        _is_list_of(lambda value: isinstance(value, str) and _TOKENS_KEY.fullmatch(value) is not None),
    ),
}
_SOURCE_RULES: dict[str, Rule] = {"path": _STRING, "weight": _WEIGHT}
_TEXT_SHARD_RULES: dict[str, Rule] = {
    "file": (
        "a file of the folder text",
        lambda value: is_file_name(value) and value.startswith("text/") and value.endswith(".jsonl"),
    ),
    "sha256": _SHA256,
    "source": _COUNT,
    "documents": _COUNT,
    "sentences": _COUNT,
    "characters": _COUNT,
}
_TOKENS_RULES: dict[str, Rule] = {
    "vocabulary": _STRING,
    "size": _COUNT,
    "counts": _COUNTS,
    "splits": _TABLE,
    "shards": _TABLES,
}
_TOKEN_SHARD_RULES: dict[str, Rule] = {
    "file": (
        "a file of this folder",
        lambda value: is_file_name(value) and "/" not in value and value.endswith(".safetensors"),
    ),
    "sha256": _SHA256,
    "weight": _WEIGHT,
    "regions": _TABLE,
}


def _check_table(table: Any, rules: Mapping[str, Rule], prefix: str = "") -> None:
    """Raise ValueError for the first key of `rules` that a table lacks or that has another value."""
    if not isinstance(table, dict):
        raise ValueError(f"{prefix}it should hold an object, but holds a {type(table).__name__}")
    for name, (description, is_valid) in rules.items():
        if name not in table:
            raise ValueError(f"{prefix}'{name}' is missing")
        if not is_valid(table[name]):
            raise ValueError(f"{prefix}'{name}' should be {description}, but is {show_value(table[name])}")


def _check_regions(splits: Any, prefix: str) -> None:
    """Raise ValueError unless `splits` has every split, region and count, and no sentence without a token."""
    _check_table(splits, dict.fromkeys(SPLITS, _TABLE), prefix)
    for split in SPLITS:
        _check_table(splits[split], dict.fromkeys(REGIONS, _TABLE), f"{prefix}{split}: ")
        for region in REGIONS:
            where, counts = f"{prefix}{split}, {region}: ", splits[split][region]
            _check_table(counts, dict.fromkeys(_REGION_COUNTS, _COUNT), where)
            if counts.keys() != set(_REGION_COUNTS):
                raise ValueError(f"{where}it has other keys than {', '.join(_REGION_COUNTS)}")
            if not counts["documents"] <= counts["sentences"] <= counts["tokens"]:
                raise ValueError(f"{where}it has more documents than sentences, or more sentences than tokens")


def _check_totals(tokens_manifest: Mapping[str, Any]) -> None:
    splits, shards = tokens_manifest["splits"], tokens_manifest["shards"]
    for split in SPLITS:
        for region in REGIONS:
            for name in _REGION_COUNTS:
                total = sum(shard["regions"][split][region][name] for shard in shards)
                _check_sum(f"{split}, {region}: {name}", splits[split][region][name], total)
    num_tokens = sum(splits[split][region]["tokens"] for split in SPLITS for region in REGIONS)
    _check_sum("counts: tokens", tokens_manifest["counts"].get("tokens", 0), num_tokens)


def _check_sum(name: str, stated: int, total: int) -> None:
    if stated != total:
        raise ValueError(f"'{name}' is {stated}, but the shards have {total}")


def _check_distinct(files: list[str]) -> None:
    seen: set[str] = set()
    for file in files:
        if file in seen:
            raise ValueError(f"the shard {file} is listed twice")
        seen.add(file)


def _invalid(path: Path, error: ValueError) -> str:
    return f"{path} is damaged or was changed: {error}; delete the folder and prepare it again"
