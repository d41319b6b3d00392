"""Run many units of work: units in, their results out as they finish; in processes of this node, or elsewhere."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from bertworks.errors import BertworksError

Unit = TypeVar("Unit")
Result = TypeVar("Result")


class NumberedResult(Protocol):
    """A result with the number of its unit, from 0."""

    @property
    def number(self) -> int: ...


_RUN_AGAIN = "run the same command again: finished work is kept"

Part = TypeVar("Part", bound=NumberedResult)


class WorkerPool(Protocol):
    """Workers on other nodes: they yield the results of `work` for the units, as they finish."""

    def __call__(self, work: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]: ...


# A number of processes of this node, or workers on other nodes.
Workers = int | WorkerPool


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_units(work: Callable[[Unit], Result], units: Iterable[Unit], workers: Workers) -> Iterator[Result]:
    """Yield the result of `work` for each unit, in the order in which they finish.

    `units` is consumed only as fast as workers become free, because a unit may carry its text. With one worker,
    everything runs in this process. An error in a unit ends the run; results of finished units are kept.
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
    pending: set[Future[Result]] = set()
    try:
        for unit in units:
            with _without_main_module(), _defer_interrupts():
                pending.add(pool.submit(work, unit))
            if len(pending) >= workers + 2:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except BrokenProcessPool:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=True, cancel_futures=True)
        raise BertworksError(_describe_loss(processes)) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _describe_loss(processes: Sequence[multiprocessing.process.BaseProcess]) -> str:
    """Return which of the ended workers was lost and why, and what to do; the pool has terminated the others."""
    lost = [process for process in processes if process.exitcode not in (0, -signal.SIGTERM)] or processes
    if not lost:
        return f"a worker process did not start; {_RUN_AGAIN}"
    pid, exit_code = lost[0].pid, lost[0].exitcode or 0
    if exit_code == -signal.SIGKILL:
        return (
            f"worker process {pid} was killed by signal 9 (SIGKILL), most likely because memory ran out; run the same "
            f"command again with fewer --workers: finished work is kept"
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"worker process {pid} was killed by signal {-exit_code} ({name}); {_RUN_AGAIN}"
    return f"worker process {pid} ended with exit code {exit_code}; {_RUN_AGAIN}"


def in_order(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts by their number; early ones are buffered (never more than there are workers)."""
    buffered: dict[int, Part] = {}
    next_number = 0
    for part in parts:
        buffered[part.number] = part
        while next_number in buffered:
            yield buffered.pop(next_number)
            next_number += 1


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Start workers without running the caller's script again in each.

    They need only our modules; otherwise every script would have to guard its code with `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
    removed: dict[str, object] = {name: main.__dict__.pop(name) for name in names}
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        main.__dict__.update(removed)


@contextlib.contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Delay Ctrl-C while workers start: interrupted workers of a half-started pool would print tracebacks.

    The signal mask is for the workers, which inherit it. The handler is for this process, where a thread of some
    library that is not masked may receive the signal.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signals: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
    if signals:
        signal.raise_signal(signal.SIGINT)


def _module_of(work: Callable[..., object]) -> str:
    """Return the module that workers should import: that of the function inside any partial."""
    while hasattr(work, "func"):
        work = work.func
    return work.__module__


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, use one thread (there are as many workers as cores), and exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Wait until the parent exits, also by SIGKILL, then exit at once: files are written atomically."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(OSError):
            multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
