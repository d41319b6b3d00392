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
_SHARES = 4
# How much a new batch tells about the speed, in pieces a second.
_NEWEST = 0.2
# How often what batches have freed goes back to the system, in seconds.
_TIDY_EVERY = 5.0
# What somebody is told to wait who found the line full, in seconds.
_SOONEST, _LATEST = 1, 60


class Lane(Protocol):
    """What computes rows of one kind. `budget` bounds the pieces of a batch; a longer row is a batch by itself."""

    @property
    def model(self) -> str: ...
    @property
    def budget(self) -> int: ...
    def length_of(self, row: Any) -> int: ...
    def compute(self, rows: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait: so many requests, and so many pieces of them."""

    requests: int = 1_024
    pieces: int = 262_144


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What a batch was: for which model, of how many requests, rows and pieces, and how long it took."""

    model: str
    num_requests: int
    num_rows: int
    num_pieces: int
    seconds: float


class LineFullError(Exception):
    """There is no room in the line; `seconds` is when there may be."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class LeftError(Exception):
    """Nobody waits for this any more."""


@dataclass(eq=False, slots=True)
class _Job:
    """A request in line: its rows, how many of them were handed out, and what was found so far."""

    lane: Lane
    rows: Sequence[Any]
    lengths: tuple[int, ...]
    future: Future[list[Any]]
    since: float
    found: list[Any]
    num_handed: int = 0
    num_found: int = 0

    @property
    def num_waiting_pieces(self) -> int:
        return sum(self.lengths[self.num_handed :])


@dataclass(slots=True)
class _Part:
    """Some rows of a job that are computed together: from row `first` to before row `stop`."""

    job: _Job
    first: int
    stop: int


@dataclass(slots=True)
class _State:
    """What is in line, and what the worker is doing. Guarded by the lock."""

    lines: dict[Lane, deque[_Job]] = field(default_factory=dict)
    num_requests: int = 0
    num_pieces: int = 0
    is_closed: bool = False


class Gatherer:
    """The worker and the lines before it."""

    def __init__(self, bounds: Bounds, watch: Callable[[BatchRecord], None] = lambda record: None) -> None:
        self._bounds = bounds
        self._watch = watch
        self._state = _State()
        self._changed = threading.Condition()
        self._speed = 0.0  # pieces a second
        self._working_on: Sequence[_Part] = ()
        self._is_between = False
        self._worker = threading.Thread(target=self._work, name="bertworks-worker", daemon=True)
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
    def num_pieces(self) -> int:
        """How many pieces wait."""
        return self._state.num_pieces

    def check_room(self, num_coming: int = 0) -> None:
        """Refuse early, before a text is cut, if no more requests may wait than those that are already coming."""
        if self._state.num_requests + num_coming >= self._bounds.requests:
            raise LineFullError(self._seconds_of_line())

    def submit(self, lane: Lane, rows: Sequence[Any]) -> Future[list[Any]]:
        """Put rows in line; the future has what was computed of each. Cancelling it leaves the line."""
        future: Future[list[Any]] = Future()
        if not rows:
            future.set_result([])
            return future
        lengths = tuple(map(lane.length_of, rows))
        job = _Job(lane, rows, lengths, future, time.monotonic(), [None] * len(rows))
        with self._changed:
            if self._state.is_closed:
                raise RuntimeError("the worker has ended")
            self.check_room()
            # One request may be larger than all that may wait: it is taken when nothing else does.
            if self._state.num_pieces and self._state.num_pieces + sum(lengths) > self._bounds.pieces:
                raise LineFullError(self._seconds_of_line())
            self._state.lines.setdefault(lane, deque()).append(job)
            self._state.num_requests += 1
            self._state.num_pieces += sum(lengths)
            self._changed.notify()
        future.add_done_callback(lambda _: self._leave(job))
        return future

    def pause(self) -> None:
        """Called on the worker by long work, between its parts: end it if nobody waits, and let one batch pass."""
        if self._is_between:
            return
        working_on = self._working_on
        if all(part.job.future.cancelled() for part in working_on):
            raise LeftError
        own = working_on[0].job.lane
        with self._changed:
            parts = self._take(lane for lane in self._state.lines if lane is not own and lane.budget > 1)
        if not parts:
            return
        self._is_between = True
        try:
            self._compute(parts)
        finally:
            self._is_between, self._working_on = False, working_on

    def close(self) -> None:
        """End the worker after what it is doing; who still waits is told that it is over."""
        with self._changed:
            self._state.is_closed = True
            waiting = [job for line in self._state.lines.values() for job in line]
            self._changed.notify()
        for job in waiting:
            job.future.cancel()
        self._worker.join()

    def _leave(self, job: _Job) -> None:
        """Take a job out of the books, whether it was answered or nobody waits for it."""
        with self._changed:
            self._state.num_requests -= 1
            line = self._state.lines.get(job.lane)
            if line is not None and job in line:
                line.remove(job)
                self._state.num_pieces -= job.num_waiting_pieces
                self._forget_empty(job.lane)

    def _forget_empty(self, lane: Lane) -> None:
        if not self._state.lines[lane]:
            del self._state.lines[lane]

    def _work(self) -> None:
        tidied = time.monotonic()
        while True:
            with self._changed:
                if not self._state.lines and not self._state.is_closed:
                    self._changed.wait(_TIDY_EVERY)
                if self._state.is_closed:
                    return
                parts = self._take(self._state.lines)
            if parts:
                self._compute(parts)
            if time.monotonic() - tidied > _TIDY_EVERY:
                give_back_freed_memory()
                tidied = time.monotonic()

    def _take(self, lanes: Iterable[Lane]) -> list[_Part]:
        """Take a batch from the line whose first request has waited longest. Call it with the lock held."""
        lane = min(lanes, key=lambda lane: self._state.lines[lane][0].since, default=None)
        if lane is None:
            return []
        line = self._state.lines[lane]
        parts = _filled(line, lane.budget)
        taken = {part.job for part in parts}
        unfinished = [job for job in line if job in taken and job.num_handed < len(job.rows)]
        kept = [job for job in line if job not in taken]
        now = time.monotonic()
        for job in unfinished:
            job.since = now
        self._state.lines[lane] = deque(kept + unfinished)
        self._state.num_pieces -= sum(sum(part.job.lengths[part.first : part.stop]) for part in parts)
        self._forget_empty(lane)
        return parts

    def _compute(self, parts: Sequence[_Part]) -> None:
        """Compute a batch and hand out what was found. If it fails, each request is tried alone: one is to blame."""
        self._working_on = parts
        lane = parts[0].job.lane
        rows = [row for part in parts for row in part.job.rows[part.first : part.stop]]
        num_pieces = sum(sum(part.job.lengths[part.first : part.stop]) for part in parts)
        started = time.monotonic()
        try:
            found = lane.compute(rows)
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self._compute([part])
            else:
                _fail(parts[0].job, error)
            return
        seconds = time.monotonic() - started
        if lane.budget > 1:
            speed = num_pieces / max(seconds, 1e-6)
            self._speed += (speed - self._speed) * (_NEWEST if self._speed else 1.0)
        self._watch(BatchRecord(lane.model, len(parts), len(rows), num_pieces, seconds))
        at = 0
        for part in parts:
            count = part.stop - part.first
            _hand_out(part, found[at : at + count])
            at += count

    def _seconds_of_line(self) -> int:
        seconds = self._state.num_pieces / self._speed if self._speed else _SOONEST
        return min(max(math.ceil(seconds), _SOONEST), _LATEST)


def _filled(line: Iterable[_Job], budget: int) -> list[_Part]:
    """Hand out rows from the front of a line until the budget is spent: a share of it to each, then the rest."""
    parts: dict[_Job, _Part] = {}
    num_pieces = 0
    for most in (max(1, budget // _SHARES), budget):
        for job in line:
            own = sum(job.lengths[parts[job].first : parts[job].stop]) if job in parts else 0
            while job.num_handed < len(job.rows):
                length = job.lengths[job.num_handed]
                if parts and num_pieces + length > budget:
                    return list(parts.values())
                if own and own + length > most:
                    break
                part = parts.setdefault(job, _Part(job, job.num_handed, job.num_handed))
                job.num_handed += 1
                part.stop = job.num_handed
                own += length
                num_pieces += length
    return list(parts.values())


def _hand_out(part: _Part, found: Sequence[Any]) -> None:
    job = part.job
    job.found[part.first : part.stop] = found
    job.num_found += len(found)
    if job.num_found == len(job.rows):
        try:
            job.future.set_result(job.found)
        except InvalidStateError:  # nobody waits for it any more
            return


def _fail(job: _Job, error: Exception) -> None:
    try:
        job.future.set_exception(error)
    except InvalidStateError:
        return
