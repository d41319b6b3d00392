"""Rows of many requests in, what a model makes of them out: batches by a budget of pieces, first come, first served.

One thread owns the models. The policy:

- A request stands in the line of its lane; a model has one lane for each kind of output. As soon as the worker is free
  it turns to the lane whose first request has waited longest, and fills a batch from the front of that line. It never
  waits for more to come.
- While others wait, nobody puts more than a share of a batch in. Who has more rows goes to the end of the line with
  what is left. So a short request waits for one share of each request before it, however long those are; and a long
  one moves on with every round.
- Work that cannot be gathered (blanks, explanations) is a lane of its own, one request a turn, and stops between its
  parts to let a batch of the others pass.
- Who no longer waits leaves the line at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

from bertworks.allocator import give_back_freed_memory

# Of a batch, what one request may fill while others wait.
_SHARE_DIVISOR = 4
# How much a new batch tells about the speed, in pieces a second.
_SPEED_SMOOTHING = 0.2
# How often what batches have freed goes back to the system, in seconds.
_TRIM_SECONDS = 5.0
# What somebody is told to wait who found the line full, in seconds.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1, 60


class Queue(Protocol):
    """What computes rows of one kind. `budget` bounds the pieces of a batch; a longer row is a batch by itself."""

    @property
    def model(self) -> str: ...
    @property
    def budget(self) -> int: ...
    def length_of(self, item: Any) -> int: ...
    def compute(self, items: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait: so many requests, and so many pieces of them."""

    requests: int = 1_024
    tokens: int = 262_144


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What a batch was: for which model, of how many requests, rows and pieces, and how long it took."""

    model: str
    num_requests: int
    num_sequences: int
    num_tokens: int
    seconds: float


class QueueFullError(Exception):
    """There is no room in the line; `seconds` is when there may be."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class RequestCancelledError(Exception):
    """Nobody waits for this any more."""


@dataclass(eq=False, slots=True)
class _Job:
    """A request in line: its rows, how many of them were handed out, and what was found so far."""

    queue: Queue
    items: Sequence[Any]
    lengths: tuple[int, ...]
    future: Future[list[Any]]
    waiting_since: float
    results: list[Any]
    num_scheduled: int = 0
    num_results: int = 0

    @property
    def num_waiting_tokens(self) -> int:
        return sum(self.lengths[self.num_scheduled :])


@dataclass(slots=True)
class _JobSlice:
    """Some rows of a job that are computed together: from row `first` to before row `stop`."""

    job: _Job
    start: int
    stop: int


@dataclass(slots=True)
class _State:
    """What is in line, and what the worker is doing. Guarded by the lock."""

    waiting_jobs: dict[Queue, deque[_Job]] = field(default_factory=dict)
    num_requests: int = 0
    num_tokens: int = 0
    is_closed: bool = False


class BatchScheduler:
    """The worker and the lines before it."""

    def __init__(self, limits: QueueLimits, on_batch: Callable[[BatchRecord], None] = lambda record: None) -> None:
        self._limits = limits
        self._on_batch = on_batch
        self._state = _State()
        self._condition = threading.Condition()
        self._speed = 0.0  # pieces a second
        self._current_slices: Sequence[_JobSlice] = ()
        self._is_yielding = False
        self._worker = threading.Thread(target=self._run, name="bertworks-worker", daemon=True)
        self._worker.start()

    @property
    def is_alive(self) -> bool:
        """Whether the worker takes what is put in line."""
        return self._worker.is_alive()

    @property
    def num_requests(self) -> int:
        """How many requests wait or are being computed."""
        return self._state.num_requests

    @property
    def num_tokens(self) -> int:
        """How many pieces wait."""
        return self._state.num_tokens

    def check_capacity(self, num_arriving: int = 0) -> None:
        """Refuse early, before a text is cut, if no more requests may wait than those that are already coming."""
        if self._state.num_requests + num_arriving >= self._limits.requests:
            raise QueueFullError(self._estimate_wait())

    def submit(self, queue: Queue, items: Sequence[Any]) -> Future[list[Any]]:
        """Put rows in line; the future has what was computed of each. Cancelling it leaves the line."""
        future: Future[list[Any]] = Future()
        if not items:
            future.set_result([])
            return future
        lengths = tuple(map(queue.length_of, items))
        job = _Job(queue, items, lengths, future, time.monotonic(), [None] * len(items))
        with self._condition:
            if self._state.is_closed:
                raise RuntimeError("the worker has ended")
            self.check_capacity()
            # One request may be larger than all that may wait: it is taken when nothing else does.
            if self._state.num_tokens and self._state.num_tokens + sum(lengths) > self._limits.tokens:
                raise QueueFullError(self._estimate_wait())
            self._state.waiting_jobs.setdefault(queue, deque()).append(job)
            self._state.num_requests += 1
            self._state.num_tokens += sum(lengths)
            self._condition.notify()
        future.add_done_callback(lambda _: self._remove(job))
        return future

    def pause(self) -> None:
        """Called on the worker by long work, between its parts: end it if nobody waits, and let one batch pass."""
        if self._is_yielding:
            return
        working_on = self._current_slices
        if all(part.job.future.cancelled() for part in working_on):
            raise RequestCancelledError
        own = working_on[0].job.queue
        with self._condition:
            parts = self._take_batch(lane for lane in self._state.waiting_jobs if lane is not own and lane.budget > 1)
        if not parts:
            return
        self._is_yielding = True
        try:
            self._compute(parts)
        finally:
            self._is_yielding, self._current_slices = False, working_on

    def close(self) -> None:
        """End the worker after what it is doing; who still waits is told that it is over."""
        with self._condition:
            self._state.is_closed = True
            waiting = [job for line in self._state.waiting_jobs.values() for job in line]
            self._condition.notify()
        for job in waiting:
            job.future.cancel()
        self._worker.join()

    def _remove(self, job: _Job) -> None:
        """Take a job out of the books, whether it was answered or nobody waits for it."""
        with self._condition:
            self._state.num_requests -= 1
            line = self._state.waiting_jobs.get(job.queue)
            if line is not None and job in line:
                line.remove(job)
                self._state.num_tokens -= job.num_waiting_tokens
                self._drop_empty_queue(job.queue)

    def _drop_empty_queue(self, queue: Queue) -> None:
        if not self._state.waiting_jobs[queue]:
            del self._state.waiting_jobs[queue]

    def _run(self) -> None:
        tidied = time.monotonic()
        while True:
            with self._condition:
                if not self._state.waiting_jobs and not self._state.is_closed:
                    self._condition.wait(_TRIM_SECONDS)
                if self._state.is_closed:
                    return
                parts = self._take_batch(self._state.waiting_jobs)
            if parts:
                self._compute(parts)
            if time.monotonic() - tidied > _TRIM_SECONDS:
                give_back_freed_memory()
                tidied = time.monotonic()

    def _take_batch(self, queues: Iterable[Queue]) -> list[_JobSlice]:
        """Take a batch from the line whose first request has waited longest. Call it with the lock held."""
        lane = min(queues, key=lambda lane: self._state.waiting_jobs[lane][0].waiting_since, default=None)
        if lane is None:
            return []
        line = self._state.waiting_jobs[lane]
        parts = _fill_batch(line, lane.budget)
        taken = {part.job for part in parts}
        unfinished = [job for job in line if job in taken and job.num_scheduled < len(job.items)]
        kept = [job for job in line if job not in taken]
        now = time.monotonic()
        for job in unfinished:
            job.waiting_since = now
        self._state.waiting_jobs[lane] = deque(kept + unfinished)
        self._state.num_tokens -= sum(sum(part.job.lengths[part.start : part.stop]) for part in parts)
        self._drop_empty_queue(lane)
        return parts

    def _compute(self, job_slices: Sequence[_JobSlice]) -> None:
        """Compute a batch and hand out what was found. If it fails, each request is tried alone: one is to blame."""
        self._current_slices = job_slices
        lane = job_slices[0].job.queue
        rows = [row for part in job_slices for row in part.job.items[part.start : part.stop]]
        num_pieces = sum(sum(part.job.lengths[part.start : part.stop]) for part in job_slices)
        started = time.monotonic()
        try:
            found = lane.compute(rows)
        except Exception as error:
            if len(job_slices) > 1:
                for part in job_slices:
                    self._compute([part])
            else:
                _fail(job_slices[0].job, error)
            return
        seconds = time.monotonic() - started
        if lane.budget > 1:
            speed = num_pieces / max(seconds, 1e-6)
            self._speed += (speed - self._speed) * (_SPEED_SMOOTHING if self._speed else 1.0)
        self._on_batch(BatchRecord(lane.model, len(job_slices), len(rows), num_pieces, seconds))
        at = 0
        for part in job_slices:
            count = part.stop - part.start
            _deliver(part, found[at : at + count])
            at += count

    def _estimate_wait(self) -> int:
        seconds = self._state.num_tokens / self._speed if self._speed else _MIN_RETRY_SECONDS
        return min(max(math.ceil(seconds), _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


def _fill_batch(jobs: Iterable[_Job], budget: int) -> list[_JobSlice]:
    """Hand out rows from the front of a line until the budget is spent: a share of it to each, then the rest."""
    parts: dict[_Job, _JobSlice] = {}
    num_pieces = 0
    for most in (max(1, budget // _SHARE_DIVISOR), budget):
        for job in jobs:
            own = sum(job.lengths[parts[job].start : parts[job].stop]) if job in parts else 0
            while job.num_scheduled < len(job.items):
                length = job.lengths[job.num_scheduled]
                if parts and num_pieces + length > budget:
                    return list(parts.values())
                if own and own + length > most:
                    break
                part = parts.setdefault(job, _JobSlice(job, job.num_scheduled, job.num_scheduled))
                job.num_scheduled += 1
                part.stop = job.num_scheduled
                own += length
                num_pieces += length
    return list(parts.values())


def _deliver(job_slice: _JobSlice, results: Sequence[Any]) -> None:
    job = job_slice.job
    job.results[job_slice.start : job_slice.stop] = results
    job.num_results += len(results)
    if job.num_results == len(job.items):
        try:
            job.future.set_result(job.results)
        except InvalidStateError:  # nobody waits for it any more
            return


def _fail(job: _Job, error: Exception) -> None:
    try:
        job.future.set_exception(error)
    except InvalidStateError:
        return
