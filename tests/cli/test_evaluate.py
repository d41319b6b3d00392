"""`bertworks evaluate`: recorded columns are used, and texts that the vocabulary cannot read are a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import RunCommand
from small_models import TASKS, write_finetuned

import bertworks

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_finetuned(
        tmp_path / "model", TASKS["classify"], metadata={"columns": {"text": "words", "label": "verdict"}}
    )


def write(path: Path, header: str, *rows: str) -> str:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_columns_of_training_are_used_unless_others_are_named(model: Path, tmp_path: Path, run_command: RunCommand):
    recorded = write(tmp_path / "a.tsv", "verdict\twords\ttext", "good\ta good film\tdull", "bad\tdull\tgood")
    result = run_command("evaluate", str(model), recorded, "--json")
    named = run_command("evaluate", str(model), recorded, "--json", "--text", "words", "--label", "verdict")
    assert (result.returncode, json.loads(result.stdout)) == (0, json.loads(named.stdout))
    assert "warning" not in result.stderr


def test_a_file_without_the_columns_is_recognized_or_refused_with_its_columns(
    model: Path, tmp_path: Path, run_command: RunCommand
):
    common = write(tmp_path / "a.tsv", "text\tlabel", "a good film\tgood")
    assert run_command("evaluate", str(model), common).returncode == 0
    other = write(tmp_path / "b.tsv", "x\ty", "a good film\tgood")
    result = run_command("evaluate", str(model), other)
    assert result.returncode == 2
    assert "no column looks like the text; the columns are 'x', 'y'" in result.stderr


def test_texts_that_the_vocabulary_cannot_read_are_a_warning_by_file(
    model: Path, tmp_path: Path, run_command: RunCommand
):
    english = write(tmp_path / "en.tsv", "words\tverdict", "a good film\tgood")
    chinese = write(tmp_path / "zh.tsv", "words\tverdict", "今天天气真坏\tbad")
    result = run_command("evaluate", str(model), english, chinese)
    assert result.returncode == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: {chinese}: 100% of 6 tokens are unknown to the vocabulary ([UNK])")
    assert "6 tokens are unknown to the vocabulary" in result.stdout
    with pytest.warns(UserWarning, match="100% of 6 tokens are unknown"):
        bertworks.evaluate(model, chinese)
