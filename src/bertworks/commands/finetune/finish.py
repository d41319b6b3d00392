"""The end of a fine-tuning run: a trained model and labelled cases in, scores, a sealed folder and a report out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.verdict import verdict_of
from bertworks.commands.run_facts import now
from bertworks.disk import sha256, write_json
from bertworks.inference.attribution import EXPLAINABLE_TASKS, explain
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.models.provenance import display_name, folders_of, hashes_of
from bertworks.parallel.machine import machine_info
from bertworks.records import ScoreRecord
from bertworks.reports.finetune import FinetuneContents, WindowCoverage, write_finetune_report
from bertworks.settings import to_toml
from bertworks.tasks.contract import TaskScores, examples_in

# Of how many training examples the final score is measured, to set beside dev's.
_TRAIN_SAMPLE = 2_000
# How many predictions the report explains, and of how many pieces they may be: a page is to be read.
_NUM_EXPLANATIONS, _MAX_TOKENS = 3, 256


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has come to its end.

    step       the one whose model is kept
    records    the folder of its records
    warnings   what a person should know before they believe a score; `notes` what was mended or left out
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
    """Calibrate the model on dev, score all splits, and write the folder and the report."""
    scored = yield from _score_splits(run)
    folder, base = run.request.output / "model", run.request.model
    told = {
        **({"base": display_name(base), **hashes_of(base)} if base else {}),
        "recipe": asdict(run.request.recipe),
        "scores": {split: dict(one.metrics) for split, one in scored.items()},
        "data": {
            split: {"file": path.name, "sha256": sha256(path), "examples": sum(len(examples_in(case)) for case in some)}
            for split, some in run.examples.items()
            if (path := getattr(run.request, split)) is not None
        },
    }
    save_finetuned(folder, run.predictor, told)
    facts = {"task": run.request.task, "machine": machine_info(), "finished": now(), **told, **folders_of(base or None)}
    write_json(run.request.output / "run.json", facts)
    verdict = verdict_of(run.predictor.module.task.main_metric, scored)
    yield FinetuneEvent(note=verdict)
    yield FinetuneEvent(note=f"report: {_write_report(run, scored, verdict, facts)}")
    yield FinetuneEvent(note=f"model: {folder}", model_folder=folder)


def _score_splits(run: FinishedRun) -> Generator[FinetuneEvent, None, dict[str, TaskScores]]:
    """Tune on dev what is tuned there, then score a sample of train, dev and test; return all scores."""
    module = run.predictor.module
    if "dev" in run.examples:
        predictions = [prediction for _, prediction in run.predictor.predict(run.examples["dev"])]
        module.task = module.task.calibrate(run.examples["dev"], predictions)
    scored: dict[str, TaskScores] = {}
    for split, some in run.examples.items():
        if split == "test" and any(case.label is None for case in some):
            continue  # a test file without labels is for `predict`
        sample = some[:: max(1, len(some) // _TRAIN_SAMPLE)] if split == "train" else some
        scored[split] = module.task.score(run.predictor.predict(sample))
        yield FinetuneEvent(score=ScoreRecord(run.step, split, dict(scored[split].metrics)))
    return scored


def _write_report(
    run: FinishedRun, scores: Mapping[str, TaskScores], verdict: str, run_info: Mapping[str, Any]
) -> Path:
    contents = FinetuneContents(
        task=run.request.task,
        base=run_info.get("base", f"a new {run.predictor.module.family.class_prefix}"),
        scores=scores,
        verdict=verdict,
        data=run_info["data"],
        recipe=to_toml(run.request.recipe),
        machine=run_info["machine"],
        coverage=run.coverage,
        explanations=[explain(run.predictor, case).to_html() for case in _examples_to_explain(run)],
        warnings=run.warnings,
        notes=run.notes,
    )
    return write_finetune_report(run.request.output, contents, run.records)


def _examples_to_explain(run: FinishedRun) -> list[Any]:
    """Return the first few cases of dev, or of train, that are short enough to be read; none that nobody explains."""
    if run.request.task not in EXPLAINABLE_TASKS:
        return []
    some = run.examples.get("dev", run.examples["train"])
    return [case for case in some[:50] if sum(map(len, case.texts)) <= 4 * _MAX_TOKENS][:_NUM_EXPLANATIONS]
