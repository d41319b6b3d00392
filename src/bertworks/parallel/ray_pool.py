"""Run many units of work as tasks of a Ray cluster: units in, their results out as they finish.

A unit is a pure function that writes whole files or none, so a task that is lost with its machine is simply done again
elsewhere. All machines must see the same files under the same names, and have the same version of bertworks.

What is kept is bounded: there are at most `room` tasks at a time, and none is begun that is more than `_LEAD` times as
far ahead of the oldest one that is unfinished. So a unit that has to be done again holds up no more than that.
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

# How often a task is begun anew when its process or its machine is lost.
_RETRIES = 5
# A unit of text holds its block with all its Python objects in memory.
_UNIT_MEMORY = 2**28
_LEAD = 4
# Seconds between two looks at how large the cluster is, and how long tasks get to end when a run is given up.
_REFRESH_SECONDS, _CANCEL_TIMEOUT = 5.0, 60.0


@dataclass(frozen=True, slots=True)
class TaskResources:
    """What a task takes of a machine; a memory of 0 is not reckoned with."""

    cpus: float = 1
    gpus: float = 0
    memory: int = _UNIT_MEMORY


@dataclass(frozen=True, slots=True)
class RayPool:
    """The workers of a cluster: at most `num_workers` of them at once, otherwise as many as it has."""

    ray: Any
    num_workers: int | None = None
    resources: TaskResources = TaskResources()

    def __call__(self, work: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """Yield the result of `work` for each unit, in the order in which they finish.

        `units` is drawn from only as fast as there is room. An error in a unit ends the run.
        """
        options = {
            "num_cpus": self.resources.cpus,
            "num_gpus": self.resources.gpus,
            "memory": self.resources.memory or None,
            "max_retries": _RETRIES,
            "scheduling_strategy": "SPREAD",
        }
        task = self.ray.remote(_run_task).options(**options)
        shared = self.ray.put(work)  # once for all, since it may carry more than a unit does
        here = _DriverInfo(bertworks.__version__, str(Path.cwd()))
        room = _TaskLimit(self)
        waiting: dict[Any, int] = {}
        try:
            for number, unit in enumerate(units):
                while waiting and (len(waiting) >= room.size or number - _oldest_number(waiting) >= _LEAD * room.size):
                    yield self._next_result(waiting)
                waiting[task.remote(shared, here, unit)] = number
            while waiting:
                yield self._next_result(waiting)
        finally:
            self._cancel(list(waiting))

    def _next_result(self, pending: dict[Any, int]) -> Any:
        """Wait for a task to finish, and return its result."""
        (done, *_), _ = self.ray.wait(list(pending), num_returns=1)
        del pending[done]
        errors = self.ray.exceptions
        try:
            return self.ray.get(done)
        except errors.RayTaskError as error:
            raise self._unwrap_error(error) from None
        except errors.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise BertworksError(
                f"a task was lost {_RETRIES + 1} times, most likely because memory ran out ({reason}); run the same "
                f"command again with fewer --workers: finished work is kept"
            ) from None

    def _unwrap_error(self, error: Any) -> Exception:
        """Return what went wrong in a task; of files and folders, where it did, since machines may see others."""
        cause = error.cause
        if isinstance(cause, InputError | FolderError) and len(self.ray.nodes()) > 1:
            place = " ".join(getattr(cause, "__notes__", ()))
            return type(cause)(f"{cause} (seen from {place}; all machines of a cluster must see the same files)")
        return cause if isinstance(cause, Exception) else error

    def _cancel(self, tasks: list[Any]) -> None:
        """End what is still running: nothing is written behind the back of whoever looks at the folder next."""
        for task in tasks:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(task)
        if tasks:
            self.ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_TIMEOUT)


class _TaskLimit:
    """How many tasks may be under way: a few more than there are CPUs, so that none of them waits for us."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool
        self._size, self._refreshed_at = 1, float("-inf")

    @property
    def size(self) -> int:
        if self._pool.num_workers is not None:
            return self._pool.num_workers
        if time.monotonic() - self._refreshed_at > _REFRESH_SECONDS:  # machines come and go
            found, needs = self._pool.ray.cluster_resources(), self._pool.resources
            shares = [found.get("CPU", 0) / needs.cpus] + ([found.get("GPU", 0) / needs.gpus] if needs.gpus else [])
            slots = max(1, int(min(shares)))
            self._size, self._refreshed_at = slots + slots // 4 + 2, time.monotonic()
        return self._size


@contextlib.contextmanager
def workers_on(address: str | None, num_workers: int | None) -> Iterator[Workers | None]:
    """Yield the workers of a cluster, or without an address those of this machine."""
    if address is None:
        yield num_workers
        return
    with ray_connection(address, num_workers) as ray:
        yield RayPool(ray, num_workers)


def _oldest_number(pending: dict[Any, int]) -> int:
    return next(iter(pending.values()))


@dataclass(frozen=True, slots=True)
class _DriverInfo:
    """What a task has to have in common with the command that it works for."""

    version: str
    folder: str


def _run_task(work: Callable[[Unit], Result], driver: _DriverInfo, unit: Unit) -> Result:
    """What a task does."""
    if driver.version != bertworks.__version__:
        raise SettingsError(
            f"{platform.node()} has bertworks {bertworks.__version__}, and the command was given with {driver.version}; "
            f"install the same version on all machines of the cluster"
        )
    if Path(driver.folder).is_dir():  # relative names mean the same as where the command was given
        os.chdir(driver.folder)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a task has a CPU of its own, and no more
    try:
        return work(unit)
    except BertworksError as error:
        error.add_note(platform.node())
        raise
