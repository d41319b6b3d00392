"""Continuous batching: sequences of many requests in, model outputs out, in batches bounded by a token budget.

Worker threads own the models, usually one a core. While one computes, another delivers results and takes new requests,
so that no core waits for the end of a batch of the other. The policy:

- A request waits in the queue of its kind of output; a model has one queue per kind. As soon as a worker is free, it
  picks the queue whose first request has waited longest and fills a batch from its front, with its part of the token
  budget. It never waits for more requests to arrive. It computes on one core, or on all of them while the other
  workers are idle.
- While others wait, a request gets at most a quarter of a batch. What remains of it goes to the end of the queue. So a
  short request waits for one such part of each request before it, however long those are, and a long request advances
  with every round.
- Work that cannot be batched (fill-mask, explanations) has a queue of its own, one request at a time, and yields to a
  batch of another queue between its parts.
- A cancelled request leaves its queue at once.
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

from bertworks.allocator import release_freed_memory
from bertworks.parallel.threads import get_num_threads, set_num_threads

# The part of a batch that one request may fill while others wait is 1 / _SHARE_DIVISOR.
_SHARE_DIVISOR = 4
# Weight of a new batch in the moving average of the throughput.
_SPEED_SMOOTHING = 0.2
# Seconds between two returns of freed memory to the operating system.
_TRIM_SECONDS = 5.0
# Bounds of Retry-After, in seconds.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1, 60


class Queue(Protocol):
    """Computes items of one kind. `budget` bounds the tokens of a batch; a longer item is a batch of its own."""

    @property
    def model(self) -> str: ...
    @property
    def budget(self) -> int: ...
    def length_of(self, item: Any) -> int: ...
    def compute(self, items: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many requests, and how many tokens of them, may wait."""

    requests: int = 1_024
    tokens: int = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A computed batch: its model, its size and how long it took."""

    model: str
    num_requests: int
    num_sequences: int
    num_tokens: int
    seconds: float


class QueueFullError(Exception):
    """The queue is full; a client should retry after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class RequestCancelledError(Exception):
    """The request that is being computed was cancelled."""


class JobFuture(Future[list[Any]]):
    """The future of a job's results; `start_time` is when the first of its batches began (time.monotonic)."""

    start_time: float | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class _Job:
    """A queued request: its items, how many of them were scheduled, and the results so far."""

    queue: Queue
    items: Sequence[Any]
    lengths: tuple[int, ...]
    future: JobFuture
    waiting_since: float
    results: list[Any]
    num_scheduled: int = 0
    num_results: int = 0

    @property
    def num_waiting_tokens(self) -> int:
        return sum(self.lengths[self.num_scheduled :])


@dataclass(slots=True)
class _JobSlice:
    """The items [start, stop) of a job that are computed in one batch."""

    job: _Job
    start: int
    stop: int

    @property
    def items(self) -> Sequence[Any]:
        return self.job.items[self.start : self.stop]

    @property
    def num_tokens(self) -> int:
        return sum(self.job.lengths[self.start : self.stop])


@dataclass(slots=True)
class _State:
    """The queued jobs. Guarded by the lock."""

    waiting_jobs: dict[Queue, deque[_Job]] = field(default_factory=dict)
    num_requests: int = 0
    num_tokens: int = 0
    is_closed: bool = False


class _CurrentBatch(threading.local):
    """What the current worker thread computes, and whether that is a batch which interrupts unbatched work."""

    job_slices: Sequence[_JobSlice] = ()
    is_yielding: bool = False


class BatchScheduler:
    """The worker threads and their queues."""

    def __init__(
        self, limits: QueueLimits, on_batch: Callable[[BatchRecord], None] = lambda record: None, num_workers: int = 1
    ) -> None:
        self.limits = limits
        self._on_batch = on_batch
        self._state = _State()
        self._condition = threading.Condition()
        self._speed = 0.0  # tokens per second of one worker
        self._num_busy = 0
        self._current = _CurrentBatch()
        self._num_threads = get_num_threads()
        self._workers = [
            threading.Thread(target=self._run, name=f"bertworks-worker-{number}", daemon=True)
            for number in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def is_alive(self) -> bool:
        """Whether all worker threads are running."""
        return all(worker.is_alive() for worker in self._workers)

    @property
    def num_requests(self) -> int:
        """Number of requests that are queued or being computed."""
        return self._state.num_requests

    @property
    def num_tokens(self) -> int:
        """Number of queued tokens."""
        return self._state.num_tokens

    def check_capacity(self, num_arriving: int = 0) -> None:
        """Raise QueueFullError before a text is tokenized, if the requests that are already coming fill the queue."""
        if self._state.num_requests + num_arriving >= self.limits.requests:
            raise QueueFullError(self._estimate_wait())

    def submit(self, queue: Queue, items: Sequence[Any]) -> JobFuture:
        """Queue items and return the future of their results. Cancelling the future removes them from the queue."""
        future = JobFuture()
        if not items:
            future.set_result([])
            return future
        lengths = tuple(map(queue.length_of, items))
        job = _Job(
            queue=queue,
            items=items,
            lengths=lengths,
            future=future,
            waiting_since=time.monotonic(),
            results=[None] * len(items),
        )
        with self._condition:
            if self._state.is_closed:
                raise RuntimeError("the scheduler is closed")
            self.check_capacity()
            # A single request may exceed the limit: it is accepted when nothing else is queued.
            if self._state.num_tokens and self._state.num_tokens + sum(lengths) > self.limits.tokens:
                raise QueueFullError(self._estimate_wait())
            self._state.waiting_jobs.setdefault(queue, deque()).append(job)
            self._state.num_requests += 1
            self._state.num_tokens += sum(lengths)
            self._condition.notify()
        future.add_done_callback(lambda _: self._remove(job))
        return future

    def pause(self) -> None:
        """Yield to one batch of another queue. Unbatched work calls this on the worker thread between its parts.

        Raises RequestCancelledError if the request that is being computed was cancelled.
        """
        if self._current.is_yielding:
            return
        interrupted_slices = self._current.job_slices
        if all(job_slice.job.future.cancelled() for job_slice in interrupted_slices):
            raise RequestCancelledError
        current_queue = interrupted_slices[0].job.queue
        with self._condition:
            job_slices = self._take_batch(
                queue for queue in self._state.waiting_jobs if queue is not current_queue and queue.budget > 1
            )
        if not job_slices:
            return
        self._current.is_yielding = True
        try:
            self._compute(job_slices)
        finally:
            self._current.is_yielding, self._current.job_slices = False, interrupted_slices

    def close(self) -> None:
        """Stop each worker after its current batch and cancel all queued requests."""
        with self._condition:
            self._state.is_closed = True
            waiting_jobs = [job for jobs in self._state.waiting_jobs.values() for job in jobs]
            self._condition.notify_all()
        for job in waiting_jobs:
            job.future.cancel()
        for worker in self._workers:
            worker.join()

    def _remove(self, job: _Job) -> None:
        """Remove a job that is answered or cancelled."""
        with self._condition:
            self._state.num_requests -= 1
            jobs = self._state.waiting_jobs.get(job.queue)
            if jobs is not None and job in jobs:
                jobs.remove(job)
                self._state.num_tokens -= job.num_waiting_tokens
                self._drop_empty_queue(job.queue)

    def _drop_empty_queue(self, queue: Queue) -> None:
        if not self._state.waiting_jobs[queue]:
            del self._state.waiting_jobs[queue]

    def _run(self) -> None:
        last_trim = time.monotonic()
        num_threads = 0
        while True:
            with self._condition:
                if not self._state.waiting_jobs and not self._state.is_closed:
                    self._condition.wait(_TRIM_SECONDS)
                if self._state.is_closed:
                    return
                job_slices = self._take_batch(self._state.waiting_jobs)
                self._num_busy += bool(job_slices)
                is_alone = len(self._workers) == 1 or (self._num_busy == 1 and not self._state.waiting_jobs)
            if job_slices:
                if num_threads != (num_threads := self._num_threads if is_alone else 1):
                    set_num_threads(num_threads)  # which also clears oneDNN's cache of prepared operations
                try:
                    self._compute(job_slices)
                finally:
                    with self._condition:
                        self._num_busy -= 1
            if time.monotonic() - last_trim > _TRIM_SECONDS:
                release_freed_memory()
                last_trim = time.monotonic()

    def _take_batch(self, queues: Iterable[Queue]) -> list[_JobSlice]:
        """Take a batch from the queue whose first request has waited longest. The caller holds the lock."""
        queue = min(queues, key=lambda queue: self._state.waiting_jobs[queue][0].waiting_since, default=None)
        if queue is None:
            return []
        jobs = self._state.waiting_jobs[queue]
        job_slices = _fill_batch(jobs, max(1, queue.budget // len(self._workers)))
        scheduled = {job_slice.job for job_slice in job_slices}
        unfinished = [job for job in jobs if job in scheduled and job.num_scheduled < len(job.items)]
        unscheduled = [job for job in jobs if job not in scheduled]
        now = time.monotonic()
        for job in unfinished:
            job.waiting_since = now
        self._state.waiting_jobs[queue] = deque(unscheduled + unfinished)
        self._state.num_tokens -= sum(job_slice.num_tokens for job_slice in job_slices)
        self._drop_empty_queue(queue)
        return job_slices

    def _compute(self, job_slices: Sequence[_JobSlice]) -> None:
        """Compute a batch and deliver its results. If it fails, retry each request alone, so that only one fails."""
        self._current.job_slices = job_slices
        queue = job_slices[0].job.queue
        items = [item for job_slice in job_slices for item in job_slice.items]
        num_tokens = sum(job_slice.num_tokens for job_slice in job_slices)
        start_time = time.monotonic()
        for job_slice in job_slices:
            future = job_slice.job.future
            future.start_time = start_time if future.start_time is None else future.start_time
        try:
            results = queue.compute(items)
        except Exception as error:
            if len(job_slices) > 1:
                for job_slice in job_slices:
                    self._compute([job_slice])
            else:
                _fail(job_slices[0].job, error)
            return
        seconds = time.monotonic() - start_time
        if queue.budget > 1:
            speed = num_tokens / max(seconds, 1e-6)
            self._speed += (speed - self._speed) * (_SPEED_SMOOTHING if self._speed else 1.0)
        self._on_batch(
            BatchRecord(
                model=queue.model,
                num_requests=len(job_slices),
                num_sequences=len(items),
                num_tokens=num_tokens,
                seconds=seconds,
            )
        )
        start = 0
        for job_slice in job_slices:
            stop = start + len(job_slice.items)
            _deliver(job_slice, results[start:stop])
            start = stop

    def _estimate_wait(self) -> int:
        speed = self._speed * len(self._workers)
        seconds = self._state.num_tokens / speed if speed else _MIN_RETRY_SECONDS
        return min(max(math.ceil(seconds), _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


def _fill_batch(jobs: Iterable[_Job], budget: int) -> list[_JobSlice]:
    """Schedule items from the front of a queue until the budget is spent: first a part for each job, then the rest."""
    job_slices: dict[_Job, _JobSlice] = {}
    num_tokens = 0
    for max_job_tokens in (max(1, budget // _SHARE_DIVISOR), budget):
        for job in jobs:
            num_job_tokens = job_slices[job].num_tokens if job in job_slices else 0
            while job.num_scheduled < len(job.items):
                length = job.lengths[job.num_scheduled]
                if job_slices and num_tokens + length > budget:
                    return list(job_slices.values())
                if num_job_tokens and num_job_tokens + length > max_job_tokens:
                    break
                job_slice = job_slices.setdefault(job, _JobSlice(job, job.num_scheduled, job.num_scheduled))
                job.num_scheduled += 1
                job_slice.stop = job.num_scheduled
                num_job_tokens += length
                num_tokens += length
    return list(job_slices.values())


def _deliver(job_slice: _JobSlice, results: Sequence[Any]) -> None:
    job = job_slice.job
    job.results[job_slice.start : job_slice.stop] = results
    job.num_results += len(results)
    if job.num_results == len(job.items):
        try:
            job.future.set_result(job.results)
        except InvalidStateError:  # it was cancelled meanwhile
            return


def _fail(job: _Job, error: Exception) -> None:
    try:
        job.future.set_exception(error)
    except InvalidStateError:
        return
