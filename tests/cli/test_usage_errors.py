"""Usage errors of click in Chinese: usage, help and error are one language; in English they are click's own."""

import pytest
from command_line import RunCommand

CASES = {
    "pretrain": "错误：缺少参数 'RECIPE'。",
    "pretrain demo": "错误：缺少选项 '--data'。",
    "pretrain demo --data x --output y --batch-size abc": "错误：'--batch-size' 的值无效：应为整数",
    "pretrain demo --data x --output y --batch-size 0": "错误：'--batch-size' 的值无效：不得小于 1",
    "pretrain demo --data x --output y --learning-rate fast": "错误：'--learning-rate' 的值无效：应为数字",
    "pretrain demo --data x --output y --learning-rate nan": "错误：--learning-rate 不是数字；请给出数字",
    "serve x --port 70000": "错误：'--port' 的值无效：不得大于 65535",
    "pretrain demo --data": "错误：选项 '--data' 需要一个值。",
    "pretrain demo --data x --output y --shard=3": "错误：选项 '--shard' 不带值。",
    "pretrain demo more --data x --output y": "错误：多余的参数（more）",
    "pretrain demo --dta x": "错误：没有选项 --dta；是否指 --data？用 `bertworks pretrain --help` 查看全部选项",
    "pretrai": "错误：没有命令 'pretrai'；是否指 `bertworks pretrain`？",
    "--colour": "错误：没有选项 --colour",
    "finetune classify --output x --device gpu": (
        "错误：'--device' 的值无效：没有 device 'gpu'；是否指 'cpu'？请选择其一：auto, cpu, cuda, mps, xla"
    ),
}


@pytest.mark.parametrize(("line", "message"), CASES.items())
def test_a_wrong_call_is_answered_in_chinese(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, line: str, message: str
):
    monkeypatch.setenv("BERTWORKS_LANG", "zh")
    result = run_command(*line.split())
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-1] == message
    if len(lines) > 1:
        assert lines[0].startswith("用法：")
        assert lines[1].startswith("运行 `bertworks")


def test_in_english_it_is_the_answer_of_click(run_command: RunCommand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERTWORKS_LANG", "en")
    result = run_command("pretrain")
    assert result.returncode == 2
    assert result.stderr.splitlines()[1:] == [
        "Try 'bertworks pretrain --help' for help.", "", "Error: Missing argument 'RECIPE'."
    ]  # fmt: skip


def test_a_call_without_a_command_is_help_not_an_error(run_command: RunCommand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERTWORKS_LANG", "zh")
    result = run_command("word-vectors")
    assert "错误" not in result.stdout + result.stderr
    assert "用法：" in result.stdout + result.stderr
