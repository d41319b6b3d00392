"""Workers on this node: results of all units; a worker that is lost is named with the reason."""

from __future__ import annotations

import math
import os
import signal

import pytest

from bertworks.errors import BertworksError
from bertworks.parallel.workers import run_units

# The units of work are functions of Python itself, which a worker can import without the folder of this test.


def test_the_results_of_all_units_are_yielded():
    assert sorted(run_units(math.factorial, range(5), 2)) == [1, 1, 2, 6, 24]
    assert list(run_units(math.factorial, range(5), 1)) == [1, 1, 2, 6, 24]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, r"killed by signal 9 \(SIGKILL\), most likely because memory ran out; run .* fewer --workers"),
        (signal.SIGABRT, r"killed by signal 6 \(SIGABRT\); run the same command again: finished work is kept"),
        (signal.SIGTERM, r"killed by signal 15 \(SIGTERM\); run the same command again: finished work is kept"),
    ],
)
def test_a_killed_worker_is_named_with_its_signal(number: int, reason: str):
    with pytest.raises(BertworksError, match=rf"^worker process \d+ was {reason}"):
        list(run_units(signal.raise_signal, [int(number)], 2))


def test_a_worker_that_exits_is_named_with_its_exit_code():
    with pytest.raises(BertworksError, match=r"^worker process \d+ ended with exit code 3; run the same command again"):
        list(run_units(os._exit, [3], 2))
