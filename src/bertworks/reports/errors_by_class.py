"""What a model gets wrong: the scores of a split in; confusion matrix, classes, calibration and mistakes as HTML out.

A part is empty if the task does not provide its details. C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.messages import fill, localize
from bertworks.metrics.classification import ConfusionTally, Matches
from bertworks.reports.bars import BarChart, draw_bars
from bertworks.reports.page import collapsible, format_percent, note, scrollable, table
from bertworks.tasks.contract import Mistake, TaskScores

CountMatrix = npt.NDArray[Any]

_MATRIX_NOTE = (
    "Rows are the true class, columns the predicted one. Correct cells are blue, wrong ones orange, darker for a "
    "larger fraction of the row."
)
_MAX_CLASSES = 30  # of a confusion matrix that fits on a screen
_MAX_PAIRS, _MAX_ROWS = 30, 200
_NUM_OPEN_MISTAKES = 10
_LONG_TEXT, _EXCERPT = 500, 300  # characters
# Class names are rotated above their columns if one is longer than this, or all together are.
_LONG_NAME, _LONG_NAMES = 8, 40

_CALIBRATION_LEGEND = (
    '<ul class="legend"><li><i class="training band"></i>accuracy</li>'
    '<li><i class="expected"></i>mean confidence</li></ul>'
)


def confusion_part(scores: TaskScores) -> str:
    """Return the confusion matrix; for many classes, a table of the most confused pairs."""
    counts, labels = scores.details.get("confusion"), scores.details.get("labels")
    if counts is None or labels is None or not counts.sum():
        return ""
    total, num_correct = int(counts.sum()), int(counts.trace())
    summary = f"{total - num_correct:,} of {total:,} are misclassified."
    if len(labels) > _MAX_CLASSES:
        return note(summary) + _pairs_table(counts, labels)
    return (
        note(f"{summary} {_MATRIX_NOTE}")
        + f'<div class="card">{scrollable("Confusion matrix", _matrix(counts, labels))}</div>'
    )


def _matrix(counts: CountMatrix, labels: Sequence[str]) -> str:
    is_rotated = max(map(len, labels)) > _LONG_NAME or sum(map(len, labels)) > _LONG_NAMES
    css_class = ' class="upright"' if is_rotated else ""
    heads = "".join(f'<th scope="col"{css_class}><span>{_name(label)}</span></th>' for label in labels)
    ratios = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)  # (C, C)
    rows = []
    for gold, label in enumerate(labels):
        cells = (
            _cell(int(counts[gold, predicted]), float(ratios[gold, predicted]), gold == predicted)
            for predicted in range(len(labels))
        )
        rows.append(f'<tr><th scope="row">{_name(label)}</th>{"".join(cells)}</tr>')
    return f'<table class="matrix"><tr><th>true ↓ predicted →</th>{heads}</tr>{"".join(rows)}</table>'


def _cell(count: int, ratio: float, is_correct: bool) -> str:
    css_class = "none" if not count else "hit" if is_correct else "miss"
    return f'<td class="number {css_class}" style="--ratio:{ratio:.3f}">{count:,}</td>'


def _pairs_table(counts: CountMatrix, labels: Sequence[str]) -> str:
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    num_gold = counts.sum(axis=1)
    order = np.argsort(-errors, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [divmod(int(index), len(labels)) for index in order]
    rows = [
        (
            display_name(labels[gold]),
            display_name(labels[predicted]),
            f"{errors[gold, predicted]:,}",
            format_percent(float(errors[gold, predicted] / num_gold[gold])),
        )
        for gold, predicted in pairs
        if errors[gold, predicted]
    ]
    titles = ("true", "predicted", "count", "of the true class")
    return table("Most confused pairs", titles, rows, num_text_columns=2) if rows else ""


def classes_part(scores: TaskScores) -> str:
    """Return precision, recall, F1 and count of each entity type or class; of many, the lowest F1 first."""
    unit, count_title = "type", "entities"
    rows = [*_type_rows(scores)]
    if not rows:
        unit, count_title = "class", "examples"
        rows = [*_class_rows(scores)]
    shown = ""
    if len(rows) > _MAX_CLASSES:
        rows.sort(key=lambda row: row[3])
        shown = note(f"{min(len(rows), _MAX_ROWS)} of {len(rows):,}, lowest F1 first")
    cells = [
        (name, *(f"{metric:.3f}" for metric in metrics), f"{count:,}") for name, *metrics, count in rows[:_MAX_ROWS]
    ]
    titles = (unit, "precision", "recall", "F1", count_title)
    return shown + table("By class", titles, cells, num_text_columns=1) if rows else ""


def _type_rows(scores: TaskScores) -> Iterator[tuple[str, float, float, float, int]]:
    for name, metrics in scores.details.get("types", {}).items():
        yield display_name(name), metrics["precision"], metrics["recall"], metrics["f1"], int(metrics["num_entities"])


def _class_rows(scores: TaskScores) -> Iterator[tuple[str, float, float, float, int]]:
    labels = scores.details.get("labels")
    matches = _matches_by_class(scores)
    if matches is None or labels is None:
        return
    for label, match in zip(labels, matches, strict=True):
        yield display_name(label), match.precision, match.recall, match.f1, match.num_gold


def _matches_by_class(scores: TaskScores) -> Sequence[Matches] | None:
    """Return the matches of each class: from the confusion matrix, or counted per class for multi-label tasks."""
    counts = scores.details.get("confusion")
    if counts is None:
        return scores.details.get("matches")
    tally = ConfusionTally(len(counts))
    tally.counts += counts
    return tally.by_class()


def calibration_part(scores: TaskScores, error_before: float | None = None) -> str:
    """Return a reliability diagram; `error_before` is the calibration error before temperature scaling."""
    bins, error = scores.details.get("bins"), scores.metrics.get("calibration_error")
    if bins is None or error is None or not bins[:, 0].sum():
        return ""
    counts = bins[:, 0]  # (bins,); the other columns are sums of confidence and of correct predictions
    with np.errstate(invalid="ignore"):
        confidence, accuracy = bins[:, 1] / counts, bins[:, 2] / counts  # NaN where a bin is empty
    edges = np.linspace(0, 1, len(bins) + 1)
    spans = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges)]
    columns = list(zip(spans, counts, confidence, accuracy, strict=True))
    accuracy_chart = BarChart(
        title="Accuracy",
        unit="by confidence",
        edges=edges,
        heights=accuracy,
        labels=tuple(f"confidence {c:.3f}, accuracy {a:.3f}, {n:,.0f} predictions" for _, n, c, a in columns),
        expected_heights=confidence,
    )
    count_chart = BarChart(
        title="Predictions",
        unit="by confidence",
        edges=edges,
        heights=counts,
        labels=tuple(f"{span}: {n:,.0f} predictions" for span, n, _, _ in columns),
    )
    plots = draw_bars(accuracy_chart, _CALIBRATION_LEGEND) + draw_bars(count_chart)
    rows = [(span, f"{n:,.0f}", f"{c:.3f}", f"{a:.3f}") for span, n, c, a in columns if n]
    titles = ("confidence", "predictions", "mean confidence", "accuracy")
    return f'{note(_calibration_text(error, error_before))}<div class="charts two">{plots}</div>' + collapsible(
        "Calibration as a table", table("Calibration", titles, rows, num_text_columns=1)
    )


def _calibration_text(error: float, before: float | None) -> str:
    text = (
        f"Expected calibration error (ECE) {error:.3f}: the mean difference of confidence and accuracy. The model is "
        f"overconfident where a bar ends below its mark."
    )
    return text if before is None else f"{text} Before temperature scaling on dev it was {before:.3f}."


def mistakes_part(scores: TaskScores) -> str:
    """Return the worst mistakes with their texts."""
    is_probability = scores.confidence_label == "confidence"
    format_value = format_percent if is_probability else "{:.2f}".format
    cards = [
        _mistake_card(mistake, scores.confidence_label, format_value(mistake.confidence))
        for mistake in scores.details.get("mistakes", ())
    ]
    if not cards:
        return ""
    open_cards, hidden_cards = cards[:_NUM_OPEN_MISTAKES], cards[_NUM_OPEN_MISTAKES:]
    part = f'<ol class="mistakes">{"".join(open_cards)}</ol>'
    if hidden_cards:
        hidden_list = f'<ol class="mistakes" start="{_NUM_OPEN_MISTAKES + 1}">{"".join(hidden_cards)}</ol>'
        part += collapsible(fill("{} more", len(hidden_cards)), hidden_list)
    return part


def _mistake_card(mistake: Mistake, confidence_label: str, confidence: str) -> str:
    true, predicted = localize("true"), localize("predicted")
    return (
        f'<li class="card">{"".join(map(_text, mistake.texts))}'
        f'<dl class="labels"><div><dt>{true}</dt><dd class="hit" dir="auto">{_name(mistake.expected)}</dd></div>'
        f'<div><dt>{predicted}</dt><dd class="miss" dir="auto">{_name(mistake.predicted)}</dd></div>'
        f"<div><dt>{escape(localize(confidence_label))}</dt><dd>{confidence}</dd></div></dl>"
        f'<p class="location">{escape(mistake.location)}</p></li>'
    )


def _text(text: str) -> str:
    """Return a text; a long one is collapsed to its beginning."""
    if len(text) <= _LONG_TEXT:
        return f'<p class="text" dir="auto">{escape(text)}</p>'
    return (
        f'<details class="long"><summary><span class="text" dir="auto">{escape(text[:_EXCERPT])}…</span> '
        f"<u>all {len(text):,} characters</u></summary>"
        f'<p class="text" dir="auto">{escape(text)}</p></details>'
    )


def display_name(label: str) -> str:
    """Return a label, or "(empty)"."""
    return label if label.strip() else "(empty)"


def _name(label: str) -> str:
    return escape(display_name(label))
