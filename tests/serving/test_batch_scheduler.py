"""Gathering: rows of many requests become batches by a budget, in a fair order, and leave when nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError

import pytest

from bertworks.serving.batch_scheduler import BatchRecord, BatchScheduler, QueueFullError, QueueLimits

SOON = 20.0


class Ruler:
    """A lane whose rows are texts and whose answers are their lengths. The worker waits at its gate."""

    def __init__(self, budget: int, model: str = "ruler") -> None:
        self.budget = budget
        self.model = model
        self.batches: list[list[str]] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def length_of(self, row: str) -> int:
        return len(row)

    def compute(self, rows: Sequence[str]) -> list[int]:
        self.batches.append(list(rows))
        self.entered.release()
        assert self.gate.acquire(timeout=SOON)
        if "poison" in rows:
            raise ValueError("poison")
        return [len(row) for row in rows]

    def open(self) -> None:
        """Let all batches pass from now on."""
        self.gate.release(1_000)

    def wait_until_busy(self) -> None:
        assert self.entered.acquire(timeout=SOON)


@pytest.fixture
def gathered() -> Iterator[Callable[..., BatchScheduler]]:
    made: list[BatchScheduler] = []

    def make(*arguments: object) -> BatchScheduler:
        made.append(BatchScheduler(*(arguments or (QueueLimits(),))))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_rows_of_waiting_requests_are_computed_together(gathered):
    lane, gatherer = Ruler(budget=100), gathered()
    first = gatherer.submit(lane, ["a"])
    lane.wait_until_busy()
    second, third = gatherer.submit(lane, ["bb", "ccc"]), gatherer.submit(lane, ["dddd"])
    lane.open()
    assert [first.result(SOON), second.result(SOON), third.result(SOON)] == [[1], [2, 3], [4]]
    assert lane.batches == [["a"], ["bb", "ccc", "dddd"]]


def test_a_batch_stays_within_the_budget_unless_one_row_is_longer(gathered):
    lane, gatherer = Ruler(budget=4), gathered()
    lane.open()
    rows = ["aa", "bb", "c", "dddddd", "ee"]
    assert gatherer.submit(lane, rows).result(SOON) == [2, 2, 1, 6, 2]
    assert [row for batch in lane.batches for row in batch] == rows
    assert all(sum(map(len, batch)) <= 4 or len(batch) == 1 for batch in lane.batches)


def test_one_request_alone_may_fill_a_whole_batch(gathered):
    lane, gatherer = Ruler(budget=8), gathered()
    lane.open()
    assert gatherer.submit(lane, ["aa"] * 4).result(SOON) == [2, 2, 2, 2]
    assert lane.batches == [["aa"] * 4]


def test_a_short_request_does_not_wait_for_all_of_a_long_one(gathered):
    lane, gatherer = Ruler(budget=8), gathered()
    blocking = gatherer.submit(lane, ["x"])
    lane.wait_until_busy()
    long = gatherer.submit(lane, ["aa"] * 20)
    short = gatherer.submit(lane, ["b"])
    lane.open()
    assert short.result(SOON) == [1]
    assert long.result(SOON) == [2] * 20
    assert blocking.result(SOON) == [1]
    # The long one is first in line and has a share of a quarter of the batch; what is left when all have theirs is its.
    assert lane.batches[1] == ["aa", "aa", "aa", "b"]


def test_who_has_had_a_share_goes_behind_those_who_came_meanwhile(gathered):
    lane, gatherer = Ruler(budget=4), gathered()
    gatherer.submit(lane, ["x"])
    lane.wait_until_busy()
    long = gatherer.submit(lane, ["aaaa"] * 3)
    lane.gate.release()
    lane.wait_until_busy()  # the first row of the long one is being computed
    late = gatherer.submit(lane, ["bbb"])
    lane.open()
    assert late.result(SOON) == [3]
    assert long.result(SOON) == [4, 4, 4]
    assert lane.batches[1:] == [["aaaa"], ["aaaa"], ["bbb"], ["aaaa"]]


def test_lanes_are_served_by_how_long_their_first_request_has_waited(gathered):
    one, other, gatherer = Ruler(budget=10, model="one"), Ruler(budget=10, model="other"), gathered()
    gatherer.submit(one, ["x"])
    one.wait_until_busy()
    found: list[str] = []
    waiting = [
        gatherer.submit(other, ["b"]),
        gatherer.submit(one, ["c"]),
        gatherer.submit(other, ["d"]),
    ]
    for future, name in zip(waiting, "bcd", strict=True):
        future.add_done_callback(lambda _, name=name: found.append(name))
    one.open()
    other.open()
    for future in waiting:
        future.result(SOON)
    assert found == ["b", "d", "c"]  # d goes with b, which came before c


def test_a_cancelled_request_leaves_the_line_and_is_never_computed(gathered):
    lane, gatherer = Ruler(budget=10), gathered()
    first = gatherer.submit(lane, ["a"])
    lane.wait_until_busy()
    second = gatherer.submit(lane, ["bb"])
    assert (gatherer.num_requests, gatherer.num_tokens) == (2, 2)
    assert second.cancel()
    assert (gatherer.num_requests, gatherer.num_tokens) == (1, 0)
    lane.open()
    assert first.result(SOON) == [1]
    assert gatherer.submit(lane, ["ccc"]).result(SOON) == [3]
    assert lane.batches == [["a"], ["ccc"]]
    assert gatherer.num_requests == 0


def test_a_long_request_that_is_cancelled_halfway_computes_nothing_more(gathered):
    lane, gatherer = Ruler(budget=1), gathered()
    long = gatherer.submit(lane, ["a", "b", "c"])
    lane.wait_until_busy()
    assert long.cancel()
    lane.open()
    assert gatherer.submit(lane, ["z"]).result(SOON) == [1]
    assert lane.batches == [["a"], ["z"]]


def test_a_full_line_refuses_and_says_when_to_come_back(gathered):
    lane, gatherer = Ruler(budget=10), gathered(QueueLimits(requests=2, tokens=100))
    gatherer.submit(lane, ["a"])
    lane.wait_until_busy()
    gatherer.submit(lane, ["b"])
    with pytest.raises(QueueFullError) as refused:
        gatherer.submit(lane, ["c"])
    assert 1 <= refused.value.seconds <= 60
    with pytest.raises(QueueFullError):
        gatherer.check_capacity()
    lane.open()


def test_pieces_that_wait_are_bounded_too_but_one_large_request_is_taken_when_nothing_waits(gathered):
    lane, gatherer = Ruler(budget=10), gathered(QueueLimits(requests=10, tokens=5))
    gatherer.submit(lane, ["a"])
    lane.wait_until_busy()
    large = gatherer.submit(lane, ["b" * 50])
    with pytest.raises(QueueFullError):
        gatherer.submit(lane, ["c"])
    lane.open()
    assert large.result(SOON) == [50]


def test_only_the_request_that_is_to_blame_fails(gathered):
    lane, gatherer = Ruler(budget=100), gathered()
    gatherer.submit(lane, ["x"])
    lane.wait_until_busy()
    good, bad, fine = (gatherer.submit(lane, [row]) for row in ("aa", "poison", "bbb"))
    lane.open()
    assert good.result(SOON) == [2]
    assert fine.result(SOON) == [3]
    with pytest.raises(ValueError, match="poison"):
        bad.result(SOON)
    assert gatherer.num_requests == 0


def test_no_rows_are_answered_at_once(gathered):
    lane, gatherer = Ruler(budget=1), gathered()
    assert gatherer.submit(lane, []).result(0) == []
    assert lane.batches == []


def test_long_work_lets_a_batch_of_the_others_pass_at_every_pause(gathered):
    gatherer, lane, seen = gathered(), Ruler(budget=10), []
    lane.open()
    started, go_on = threading.Event(), threading.Event()

    class Slow(Ruler):
        def compute(self, rows):
            started.set()
            assert go_on.wait(SOON)
            gatherer.pause()
            seen.append(len(lane.batches))
            return rows

    long = gatherer.submit(Slow(budget=1), ["work"])
    assert started.wait(SOON)
    short = gatherer.submit(lane, ["aa"])
    go_on.set()
    assert long.result(SOON) == ["work"]
    assert short.result(SOON) == [2]
    assert seen == [1]  # the short one was computed inside the pause


def test_long_work_ends_at_its_next_pause_when_nobody_waits_for_it(gathered):
    gatherer, ended = gathered(), threading.Event()
    started, go_on = threading.Event(), threading.Event()

    class Slow(Ruler):
        def compute(self, rows):
            started.set()
            assert go_on.wait(SOON)
            try:
                gatherer.pause()
            except BaseException:
                ended.set()
                raise
            return rows

    long = gatherer.submit(Slow(budget=1), ["work"])
    assert started.wait(SOON)
    assert long.cancel()
    go_on.set()
    assert ended.wait(SOON)
    lane = Ruler(budget=10)
    lane.open()
    assert gatherer.submit(lane, ["a"]).result(SOON) == [1]  # the worker lives


def test_every_batch_is_told_to_whoever_watches(gathered):
    told: list[BatchRecord] = []
    lane, gatherer = Ruler(budget=100, model="m"), gathered(QueueLimits(), told.append)
    lane.open()
    gatherer.submit(lane, ["aa", "b"]).result(SOON)
    (record,) = told
    assert (record.model, record.num_requests, record.num_sequences, record.num_tokens) == ("m", 1, 2, 3)


def test_closing_ends_those_who_wait():
    lane, gatherer = Ruler(budget=1), BatchScheduler(QueueLimits())
    first = gatherer.submit(lane, ["a"])
    lane.wait_until_busy()
    second = gatherer.submit(lane, ["b"])
    lane.open()
    gatherer.close()
    assert first.done()
    with pytest.raises(CancelledError):
        second.result(SOON)
    with pytest.raises(RuntimeError, match="ended"):
        gatherer.submit(lane, ["c"])
