"""Training runs on a Ray cluster: named jobs in; each finished, or reported with its error and retried.

A run keeps its checkpoints in its own folder on a shared disk. So a run that is restarted, because it failed or because
its node was lost, resumes from its last checkpoint.
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
from bertworks.folder_lock import lock_folder
from bertworks.parallel.ray_cluster import ray_connection
from bertworks.parallel.ray_pool import RayPool, TaskResources
from bertworks.parallel.workers import WorkerPool
from bertworks.training.interrupt import STOP_MESSAGE

# How often one command tries a run that fails.
MAX_ATTEMPTS = 3

JobT = TypeVar("JobT")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a job; `error` is empty if it succeeded."""

    name: str
    error: str = ""


@contextlib.contextmanager
def open_ray_pool(address: str, device: str, num_cpus: int) -> Iterator[RayPool]:
    """Yield a pool whose tasks have `num_cpus` CPUs each, and a GPU for device cuda, or for auto if there is one."""
    with ray_connection(address) as ray:
        has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
        num_gpus = int(device.startswith("cuda") or (device == "auto" and has_gpu))
        yield RayPool(ray, resources=TaskResources(num_cpus, num_gpus, memory=0))


def run_with_retries(pool: WorkerPool, work: Callable[[JobT], object], jobs: Mapping[str, JobT]) -> Iterator[Attempt]:
    """Run all jobs, in any order, and yield each attempt; failed jobs are retried after all others."""
    unfinished = dict(jobs)
    for _ in range(MAX_ATTEMPTS):
        untried = dict(unfinished)
        try:
            for attempt in pool(partial(_try_job, work=work), list(unfinished.items())):
                del untried[attempt.name]
                if not attempt.error:
                    del unfinished[attempt.name]
                yield attempt
        except BertworksError as error:  # a worker was lost too often: all unfinished jobs are retried
            yield from (Attempt(name, str(error)) for name in untried)
        if not unfinished:
            return


def _try_job(named_job: tuple[str, JobT], work: Callable[[JobT], object]) -> Attempt:
    """Try one job. An error in it does not end the others."""
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
    with lock_folder(request.output):
        yield from _sweep_on(pool, request, recipes)


def _sweep_on(
    pool: WorkerPool, request: FinetuneRequest, recipes: Sequence[FinetuneRecipe]
) -> Iterator[FinetuneEvent | Outcome]:
    # Each run caches its own features: several would write one file at the same time.
    runs = {run.output.name: replace(run, feature_folder=None) for run in runs_of(request, recipes)}
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
                f"{attempt.name} is finished, but not in {request.output}; choose an --output that all nodes share"
            )
        outcomes[attempt.name] = outcome
        yield FinetuneEvent(note=f"done: {attempt.name}, {len(outcomes)} of {len(runs)}")
        yield outcome
    if failed:
        errors = "; ".join(f"{name} ({error})" for name, error in failed.items())
        raise BertworksError(
            f"{len(failed)} of {len(runs)} runs failed {MAX_ATTEMPTS} times: {errors}; the same command retries them"
        )
    write_sweep(request, [outcomes[name] for name in runs])


def compare_on(
    pool: WorkerPool, request: CompareRequest, on_event: EventCallback = lambda event: None
) -> CompareReport:
    """Do what `compare` does, several members and seeds at a time; failed jobs are retried after all others."""
    for _ in range(MAX_ATTEMPTS):
        report = compare(request, pool, on_event)
        if report.is_interrupted or not report.failures:
            break
    return report


def _run_to_end(request: FinetuneRequest) -> None:
    """Complete one run; one that was asked to stop counts as failed, since it is not finished."""
    for _ in complete_run(request):
        pass
    if not (request.output / "run.json").exists():
        raise BertworksError(STOP_MESSAGE)
