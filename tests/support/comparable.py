"""The comparable content of a folder: an output of a command in, a hash of each of its files without times out.

Two runs of one command may differ in nothing but this:

- members of JSON that are times or sizes of memory (`VOLATILE`), in records and manifests
- files for people to look at that show these times (`PAGES`), and TensorBoard's events, whose names are times
- in the manifest of a checkpoint, the hash of its state.json, which has the seconds so far
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOLATILE = ("seconds", "started", "finished", "minutes", "peak_gib")
PAGES = ("report.html", "compare.md")
EVENTS = "events"


def comparable_files(folder: Path) -> dict[str, str]:
    """Return the hash of each file below a folder, by its name; of pages and folders only that they are there."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if EVENTS in path.relative_to(folder).parts[:-1]:
            continue
        if path.is_dir() or path.name in PAGES:
            hashes[name] = "folder" if path.is_dir() else "page"
        else:
            hashes[name] = hashlib.sha256(comparable_bytes(path)).hexdigest()
    return hashes


def comparable_bytes(path: Path) -> bytes:
    """Return the content of a file; of JSON, without what may differ."""
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return b"\n".join(_without_times(path, line) for line in data.split(b"\n") if line)
    return _without_times(path, data) if path.suffix == ".json" else data


def _without_times(path: Path, data: bytes) -> bytes:
    value = json.loads(data)
    if path.parent.name.startswith("step-") and path.name == "manifest.json":
        value.pop("state.json", None)
    return json.dumps(_pruned(value)).encode()


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pruned(member) for key, member in value.items() if key not in VOLATILE}
    return [_pruned(member) for member in value] if isinstance(value, list) else value


def differences(files: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return a phrase for each file that is missing, added or different."""
    return [
        *(f"{name} is missing" for name in expected if name not in files),
        *(f"{name} should not be there" for name in files if name not in expected),
        *(f"{name} differs" for name in files if name in expected and files[name] != expected[name]),
    ]
