"""The end of a fine-tuning run: a trained model and labelled examples in; scores, a model folder and a report out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.collapse import predicts_one_class, unpredicted_classes
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.verdict import verdict_of
from bertworks.commands.run_info import now
from bertworks.disk import sha256, write_json
from bertworks.display.explanations import explanation_html
from bertworks.inference.attribution import explain
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.models.provenance import display_name, folders_of, hashes_of
from bertworks.parallel.machine import machine_info
from bertworks.records import ScoreRecord
from bertworks.reports.finetune import FinetuneContents, WindowCoverage, write_finetune_report
from bertworks.settings import to_toml
from bertworks.tasks.baselines import BaselineScores, score_baselines
from bertworks.tasks.contract import ExplainableTask, TableTask, TaskScores, examples_in
from bertworks.text.languages import languages_in

# The score on train, which the verdict compares with dev's, is of about this many examples.
_TRAIN_SAMPLE_SIZE = 2_000
# The report explains this many predictions of texts up to this length, so that it stays readable.
_NUM_EXPLANATIONS, _MAX_CHARACTERS = 3, 1_024
# A warning names this many classes at most.
_NUM_CLASSES_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run whose training is complete.

    first_recipe
               the recipe before any restart
    step       the step of the best model
    records    the folder of its records
    warnings   what makes a score doubtful; `notes` what was repaired or skipped
    sentence_files
               the files of sentence-transformers in the base model: its pooling, prompt and maximum length
    """

    request: FinetuneRequest
    first_recipe: FinetuneRecipe
    predictor: Predictor
    examples: Mapping[str, Sequence[Any]]
    step: int
    records: Path
    coverage: WindowCoverage
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    sentence_files: Mapping[str, bytes] = field(default_factory=dict)


def finish_run(run: FinishedRun) -> Iterator[FinetuneEvent]:
    """Calibrate the model on dev, score all splits and baselines, and write the model folder and the report."""
    scores = yield from _score_splits(run)
    class_warnings = _class_warnings(scores)
    yield from (FinetuneEvent(warning=message) for message in class_warnings)
    run = replace(run, warnings=[*run.warnings, *class_warnings])
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
        "columns": _training_columns(run),
        "languages": languages_in(_sample_texts(run.examples["train"])),
    }
    save_finetuned(folder, run.predictor, metadata, run.sentence_files)
    run_info = {
        "task": run.request.task,
        "machine": machine_info(),
        "finished": now(),
        **metadata,
        **({"first_recipe": asdict(run.first_recipe)} if run.first_recipe != run.request.recipe else {}),
        **folders_of(base or None),
    }
    write_json(run.request.output / "run.json", run_info)
    verdict = verdict_of(run.predictor.module.task.main_metric, scores, baselines)
    yield FinetuneEvent(note=verdict)
    yield FinetuneEvent(note=f"report: {_write_report(run, scores, baselines, verdict, run_info)}")
    yield FinetuneEvent(note=f"model: {folder}", model_folder=folder)


def _training_columns(run: FinishedRun) -> dict[str, str]:
    """Return the columns of train by role: those that were named, and for a table those that were recognized."""
    columns, task = run.request.columns_of("train"), run.predictor.module.task
    if isinstance(task, TableTask):
        return task.columns_in(run.request.train, columns)
    return {role: column for role, column in columns.items() if column}


def _sample_texts(examples: Sequence[Any]) -> Iterator[str]:
    for example in examples[:: max(1, len(examples) // _TRAIN_SAMPLE_SIZE)]:
        yield from example.texts


def _score_splits(run: FinishedRun) -> Generator[FinetuneEvent, None, dict[str, TaskScores]]:
    """Calibrate on dev, then score a sample of train, dev, and test if it is labelled."""
    module = run.predictor.module
    if "dev" in run.examples:
        yield FinetuneEvent(stage="calibrating on dev")
        predictions = [prediction for _, prediction in run.predictor.predict(run.examples["dev"])]
        module.task = module.task.calibrate(run.examples["dev"], predictions)
    scores: dict[str, TaskScores] = {}
    for split, examples in run.examples.items():
        if split == "test" and any(example.label is None for example in examples):
            continue
        sample = examples[:: max(1, len(examples) // _TRAIN_SAMPLE_SIZE)] if split == "train" else examples
        yield FinetuneEvent(stage=f"scoring {split}")
        scores[split] = module.task.score(run.predictor.predict(sample))
        yield FinetuneEvent(score=ScoreRecord(run.step, split, dict(scores[split].metrics)))
    return scores


def _class_warnings(scores: Mapping[str, TaskScores]) -> list[str]:
    """Warn about classes of dev that the model never predicts; all but one is a collapse, which has its own message."""
    details = scores["dev"].details if "dev" in scores else {}
    if "confusion" not in details or predicts_one_class(details["confusion"]):
        return []
    names = unpredicted_classes(details["confusion"], details["labels"])
    if not names:
        return []
    shown = ", ".join(f"'{name}'" for name in names[:_NUM_CLASSES_SHOWN])
    more = f" and {len(names) - _NUM_CLASSES_SHOWN:,} more" if len(names) > _NUM_CLASSES_SHOWN else ""
    return [
        f"never predicted on dev: {shown}{more}; more examples of a rare class, more epochs or "
        f"class_weights = balanced may help"
    ]


def _score_baselines(run: FinishedRun, splits: Sequence[str]) -> Generator[FinetuneEvent, None, list[BaselineScores]]:
    """Score the baselines of the task on the splits, if the recipe asks for them."""
    baselines: list[BaselineScores] = []
    if not run.request.recipe.baselines:
        return baselines
    yield FinetuneEvent(stage="baselines")
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
