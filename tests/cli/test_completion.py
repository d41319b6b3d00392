"""Completion in a shell: commands, options and names, by the protocol of each shell."""

import os

import pytest
from command_line import RunCommand

from bertworks.choices import TASKS
from bertworks.tasks.registry import TASKS as TASK_TABLE


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, run_command: RunCommand):
    """Return a function that asks for the completions of a line in bash; its last word is the one to complete."""

    def complete_line(line: str) -> list[str]:
        monkeypatch.setenv("_BERTWORKS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        return run_command().stdout.split()

    return complete_line


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("bertworks pre", ["prepare", "pretrain", "predict"]),
        ("bertworks --vers", ["--version"]),
        ("bertworks pretrain --prec", ["--precision"]),
        ("bertworks vocab ex", ["extend"]),
        ("bertworks finetune cl", ["classify"]),
        ("bertworks finetune glue/MN", ["glue/MNLI"]),
        ("bertworks finetune tag --recipe tr", ["transformer"]),
        ("bertworks finetune tag --model zh", ["zh-small"]),
        ("bertworks pretrain half", ["half-hour"]),
        ("bertworks compare abl", ["ablations"]),
        ("bertworks fill-mask en-s", ["en-small"]),
        ("bertworks export m --to open", ["openvino"]),
        ("bertworks fill-mask ./mod", []),  # the shell completes paths
    ],
)
def test_names_are_completed(complete, line: str, names: list[str]):
    assert complete(line) == names


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_description_too(monkeypatch: pytest.MonkeyPatch, run_command: RunCommand, shell: str):
    monkeypatch.setenv("_BERTWORKS_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "bertworks exp")
    assert "certificate of parity" in run_command().stdout


@pytest.mark.parametrize(
    ("shell", "text"),
    [("bash", "complete -o default -F"), ("zsh", "#compdef bertworks"), ("fish", "complete --command bertworks")],
)
def test_every_shell_has_a_script(monkeypatch: pytest.MonkeyPatch, run_command: RunCommand, shell: str, text: str):
    monkeypatch.setenv("_BERTWORKS_COMPLETE", f"source_{shell}")
    assert text in run_command().stdout
    assert "COMP_WORDS" not in os.environ


def test_the_tasks_are_those_of_the_registry():
    assert tuple(TASK_TABLE) == TASKS
