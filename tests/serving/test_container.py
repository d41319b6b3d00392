"""The Containerfile: it runs `bertworks serve` with existing options, not as root, and has a health check."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer

from bertworks.cli import serve

LINES = (Path(__file__).parents[2] / "Containerfile").read_text().replace("\\\n", " ").splitlines()


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


def test_the_health_check_requests_readiness():
    command = re.sub(r".*CMD", "", last_value("HEALTHCHECK"))
    assert "http://127.0.0.1:8000/ready" in json.loads(command)[-1]
    assert last_value("EXPOSE") == "8000"
