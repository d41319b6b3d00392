"""The manifests of a corpus: a corpus folder in, its validated manifest.json and that of its tokens out.

A manifest is refused with the first entry that has another type or range than `prepare` writes, that names a file
outside the folder, or whose counts contradict others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertworks.corpus.shard import REGIONS, SPLITS
from bertworks.disk import read_json
from bertworks.errors import FolderError, SettingsError
from bertworks.integrity.hashing import is_digest, is_file_name
from bertworks.settings import Condition, convert_value

MANIFEST = "manifest.json"
_TEXT_COUNTS = ("documents", "sentences", "characters")
_REGION_COUNTS = ("tokens", "sentences", "documents")
_TOKENS_KEY = re.compile(r"[0-9a-f]{16}-[a-z]+")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a corpus folder; raise FolderError if it is not one."""
    path = folder / MANIFEST
    manifest = read_json(path, "a prepared corpus (see `bertworks prepare`)")
    if not isinstance(manifest, dict) or "tokens" not in manifest:
        raise FolderError(f"{path} is not the manifest of a prepared corpus; give a folder of `bertworks prepare`")
    try:
        _check_table(manifest, _MANIFEST_TYPES)
        for number, source in enumerate(manifest["sources"]):
            _check_table(source, _SOURCE_TYPES, f"source {number}: ")
        for shard in manifest["shards"]:
            _check_table(shard, _TEXT_SHARD_TYPES, "a shard: ")
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
        _check_table(tokens_manifest, _TOKENS_TYPES)
        _check_regions(tokens_manifest["splits"], "splits: ")
        weights = {
            Path(shard["file"]).stem: manifest["sources"][shard["source"]]["weight"] for shard in manifest["shards"]
        }
        for shard in tokens_manifest["shards"]:
            _check_table(shard, _TOKEN_SHARD_TYPES, "a shard: ")
            _check_regions(shard["regions"], f"the shard {shard['file']}: ")
            if weights.get(Path(shard["file"]).stem) != shard["weight"]:
                raise ValueError(f"the shard {shard['file']} has another weight than its source, or no text")
        _check_distinct([shard["file"] for shard in tokens_manifest["shards"]])
        _check_totals(tokens_manifest)
    except ValueError as error:
        raise FolderError(_invalid(path, error)) from None
    valid: dict[str, Any] = tokens_manifest
    return valid


_Count = Annotated[int, Condition("an integer of at least 0", lambda value: 0 <= value < 2**63)]
_Weight = Annotated[float, Condition("a number above 0", lambda value: math.isfinite(value) and value > 0)]
_Sha256 = Annotated[str, Condition("64 hexadecimal digits", is_digest)]
_TokensKey = Annotated[
    str, Condition("a name such as 0123456789abcdef-jieba", lambda value: _TOKENS_KEY.fullmatch(value) is not None)
]
_TextFile = Annotated[
    str,
    Condition(
        "a file of the folder text",
        lambda value: is_file_name(value) and value.startswith("text/") and value.endswith(".jsonl"),
    ),
]
_TokensFile = Annotated[
    str,
    Condition(
        "a file of this folder",
        lambda value: is_file_name(value) and "/" not in value and value.endswith(".safetensors"),
    ),
]
_Table = dict[str, Any]
_Tables = tuple[_Table, ...]
_Counts = dict[str, _Count]
# The type of each key that must be there; others may be.
_MANIFEST_TYPES: dict[str, Any] = {
    "sources": _Tables,
    "counts": _Counts,
    "documents": _Count,
    "sentences": _Count,
    "characters": _Count,
    "shards": _Tables,
    "tokens": tuple[_TokensKey, ...],
}
_SOURCE_TYPES: dict[str, Any] = {"path": str, "weight": _Weight}
_TEXT_SHARD_TYPES: dict[str, Any] = {
    "file": _TextFile,
    "sha256": _Sha256,
    "source": _Count,
    "documents": _Count,
    "sentences": _Count,
    "characters": _Count,
}
_TOKENS_TYPES: dict[str, Any] = {
    "vocabulary": str,
    "size": _Count,
    "counts": _Counts,
    "splits": _Table,
    "shards": _Tables,
}
_TOKEN_SHARD_TYPES: dict[str, Any] = {"file": _TokensFile, "sha256": _Sha256, "weight": _Weight, "regions": _Table}


def _check_table(table: Any, types: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ValueError for the first key of `types` that a table lacks or that has a value of another type."""
    if not isinstance(table, dict):
        raise ValueError(f"{prefix}it should hold an object, but holds a {type(table).__name__}")
    for name, kind in types.items():
        if name not in table:
            raise ValueError(f"{prefix}'{name}' is missing")
        try:
            convert_value(kind, table[name], f"{prefix}'{name}'")
        except SettingsError as error:
            raise ValueError(str(error)) from None


def _check_regions(splits: Any, prefix: str) -> None:
    """Raise ValueError unless `splits` has every split, region and count, and no sentence without a token."""
    _check_table(splits, dict.fromkeys(SPLITS, _Table), prefix)
    for split in SPLITS:
        _check_table(splits[split], dict.fromkeys(REGIONS, _Table), f"{prefix}{split}: ")
        for region in REGIONS:
            where, counts = f"{prefix}{split}, {region}: ", splits[split][region]
            _check_table(counts, dict.fromkeys(_REGION_COUNTS, _Count), where)
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
