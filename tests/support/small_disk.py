"""A command on a disk that is full: a command and a size in; its exit code there, and once there is space, out.

The disk is a tmpfs in a mount namespace of its own, which nobody else sees and which ends with the command.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from campaign_commands import CampaignCommand
from process_tree import ProcessTree

# Run on a disk of $1 bytes at $2, then with space; write both exit codes and messages, and copy the files to $3.
_SCRIPT = """
set -u
size=$1 disk=$2 results=$3
shift 3
mount -t tmpfs -o size=$size tmpfs "$disk" || exit 99
cd "$disk"
"$@" > "$results/full.out" 2>&1
echo $? > "$results/full.code"
mount -o remount,size=1g "$disk"
"$@" > "$results/free.out" 2>&1
echo $? > "$results/free.code"
cp -a "$disk" "$results/files"
"""
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


@dataclass(frozen=True, slots=True)
class DiskResults:
    """Exit code and output on the full disk, and with space; the folder with the files in the end."""

    full_code: int
    full_output: str
    free_code: int
    free_output: str
    files: Path


def can_mount() -> bool:
    """Return whether this user may mount a tmpfs in a namespace."""
    command = [*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


def run_on_small_disk(command: CampaignCommand, folder: Path, size: int) -> DiskResults:
    """Run a command on a new disk of this many bytes at `disk` in a folder, then again with space."""
    disk, results = folder / "disk", folder / "results"
    for path in (disk, results):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    script = ["sh", "-c", _SCRIPT, "sh", str(size), str(disk), str(results), *command.command]
    with ProcessTree([*_NAMESPACE, *script], folder, folder / "log", command.environment) as tree:
        exit_code = tree.wait()
    assert exit_code == 0, (folder / "log").read_text(errors="replace")
    codes = [int((results / f"{name}.code").read_text()) for name in ("full", "free")]
    outputs = [(results / f"{name}.out").read_text(errors="replace").strip() for name in ("full", "free")]
    return DiskResults(codes[0], outputs[0], codes[1], outputs[1], results / "files")
