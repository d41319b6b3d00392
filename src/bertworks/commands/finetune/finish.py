"""The end of a fine-tuning run: a trained model and labelled cases in, scores, a sealed folder and a report out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.request import FinetuneRequest, Told
from bertworks.commands.finetune.verdict import verdict_of
from bertworks.commands.pretrain.recipe import as_toml
from bertworks.commands.run_facts import now
from bertworks.disk import sha256, write_json
from bertworks.inference.attribution import CASES, explain
from bertworks.inference.finetuned import seal
from bertworks.inference.predictor import Predictor
from bertworks.models.provenance import folders_of, hashes_of, usual_name
from bertworks.parallel.machine import machine
from bertworks.records import ScoreRecord
from bertworks.reports.finetune import Coverage, TuningContents, write_tuning_report
from bertworks.tasks.contract import Scored, examples_in

# Of how many training examples the final score is measured, to set beside dev's.
_TRAIN_SAMPLE = 2_000
# How many predictions the report explains, and of how many pieces they may be: a page is to be read.
_EXPLAINED, _LONGEST = 3, 256


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has come to its end.

    step       the one whose model is kept
    records    the folder of its records
    warnings   what a person should know before they believe a score; `notes` what was mended or left out
    """

    request: FinetuneRequest
    predictor: Predictor
    cases: Mapping[str, Sequence[Any]]
    step: int
    records: Path
    coverage: Coverage
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def sealed(run: Finished) -> Iterator[Told]:
    """Calibrate the model on dev, score all splits, and write the folder and the report."""
    scored = yield from _scored(run)
    folder, base = run.request.out / "model", run.request.model
    told = {
        **({"base": usual_name(base), **hashes_of(base)} if base else {}),
        "recipe": asdict(run.request.tuning),
        "scores": {split: dict(one.figures) for split, one in scored.items()},
        "data": {
            split: {"file": path.name, "sha256": sha256(path), "examples": sum(len(examples_in(case)) for case in some)}
            for split, some in run.cases.items()
            if (path := getattr(run.request, split)) is not None
        },
    }
    seal(folder, run.predictor, told)
    facts = {"task": run.request.task, "machine": machine(), "finished": now(), **told, **folders_of(base or None)}
    write_json(run.request.out / "run.json", facts)
    verdict = verdict_of(run.predictor.module.task.main, scored)
    yield Told(note=verdict)
    yield Told(note=f"report: {_reported(run, scored, verdict, facts)}")
    yield Told(note=f"model: {folder}", sealed=folder)


def _scored(run: Finished) -> Generator[Told, None, dict[str, Scored]]:
    """Tune on dev what is tuned there, then score a sample of train, dev and test; return all scores."""
    module = run.predictor.module
    if "dev" in run.cases:
        predictions = [prediction for _, prediction in run.predictor.predict(run.cases["dev"])]
        module.task = module.task.calibrated(run.cases["dev"], predictions)
    scored: dict[str, Scored] = {}
    for split, some in run.cases.items():
        if split == "test" and any(case.label is None for case in some):
            continue  # a test file without labels is for `predict`
        sample = some[:: max(1, len(some) // _TRAIN_SAMPLE)] if split == "train" else some
        scored[split] = module.task.score(run.predictor.predict(sample))
        yield Told(score=ScoreRecord(run.step, split, dict(scored[split].figures)))
    return scored


def _reported(run: Finished, scored: Mapping[str, Scored], verdict: str, facts: Mapping[str, Any]) -> Path:
    contents = TuningContents(
        task=run.request.task,
        base=facts.get("base", f"a new {run.predictor.module.family.classes}"),
        scored=scored,
        verdict=verdict,
        data=facts["data"],
        recipe=as_toml(run.request.tuning),
        machine=facts["machine"],
        coverage=run.coverage,
        explained=[explain(run.predictor, case).as_html() for case in _to_explain(run)],
        warnings=run.warnings,
        notes=run.notes,
    )
    return write_tuning_report(run.request.out, contents, run.records)


def _to_explain(run: Finished) -> list[Any]:
    """Return the first few cases of dev, or of train, that are short enough to be read; none that nobody explains."""
    if run.request.task not in CASES:
        return []
    some = run.cases.get("dev", run.cases["train"])
    return [case for case in some[:50] if sum(map(len, case.texts)) <= 4 * _LONGEST][:_EXPLAINED]
