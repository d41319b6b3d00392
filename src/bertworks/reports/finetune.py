"""The report of a fine-tuning run: its records and TuningContents in, one `report.html` out that needs nothing else.

It has the look of the pretraining report. A part without data is left out. Memory grows with the number of logged
steps and of training examples, by about 0.2 KB and 8 bytes each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import write_text
from bertworks.errors import FolderError
from bertworks.records import METRICS, History, ScoreRecord
from bertworks.reports.bars import BarChart, draw_bars
from bertworks.reports.curves import Boundary, Chart, Curve, StepAxis, Values, draw_chart, tick_distance
from bertworks.reports.errors_by_class import calibration_part, classes_part, confusion_part, mistakes_part
from bertworks.reports.page import (
    absent_part,
    bullet_list,
    collapsible,
    fact_card,
    format_duration,
    format_name,
    page_of,
    recipe_part,
    table,
    tiles,
    warnings_card,
)
from bertworks.reports.pretrain import REPORT
from bertworks.reports.step_charts import raw_and_smooth_curves, step_charts
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Features, TaskScores

# The split whose mistakes are shown: the first of these that was scored.
_ERROR_SPLITS = ("dev", "test", "train")
# A longest example so many times the median would press all bars but the last into one.
_DOUBLING_FROM = 20
_BARS_PER_TICK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCoverage:
    """How the training examples fill rows: what the rule made of them, and what it left out.

    lengths    (N,) pieces of each example, special ones too, and those twice that stand in two windows; of examples
               that share a row, all of that row
    num_long   examples that slide over several windows
    num_cut    pieces that no row holds
    unknown    how many of how many pieces stand for words that the vocabulary does not have
    """

    window_rule: WindowRule
    lengths: npt.NDArray[np.int64]
    num_sequences: int
    num_long: int
    num_truncated: int
    unknown: tuple[int, int] = (0, 0)

    @classmethod
    def from_features(cls, all_features: Sequence[Features], window_rule: WindowRule) -> WindowCoverage:
        drawn = [part for question in all_features for part in question.training_parts]
        lengths = np.array([part.num_tokens for part in drawn], dtype=np.int64)
        return cls(
            window_rule,
            np.repeat(lengths, [part.num_examples for part in drawn]),
            sum(len(part.sequences) for part in drawn),
            sum(len(part.sequences) > part.num_units for part in drawn),
            sum(part.num_truncated for part in drawn),
            (
                sum(len(row.unknown) for part in drawn for row in part.sequences),
                sum(part.num_tokens for part in drawn),
            ),
        )

    def describe(self) -> str:
        """Say what became of the examples, and whether all of each was read."""
        rows = f"{_count(self.num_sequences, 'row')} of at most {self.window_rule.max_length} places"
        told = [f"{_count(len(self.lengths), 'training example')} in {rows}."]
        if self.num_long:
            told.append(
                f"{_count(self.num_long, 'long one')} slid over several rows, neighbours with {self.window_rule.overlap} "
                f"pieces in common."
            )
        if self.num_truncated:
            told.append(f"{_count(self.num_truncated, 'piece')} did not fit and stayed unread, as truncate asks.")
        else:
            told.append("Every piece was read.")
        if self.unknown[0]:
            told.append("{:,} of {:,} pieces are words that the vocabulary does not have.".format(*self.unknown))
        return " ".join(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneContents:
    """What the report tells besides the records of the run.

    task       its kind, such as "classify"; `base` is the name of the model that was tuned
    scored     the final scores of train, dev and test, those of them that there are
    data       by split: file, examples and sha256
    recipe     as it was written down; `machine` what it ran on
    notes      what else was found or mended, each a sentence
    explained  pictures of which pieces drove a prediction; HTML that has escaped its texts
    """

    task: str
    base: str
    scores: Mapping[str, TaskScores]
    verdict: str
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    coverage: WindowCoverage | None = None
    explanations: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def main_metric(self) -> str:
        """The figure by which models are chosen."""
        return next((one.main_metric for one in self.scores.values()), "")


def write_finetune_report(run: Path, contents: FinetuneContents, records: Path | None = None) -> Path:
    """Write the report into the run folder and return its path.

    `records` is the folder that holds the run's records, where that is another: a run that was begun again.
    """
    if not run.is_dir():
        raise FolderError(f"there is no run folder {run}; check the name")
    history = History.read(records or run)
    best = _best(history, contents.main_metric)
    absent = [*history.read_errors, *([] if history.columns else [f"{METRICS} holds no step: there are no curves."])]
    parts = (
        _scores(contents),
        warnings_card(contents.warnings),
        bullet_list("notes", contents.notes) if contents.notes else "",
        _curves(history, contents.main_metric, best),
        *_error_parts(contents, best),
        _lengths(contents.coverage),
        _explanations(contents.explanations),
        _data_and_machine(contents),
        recipe_part(contents.recipe),
        absent_part(absent),
    )
    title = f"Fine-tuning run {run.resolve().name}"
    verdict = contents.verdict[:1].upper() + contents.verdict[1:]
    page = page_of(title, _state(contents, history, best), verdict, parts)
    # Half of a surrogate pair, as JSON may hold it, cannot be written: it must not cost a finished run its report.
    write_text(run / REPORT, page.encode(errors="replace").decode())
    return run / REPORT


def _state(contents: FinetuneContents, history: History, best: ScoreRecord | None) -> str:
    told = [f"{contents.task} on {contents.base}"]
    if history.columns:
        told.append(f"{_count(int(history.last('step')), 'step')} in {format_duration(history.last('seconds'))}")
    if best is not None:
        told.append(f"the model is that of step {best.step:,}, the best on dev")
    return ", ".join(told)


def _best(history: History, main_metric: str) -> ScoreRecord | None:
    """Return the dev scores that are best, the first of equals: those of the step that the run keeps."""
    return max(
        _dev_scores(history), key=lambda record: _or_lowest(record.metrics.get(main_metric, math.nan)), default=None
    )


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _dev_scores(history: History) -> list[ScoreRecord]:
    return [record for record in history.scores if record.split == "dev"]


def _scores(contents: FinetuneContents) -> str:
    """Return the main figure of each split, large, and all figures of all splits side by side."""
    scored, main = contents.scores, contents.main_metric
    large = tiles([(f"{format_name(main)} on {split}", f"{one.main_value:.3f}") for split, one in scored.items()])
    names = list(dict.fromkeys([main, *(name for one in scored.values() for name in one.metrics)]))
    if len(names) < 2:
        return large
    rows = [
        (format_name(name), *(f"{one.metrics[name]:.3f}" if name in one.metrics else "–" for one in scored.values()))
        for name in names
    ]
    return f"{large}<h2>Scores</h2>{table('Scores', ('', *scored), rows, num_text_columns=1)}"


def _curves(history: History, main_metric: str, best: ScoreRecord | None) -> str:
    """Return the curves of the losses and of every figure of dev, and folded those of rate, speed and gradients."""
    dev = _dev_scores(history)
    if not history.columns and not dev:
        return ""
    steps = [*history.columns.get("step", ())[:1], *history.columns.get("step", ())[-1:]]
    steps += [record.step for record in dev[:1] + dev[-1:]]
    marks = [Boundary(best.step, f"best on dev: step {best.step:,}")] if best else []
    frame = StepAxis.from_steps(steps, marks)
    charts = [*_loss_charts(history), *(_metric_chart(dev, name) for name in _metric_names(dev, main_metric))]
    others = "".join(draw_chart(chart, frame) for chart in step_charts(history))
    drawn = "".join(draw_chart(chart, frame) for chart in charts)
    return f'<h2>Curves</h2><div class="charts">{drawn}</div>' + (
        collapsible("Learning rate, speed and gradient norm", f'<div class="charts">{others}</div>') if others else ""
    )


def _loss_charts(history: History) -> Iterator[Chart]:
    for number, (name, columns) in enumerate(history.losses.items()):
        steps, values = (np.array(column) for column in columns)
        size = "tall" if number == 0 else "low"
        yield Chart(
            title=f"Training loss: {name}",
            unit="by step",
            curves=raw_and_smooth_curves("", steps, values, history),
            references=(),
            size=size,
        )


def _metric_names(dev: Sequence[ScoreRecord], main_metric: str) -> list[str]:
    names = dict.fromkeys(name for record in dev for name in record.metrics)
    return sorted(names, key=lambda name: name != main_metric)  # the others keep their order


def _metric_chart(dev: Sequence[ScoreRecord], name: str) -> Chart:
    steps = np.array([record.step for record in dev], dtype=np.float64)
    values = np.array([record.metrics.get(name, math.nan) for record in dev])
    return Chart(
        title=format_name(name).capitalize(),
        unit="on dev",
        curves=(Curve(name=name, css_class="held-out", shape="dots", steps=steps, values=values),),
    )


def _error_parts(contents: FinetuneContents, best: ScoreRecord | None) -> Iterator[str]:
    """Yield confusion, classes, calibration and mistakes of the judged split; the first three of test too, folded."""
    split = next((split for split in _ERROR_SPLITS if split in contents.scores), None)
    if split is None:
        return
    # Dev was scored at every measurement with the temperature 1, that is, before one was fitted.
    before = best.metrics.get("calibration_error") if best is not None and split == "dev" else None
    scored = contents.scores[split]
    test = contents.scores.get("test") if split == "dev" else None
    shown: tuple[tuple[str, str, Callable[[TaskScores], str]], ...] = (
        ("Confusion", confusion_part(scored), confusion_part),
        ("By class", classes_part(scored), classes_part),
        ("Calibration", calibration_part(scored, before), calibration_part),
    )
    for title, part, part_of in shown:
        again = part_of(test) if test is not None else ""
        if part:
            yield f"<h2>{title} <small>{split}</small></h2>{part}{collapsible('The same on test', again) if again else ''}"
    mistakes = mistakes_part(scored)
    if mistakes:
        order = f"Highest {scored.confidence_label} first."
        yield f'<h2>Worst mistakes <small>{split}</small></h2><p class="note">{order}</p>{mistakes}'


def _lengths(coverage: WindowCoverage | None) -> str:
    if coverage is None or not len(coverage.lengths):
        return ""
    lengths, limit = coverage.lengths, coverage.window_rule.max_length
    edges = length_edges(lengths)
    counts = np.histogram(lengths, edges)[0].astype(np.float64)
    spans = [(int(low), int(high) - 1) for low, high in pairwise(edges)]
    words = [
        f"{_count(low, 'piece') if low == high else f'{low:,} to {high:,} pieces'}: {_count(int(count), 'example')}"
        for (low, high), count in zip(spans, counts, strict=True)
    ]
    mark = (float(limit), f"a row holds {limit:,}") if edges[0] < limit < edges[-1] else None
    chart = BarChart(
        title="Lengths",
        unit="training examples by number of pieces",
        edges=edges,
        heights=counts,
        labels=tuple(words),
        marker=mark,
    )
    middle, high = (f"{value:,.0f}" for value in np.percentile(lengths, (50, 95)))
    told = f"Half have at most {middle} pieces, 95 % at most {high}, the longest {lengths.max():,}."
    return (
        f'<h2>Lengths and coverage</h2><p class="note">{coverage.describe()} {told}</p>'
        f'<div class="charts one">{draw_bars(chart)}</div>'
    )


def length_edges(lengths: npt.NDArray[np.int64]) -> Values:
    """Return the edges between bars: round numbers from 0, or powers of two where a few examples are far longer."""
    longest = int(lengths.max())
    if longest > _DOUBLING_FROM * max(float(np.median(lengths)), 1.0):
        first = int(lengths.min()).bit_length() - 1  # no example is empty: special pieces count too
        return np.array([2.0**power for power in range(first, longest.bit_length() + 1)])
    width = max(1, round(tick_distance(longest + 1) / _BARS_PER_TICK))
    return np.arange(0.0, longest + width + 1, width)


def _explanations(pictures: Sequence[str]) -> str:
    if not pictures:
        return ""
    cards = "".join(f'<div class="card">{picture}</div>' for picture in pictures)
    return (
        f'<h2>Why the model said so</h2><p class="note">The pieces that drove a prediction: blue speaks for it, orange '
        f"against it, the stronger the more.</p>{cards}"
    )


def _data_and_machine(contents: FinetuneContents) -> str:
    parts = []
    if contents.data:
        rows = [
            (split, *(_format_value(one.get(key)) for key in ("file", "sha256", "examples")))
            for split, one in contents.data.items()
        ]
        parts.append(f"<h2>Data</h2>{table('Data', ('', 'file', 'sha256', 'examples'), rows, num_text_columns=3)}")
    if contents.machine:
        cards = fact_card(
            "Model", {"task": contents.task, "base": contents.base, "scored by": format_name(contents.main_metric)}
        )
        cards += fact_card("Machine", contents.machine)
        parts.append(f'<h2>Model and machine</h2><div class="facts">{cards}</div>')
    return "".join(parts)


def _format_value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str("–" if value is None else value)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
