"""Run the command line inside the test process: arguments in, exit code and output out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bertworks.cli import main


@dataclass(frozen=True)
class CommandResult:
    returncode: object
    stdout: str
    stderr: str


RunCommand = Callable[..., CommandResult]


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run `bertworks` with these arguments and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["bertworks", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code
