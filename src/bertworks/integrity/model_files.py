"""The files of a model folder: metadata in, a bertworks.json with the hashes of all files out; a folder in, its
metadata out, or an error that names the file that is not as it was written.

bertworks.json has the hashes under "files", and one of its own content under "content_sha256". A folder without them,
older or foreign, is not checked. Files that nobody computes with, such as README.md, may change.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.disk import read_json, staged_folder, write_json
from bertworks.errors import FolderError
from bertworks.integrity.hashing import (
    CHANGED,
    MISSING,
    UNREADABLE,
    FileHash,
    FileProblem,
    find_problems,
    hash_file,
    is_digest,
    is_file_name,
)
from bertworks.progress import ProgressCallback, ignore_progress

METADATA_FILE = "bertworks.json"
_FILES, _CONTENT_HASH = "files", "content_sha256"
# Recorded, but free to change.
_DOCUMENTS = ("*.md", "LICENSE*", "NOTICE*")
# Not downloaded from the hub, and checked only if they exist.
_OPTIONAL = ("certificate.json",)
# What is read of a folder if it is there, and changes results: such a file must be one of those recorded.
_READ = ("*.json", "*.model", "vocab.txt", "merges.txt")
# Files that people edit; everything else is written by programs only.
_TEXT_SUFFIXES = (".json", ".txt")
# Control characters, which no text file of a model has.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NOT_RECORDED = "it is not recorded"
_COPY_AGAIN = "copy or download the model again"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The content of bertworks.json: the metadata without hashes, and the recorded hashes; none in an old folder."""

    metadata: dict[str, Any]
    hashes: Mapping[str, FileHash]
    is_changed: bool = False  # bertworks.json itself


@contextlib.contextmanager
def staged_model_folder(path: Path) -> Iterator[Path]:
    """Like `staged_folder`; the files of a model that was there do not stay: they would be read as this one's."""
    try:
        recorded = {name.partition("/")[0] for name in _read(path).hashes if not _is_document(name)}
    except FolderError:  # damaged, and replaced now
        recorded = set()
    with staged_folder(path, recorded) as staged:
        yield staged


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write bertworks.json: `metadata`, the hashes of all other files of the folder, and that of its own content."""
    _write(folder, metadata, {name: hash_file(folder / name) for name in _file_names(folder)})


def check_model_files(folder: Path, names: Collection[str] | None = None) -> dict[str, Any]:
    """Compare the files of a model folder, or only those in `names`, with their hashes; return its metadata.

    The metadata is that of bertworks.json without the hashes; it is empty if there is no such file.
    """
    files = _read(folder)
    if files.is_changed:
        raise FolderError(_by_hand_message(folder, [METADATA_FILE]))
    hashes = {name: expected for name, expected in files.hashes.items() if names is None or name in names}
    added = [problem for problem in _added_files(folder, files.hashes) if names is None or problem.name in names]
    problems = [*_find_problems(folder, hashes), *added]
    _raise_problems(folder, [problem for problem in problems if not _is_document(problem.name)])
    return files.metadata


def is_as_written(folder: Path, name: str) -> bool:
    """Whether a file of a model folder is absent, or the one that was written with the model."""
    if not (folder / name).exists():
        return True
    hashes = _read(folder).hashes
    return name in hashes and not find_problems(folder, {name: hashes[name]}, use_memory=False)


def accept_changes(folder: Path) -> list[str]:
    """Record new hashes for files that were changed by hand; return their names. A damaged file is refused.

    A folder without hashes gets those of all its files.
    """
    files = _read(folder)
    if not files.hashes:
        write_metadata(folder, files.metadata)
        return [*_file_names(folder)]
    added = _added_files(folder, files.hashes)
    problems = [*_find_problems(folder, files.hashes, use_memory=False), *added]
    _raise_problems(folder, [problem for problem in problems if not _is_by_hand(folder, problem)])
    missing = {problem.name for problem in problems if problem.kind == MISSING}
    names = {*files.hashes, *(problem.name for problem in added)} - missing
    _write(folder, files.metadata, {name: hash_file(folder / name) for name in sorted(names)})
    return [METADATA_FILE] * files.is_changed + [problem.name for problem in problems]


def verify_model_files(folder: Path, watch: ProgressCallback = ignore_progress) -> int:
    """Hash every recorded file of a folder, whether remembered or not; return their number, 0 without hashes."""
    files = _read(folder)
    if files.is_changed:
        raise FolderError(_by_hand_message(folder, [METADATA_FILE]))
    problems = _find_problems(folder, files.hashes, use_memory=False, watch=watch)
    problems += _added_files(folder, files.hashes)
    _raise_problems(folder, [problem for problem in problems if not _is_document(problem.name)])
    return len(files.hashes)


def _read(folder: Path) -> ModelFiles:
    path = folder / METADATA_FILE
    if not path.is_file():
        return ModelFiles({}, {})
    content = read_json(path, "a model folder")
    if not isinstance(content, dict):
        raise FolderError(f"{path} should hold a JSON object, but holds a {type(content).__name__}; {_COPY_AGAIN}")
    metadata = {key: value for key, value in content.items() if key not in (_FILES, _CONTENT_HASH)}
    if metadata.keys() == content.keys():
        return ModelFiles(metadata, {})
    recorded = content.pop(_CONTENT_HASH, None)
    if not is_digest(recorded) or recorded != _content_hash(content):
        return ModelFiles(metadata, _parse_hashes(path, content.get(_FILES, {})), is_changed=True)
    return ModelFiles(metadata, _parse_hashes(path, content[_FILES]))


def _parse_hashes(path: Path, entries: Any) -> dict[str, FileHash]:
    hashes = {}
    for name, entry in entries.items() if isinstance(entries, dict) else [("", None)]:
        try:
            if not is_file_name(name):
                raise ValueError("it is no name of a file of this folder")
            hashes[name] = FileHash.from_json(entry)
        except ValueError as error:
            raise FolderError(f"{path}: '{_FILES}' has an invalid entry '{name}': {error}; {_COPY_AGAIN}") from None
    return hashes


def _write(folder: Path, metadata: Mapping[str, Any], hashes: Mapping[str, FileHash]) -> None:
    content = {**metadata, _FILES: {name: expected.to_json() for name, expected in hashes.items()}}
    write_json(folder / METADATA_FILE, {**content, _CONTENT_HASH: _content_hash(content)})


def _content_hash(content: Mapping[str, Any]) -> str:
    """Return the hash of JSON values, whatever the order of keys and the white space in the file."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the files of a folder besides bertworks.json and hidden ones, in order."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != METADATA_FILE and not any(part.startswith(".") for part in name.split("/")):
            yield name


def _find_problems(
    folder: Path,
    hashes: Mapping[str, FileHash],
    use_memory: bool = True,
    watch: ProgressCallback = ignore_progress,
) -> list[FileProblem]:
    problems = find_problems(folder, hashes, use_memory, watch)
    return [problem for problem in problems if not (problem.kind == MISSING and _is_optional(problem.name))]


def _added_files(folder: Path, hashes: Mapping[str, FileHash]) -> list[FileProblem]:
    """Return the files of a folder with hashes that are read and not recorded."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file()) if hashes else []
    return [
        FileProblem(name, CHANGED, _NOT_RECORDED)
        for name in names
        if name != METADATA_FILE
        and name not in hashes
        and not _is_optional(name)
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in _READ)
    ]


def _raise_problems(folder: Path, problems: Sequence[FileProblem]) -> None:
    """Raise the error of the worst problem, or one that names all files that were changed by hand."""
    if not problems:
        return
    worst = next((problem for problem in problems if not _is_by_hand(folder, problem)), None)
    if worst is None:
        raise FolderError(_by_hand_message(folder, [problem.name for problem in problems]))
    path = folder / worst.name
    if worst.kind == UNREADABLE:
        raise FolderError(f"{path} cannot be read: {worst.detail}")
    if worst.kind == MISSING:
        raise FolderError(f"{folder} lacks {worst.name}, which its {METADATA_FILE} lists; {_COPY_AGAIN}")
    raise FolderError(
        f"{path} is damaged: its sha256 is not the one in {METADATA_FILE}; {_COPY_AGAIN}, or, if another program wrote "
        f"the file on purpose, remove '{_FILES}' and '{_CONTENT_HASH}' from {METADATA_FILE}"
    )


def _by_hand_message(folder: Path, names: Sequence[str]) -> str:
    verb = "was" if len(names) == 1 else "were"
    return (
        f"{folder}: {', '.join(names)} {verb} changed, added or removed after the model was written, probably by hand; "
        f"if that was you, accept it with `bertworks verify --accept {folder}`, else {_COPY_AGAIN}"
    )


def _is_by_hand(folder: Path, problem: FileProblem) -> bool:
    """Whether a person may have changed or removed a file: it is one that people edit, and still well-formed."""
    if _is_document(problem.name) or problem.detail == _NOT_RECORDED:
        return True
    if not problem.name.endswith(_TEXT_SUFFIXES) or problem.kind == UNREADABLE:
        return False
    return problem.kind == MISSING or (problem.kind == CHANGED and _is_well_formed(folder / problem.name))


def _is_well_formed(path: Path) -> bool:
    try:
        text = path.read_bytes().decode()
        if path.suffix == ".json":
            json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    return bool(text) and _CONTROL.search(text) is None


def _is_document(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.rpartition("/")[2], pattern) for pattern in _DOCUMENTS)


def _is_optional(name: str) -> bool:
    return name in _OPTIONAL or _is_document(name)
