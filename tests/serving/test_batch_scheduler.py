"""The batch scheduler: items of many requests are batched by a token budget, fairly, and cancelled requests leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError

import pytest

from bertworks.serving.batch_scheduler import BatchRecord, BatchScheduler, QueueFullError, QueueLimits

TIMEOUT = 20.0


class LengthQueue:
    """A queue whose items are strings and whose results are their lengths. The worker waits at its gate."""

    def __init__(self, budget: int, model: str = "lengths") -> None:
        self.budget = budget
        self.model = model
        self.batches: list[list[str]] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def length_of(self, item: str) -> int:
        return len(item)

    def compute(self, items: Sequence[str]) -> list[int]:
        self.batches.append(list(items))
        self.entered.release()
        assert self.gate.acquire(timeout=TIMEOUT)
        if "poison" in items:
            raise ValueError("poison")
        return [len(item) for item in items]

    def open(self) -> None:
        """Let all batches pass from now on."""
        self.gate.release(1_000)

    def wait_until_busy(self) -> None:
        assert self.entered.acquire(timeout=TIMEOUT)


@pytest.fixture
def make_scheduler() -> Iterator[Callable[..., BatchScheduler]]:
    schedulers: list[BatchScheduler] = []

    def make(*arguments: object) -> BatchScheduler:
        schedulers.append(BatchScheduler(*(arguments or (QueueLimits(),))))  # type: ignore[arg-type]
        return schedulers[-1]

    yield make
    for scheduler in schedulers:
        scheduler.close()


def test_items_of_waiting_requests_share_a_batch(make_scheduler):
    queue, scheduler = LengthQueue(budget=100), make_scheduler()
    first = scheduler.submit(queue, ["a"])
    queue.wait_until_busy()
    second, third = scheduler.submit(queue, ["bb", "ccc"]), scheduler.submit(queue, ["dddd"])
    queue.open()
    assert [first.result(TIMEOUT), second.result(TIMEOUT), third.result(TIMEOUT)] == [[1], [2, 3], [4]]
    assert queue.batches == [["a"], ["bb", "ccc", "dddd"]]


def test_a_batch_stays_within_the_budget_unless_one_item_is_longer(make_scheduler):
    queue, scheduler = LengthQueue(budget=4), make_scheduler()
    queue.open()
    items = ["aa", "bb", "c", "dddddd", "ee"]
    assert scheduler.submit(queue, items).result(TIMEOUT) == [2, 2, 1, 6, 2]
    assert [item for batch in queue.batches for item in batch] == items
    assert all(sum(map(len, batch)) <= 4 or len(batch) == 1 for batch in queue.batches)


def test_a_single_request_may_fill_a_batch(make_scheduler):
    queue, scheduler = LengthQueue(budget=8), make_scheduler()
    queue.open()
    assert scheduler.submit(queue, ["aa"] * 4).result(TIMEOUT) == [2, 2, 2, 2]
    assert queue.batches == [["aa"] * 4]


def test_a_short_request_does_not_wait_for_all_of_a_long_one(make_scheduler):
    queue, scheduler = LengthQueue(budget=8), make_scheduler()
    blocking = scheduler.submit(queue, ["x"])
    queue.wait_until_busy()
    long = scheduler.submit(queue, ["aa"] * 20)
    short = scheduler.submit(queue, ["b"])
    queue.open()
    assert short.result(TIMEOUT) == [1]
    assert long.result(TIMEOUT) == [2] * 20
    assert blocking.result(TIMEOUT) == [1]
    # The long request is first and gets a quarter of the batch, then what the short one leaves.
    assert queue.batches[1] == ["aa", "aa", "aa", "b"]


def test_the_rest_of_a_request_waits_behind_requests_that_arrived_meanwhile(make_scheduler):
    queue, scheduler = LengthQueue(budget=4), make_scheduler()
    scheduler.submit(queue, ["x"])
    queue.wait_until_busy()
    long = scheduler.submit(queue, ["aaaa"] * 3)
    queue.gate.release()
    queue.wait_until_busy()  # the first item of the long request is being computed
    late = scheduler.submit(queue, ["bbb"])
    queue.open()
    assert late.result(TIMEOUT) == [3]
    assert long.result(TIMEOUT) == [4, 4, 4]
    assert queue.batches[1:] == [["aaaa"], ["aaaa"], ["bbb"], ["aaaa"]]


def test_queues_are_served_by_how_long_their_first_request_has_waited(make_scheduler):
    first_queue, second_queue = LengthQueue(budget=10, model="first"), LengthQueue(budget=10, model="second")
    scheduler = make_scheduler()
    scheduler.submit(first_queue, ["x"])
    first_queue.wait_until_busy()
    completed: list[str] = []
    futures = [
        scheduler.submit(second_queue, ["b"]),
        scheduler.submit(first_queue, ["c"]),
        scheduler.submit(second_queue, ["d"]),
    ]
    for future, name in zip(futures, "bcd", strict=True):
        future.add_done_callback(lambda _, name=name: completed.append(name))
    first_queue.open()
    second_queue.open()
    for future in futures:
        future.result(TIMEOUT)
    assert completed == ["b", "d", "c"]  # d shares the batch of b, which came before c


def test_a_cancelled_request_leaves_the_queue_and_is_never_computed(make_scheduler):
    queue, scheduler = LengthQueue(budget=10), make_scheduler()
    first = scheduler.submit(queue, ["a"])
    queue.wait_until_busy()
    second = scheduler.submit(queue, ["bb"])
    assert (scheduler.num_requests, scheduler.num_tokens) == (2, 2)
    assert second.cancel()
    assert (scheduler.num_requests, scheduler.num_tokens) == (1, 0)
    queue.open()
    assert first.result(TIMEOUT) == [1]
    assert scheduler.submit(queue, ["ccc"]).result(TIMEOUT) == [3]
    assert queue.batches == [["a"], ["ccc"]]
    assert scheduler.num_requests == 0


def test_the_rest_of_a_request_that_is_cancelled_halfway_is_not_computed(make_scheduler):
    queue, scheduler = LengthQueue(budget=1), make_scheduler()
    long = scheduler.submit(queue, ["a", "b", "c"])
    queue.wait_until_busy()
    assert long.cancel()
    queue.open()
    assert scheduler.submit(queue, ["z"]).result(TIMEOUT) == [1]
    assert queue.batches == [["a"], ["z"]]


def test_a_full_queue_rejects_requests_with_a_retry_time(make_scheduler):
    queue, scheduler = LengthQueue(budget=10), make_scheduler(QueueLimits(requests=2, tokens=100))
    scheduler.submit(queue, ["a"])
    queue.wait_until_busy()
    scheduler.submit(queue, ["b"])
    with pytest.raises(QueueFullError) as error:
        scheduler.submit(queue, ["c"])
    assert 1 <= error.value.seconds <= 60
    with pytest.raises(QueueFullError):
        scheduler.check_capacity()
    queue.open()


def test_queued_tokens_are_limited_but_one_large_request_is_accepted_by_an_empty_queue(make_scheduler):
    queue, scheduler = LengthQueue(budget=10), make_scheduler(QueueLimits(requests=10, tokens=5))
    scheduler.submit(queue, ["a"])
    queue.wait_until_busy()
    large = scheduler.submit(queue, ["b" * 50])
    with pytest.raises(QueueFullError):
        scheduler.submit(queue, ["c"])
    queue.open()
    assert large.result(TIMEOUT) == [50]


def test_only_the_request_that_causes_an_error_fails(make_scheduler):
    queue, scheduler = LengthQueue(budget=100), make_scheduler()
    scheduler.submit(queue, ["x"])
    queue.wait_until_busy()
    first, failing, last = (scheduler.submit(queue, [item]) for item in ("aa", "poison", "bbb"))
    queue.open()
    assert first.result(TIMEOUT) == [2]
    assert last.result(TIMEOUT) == [3]
    with pytest.raises(ValueError, match="poison"):
        failing.result(TIMEOUT)
    assert scheduler.num_requests == 0


def test_a_request_without_items_is_answered_at_once(make_scheduler):
    queue, scheduler = LengthQueue(budget=1), make_scheduler()
    assert scheduler.submit(queue, []).result(0) == []
    assert queue.batches == []


def test_unbatched_work_yields_to_a_batch_at_every_pause(make_scheduler):
    scheduler, queue, num_batches = make_scheduler(), LengthQueue(budget=10), []
    queue.open()
    started, proceed = threading.Event(), threading.Event()

    class SlowQueue(LengthQueue):
        def compute(self, items):
            started.set()
            assert proceed.wait(TIMEOUT)
            scheduler.pause()
            num_batches.append(len(queue.batches))
            return items

    long = scheduler.submit(SlowQueue(budget=1), ["work"])
    assert started.wait(TIMEOUT)
    short = scheduler.submit(queue, ["aa"])
    proceed.set()
    assert long.result(TIMEOUT) == ["work"]
    assert short.result(TIMEOUT) == [2]
    assert num_batches == [1]  # the short one was computed during the pause


def test_cancelled_unbatched_work_ends_at_its_next_pause(make_scheduler):
    scheduler, ended = make_scheduler(), threading.Event()
    started, proceed = threading.Event(), threading.Event()

    class SlowQueue(LengthQueue):
        def compute(self, items):
            started.set()
            assert proceed.wait(TIMEOUT)
            try:
                scheduler.pause()
            except BaseException:
                ended.set()
                raise
            return items

    long = scheduler.submit(SlowQueue(budget=1), ["work"])
    assert started.wait(TIMEOUT)
    assert long.cancel()
    proceed.set()
    assert ended.wait(TIMEOUT)
    queue = LengthQueue(budget=10)
    queue.open()
    assert scheduler.submit(queue, ["a"]).result(TIMEOUT) == [1]  # the worker is still alive


def test_every_batch_is_reported(make_scheduler):
    records: list[BatchRecord] = []
    queue, scheduler = LengthQueue(budget=100, model="m"), make_scheduler(QueueLimits(), records.append)
    queue.open()
    scheduler.submit(queue, ["aa", "b"]).result(TIMEOUT)
    (record,) = records
    assert (record.model, record.num_requests, record.num_sequences, record.num_tokens) == ("m", 1, 2, 3)


def test_closing_cancels_waiting_requests():
    queue, scheduler = LengthQueue(budget=1), BatchScheduler(QueueLimits())
    first = scheduler.submit(queue, ["a"])
    queue.wait_until_busy()
    second = scheduler.submit(queue, ["b"])
    queue.open()
    scheduler.close()
    assert first.done()
    with pytest.raises(CancelledError):
        second.result(TIMEOUT)
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.submit(queue, ["c"])
