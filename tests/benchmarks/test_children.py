"""Child processes of the benchmarks: answers, and what is shown when a child dies at the start or in the middle."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CHILDREN = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "children.py")))
CHILDREN.Child.request.__globals__["SPIN_SECONDS"] = 0.0

DOUBLE = "import sys\nfor line in sys.stdin: print(2 * int(line), flush=True)"
DIES_AT_START = "import a_module_that_nobody_has"


def child(name: str, program: str) -> Any:
    return CHILDREN.Child(name, [sys.executable, "-c", program])


def test_line_is_answered_by_a_line() -> None:
    with child("double", DOUBLE) as double:
        assert [double.request("4"), double.request("5")] == ["8\n", "10\n"]
    assert double.process.returncode == 0


def test_output_of_a_command() -> None:
    assert CHILDREN.run_child("hello", [sys.executable, "-c", "print('hello')"]) == "hello\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [(DIES_AT_START, "No module named 'a_module_that_nobody_has'"), (DOUBLE, "invalid literal for int()")],
)
def test_dead_child_ends_the_benchmark_with_its_words_and_the_other_children(
    program: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    other, peer = child("ours", "import time; time.sleep(600)"), child("peer", program)
    with pytest.raises(SystemExit, match="peer died with exit code 1: ") as exit_info, other, peer:
        [peer.request(line) for line in ("1", "2", "not a number", "3")]
    assert words in str(exit_info.value)  # the last line of its traceback
    assert words in capfd.readouterr().err
    assert other.process.returncode == -9


def test_failure_after_the_last_answer_is_seen() -> None:
    with (
        pytest.raises(SystemExit, match="double died with exit code 3"),
        child("double", f"{DOUBLE}\nsys.exit(3)") as c,
    ):
        c.request("1")


def test_failed_command_shows_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="prepare died with exit code 2: no such folder"):
        CHILDREN.run_child(
            "prepare", [sys.executable, "-c", "import sys; print('no such folder', file=sys.stderr); sys.exit(2)"]
        )
    assert capfd.readouterr().err == "no such folder\n"


def test_functions_run_at_the_same_time_in_their_own_processes() -> None:
    barrier = CHILDREN.multiprocessing.get_context("fork").Barrier(2)
    pids = CHILDREN.run_functions("workers", [lambda: (barrier.wait(), os.getpid())[1]] * 2)
    assert len({*pids, os.getpid()}) == 3
    assert CHILDREN.run_function("sum", sum, [1, 2]) == 3


def test_function_that_fails_ends_those_that_wait_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'jieba'")

    with pytest.raises(SystemExit, match="jieba died with exit code 1: ModuleNotFoundError: No module named 'jieba'"):
        CHILDREN.run_functions("jieba", [lambda: time.sleep(600), fail])
    assert "Traceback" in capfd.readouterr().err


def test_function_whose_process_is_killed() -> None:
    with pytest.raises(SystemExit, match="worker died with exit code -9"):
        CHILDREN.run_function("worker", lambda: os.kill(os.getpid(), 9))
