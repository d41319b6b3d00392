"""Many fine-tuning runs: a request and tunings in, what each came to out; the paper's grid, and seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import GRID_BATCHES, GRID_EPOCHS, GRID_RATES, Tuning
from bertworks.commands.finetune.request import FinetuneRequest, Told
from bertworks.commands.finetune.run import finetune
from bertworks.disk import read_json, sha256, write_json
from bertworks.errors import FolderError, SettingsError
from bertworks.models.provenance import BASE_HASH, hashes_of
from bertworks.tasks.registry import task_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to: its tuning, its folder, the main figure on dev and its name, and all figures by split."""

    tuning: Tuning
    folder: Path
    score: float
    scores: dict[str, dict[str, float]]
    main: str = ""

    @staticmethod
    def table(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
        """Return a row a tuning, its seeds together, the best first: batch, rate, epochs, mean, deviation, seeds."""
        groups: dict[Tuning, list[float]] = {}
        for outcome in outcomes:
            groups.setdefault(replace(outcome.tuning, seed=0), []).append(outcome.score)
        rows = sorted(groups.items(), key=lambda item: -statistics.fmean(item[1]))
        return [
            (
                str(tuning.batch),
                f"{tuning.rate:.0e}",
                str(tuning.epochs),
                f"{statistics.fmean(scores):.4f}",
                f"{statistics.stdev(scores):.4f}" if len(scores) > 1 else "–",
                str(len(scores)),
            )
            for tuning, scores in rows
        ]


def grid_of(tuning: Tuning) -> list[Tuning]:
    """Return the paper's grid: batch 16 and 32, rates 5e-5, 3e-5 and 2e-5, 2, 3 and 4 epochs."""
    choices = product(GRID_BATCHES, GRID_RATES, GRID_EPOCHS)
    return [replace(tuning, batch=batch, rate=rate, epochs=epochs) for batch, rate, epochs in choices]


def seeds_of(tuning: Tuning, count: int) -> list[Tuning]:
    """Return the same tuning with as many seeds, from its own on."""
    return [replace(tuning, seed=tuning.seed + number) for number in range(count)]


def runs_of(request: FinetuneRequest, tunings: Sequence[Tuning]) -> list[FinetuneRequest]:
    """Return a request for each tuning, in a folder of its own below `out`."""
    if request.dev is None:
        raise SettingsError("several runs are compared by their scores on dev; name a labelled file with --dev")
    return [
        replace(
            request,
            tuning=tuning,
            out=request.out / f"batch{tuning.batch}-rate{tuning.rate:g}-epochs{tuning.epochs}-seed{tuning.seed}",
        )
        for tuning in tunings
    ]


def sweep(request: FinetuneRequest, tunings: Sequence[Tuning]) -> Iterator[Told | Outcome]:
    """Run one after the other, each in a folder of its own below `out`; those that are finished are not run again.

    At the end `sweep.json` holds all outcomes.
    """
    outcomes = []
    for number, own in enumerate(runs_of(request, tunings), 1):
        yield Told(note=f"run {number} of {len(tunings)}: {own.out.name}")
        yield from settled(own)
        outcome = outcome_of(own)
        if outcome is None:
            return  # asked to stop
        outcomes.append(outcome)
        yield outcome
    write_sweep(request, outcomes)


def write_sweep(request: FinetuneRequest, outcomes: Sequence[Outcome]) -> None:
    """Write down what all runs came to."""
    told = [{"folder": one.folder.name, "score": one.score, "scores": one.scores} for one in outcomes]
    write_json(request.out / "sweep.json", told)


def settled(request: FinetuneRequest) -> Iterator[Told]:
    """Do one run to its end; if it is finished, only check that it is this one."""
    facts = request.out / "run.json"
    if facts.exists():
        _check_same(request, read_json(facts, "a finished run"))
    else:
        yield from finetune(request)


def outcome_of(request: FinetuneRequest) -> Outcome | None:
    """Return what a run came to, or None if it is not finished: it was asked to stop."""
    facts = request.out / "run.json"
    if not facts.exists():
        return None
    scores = read_json(facts, "a finished run")["scores"]
    main = _main(request, request.out)
    return Outcome(request.tuning, request.out, scores["dev"][main], scores, main)


def _check_same(request: FinetuneRequest, facts: Mapping[str, Any]) -> None:
    """Refuse to take a finished run for this one if it was made with other files, settings or another model."""
    files = {"train": request.train, "dev": request.dev, "test": request.test}
    hashes = {split: sha256(path) for split, path in files.items() if path is not None}
    # What was written down has lists where the settings have tuples, and the seed with which a run was begun again.
    tuning = json.loads(json.dumps({**asdict(request.tuning), "seed": 0}))
    wanted = [request.task, hashes_of(request.model).get(BASE_HASH), tuning, hashes]
    data = {split: one["sha256"] for split, one in facts["data"].items()}
    found = [facts["task"], facts.get(BASE_HASH), {**facts["recipe"], "seed": 0}, data]
    if found != wanted:
        raise FolderError(f"{request.out} was made with other data or settings; choose another --out")


def _main(request: FinetuneRequest, folder: Path) -> str:
    told = read_json(folder / "model" / "bertworks.json", "a sealed model")
    config = read_json(folder / "model" / "config.json", "a sealed model")
    return task_of(request.task).told(told, config).main
