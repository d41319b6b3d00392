"""The command line as a fixture."""

from pathlib import Path

import pytest
from command_line import CommandResult, RunCommand, exit_code
from small_models import write_all


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs `bertworks` in this process: starting torch in a new one takes seconds."""

    def run(*arguments: str) -> CommandResult:
        return CommandResult(exit_code(monkeypatch, *arguments), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a model for each task, a pretrained model and a sentence embedding model."""
    return write_all(tmp_path_factory.mktemp("served"))
