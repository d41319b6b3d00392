"""Batches in, what is computed of them out, in their order: several at once where there are several, each on one core.

Two batches on a core each are done sooner than one after the other on both: no core waits for the other at the end of
every product. A single batch has all cores for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import torch

J = TypeVar("J")
R = TypeVar("R")


def map_parallel(jobs: Iterable[J], compute: Callable[[J], R], num_workers: int) -> Iterator[R]:
    """Yield what `compute` makes of each job, in their order; at most `num_workers` are ahead of the caller."""
    source = iter(jobs)
    first = list(islice(source, 2))
    if num_workers < 2 or len(first) < 2:
        yield from map(compute, chain(first, source))
        return
    num_threads = torch.get_num_threads()
    # Said in a thread, it holds for that thread; and for threads that begin later, so it is said again at the end.
    pool = ThreadPoolExecutor(num_workers, "batches", initializer=partial(torch.set_num_threads, 1))
    waiting: deque[Future[R]] = deque()
    try:
        for job in chain(first, source):
            waiting.append(pool.submit(compute, job))
            if len(waiting) > num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_threads)
