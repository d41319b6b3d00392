"""Do the packages of a release install? The wheels of dist/ in, one line for each check and an exit code out.

`make release` runs it: python release/check_packages.py dist. Each wheel is installed with its locked requirements
into an environment of its own, where its command and its first imports run; pip resolves each extra. Nothing of the
environment that runs this is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What has to run in a new environment: of bertworks what trains, of bertworks-run what serves, without PyTorch.
_IMPORTS = {
    "bertworks": "import bertworks, bertworks.api, bertworks.commands.pretrain.run, bertworks.commands.finetune.run",
    "bertworks-run": "import sys, bertworks.inference.model, bertworks.serving.app; sys.exit('torch' in sys.modules)",
}
_LOCKS = {"bertworks": "requirements.lock", "bertworks-run": "requirements-run.lock"}


def main(folder: Path) -> int:
    """Check every wheel of a folder, print the results, and return the exit code."""
    wheels = sorted(folder.resolve().glob("*.whl"))  # commands run in another folder
    if not wheels:
        print(f"release: no wheel in {folder}; build them with release/build_packages.py", file=sys.stderr)
        return 2
    return max([check_wheel(wheel) for wheel in wheels])


def check_wheel(wheel: Path) -> int:
    """Install a wheel into a new environment, run it, and resolve its extras; return the exit code."""
    name, extras = read_metadata(wheel)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        checks = {
            "locked requirements": [*_pip(python), "--require-hashes", "-r", str(wheel.parent / _LOCKS[name])],
            "wheel": [*_pip(python), "--no-deps", str(wheel)],
            "requirements are complete": [str(python), "-m", "pip", "check"],
            "command": [str(python.with_name("bertworks")), "--version"],
            "imports": [str(python), "-c", _IMPORTS[name]],
        }
        for extra in extras:
            checks[f"extra {extra}"] = [*_pip(python), "--dry-run", f"{wheel}[{extra}]"]
        return max([_run(f"{wheel.name}: {title}", command, folder) for title, command in checks.items()])


def read_metadata(wheel: Path) -> tuple[str, list[str]]:
    """Return the name of the distribution in a wheel, and its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(path).decode())
    return str(fields["Name"]), [str(extra) for extra in fields.get_all("Provides-Extra", [])]


def _pip(python: Path) -> list[str]:
    options = ["--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    return [str(python), "-m", "pip", "install", *options]


def _run(title: str, command: list[str], folder: str) -> int:
    """Run a command outside of the checkout, print whether it succeeded, and return 0 or 1."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        print(f"{title}: ok", flush=True)
        return 0
    reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
    print(f"{title}: failed ({reason})", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
