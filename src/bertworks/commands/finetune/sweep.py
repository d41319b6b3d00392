"""Many fine-tuning runs: a request and tunings in, what each came to out; the paper's grid, and seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import GRID_BATCH_SIZES, GRID_EPOCHS, GRID_LEARNING_RATES, FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.disk import read_json, sha256, write_json
from bertworks.errors import FolderError, SettingsError
from bertworks.models.provenance import BASE_HASH, hashes_of
from bertworks.tasks.registry import task_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to: its tuning, its folder, the main figure on dev and its name, and all figures by split."""

    recipe: FinetuneRecipe
    folder: Path
    score: float
    scores: dict[str, dict[str, float]]
    main_metric: str = ""

    @staticmethod
    def table(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
        """Return a row a tuning, its seeds together, the best first: batch, rate, epochs, mean, deviation, seeds."""
        groups: dict[FinetuneRecipe, list[float]] = {}
        for outcome in outcomes:
            groups.setdefault(replace(outcome.recipe, seed=0), []).append(outcome.score)
        rows = sorted(groups.items(), key=lambda item: -statistics.fmean(item[1]))
        return [
            (
                str(tuning.batch_size),
                f"{tuning.learning_rate:.0e}",
                str(tuning.epochs),
                f"{statistics.fmean(scores):.4f}",
                f"{statistics.stdev(scores):.4f}" if len(scores) > 1 else "–",
                str(len(scores)),
            )
            for tuning, scores in rows
        ]


def grid_of(recipe: FinetuneRecipe) -> list[FinetuneRecipe]:
    """Return the paper's grid: batch 16 and 32, rates 5e-5, 3e-5 and 2e-5, 2, 3 and 4 epochs."""
    choices = product(GRID_BATCH_SIZES, GRID_LEARNING_RATES, GRID_EPOCHS)
    return [replace(recipe, batch_size=batch, learning_rate=rate, epochs=epochs) for batch, rate, epochs in choices]


def seeds_of(recipe: FinetuneRecipe, count: int) -> list[FinetuneRecipe]:
    """Return the same tuning with as many seeds, from its own on."""
    return [replace(recipe, seed=recipe.seed + number) for number in range(count)]


def runs_of(request: FinetuneRequest, recipes: Sequence[FinetuneRecipe]) -> list[FinetuneRequest]:
    """Return a request for each tuning, in a folder of its own below `out`."""
    if request.dev is None:
        raise SettingsError("several runs are compared by their scores on dev; name a labelled file with --dev")
    return [
        replace(
            request,
            recipe=tuning,
            output=request.output
            / f"batch{tuning.batch_size}-rate{tuning.learning_rate:g}-epochs{tuning.epochs}-seed{tuning.seed}",
        )
        for tuning in recipes
    ]


def sweep(request: FinetuneRequest, recipes: Sequence[FinetuneRecipe]) -> Iterator[FinetuneEvent | Outcome]:
    """Run one after the other, each in a folder of its own below `out`; those that are finished are not run again.

    At the end `sweep.json` holds all outcomes.
    """
    outcomes = []
    for number, own in enumerate(runs_of(request, recipes), 1):
        yield FinetuneEvent(note=f"run {number} of {len(recipes)}: {own.output.name}")
        yield from complete_run(own)
        outcome = outcome_of(own)
        if outcome is None:
            return  # asked to stop
        outcomes.append(outcome)
        yield outcome
    write_sweep(request, outcomes)


def write_sweep(request: FinetuneRequest, outcomes: Sequence[Outcome]) -> None:
    """Write down what all runs came to."""
    told = [{"folder": one.folder.name, "score": one.score, "scores": one.scores} for one in outcomes]
    write_json(request.output / "sweep.json", told)


def complete_run(request: FinetuneRequest) -> Iterator[FinetuneEvent]:
    """Do one run to its end; if it is finished, only check that it is this one."""
    facts = request.output / "run.json"
    if facts.exists():
        _check_same(request, read_json(facts, "a finished run"))
    else:
        yield from run_finetune(request)


def outcome_of(request: FinetuneRequest) -> Outcome | None:
    """Return what a run came to, or None if it is not finished: it was asked to stop."""
    facts = request.output / "run.json"
    if not facts.exists():
        return None
    scores = read_json(facts, "a finished run")["scores"]
    main = _main_metric(request, request.output)
    return Outcome(request.recipe, request.output, scores["dev"][main], scores, main)


def _check_same(request: FinetuneRequest, run_info: Mapping[str, Any]) -> None:
    """Refuse to take a finished run for this one if it was made with other files, settings or another model."""
    files = {"train": request.train, "dev": request.dev, "test": request.test}
    hashes = {split: sha256(path) for split, path in files.items() if path is not None}
    # What was written down has lists where the settings have tuples, and the seed with which a run was begun again.
    tuning = json.loads(json.dumps({**asdict(request.recipe), "seed": 0}))
    wanted = [request.task, hashes_of(request.model).get(BASE_HASH), tuning, hashes]
    data = {split: one["sha256"] for split, one in run_info["data"].items()}
    found = [run_info["task"], run_info.get(BASE_HASH), {**run_info["recipe"], "seed": 0}, data]
    if found != wanted:
        raise FolderError(f"{request.output} was made with other data or settings; choose another --out")


def _main_metric(request: FinetuneRequest, folder: Path) -> str:
    told = read_json(folder / "model" / "bertworks.json", "a sealed model")
    config = read_json(folder / "model" / "config.json", "a sealed model")
    return task_of(request.task).from_metadata(told, config).main_metric
