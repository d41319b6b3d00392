"""The wheels and sdists of bertworks and bertworks-run: the source in, the same bytes every time out.

`make release` runs it: python release/build_packages.py dist. The packages are built twice, and a difference is
an error. Times in them are that of the last commit (or SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The folder of each distribution's pyproject.toml: bertworks and bertworks-run, whose source is a link to the same.
PROJECTS = (ROOT, ROOT / "run")
_CONTENT = ("src", "pyproject.toml", "README.md", "LICENSE")


def main(output: Path) -> int:
    """Build all packages, check that a second build is the same, and return the exit code."""
    timestamp = source_date()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        digests = [build(Path(folder), timestamp) for folder in (first, second)]
        if digests[0] != digests[1]:
            names = [name for name in digests[0] if digests[0][name] != digests[1].get(name)]
            print(f"release: two builds differ in {', '.join(names)}", file=sys.stderr)
            return 1
        output.mkdir(parents=True, exist_ok=True)
        for name, digest in digests[0].items():
            shutil.copy(Path(first) / name, output / name)
            print(f"{digest}  {output / name}")
    return 0


def source_date() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the last commit."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def build(output: Path, timestamp: int) -> dict[str, str]:
    """Build the packages of a copy of each project; return the sha256 of each."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(timestamp)}
    for project in PROJECTS:
        with tempfile.TemporaryDirectory() as copy:  # a build leaves files that the next one would read
            copy_project(project, Path(copy))
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), copy]
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    for path in output.glob("*.tar.gz"):
        path.write_bytes(reproducible_archive(path.read_bytes(), timestamp))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(output.iterdir())}


def copy_project(project: Path, target: Path) -> None:
    """Copy what a distribution is built from; links become what they name."""
    for name in _CONTENT:
        if (project / name).is_dir():
            shutil.copytree(project / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(project / name, target)


def reproducible_archive(archive: bytes, timestamp: int) -> bytes:
    """Return a .tar.gz with the same files in the order of their names, with one time and without an owner."""
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=timestamp) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, timestamp
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            target.addfile(plain, source.extractfile(member) if member.isfile() else None)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
