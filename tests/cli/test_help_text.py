"""Help in the language of the user: wrapped by the width of characters, with defaults and choices as they are."""

import pytest
from command_line import RunCommand
from rich.cells import cell_len

from bertworks.cli.app import COMMANDS
from bertworks.cli.help_text import localize_help, wrap_cells


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTWORKS_LANG", "zh")
    monkeypatch.setenv("COLUMNS", "80")


def test_lines_end_at_spaces_or_after_a_chinese_character_but_not_before_its_punctuation():
    assert wrap_cells("预训练 BERT 模型，微调。", 11) == ["预训练 BERT", "模型，微", "调。"]
    assert wrap_cells("one two three", 7) == ["one two", "three"]
    assert wrap_cells("模型，模型", 4) == ["模", "型，", "模型"]
    assert wrap_cells("", 10) == []


@pytest.mark.usefixtures("chinese")
def test_choices_defaults_and_ranges_are_kept():
    assert (
        localize_help("Device to compute on. (auto, cpu)  [default: auto]") == "计算设备。（auto, cpu）  [默认：auto]"
    )
    assert localize_help("Examples per optimizer step.  [x>=1]") == "每个优化步的样本数（批大小）。  [x>=1]"
    assert localize_help("Folder to write.  [required]") == "输出目录。  [必填]"


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_every_help_page_is_chinese_and_fits_the_terminal(run_command: RunCommand, command: str):
    result = run_command(*filter(None, (command, "--help")))
    assert result.returncode == 0
    assert "用法：" in result.stdout
    lines = [line for line in result.stdout.splitlines() if line.startswith("  ")]
    assert [line for line in lines if cell_len(line) > 84] == []
    english = [line for line in lines if line.isascii() and len(line.split()) > 6]
    assert english == []
