"""`bertworks info`: lines for people, JSON for programs, and the exit code."""

import json
from pathlib import Path

import pytest
from command_line import RunCommand

from bertworks.cli.info import format_fact


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("disk space", 4_812_345, "4.8 MB"),
        ("step", 12_345, "12,345"),
        ("cased", False, "no"),
        ("languages", ["en", "zh"], "en, zh"),
        ("scores", {"dev": {"accuracy": 0.832568, "f1": 0.5}, "test": {"accuracy": 1.0}},
         "dev: accuracy 0.8326, f1 0.5; test: accuracy 1"),
        ("vocabularies", {"2a": "wordpiece"}, "2a: wordpiece"),
    ],
)  # fmt: skip
def test_facts_are_written_for_people(name: str, value: object, text: str):
    assert format_fact(name, value) == text


def test_a_folder_is_printed_as_lines_or_as_json(run_command: RunCommand, folders: dict[str, Path]):
    model = str(folders["classify"])
    result = run_command("info", model)
    lines = result.stdout.splitlines()
    assert result.returncode == 0
    assert lines[0] == model
    assert lines[1].split() == ["kind", "fine-tuned", "model"]
    assert lines[-1].split(maxsplit=1) == ["next", f"bertworks predict {model} TEXTS"]
    values = json.loads(run_command("info", model, "--json").stdout)
    assert (values["folder"], values["state"], values["facts"]["labels"]) == (model, "finished", ["bad", "good"])


def test_a_damaged_folder_exits_with_1(run_command: RunCommand, tmp_path: Path):
    (tmp_path / "bundle.json").write_text("{}")
    result = run_command("info", str(tmp_path))
    assert result.returncode == 1
    assert "damaged: " in result.stdout


def test_an_unknown_folder_is_one_sentence(run_command: RunCommand, tmp_path: Path):
    result = run_command("info", str(tmp_path))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
