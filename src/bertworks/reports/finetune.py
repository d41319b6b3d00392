"""The report of a fine-tuning run: its records and FinetuneContents in, one self-contained `report.html` out.

A part without data is omitted. Memory: about 0.2 KB per logged step and 8 bytes per training example.
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
from bertworks.reports.adaptation import adaptation_part
from bertworks.reports.bars import BarChart, draw_bars
from bertworks.reports.baselines import baselines_part
from bertworks.reports.curves import Boundary, Chart, Curve, StepAxis, Values, draw_chart, tick_distance
from bertworks.reports.errors_by_class import calibration_part, classes_part, confusion_part, mistakes_part
from bertworks.reports.page import (
    absent_part,
    bullet_list,
    collapsible,
    fact_card,
    format_duration,
    format_name,
    heading,
    note,
    page_of,
    recipe_part,
    table,
    tiles,
    warnings_card,
)
from bertworks.reports.pretrain import REPORT
from bertworks.reports.step_charts import raw_and_smooth_curves, step_charts
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.baselines import BaselineScores
from bertworks.tasks.contract import Features, TaskScores

# The split whose errors are shown: the first of these that was scored.
_ERROR_SPLITS = ("dev", "test", "train")
# Bins of the length histogram double in width if the longest example is this many times the median.
_DOUBLING_FROM = 20
_BARS_PER_TICK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCoverage:
    """How the training examples fit into sequences.

    lengths        (N,) tokens of each example with special tokens; tokens in two windows count twice; examples that
                   share a sequence have its length
    num_long       examples that were split into several windows
    num_truncated  tokens in no sequence
    unknown        number of unknown tokens, and of all tokens
    """

    window_rule: WindowRule
    lengths: npt.NDArray[np.int64]
    num_sequences: int
    num_long: int
    num_truncated: int
    unknown: tuple[int, int] = (0, 0)

    @classmethod
    def from_features(cls, all_features: Sequence[Features], window_rule: WindowRule) -> WindowCoverage:
        parts = [part for features in all_features for part in features.training_parts]
        lengths = np.array([part.num_tokens for part in parts], dtype=np.int64)
        num_unknown = sum(len(sequence.unknown) for part in parts for sequence in part.sequences)
        return cls(
            window_rule=window_rule,
            lengths=np.repeat(lengths, [part.num_examples for part in parts]),
            num_sequences=sum(len(part.sequences) for part in parts),
            num_long=sum(len(part.sequences) > part.num_units for part in parts),
            num_truncated=sum(part.num_truncated for part in parts),
            unknown=(num_unknown, sum(part.num_tokens for part in parts)),
        )

    def describe(self) -> str:
        """Return how the examples were split into windows, and whether tokens were lost."""
        sequences = f"{_count(self.num_sequences, 'sequence')} of up to {self.window_rule.max_length} tokens"
        sentences = [f"{_count(len(self.lengths), 'training example')} in {sequences}."]
        if self.num_long:
            sentences.append(
                f"{_count(self.num_long, 'long example')} split into windows that overlap by "
                f"{self.window_rule.overlap} tokens."
            )
        if self.num_truncated:
            sentences.append(f"{_count(self.num_truncated, 'token')} truncated.")
        else:
            sentences.append("No token was truncated.")
        if self.unknown[0]:
            sentences.append("{:,} of {:,} tokens are unknown to the vocabulary.".format(*self.unknown))
        return " ".join(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneContents:
    """The content of the report besides the records of the run.

    task          its name, such as "classify"; `base` is the name of the base model
    scores        the final scores of train, dev and test, where they exist; `baselines` those of simpler models
    data          by split: file, examples and sha256
    recipe        the TOML of the recipe; `machine` what it ran on
    notes         sentences on what was repaired or skipped
    explanations  HTML of explained predictions
    """

    task: str
    base: str
    scores: Mapping[str, TaskScores]
    verdict: str
    baselines: Sequence[BaselineScores] = ()
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    coverage: WindowCoverage | None = None
    explanations: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def main_metric(self) -> str:
        """The metric that selects the best model."""
        return next((scores.main_metric for scores in self.scores.values()), "")


def write_finetune_report(run: Path, contents: FinetuneContents, records: Path | None = None) -> Path:
    """Write the report into the run folder and return its path.

    `records` is the folder of the run's records, if it is another one: that of a restarted run.
    """
    if not run.is_dir():
        raise FolderError(f"there is no run folder {run}; check the path")
    history = History.read(records or run)
    best = _best(history, contents.main_metric)
    absent = [*history.read_errors, *([] if history.columns else [f"{METRICS} has no steps: there are no curves."])]
    parts = (
        _scores(contents),
        baselines_part(contents.scores, contents.baselines),
        warnings_card(contents.warnings),
        bullet_list("notes", contents.notes) if contents.notes else "",
        _curves(history, contents.main_metric, best),
        adaptation_part(run / "adapt"),
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
    # JSON texts may hold lone surrogates, which UTF-8 cannot encode.
    write_text(run / REPORT, page.encode(errors="replace").decode())
    return run / REPORT


def _state(contents: FinetuneContents, history: History, best: ScoreRecord | None) -> str:
    parts = [f"{contents.task} on {contents.base}"]
    if history.columns:
        parts.append(f"{_count(int(history.last('step')), 'step')} in {format_duration(history.last('seconds'))}")
    if best is not None:
        parts.append(f"best on dev: step {best.step:,}")
    return ", ".join(parts)


def _best(history: History, main_metric: str) -> ScoreRecord | None:
    """Return the best dev scores, the first of equals: those of the saved model."""
    return max(
        _dev_scores(history), key=lambda record: _or_lowest(record.metrics.get(main_metric, math.nan)), default=None
    )


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _dev_scores(history: History) -> list[ScoreRecord]:
    return [record for record in history.scores if record.split == "dev"]


def _scores(contents: FinetuneContents) -> str:
    """Return the main metric of each split in large type, and a table of all metrics by split."""
    scores, main_metric = contents.scores, contents.main_metric
    large = tiles(
        [
            (f"{format_name(main_metric)} on {split}", f"{split_scores.main_value:.3f}")
            for split, split_scores in scores.items()
        ]
    )
    names = list(
        dict.fromkeys([main_metric, *(name for split_scores in scores.values() for name in split_scores.metrics)])
    )
    if len(names) < 2:
        return large
    rows = [
        (
            format_name(name),
            *(
                f"{split_scores.metrics[name]:.3f}" if name in split_scores.metrics else "–"
                for split_scores in scores.values()
            ),
        )
        for name in names
    ]
    return f"{large}{heading('Scores')}{table('Scores', ('', *scores), rows, num_text_columns=1)}"


def _curves(history: History, main_metric: str, best: ScoreRecord | None) -> str:
    """Return the charts of losses and dev metrics, and collapsed those of learning rate, throughput and gradients."""
    dev = _dev_scores(history)
    if not history.columns and not dev:
        return ""
    steps = [*history.columns.get("step", ())[:1], *history.columns.get("step", ())[-1:]]
    steps += [record.step for record in dev[:1] + dev[-1:]]
    step_axis = StepAxis.from_steps(steps, [Boundary(best.step, f"best on dev: step {best.step:,}")] if best else [])
    charts = [*_loss_charts(history), *(_metric_chart(dev, name) for name in _metric_names(dev, main_metric))]
    step_figures = "".join(draw_chart(chart, step_axis) for chart in step_charts(history))
    figures = "".join(draw_chart(chart, step_axis) for chart in charts)
    part = f'{heading("Curves")}<div class="charts">{figures}</div>'
    if step_figures:
        part += collapsible("Learning rate, throughput and gradient norm", f'<div class="charts">{step_figures}</div>')
    return part


def _loss_charts(history: History) -> Iterator[Chart]:
    for index, (name, columns) in enumerate(history.losses.items()):
        steps, values = (np.array(column) for column in columns)
        yield Chart(
            title=f"Training loss: {name}",
            unit="by step",
            curves=raw_and_smooth_curves("", steps, values, history),
            size="tall" if index == 0 else "low",
        )


def _metric_names(dev: Sequence[ScoreRecord], main_metric: str) -> list[str]:
    names = dict.fromkeys(name for record in dev for name in record.metrics)
    return sorted(names, key=lambda name: name != main_metric)  # stable: the others keep their order


def _metric_chart(dev: Sequence[ScoreRecord], name: str) -> Chart:
    steps = np.array([record.step for record in dev], dtype=np.float64)
    values = np.array([record.metrics.get(name, math.nan) for record in dev])
    return Chart(
        title=format_name(name).capitalize(),
        unit="on dev",
        curves=(Curve(name=name, css_class="held-out", shape="dots", steps=steps, values=values),),
    )


def _error_parts(contents: FinetuneContents, best: ScoreRecord | None) -> Iterator[str]:
    """Yield confusion matrix, classes, calibration and mistakes of dev; all but the last also of test, collapsed."""
    split = next((split for split in _ERROR_SPLITS if split in contents.scores), None)
    if split is None:
        return
    # The evaluations during training have temperature 1: they are from before the calibration.
    error_before = best.metrics.get("calibration_error") if best is not None and split == "dev" else None
    scores = contents.scores[split]
    test = contents.scores.get("test") if split == "dev" else None
    sections: tuple[tuple[str, str, Callable[[TaskScores], str]], ...] = (
        ("Confusion", confusion_part(scores), confusion_part),
        ("By class", classes_part(scores), classes_part),
        ("Calibration", calibration_part(scores, error_before), calibration_part),
    )
    for title, part, make_part in sections:
        test_part = make_part(test) if test is not None else ""
        if part:
            on_test = collapsible("The same on test", test_part) if test_part else ""
            yield f"{heading(title, split)}{part}{on_test}"
    mistakes = mistakes_part(scores)
    if mistakes:
        yield f"{heading('Worst mistakes', split)}{note(f'Highest {scores.confidence_label} first.')}{mistakes}"


def _lengths(coverage: WindowCoverage | None) -> str:
    if coverage is None or not len(coverage.lengths):
        return ""
    lengths, limit = coverage.lengths, coverage.window_rule.max_length
    edges = length_edges(lengths)
    counts = np.histogram(lengths, edges)[0].astype(np.float64)
    spans = [(int(low), int(high) - 1) for low, high in pairwise(edges)]
    labels = [
        f"{_count(low, 'token') if low == high else f'{low:,} to {high:,} tokens'}: {_count(int(count), 'example')}"
        for (low, high), count in zip(spans, counts, strict=True)
    ]
    marker = (float(limit), f"max_length {limit:,}") if edges[0] < limit < edges[-1] else None
    chart = BarChart(
        title="Lengths",
        unit="training examples by number of tokens",
        edges=edges,
        heights=counts,
        labels=tuple(labels),
        marker=marker,
    )
    median, high = (f"{value:,.0f}" for value in np.percentile(lengths, (50, 95)))
    summary = f"Tokens per example: median {median}, 95th percentile {high}, maximum {lengths.max():,}."
    return (
        f"{heading('Lengths')}{note(f'{coverage.describe()} {summary}')}"
        f'<div class="charts one">{draw_bars(chart)}</div>'
    )


def length_edges(lengths: npt.NDArray[np.int64]) -> Values:
    """Return the edges of the histogram: round numbers from 0, or powers of two if a few examples are far longer."""
    longest = int(lengths.max())
    if longest > _DOUBLING_FROM * max(float(np.median(lengths)), 1.0):
        first = int(lengths.min()).bit_length() - 1  # at least 1: special tokens count
        return np.array([2.0**power for power in range(first, longest.bit_length() + 1)])
    width = max(1, round(tick_distance(longest + 1) / _BARS_PER_TICK))
    return np.arange(0.0, longest + width + 1, width)


def _explanations(explanations: Sequence[str]) -> str:
    if not explanations:
        return ""
    cards = "".join(f'<div class="card">{explanation}</div>' for explanation in explanations)
    return (
        heading("Explained predictions")
        + note(
            "Attribution of each word by integrated gradients: blue words support the prediction, orange words oppose "
            "it."
        )
        + cards
    )


def _data_and_machine(contents: FinetuneContents) -> str:
    parts = []
    if contents.data:
        rows = [
            (split, *(_format_value(file.get(key)) for key in ("file", "sha256", "examples")))
            for split, file in contents.data.items()
        ]
        parts.append(f"{heading('Data')}{table('Data', ('', 'file', 'sha256', 'examples'), rows, num_text_columns=3)}")
    if contents.machine:
        cards = fact_card(
            "Model", {"task": contents.task, "base": contents.base, "main metric": format_name(contents.main_metric)}
        )
        cards += fact_card("Machine", contents.machine)
        parts.append(f'{heading("Model and machine")}<div class="facts">{cards}</div>')
    return "".join(parts)


def _format_value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str("–" if value is None else value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
