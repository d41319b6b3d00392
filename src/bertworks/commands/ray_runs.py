"""Many training runs on a Ray cluster: named jobs in; each done, or named with what went wrong and tried again.

A run keeps its checkpoints in its own folder, which all machines see. So one that is begun again, because it failed or
because its machine was lost, goes on where it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from bertworks.commands.compare.member import EventCallback
from bertworks.commands.compare.run import CompareReport, CompareRequest, compare
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.sweep import Outcome, complete_run, outcome_of, runs_of, write_sweep
from bertworks.errors import BertworksError, SettingsError
from bertworks.parallel.ray_cluster import ray_connection
from bertworks.parallel.ray_pool import RayPool, TaskResources
from bertworks.parallel.workers import WorkerPool
from bertworks.training.interrupt import STOP_MESSAGE

# How often a run that fails is begun in one command.
MAX_ATTEMPTS = 3

JobT = TypeVar("JobT")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job that was tried, by its name; `error` is empty if it is done."""

    name: str
    error: str = ""


@contextlib.contextmanager
def open_ray_pool(address: str, device: str, num_cpus: int) -> Iterator[RayPool]:
    """Yield a pool whose tasks have so many CPUs each, and a GPU if the device asks for one or may be any."""
    with ray_connection(address) as ray:
        has_any = ray.cluster_resources().get("GPU", 0) >= 1
        gpus = int(device.startswith("cuda") or (device == "auto" and has_any))
        yield RayPool(ray, resources=TaskResources(num_cpus, gpus, memory=0))


def run_with_retries(pool: WorkerPool, work: Callable[[JobT], object], jobs: Mapping[str, JobT]) -> Iterator[Attempt]:
    """Do all jobs, in any order, and yield what became of each; those that fail are tried again when all had a turn."""
    left = dict(jobs)
    for _ in range(MAX_ATTEMPTS):
        untried = dict(left)
        try:
            for attempt in pool(partial(_try_job, work=work), list(left.items())):
                del untried[attempt.name]
                if not attempt.error:
                    del left[attempt.name]
                yield attempt
        except BertworksError as error:  # one was lost again and again: who else was unfinished begins anew
            yield from (Attempt(name, str(error)) for name in untried)
        if not left:
            return


def _try_job(named_job: tuple[str, JobT], work: Callable[[JobT], object]) -> Attempt:
    """Try one job. Whatever goes wrong in it is its own, and no reason for the others to end."""
    name, job = named_job
    try:
        work(job)
    except Exception as error:
        reason = str(error) if isinstance(error, BertworksError) else f"{type(error).__name__}: {error}"
        return Attempt(name, reason)
    return Attempt(name)


def sweep_on(
    pool: WorkerPool, request: FinetuneRequest, recipes: Sequence[FinetuneRecipe]
) -> Iterator[FinetuneEvent | Outcome]:
    """Do what `sweep` does, several runs at a time: the same folders, and `sweep.json` once all are finished."""
    # Each run keeps features of its own: several would write one file at the same time.
    runs = {own.output.name: replace(own, feature_folder=None) for own in runs_of(request, recipes)}
    outcomes: dict[str, Outcome] = {}
    failed: dict[str, str] = {}
    for attempt in run_with_retries(pool, _run_to_end, runs):
        if attempt.error:
            failed[attempt.name] = attempt.error
            yield FinetuneEvent(warning=f"failed: {attempt.name}: {attempt.error}")
            continue
        failed.pop(attempt.name, None)
        outcome = outcome_of(runs[attempt.name])
        if outcome is None:
            raise SettingsError(
                f"{attempt.name} is done, but not seen in {request.output}; with --out name one that all machines share"
            )
        outcomes[attempt.name] = outcome
        yield FinetuneEvent(note=f"done: {attempt.name}, {len(outcomes)} of {len(runs)}")
        yield outcome
    if failed:
        told = "; ".join(f"{name} ({error})" for name, error in failed.items())
        raise BertworksError(
            f"{len(failed)} of {len(runs)} runs failed {MAX_ATTEMPTS} times: {told}; the same command tries these again"
        )
    write_sweep(request, [outcomes[name] for name in runs])


def compare_on(pool: WorkerPool, request: CompareRequest, on_event: EventCallback = lambda told: None) -> CompareReport:
    """Do what `compare` does, several members and seeds at a time; what fails is tried again when all had a turn."""
    for _ in range(MAX_ATTEMPTS):
        report = compare(request, pool, on_event)
        if report.is_interrupted or not report.failures:
            break
    return report


def _run_to_end(request: FinetuneRequest) -> None:
    """Do one run to its end; one that was asked to leave has failed, since it is not finished."""
    for _ in complete_run(request):
        pass
    if not (request.output / "run.json").exists():
        raise BertworksError(STOP_MESSAGE)
