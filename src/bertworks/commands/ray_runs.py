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

from bertworks.commands.compare.member import Tell
from bertworks.commands.compare.run import CompareReport, CompareRequest, compare
from bertworks.commands.finetune.recipe import Tuning
from bertworks.commands.finetune.request import FinetuneRequest, Told
from bertworks.commands.finetune.sweep import Outcome, outcome_of, runs_of, settled, write_sweep
from bertworks.errors import BertworksError, SettingsError
from bertworks.parallel.ray_cluster import connected
from bertworks.parallel.ray_pool import Needs, RayPool
from bertworks.parallel.workers import Pool
from bertworks.training.interrupt import LEFT

# How often a run that fails is begun in one command.
TRIES = 3

Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job that was tried, by its name; `error` is empty if it is done."""

    name: str
    error: str = ""


@contextlib.contextmanager
def runs_on(address: str, device: str, num_cpus: int) -> Iterator[RayPool]:
    """Yield a pool whose tasks have so many CPUs each, and a GPU if the device asks for one or may be any."""
    with connected(address) as ray:
        has_any = ray.cluster_resources().get("GPU", 0) >= 1
        gpus = int(device.startswith("cuda") or (device == "auto" and has_any))
        yield RayPool(ray, needs=Needs(num_cpus, gpus, memory=0))


def attempts(pool: Pool, work: Callable[[Job], object], jobs: Mapping[str, Job]) -> Iterator[Attempt]:
    """Do all jobs, in any order, and yield what became of each; those that fail are tried again when all had a turn."""
    left = dict(jobs)
    for _ in range(TRIES):
        untried = dict(left)
        try:
            for attempt in pool(partial(_attempt, work=work), list(left.items())):
                del untried[attempt.name]
                if not attempt.error:
                    del left[attempt.name]
                yield attempt
        except BertworksError as error:  # one was lost again and again: who else was unfinished begins anew
            yield from (Attempt(name, str(error)) for name in untried)
        if not left:
            return


def _attempt(named: tuple[str, Job], work: Callable[[Job], object]) -> Attempt:
    """Try one job. Whatever goes wrong in it is its own, and no reason for the others to end."""
    name, job = named
    try:
        work(job)
    except Exception as error:
        reason = str(error) if isinstance(error, BertworksError) else f"{type(error).__name__}: {error}"
        return Attempt(name, reason)
    return Attempt(name)


def sweep_on(pool: Pool, request: FinetuneRequest, tunings: Sequence[Tuning]) -> Iterator[Told | Outcome]:
    """Do what `sweep` does, several runs at a time: the same folders, and `sweep.json` once all are finished."""
    # Each run keeps features of its own: several would write one file at the same time.
    runs = {own.out.name: replace(own, kept=None) for own in runs_of(request, tunings)}
    outcomes: dict[str, Outcome] = {}
    failed: dict[str, str] = {}
    for attempt in attempts(pool, _settle, runs):
        if attempt.error:
            failed[attempt.name] = attempt.error
            yield Told(warning=f"failed: {attempt.name}: {attempt.error}")
            continue
        failed.pop(attempt.name, None)
        outcome = outcome_of(runs[attempt.name])
        if outcome is None:
            raise SettingsError(
                f"{attempt.name} is done, but not seen in {request.out}; with --out name one that all machines share"
            )
        outcomes[attempt.name] = outcome
        yield Told(note=f"done: {attempt.name}, {len(outcomes)} of {len(runs)}")
        yield outcome
    if failed:
        told = "; ".join(f"{name} ({error})" for name, error in failed.items())
        raise BertworksError(
            f"{len(failed)} of {len(runs)} runs failed {TRIES} times: {told}; the same command tries these again"
        )
    write_sweep(request, [outcomes[name] for name in runs])


def compare_on(pool: Pool, request: CompareRequest, tell: Tell = lambda told: None) -> CompareReport:
    """Do what `compare` does, several members and seeds at a time; what fails is tried again when all had a turn."""
    for _ in range(TRIES):
        report = compare(request, pool, tell)
        if report.left or not report.failures:
            break
    return report


def _settle(request: FinetuneRequest) -> None:
    """Do one run to its end; one that was asked to leave has failed, since it is not finished."""
    for _ in settled(request):
        pass
    if not (request.out / "run.json").exists():
        raise BertworksError(LEFT)
