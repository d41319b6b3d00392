"""A command that is killed again and again: a command and random moments in, whether it comes to the same bytes out."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from campaign_commands import CampaignCommand
from comparable import comparable_files, differences
from process_tree import TIMEOUT, ProcessTree

# How soon after the first file or folder appears a third of the kills comes.
FIRST_SECONDS = 0.03
MAX_KILLS_PER_TRY = 3
PAGE_BYTES = 4_096
SAME, DIFFERENT, STUCK = "same bytes", "other bytes", "stuck"


@dataclass(frozen=True, slots=True)
class Reference:
    """An uninterrupted run: its files, their size, the seconds until it first wrote something and until its end."""

    files: dict[str, str]
    num_bytes: int  # of its files, in pages of a disk
    first_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: so many seconds after the start, or after the first file or folder appears."""

    seconds: float
    is_after_first_write: bool


@dataclass(frozen=True, slots=True)
class KilledTry:
    """What came of a command that was killed so many times and then run to its end."""

    num_kills: int
    outcome: str
    note: str = ""


def run_uninterrupted(command: CampaignCommand, folder: Path) -> Reference:
    """Run a command in a new folder to its end. All runs that are compared have the same folder: records name it."""
    folder.mkdir()
    log = folder.with_suffix(".log")
    started = time.monotonic()
    with ProcessTree(command.command, folder, log, command.environment) as tree:
        _wait_for_first_write(tree, folder)
        first = time.monotonic()
        exit_code = tree.wait()
    assert exit_code == 0, log.read_text(errors="replace")[-2_000:]
    seconds = time.monotonic() - started
    reference = Reference(comparable_files(folder), _num_bytes(folder), first - started, seconds)
    shutil.rmtree(folder)
    return reference


def draw_moment(rng: random.Random, reference: Reference) -> Moment:
    """Draw a moment: a third in the first milliseconds of writing, half later, the others at any time."""
    kind = rng.random()
    if kind < 1 / 3:
        return Moment(rng.uniform(0, FIRST_SECONDS), is_after_first_write=True)
    if kind < 5 / 6:
        return Moment(rng.uniform(0, reference.seconds - reference.first_seconds), is_after_first_write=True)
    return Moment(rng.uniform(0, reference.seconds), is_after_first_write=False)


def run_killed(
    command: CampaignCommand, folder: Path, moments: list[Moment], reference: Reference
) -> KilledTry:  # fmt: skip
    """Kill a command at each moment, unless it ends before; run it to its end, and compare its files."""
    folder.mkdir()
    log, num_kills = folder.with_suffix(".log"), 0
    for moment in moments:
        with ProcessTree(command.command, folder, log, command.environment) as tree:
            if moment.is_after_first_write:
                _wait_for_first_write(tree, folder)
            deadline = time.monotonic() + moment.seconds
            while tree.is_running and (remaining := deadline - time.monotonic()) > 0:
                time.sleep(min(remaining, 0.01))
            num_kills += tree.is_running
    with ProcessTree(command.command, folder, log, command.environment) as tree:
        exit_code = tree.wait()
    different = differences(comparable_files(folder), reference.files)
    shutil.rmtree(folder)
    if not different:
        return KilledTry(num_kills, SAME)
    last_lines = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
    note = f"killed at {moments}: exit code {exit_code}, {'; '.join(different[:5])}: {last_lines}"
    return KilledTry(max(num_kills, 1), DIFFERENT if exit_code == 0 else STUCK, note)


def _num_bytes(folder: Path) -> int:
    return sum((path.stat().st_size // PAGE_BYTES + 1) * PAGE_BYTES for path in folder.rglob("*"))


def _wait_for_first_write(tree: ProcessTree, folder: Path) -> None:
    """Wait until the command has written something that was not there before, or has ended."""
    before = _entries(folder)
    deadline = time.monotonic() + TIMEOUT
    while tree.is_running and _entries(folder) == before:
        assert time.monotonic() < deadline, f"nothing is written to {folder}"
        time.sleep(0.0005)


def _entries(folder: Path) -> set[tuple[str, int]]:
    """Return the names in a folder and in its folders, with their inodes: a lock file is a new one in each process."""
    entries = set()
    for parent in (folder, folder / "out"):
        if parent.is_dir():
            entries |= {(entry.name, entry.inode()) for entry in os.scandir(parent)}
    return entries
