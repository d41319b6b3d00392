"""The bundle.json of a bundle in, its content out; values that are read have a known type, names stay in the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bertworks.disk import read_json
from bertworks.errors import FolderError, SettingsError, show_value
from bertworks.reading import check_path
from bertworks.settings import convert_value

BUNDLE = "bundle.json"
CORPUS = "corpus"  # folder of the corpus in a bundle
FORMAT = 1

_TYPES: Mapping[str, Any] = {
    "files": dict[str, str],
    "models": dict[str, dict[str, Any]],
    "chain": tuple[dict[str, Any], ...],
    "corpus": dict[str, Any] | None,
    "index": dict[str, Any] | None,
}


def read_bundle_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of bundle.json; refuse one of another format, or with values of other types."""
    path = folder / BUNDLE
    manifest = read_json(path, "a bundle (see `bertworks bundle`)")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FolderError(f"{path} does not have format {FORMAT}; build the bundle again")
    missing = [name for name in _TYPES if name not in manifest]
    if missing:
        raise FolderError(f"{path} lacks {', '.join(missing)}; build the bundle again")
    try:
        for name, kind in _TYPES.items():
            convert_value(kind, manifest[name], f"{path}, {name}")
        for name, entry in {**manifest["models"], "corpus": manifest["corpus"]}.items():
            if entry is not None:
                convert_value(str, entry.get("sha256"), f"{path}, {name}, sha256")
        if manifest["index"] is not None:
            convert_value(str, manifest["index"].get("model"), f"{path}, index, model")
    except SettingsError as error:
        raise FolderError(f"{error}; build the bundle again") from None
    for name in (*manifest["files"], *(f"models/{name}" for name in manifest["models"])):
        _check_inside(folder, name)
    return manifest


def _check_inside(folder: Path, name: str) -> None:
    check_path(folder / name)
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise FolderError(f"{folder / BUNDLE} names {show_value(name)}, which is outside of its folder; build it again")
