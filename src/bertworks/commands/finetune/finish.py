"""The end of a fine-tuning run: a trained model and labelled examples in; scores, a model folder and a report out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.verdict import verdict_of
from bertworks.commands.run_info import now
from bertworks.disk import sha256, write_json
from bertworks.inference.attribution import explain
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.models.provenance import display_name, folders_of, hashes_of
from bertworks.parallel.machine import machine_info
from bertworks.records import ScoreRecord
from bertworks.reports.explanation import explanation_html
from bertworks.reports.finetune import FinetuneContents, WindowCoverage, write_finetune_report
from bertworks.settings import to_toml
from bertworks.tasks.baselines import BaselineScores, score_baselines
from bertworks.tasks.contract import ExplainableTask, TaskScores, examples_in

# The score on train, which the verdict compares with dev's, is of about this many examples.
_TRAIN_SAMPLE_SIZE = 2_000
# The report explains this many predictions of texts up to this length, so that it stays readable.
_NUM_EXPLANATIONS, _MAX_CHARACTERS = 3, 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run whose training is complete.

    step       the step of the best model
    records    the folder of its records
    warnings   what makes a score doubtful; `notes` what was repaired or skipped
    """

    request: FinetuneRequest
    predictor: Predictor
    examples: Mapping[str, Sequence[Any]]
    step: int
    records: Path
    coverage: WindowCoverage
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def finish_run(run: FinishedRun) -> Iterator[FinetuneEvent]:
    """Calibrate the model on dev, score all splits and baselines, and write the model folder and the report."""
    scores = yield from _score_splits(run)
    baselines = yield from _score_baselines(run, [split for split in scores if split != "train"])
    folder, base = run.request.output / "model", run.request.model
    metadata = {
        **({"base": display_name(base), **hashes_of(base)} if base else {}),
        "recipe": asdict(run.request.recipe),
        "scores": {split: dict(split_scores.metrics) for split, split_scores in scores.items()},
        **({"baselines": {baseline.name: baseline.metrics() for baseline in baselines}} if baselines else {}),
        "data": {
            split: {
                "file": path.name,
                "sha256": sha256(path),
                "examples": sum(len(examples_in(example)) for example in examples),
            }
            for split, examples in run.examples.items()
            if (path := getattr(run.request, split)) is not None
        },
    }
    save_finetuned(folder, run.predictor, metadata)
    run_info = {
        "task": run.request.task,
        "machine": machine_info(),
        "finished": now(),
        **metadata,
        **folders_of(base or None),
    }
    write_json(run.request.output / "run.json", run_info)
    verdict = verdict_of(run.predictor.module.task.main_metric, scores, baselines)
    yield FinetuneEvent(note=verdict)
    yield FinetuneEvent(note=f"report: {_write_report(run, scores, baselines, verdict, run_info)}")
    yield FinetuneEvent(note=f"model: {folder}", model_folder=folder)


def _score_splits(run: FinishedRun) -> Generator[FinetuneEvent, None, dict[str, TaskScores]]:
    """Calibrate on dev, then score a sample of train, dev, and test if it is labelled."""
    module = run.predictor.module
    if "dev" in run.examples:
        predictions = [prediction for _, prediction in run.predictor.predict(run.examples["dev"])]
        module.task = module.task.calibrate(run.examples["dev"], predictions)
    scores: dict[str, TaskScores] = {}
    for split, examples in run.examples.items():
        if split == "test" and any(example.label is None for example in examples):
            continue
        sample = examples[:: max(1, len(examples) // _TRAIN_SAMPLE_SIZE)] if split == "train" else examples
        scores[split] = module.task.score(run.predictor.predict(sample))
        yield FinetuneEvent(score=ScoreRecord(run.step, split, dict(scores[split].metrics)))
    return scores


def _score_baselines(run: FinishedRun, splits: Sequence[str]) -> Generator[FinetuneEvent, None, list[BaselineScores]]:
    """Score the baselines of the task on the splits, if the recipe asks for them."""
    baselines: list[BaselineScores] = []
    if not run.request.recipe.baselines:
        return baselines
    scored = {split: run.examples[split] for split in splits}
    for baseline in score_baselines(run.predictor.module.task, run.examples["train"], scored):
        baselines.append(baseline)
        for split, metrics in baseline.metrics().items():
            values = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            yield FinetuneEvent(note=f"{split}, {baseline.title}: {values}")
    return baselines


def _write_report(
    run: FinishedRun,
    scores: Mapping[str, TaskScores],
    baselines: Sequence[BaselineScores],
    verdict: str,
    run_info: Mapping[str, Any],
) -> Path:
    contents = FinetuneContents(
        task=run.request.task,
        base=run_info.get("base", f"a new {run.predictor.module.family.class_prefix}"),
        scores=scores,
        baselines=baselines,
        verdict=verdict,
        data=run_info["data"],
        recipe=to_toml(run.request.recipe),
        machine=run_info["machine"],
        coverage=run.coverage,
        explanations=[explanation_html(explain(run.predictor, example)) for example in _examples_to_explain(run)],
        warnings=run.warnings,
        notes=run.notes,
    )
    return write_finetune_report(run.request.output, contents, run.records)


def _examples_to_explain(run: FinishedRun) -> list[Any]:
    """Return the first few short examples of dev, or of train; none if the task has no explanations."""
    if not isinstance(run.predictor.module.task, ExplainableTask):
        return []
    examples = run.examples.get("dev", run.examples["train"])[:50]
    return [example for example in examples if sum(map(len, example.texts)) <= _MAX_CHARACTERS][:_NUM_EXPLANATIONS]
