"""The Containerfile: `bertworks serve` with existing options, not as root, on a read-only disk, with a health check.

`make soak` builds and runs it where an engine answers.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import typer
from small_models import TASKS, write_finetuned

from bertworks.cli import serve
from bertworks.serving.bundle import BundleRequest, bundle

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Containerfile").read_text().replace("\\\n#", " ").replace("\\\n", " ").splitlines()


def last_value(instruction: str) -> str:
    """Return the arguments of the last line with an instruction."""
    return next(line for line in reversed(LINES) if line.startswith(instruction)).removeprefix(instruction).strip()


def test_the_container_serves_with_existing_options():
    assert json.loads(last_value("ENTRYPOINT")) == ["bertworks", "serve"]
    arguments = json.loads(last_value("CMD"))
    options = {name for parameter in typer.main.get_command(serve.app).params for name in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} == {"--host", "--api-key-file"} <= options


def test_the_container_does_not_run_as_root():
    assert int(last_value("USER")) > 0
    assert [line for line in LINES if line.startswith("RUN")][-1] in LINES[: LINES.index(f"USER {last_value('USER')}")]


def health_check() -> str:
    """Return the Python code of the health check."""
    code: str = json.loads(re.sub(r".*CMD", "", last_value("HEALTHCHECK")))[-1]
    return code


def test_the_health_check_requests_readiness():
    assert "http://127.0.0.1:8000/ready" in health_check()
    assert last_value("EXPOSE") == "8000"


def run_arguments() -> list[str]:
    """Return the arguments of the command that the file documents, without the engine."""
    line = next(line for line in LINES if line.startswith("#   podman run"))
    return shlex.split(line.removeprefix("#   podman "))


def test_the_documented_command_runs_on_a_read_only_disk_without_privileges():
    arguments = run_arguments()
    assert {"--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"} <= set(arguments)
    assert arguments[arguments.index("--tmpfs") + 1] == "/tmp"  # the only place that can be written
    volumes = [arguments[index + 1] for index, argument in enumerate(arguments) if argument == "-v"]
    assert len(volumes) == 2
    assert all(volume.endswith(":ro") for volume in volumes)


def test_the_user_of_the_container_has_neither_a_home_nor_a_shell():
    (line,) = [line for line in LINES if "useradd" in line]
    assert "--no-create-home" in line
    assert "--shell /usr/sbin/nologin" in line


def find_engine() -> str | None:
    """Return an engine that answers: the command alone is not enough."""
    for engine in ("podman", "docker"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True, timeout=60).returncode == 0:
            return engine
    return None


@pytest.mark.soak
def test_the_image_serves_a_bundle_where_an_engine_is_found(tmp_path: Path):
    engine = find_engine()
    if engine is None:
        return  # the file is checked above
    write_finetuned(tmp_path / "model", TASKS["classify"])
    bundle(BundleRequest(runs=(f"films={tmp_path / 'model'}",), output=tmp_path / "bundle"))
    (tmp_path / "keys").write_text("a-key-of-the-test\n")
    subprocess.run([engine, "build", "-t", "bertworks", "-f", "Containerfile", "."], cwd=ROOT, check=True)
    arguments = [argument.replace("./", f"{tmp_path}/") for argument in run_arguments()]
    container = subprocess.run(
        [engine, arguments[0], "--detach", *arguments[1:]], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        for _ in range(60):
            health = subprocess.run([engine, "exec", container, "python", "-c", health_check()], capture_output=True)
            if health.returncode == 0:
                break
            time.sleep(2)
        assert health.returncode == 0
        user = subprocess.run([engine, "exec", container, "id", "-u"], capture_output=True, text=True, check=True)
        assert user.stdout.strip() == last_value("USER")
        written = subprocess.run([engine, "exec", container, "touch", "/opt/bertworks/x"], capture_output=True)
        assert written.returncode != 0
    finally:
        subprocess.run([engine, "rm", "--force", container], capture_output=True, check=True)
