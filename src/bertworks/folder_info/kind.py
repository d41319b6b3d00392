"""The contract of a kind of folder: a path in, whether it is of that kind, and a FolderInfo out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertworks.disk import read_json
from bertworks.folder_lock import LockHolder

FINISHED, UNFINISHED, DAMAGED = "finished", "unfinished", "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderInfo:
    """What is known of a folder.

    kind          what it is: one of the names in `registry.KINDS`
    command       the command that wrote it; empty for a folder of others
    version       the version of bertworks that wrote it; empty if the folder does not record it
    facts         sizes, languages, task, scores, … by name, in the order in which they are shown
    state         FINISHED, UNFINISHED or DAMAGED
    problem       what is damaged, in one sentence
    holder        the process that is writing to it now
    next_command  what one would type next
    """

    folder: Path
    kind: str
    command: str = ""
    version: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    state: str = FINISHED
    problem: str = ""
    holder: LockHolder | None = None
    next_command: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return asdict(self) | {"folder": str(self.folder), "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder: its name, a cheap test of the files that only it has, and what reads its facts."""

    name: str
    matches: Callable[[Path], bool]
    describe: Callable[[Path], FolderInfo]


def read_object(path: Path, description: str) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no such file or it holds something else."""
    content = read_json(path, description) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are known: without None, empty texts, lists and tables."""
    return {name: value for name, value in facts.items() if value not in (None, "", [], (), {})}


def total_bytes(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
