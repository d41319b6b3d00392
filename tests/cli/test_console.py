"""Lines for people: in their language, on standard output or error."""

import pytest

from bertworks.cli.console import say, warn


def test_lines_are_in_the_language_of_the_user(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for code in ("en", "zh"):
        monkeypatch.setenv("BERTWORKS_LANG", code)
        say("saved run/step-1")
        warn("warning: killed after step 3")
    output = capsys.readouterr()
    assert output.out == "saved run/step-1\n已保存 run/step-1\n"
    assert output.err == "warning: killed after step 3\n警告：在第 3 步之后被杀死\n"
