"""The Containerfile: `bertworks serve` with existing options, not as root, on a read-only disk, with a health check.

`make soak` builds and runs it where an engine answers, and says so where none does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import typer
from campaign import Campaigns
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


def documented_arguments(command: str) -> list[str]:
    """Return the arguments of a command that the file documents, without the engine."""
    match = re.search(rf"podman ({command} [^`]*?)(`|$)", "\n".join(LINES), re.MULTILINE)
    assert match is not None
    return shlex.split(match[1])


def test_the_documented_command_runs_on_a_read_only_disk_without_privileges():
    arguments = documented_arguments("run")
    assert {"--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"} <= set(arguments)
    assert arguments[arguments.index("--tmpfs") + 1] == "/tmp"  # the only place that can be written
    volumes = [arguments[index + 1] for index, argument in enumerate(arguments) if argument == "-v"]
    assert len(volumes) == 2
    assert all(volume.endswith(":ro") for volume in volumes)


def test_the_documented_build_keeps_the_health_check():
    assert documented_arguments("build") == ["build", "--format", "docker", "-t", "bertworks", "."]


def test_the_user_of_the_container_has_neither_a_home_nor_a_shell():
    (line,) = [line for line in LINES if "useradd" in line]
    assert "--no-create-home" in line
    assert "--shell /usr/sbin/nologin" in line


ENGINES = ("podman", "docker", "buildah")


def answers(engine: str) -> bool:
    """Return whether an engine is there and works: the command alone is not enough."""
    if shutil.which(engine) is None:
        return False
    return subprocess.run([engine, "info"], capture_output=True, timeout=60).returncode == 0


def test_an_engine_must_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert not answers("an-engine-that-nobody-has")
    for name, exit_code in (("working", 0), ("without-a-daemon", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {exit_code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert answers("working")
    assert not answers("without-a-daemon")


BUILT, RUN, FAILED = "built", "built and run", "failed"


def build_arguments(engine: str) -> list[str]:
    """Return the documented arguments for an engine: docker has one format only, and another name for the file."""
    command, *arguments = documented_arguments("build")
    if engine == "docker":
        arguments = [argument for argument in arguments if argument not in ("--format", "docker")]
    return ["bud" if engine == "buildah" else command, "-f", "Containerfile", *arguments]


@pytest.mark.soak
def test_the_image_serves_a_bundle_where_an_engine_is_found(tmp_path: Path, campaigns: Campaigns):
    campaign = campaigns.start("container", 1)
    engine = next(filter(answers, ENGINES), None)
    if engine is None:
        message = f"not run: none of {', '.join(ENGINES)} is found and answers"
        warnings.warn(message, stacklevel=1)
        campaign.finish(good=(), bad=(), details=message)
        return
    try:
        subprocess.run([engine, *build_arguments(engine)], cwd=ROOT, check=True)
        if engine != "buildah":
            run_image(engine, tmp_path)
    except (AssertionError, subprocess.CalledProcessError, httpx.HTTPError) as error:
        campaign.add(FAILED, note=f"{error}: {getattr(error, 'stderr', None) or ''}")
    else:
        campaign.add(BUILT if engine == "buildah" else RUN)
    details = "not run: buildah runs no container read-only" if engine == "buildah" else f"by {engine}"
    campaign.finish(good=(BUILT, RUN), bad=(FAILED,), details=details)


def run_image(engine: str, folder: Path) -> None:
    """Run the image by the documented command: it answers those with a key, as its user, on a disk that it cannot
    write, and ends in order."""
    write_finetuned(folder / "model", TASKS["classify"])
    bundle(BundleRequest(runs=(f"films={folder / 'model'}",), output=folder / "bundle"))
    (folder / "keys").write_text("a-key-of-the-test\n")
    (folder / "keys").chmod(0o644)
    command, *arguments = (argument.replace("./", f"{folder}/") for argument in documented_arguments("run"))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([engine, *arguments], capture_output=True, text=True)

    started = call(command, "--detach", *arguments)
    started.check_returncode()
    container = started.stdout.strip()
    try:
        check_container(lambda *arguments: call("exec", container, *arguments))
        inspect = ("inspect", container, "--format")
        assert "/ready" in call(*inspect, "{{json .Config.Healthcheck}}").stdout
        call("stop", container)
        assert call(*inspect, "{{.State.ExitCode}}").stdout.strip() == "0"
        assert "all accepted requests were answered" in call("logs", container).stdout
    finally:
        call("rm", "--force", container).check_returncode()


def check_container(execute: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Check a container from inside, by `execute`, and the answers at its port."""
    for _ in range(60):
        health = execute("python", "-c", health_check())
        if health.returncode == 0:
            break
        time.sleep(2)
    assert health.returncode == 0, health.stderr
    assert execute("id", "-u").stdout.strip() == last_value("USER")
    for folder in ("", "/opt/bertworks", "/srv/bundle"):
        assert "Read-only" in execute("touch", f"{folder}/x").stderr
    url, body = "http://127.0.0.1:8000/v1/models/films/predict", {"inputs": ["the film was good ."]}
    assert httpx.post(url, json=body).status_code == 401
    response = httpx.post(url, json=body, headers={"Authorization": "Bearer a-key-of-the-test"})
    assert response.status_code == 200, response.text
