"""Hashes of the core dependencies: constraints.txt in, requirements with a sha256 each out, for this platform.

`make lock` runs it, for bertworks and for bertworks-run. pip resolves what `pip install bertworks` would install;
nothing is installed.

    python release/lock.py pyproject.toml dist/requirements.lock
    pip install --require-hashes -r dist/requirements.lock && pip install --no-deps bertworks
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LOCKED = re.compile(r"(?P<name>\S+)==(?P<version>\S+) --hash=sha256:(?P<digest>[0-9a-f]{64})")


def lock(project: Path, output: Path) -> int:
    """Write the requirements of a pyproject.toml with their hashes; return the exit code."""
    options = ["--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options, "--constraint", str(ROOT / "constraints.txt")]
    result = subprocess.run([*command, *core_requirements(project)], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"lock: pip could not resolve the dependencies ({reason}); check the network", file=sys.stderr)
        return 2
    lines = locked_lines(json.loads(result.stdout)["install"])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("# Written by `make lock`, for this platform and index.\n" + "\n".join(lines) + "\n")
    print(f"{output}: {len(lines)} packages")
    return 0


def core_requirements(project: Path) -> list[str]:
    """Return the dependencies of a pyproject.toml without extras."""
    dependencies: list[str] = tomllib.loads(project.read_text())["project"]["dependencies"]
    return dependencies


def locked_lines(installs: list[dict[str, Any]]) -> list[str]:
    """Return a requirement with its hash for each package of a report of pip, sorted by name."""
    lines = []
    for install in installs:
        name, version = install["metadata"]["name"], install["metadata"]["version"]
        digest = install["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(lines, key=str.lower)


def read_lock(path: Path) -> list[tuple[str, str, str]]:
    """Return the name, version and sha256 of each locked package."""
    matches = map(_LOCKED.fullmatch, path.read_text().splitlines())
    return [(match["name"], match["version"], match["digest"]) for match in matches if match]


if __name__ == "__main__":
    sys.exit(lock(Path(sys.argv[1]), Path(sys.argv[2])))
