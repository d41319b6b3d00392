"""Known vulnerabilities of our dependencies: constraints.txt in, one line for each out; exit code 1 if there are any.

`make audit` runs it. Without pip-audit, or without a network, it says what is missing and exits with 2.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def audit(constraints: Path = CONSTRAINTS) -> int:
    """Look up every pinned version in the database of vulnerabilities, print what is found, return the exit code."""
    if importlib.util.find_spec("pip_audit") is None:
        print("audit: pip-audit is not installed; install it with: pip install 'bertworks[release]'", file=sys.stderr)
        return 2
    # The versions are pinned, so nothing is resolved or installed.
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        dependencies = json.loads(result.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"audit: the versions could not be looked up ({reason}); run it again with a network", file=sys.stderr)
        return 2
    skipped = [entry["name"] for entry in dependencies if "skip_reason" in entry]
    if len(skipped) == len(dependencies):
        print(
            "audit: none of the versions is in the database, or it cannot be reached; check the network",
            file=sys.stderr,
        )
        return 2
    found = describe(dependencies)
    names = f" ({', '.join(skipped)})" if skipped else ""
    print("\n".join(found), end="\n" if found else "")
    print(f"{len(dependencies)} packages: {len(found)} vulnerabilities, {len(skipped)} not looked up{names}")
    return 1 if found else 0


def describe(dependencies: list[dict[str, Any]]) -> list[str]:
    """Return one line for each vulnerability."""
    return [
        f"{entry['name']} {entry['version']}: vulnerability {vulnerability['id']}; fixed in "
        f"{', '.join(vulnerability.get('fix_versions', [])) or 'no version'}"
        for entry in dependencies
        for vulnerability in entry.get("vulns", [])
    ]


if __name__ == "__main__":
    sys.exit(audit())
