"""The Containerfile: it runs our own command with options that there are, as nobody special, and asks how it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer

from bertworks.cli import serve

LINES = (Path(__file__).parents[2] / "Containerfile").read_text().replace("\\\n", " ").splitlines()


def last(word: str) -> str:
    """Return what stands behind the last line that begins with a word."""
    return next(line for line in reversed(LINES) if line.startswith(word)).removeprefix(word).strip()


def test_a_container_serves_a_bundle_with_options_that_there_are():
    assert json.loads(last("ENTRYPOINT")) == ["bertworks", "serve"]
    arguments = json.loads(last("CMD"))
    known = {name for one in typer.main.get_command(serve.app).params for name in one.opts}
    assert {one for one in arguments if one.startswith("--")} == {"--host", "--api-key-file"} <= known


def test_a_container_does_not_run_as_root():
    assert int(last("USER")) > 0
    assert [line for line in LINES if line.startswith("RUN")][-1] in LINES[: LINES.index(f"USER {last('USER')}")]


def test_a_container_is_asked_whether_it_takes_requests():
    check = re.sub(r".*CMD", "", last("HEALTHCHECK"))
    assert "http://127.0.0.1:8000/ready" in json.loads(check)[-1]
    assert last("EXPOSE") == "8000"
