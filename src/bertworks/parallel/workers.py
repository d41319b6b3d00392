"""Run many units of work: units in, their results out as they finish; on the cores of this machine, or elsewhere."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from bertworks.errors import BertworksError

Unit = TypeVar("Unit")
Result = TypeVar("Result")


class NumberedResult(Protocol):
    """A result that knows the number of its unit, counted from 0."""

    @property
    def number(self) -> int: ...


Part = TypeVar("Part", bound=NumberedResult)


class WorkerPool(Protocol):
    """Workers that are not processes of this machine: they yield what `work` makes of units, as they finish."""

    def __call__(self, work: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]: ...


# So many processes of this machine, or workers elsewhere.
Workers = int | WorkerPool


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_units(work: Callable[[Unit], Result], units: Iterable[Unit], workers: Workers) -> Iterator[Result]:
    """Yield the result of `work` for each unit, in the order in which they finish.

    `units` is drawn from only as fast as there is room, because a unit may carry its text. One worker means this very
    process. An error in a unit ends the run; what other units have finished stays.
    """
    if not isinstance(workers, int):
        yield from workers(work, units)
        return
    if workers <= 1:
        for unit in units:
            yield work(unit)
        return
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload([_module_of(work)])
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    waiting: set[Future[Result]] = set()
    try:
        for unit in units:
            with _without_main_module(), _defer_interrupts():
                waiting.add(pool.submit(work, unit))
            if len(waiting) >= workers + 2:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except BrokenProcessPool:
        raise BertworksError(
            "a worker process was ended from outside, most likely because memory ran out; run the same command again "
            "with fewer --workers: finished work is kept"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_order(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts by their number, holding back those that come too early (never more than there are workers)."""
    early: dict[int, Part] = {}
    wanted = 0
    for part in parts:
        early[part.number] = part
        while wanted in early:
            yield early.pop(wanted)
            wanted += 1


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Start workers without running the caller's script again in each.

    They need our modules only; otherwise every script that prepares text would have to guard its main part.
    """
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
    hidden: dict[str, object] = {name: main.__dict__.pop(name) for name in names}
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


@contextlib.contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait while workers start: a pool that is half started leaves workers that fail with a trace.

    The mask is for the workers, which inherit it. The handler is for this process: a thread of some library, which the
    mask does not reach, may take the signal.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
    if held:
        signal.raise_signal(signal.SIGINT)


def _module_of(work: Callable[..., object]) -> str:
    """Return the module that a worker needs to have loaded: that of the function behind any partial."""
    while hasattr(work, "func"):
        work = work.func
    return work.__module__


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, use one thread (there are as many workers as cores), and go when the parent goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent's end, also by SIGKILL, and end at once: every file is whole or not there."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(OSError):
            multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
