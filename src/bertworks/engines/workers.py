"""Parallel batches: jobs in, their results in the same order out, several at a time, each on one core.

Two batches on one core each finish sooner than one after the other on both: no core waits for the other at the end of
every matmul. A single batch uses all cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from bertworks.parallel.threads import get_num_threads, set_num_threads

J = TypeVar("J")
R = TypeVar("R")


def map_parallel(jobs: Iterable[J], compute: Callable[[J], R], num_workers: int) -> Iterator[R]:
    """Yield the result of `compute` for each job, in order; at most `num_workers` jobs run ahead of the caller."""
    source = iter(jobs)
    first = list(islice(source, 2))
    if num_workers < 2 or len(first) < 2:
        yield from map(compute, chain(first, source))
        return
    num_threads = get_num_threads()
    # set_num_threads holds for the calling thread and for threads started later, so it is reset at the end.
    pool = ThreadPoolExecutor(num_workers, "batches", initializer=partial(set_num_threads, 1))
    pending: deque[Future[R]] = deque()
    try:
        for job in chain(first, source):
            pending.append(pool.submit(compute, job))
            if len(pending) > num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        set_num_threads(num_threads)
