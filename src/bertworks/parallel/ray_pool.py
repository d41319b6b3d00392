"""Run many units of work as tasks of a Ray cluster: units in, their results out as they finish.

A unit is idempotent and writes files atomically, so a task that is lost with its node is simply run again elsewhere.
All nodes must see the same files under the same paths, and have the same version of bertworks.

Memory is bounded: at most `limit` tasks run at a time, and none is started more than `_MAX_LEAD * limit` units ahead of
the oldest unfinished one.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bertworks
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError
from bertworks.parallel.ray_cluster import ray_connection
from bertworks.parallel.workers import Result, Unit, Workers

# How often a task is retried when its process or its node is lost.
_RETRIES = 5
# Memory of a task: a block of text with all its Python objects.
_UNIT_MEMORY = 2**28
_MAX_LEAD = 4
# Seconds between two queries of the size of the cluster, and to wait for cancelled tasks.
_REFRESH_SECONDS, _CANCEL_TIMEOUT = 5.0, 60.0


@dataclass(frozen=True, slots=True)
class TaskResources:
    """Resources of a node that a task reserves; a memory of 0 reserves none."""

    cpus: float = 1
    gpus: float = 0
    memory: int = _UNIT_MEMORY


@dataclass(frozen=True, slots=True)
class RayPool:
    """The workers of a cluster: at most `num_workers` at a time, by default as many as the cluster has."""

    ray: Any
    num_workers: int | None = None
    resources: TaskResources = TaskResources()

    def __call__(self, work: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """Yield the result of `work` for each unit, in the order in which they finish.

        `units` is consumed only as fast as tasks finish. An error in a unit ends the run.
        """
        options = {
            "num_cpus": self.resources.cpus,
            "num_gpus": self.resources.gpus,
            "memory": self.resources.memory or None,
            "max_retries": _RETRIES,
            "scheduling_strategy": "SPREAD",
        }
        task = self.ray.remote(_run_task).options(**options)
        work_ref = self.ray.put(work)  # shared by all tasks, since it may be larger than a unit
        driver = _DriverInfo(bertworks.__version__, str(Path.cwd()))
        limit = _TaskLimit(self)
        pending: dict[Any, int] = {}
        try:
            for number, unit in enumerate(units):
                while pending and (
                    len(pending) >= limit.size or number - _oldest_number(pending) >= _MAX_LEAD * limit.size
                ):
                    yield self._next_result(pending)
                pending[task.remote(work_ref, driver, unit)] = number
            while pending:
                yield self._next_result(pending)
        finally:
            self._cancel(list(pending))

    def _next_result(self, pending: dict[Any, int]) -> Any:
        """Wait for a task to finish, and return its result."""
        (done, *_), _ = self.ray.wait(list(pending), num_returns=1)
        number = pending.pop(done)
        errors = self.ray.exceptions
        try:
            return self.ray.get(done)
        except errors.RayTaskError as error:
            raise self._unwrap_error(error) from None
        except errors.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise BertworksError(
                f"task {number + 1} was lost {_RETRIES + 1} times, most likely because memory ran out ({reason}); run "
                f"the same command again with fewer --workers: finished work is kept"
            ) from None

    def _unwrap_error(self, error: Any) -> Exception:
        """Return the exception of a task; errors of files name the node, since nodes may see different files."""
        cause = error.cause
        if isinstance(cause, InputError | FolderError) and len(self.ray.nodes()) > 1:
            node = " ".join(getattr(cause, "__notes__", ()))
            return type(cause)(f"{cause} (on node {node}; all nodes of a cluster must see the same files)")
        return cause if isinstance(cause, Exception) else error

    def _cancel(self, tasks: list[Any]) -> None:
        """Cancel running tasks and wait for them, so that they write no files after the run has ended."""
        for task in tasks:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(task)
        if tasks:
            self.ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_TIMEOUT)


class _TaskLimit:
    """How many tasks may run: a few more than there are CPUs, so that no CPU waits for the driver."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool
        self._size, self._refreshed_at = 1, float("-inf")

    @property
    def size(self) -> int:
        if self._pool.num_workers is not None:
            return self._pool.num_workers
        if time.monotonic() - self._refreshed_at > _REFRESH_SECONDS:  # nodes come and go
            total, task = self._pool.ray.cluster_resources(), self._pool.resources
            limits = [total.get("CPU", 0) / task.cpus] + ([total.get("GPU", 0) / task.gpus] if task.gpus else [])
            slots = max(1, int(min(limits)))
            self._size, self._refreshed_at = slots + slots // 4 + 2, time.monotonic()
        return self._size


@contextlib.contextmanager
def workers_on(address: str | None, num_workers: int | None) -> Iterator[Workers | None]:
    """Yield the workers of a cluster, or without an address the number of processes of this node."""
    if address is None:
        yield num_workers
        return
    with ray_connection(address, num_workers) as ray:
        yield RayPool(ray, num_workers)


def _oldest_number(pending: dict[Any, int]) -> int:
    return next(iter(pending.values()))


@dataclass(frozen=True, slots=True)
class _DriverInfo:
    """What a task must have in common with the driver process."""

    version: str
    folder: str


def _run_task(work: Callable[[Unit], Result], driver: _DriverInfo, unit: Unit) -> Result:
    """Run one unit on a worker node."""
    if driver.version != bertworks.__version__:
        raise SettingsError(
            f"{platform.node()} has bertworks {bertworks.__version__}, but the command runs with {driver.version}; "
            f"install the same version on all nodes of the cluster"
        )
    if Path(driver.folder).is_dir():  # so that relative paths mean the same as for the driver
        os.chdir(driver.folder)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a task has one CPU
    try:
        return work(unit)
    except BertworksError as error:
        error.add_note(platform.node())
        raise
