"""Hyperparameter sweeps: a request and recipes in, the outcome of each run out; the paper's grid, and seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.defaults import keep_run_values
from bertworks.commands.finetune.open_run import read_base, read_examples, resolve_request
from bertworks.commands.finetune.recipe import GRID_BATCH_SIZES, GRID_EPOCHS, GRID_LEARNING_RATES, FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.finetune.run_recipe import with_defaults
from bertworks.disk import read_json, sha256, write_json
from bertworks.encoders.precision import AUTO
from bertworks.errors import FolderError, SettingsError
from bertworks.folder_lock import lock_folder, remove_dead_lock
from bertworks.models.provenance import BASE_HASH, hashes_of
from bertworks.tasks.registry import task_of
from bertworks.training.trackers import track_events


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run. `score` is the main metric on dev, `scores` all metrics by split."""

    recipe: FinetuneRecipe
    folder: Path
    score: float
    scores: dict[str, dict[str, float]]
    main_metric: str = ""

    @staticmethod
    def table(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
        """Return a row per recipe, best first: batch size, learning rate, epochs, mean, deviation, number of seeds."""
        groups: dict[FinetuneRecipe, list[float]] = {}
        for outcome in outcomes:
            groups.setdefault(replace(outcome.recipe, seed=0), []).append(outcome.score)
        rows = sorted(groups.items(), key=lambda item: -statistics.fmean(item[1]))
        return [
            (
                str(recipe.batch_size),
                f"{recipe.learning_rate:.0e}",
                str(recipe.epochs),
                f"{statistics.fmean(scores):.4f}",
                f"{statistics.stdev(scores):.4f}" if len(scores) > 1 else "–",
                str(len(scores)),
            )
            for recipe, scores in rows
        ]


def grid_of(recipe: FinetuneRecipe) -> list[FinetuneRecipe]:
    """Return the paper's grid: batch sizes 16 and 32; learning rates 5e-5, 3e-5 and 2e-5; 2, 3 and 4 epochs."""
    return [
        replace(recipe, batch_size=batch_size, learning_rate=learning_rate, epochs=epochs)
        for batch_size, learning_rate, epochs in product(GRID_BATCH_SIZES, GRID_LEARNING_RATES, GRID_EPOCHS)
    ]


def resolved(request: FinetuneRequest) -> FinetuneRequest:
    """Return the request with the defaults that follow from its model and data."""
    base, examples = read_base(request), read_examples(request)
    recipe = resolve_request(request, base, examples).recipe
    return replace(request, recipe=recipe)


def seeds_of(recipe: FinetuneRecipe, count: int) -> list[FinetuneRecipe]:
    """Return the recipe with `count` consecutive seeds, starting from its own."""
    return [replace(recipe, seed=recipe.seed + index) for index in range(count)]


def runs_of(request: FinetuneRequest, recipes: Sequence[FinetuneRecipe]) -> list[FinetuneRequest]:
    """Return a request per recipe, each with its own subfolder of the output folder."""
    if request.dev is None:
        raise SettingsError("several runs are compared by their dev scores; name a labelled file with --dev")
    return [
        replace(
            request,
            recipe=recipe,
            output=request.output
            / f"bs{recipe.batch_size}-lr{recipe.learning_rate:g}-epochs{recipe.epochs}-seed{recipe.seed}",
        )
        for recipe in recipes
    ]


def sweep(
    request: FinetuneRequest, recipes: Sequence[FinetuneRecipe], track: Sequence[str] = ()
) -> Iterator[FinetuneEvent | Outcome]:
    """Run one recipe after the other, each in its own subfolder; skip finished runs.

    At the end `sweep.json` holds all outcomes. `track` names experiment trackers, which get each run as one of theirs.
    """
    outcomes = []
    runs = runs_of(request, recipes)
    with lock_folder(request.output):
        for number, run in enumerate(runs, 1):
            yield FinetuneEvent(note=f"run {number} of {len(recipes)}: {run.output.name}")
            yield from track_events(complete_run(run), track, run.output)
            outcome = outcome_of(run)
            if outcome is None:
                return  # interrupted
            outcomes.append(outcome)
            yield outcome
        write_sweep(request, outcomes)


def write_sweep(request: FinetuneRequest, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of all runs to `sweep.json`."""
    rows = [{"folder": run.folder.name, "score": run.score, "scores": run.scores} for run in outcomes]
    write_json(request.output / "sweep.json", rows)


def complete_run(request: FinetuneRequest) -> Iterator[FinetuneEvent]:
    """Run or resume one run; if it is finished, only check that it has the same inputs."""
    run_info = request.output / "run.json"
    if run_info.exists():
        _check_same(request, read_json(run_info, "a finished run"))
        remove_dead_lock(request.output)
    else:
        yield from run_finetune(request)


def outcome_of(request: FinetuneRequest) -> Outcome | None:
    """Return the outcome of a run, or None if it is not finished."""
    run_info = request.output / "run.json"
    if not run_info.exists():
        return None
    scores = read_json(run_info, "a finished run")["scores"]
    main_metric = _main_metric(request, request.output)
    return Outcome(
        recipe=request.recipe,
        folder=request.output,
        score=scores["dev"][main_metric],
        scores=scores,
        main_metric=main_metric,
    )


def _check_same(request: FinetuneRequest, run_info: Mapping[str, Any]) -> None:
    """Refuse a finished run that was made with other files, other settings or another model."""
    files = {"train": request.train, "dev": request.dev, "test": request.test}
    hashes = {split: sha256(path) for split, path in files.items() if path is not None}
    # A restarted run has another recipe than its request, a run of an earlier version lacks keys, and baselines do not
    # change the model.
    ignored = {"seed": 0, "baselines": True}
    run_recipe = with_defaults(run_info.get("first_recipe", run_info["recipe"])) | ignored
    recipe = asdict(keep_run_values(request.recipe, run_recipe)) | ignored
    if recipe["precision"] == AUTO:
        recipe["precision"] = run_recipe["precision"]
    recipe = json.loads(json.dumps(recipe))  # turns tuples into lists
    expected = [request.task, hashes_of(request.model).get(BASE_HASH), recipe, hashes]
    run_hashes = {split: file["sha256"] for split, file in run_info["data"].items()}
    actual = [run_info["task"], run_info.get(BASE_HASH), run_recipe, run_hashes]
    if actual != expected:
        raise FolderError(f"{request.output} was made with other data or settings; choose another --output")


def _main_metric(request: FinetuneRequest, folder: Path) -> str:
    metadata = read_json(folder / "model" / "bertworks.json", "a fine-tuned model")
    config = read_json(folder / "model" / "config.json", "a fine-tuned model")
    return task_of(request.task).from_metadata(metadata, config).main_metric
