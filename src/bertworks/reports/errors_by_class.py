"""What a model gets wrong: the scores of a split in, parts of a page out: confusion, classes, calibration, mistakes.

A part whose details a task does not give is the empty text. C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.metrics.classification import ConfusionTally, Matches
from bertworks.reports.bars import BarChart, draw_bars
from bertworks.reports.page import collapsible, format_percent, scrollable, table
from bertworks.tasks.contract import Mistake, TaskScores

CountMatrix = npt.NDArray[Any]

_MAX_CLASSES = 30  # of a confusion matrix; more would not fit on a screen
_MAX_PAIRS, _MAX_ROWS = 30, 200
_NUM_OPEN_MISTAKES = 10
_LONG_TEXT, _EXCERPT = 500, 300  # characters
# A class name as wide as this stands upright above its column.
_WIDE_NAME, _WIDE_NAMES = 8, 40

_CALIBRATION_LEGEND = (
    '<ul class="legend"><li><i class="training band"></i>right</li><li><i class="aim"></i>sure, on average</li></ul>'
)


def confusion_part(scores: TaskScores) -> str:
    """Return the matrix of right and said classes with its counts; of many classes, the pairs most often confused."""
    counts, labels = scores.details.get("confusion"), scores.details.get("labels")
    if counts is None or labels is None or not counts.sum():
        return ""
    total, num_right = int(counts.sum()), int(counts.trace())
    told = f"{total - num_right:,} of {total:,} were taken for another class."
    if len(labels) > _MAX_CLASSES:
        return f'<p class="note">{told}</p>{_pairs_table(counts, labels)}'
    return (
        f'<p class="note">{told} A row is the right class, a column what the model said: blue is right, orange wrong, '
        f"the stronger the larger its share of the row.</p>"
        f'<div class="card">{scrollable("Confusion matrix", _matrix(counts, labels))}</div>'
    )


def _matrix(counts: CountMatrix, labels: Sequence[str]) -> str:
    is_wide = max(map(len, labels)) > _WIDE_NAME or sum(map(len, labels)) > _WIDE_NAMES
    kind = ' class="upright"' if is_wide else ""
    heads = "".join(f'<th scope="col"{kind}><span>{_name(label)}</span></th>' for label in labels)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)  # (C, C)
    rows = []
    for gold, label in enumerate(labels):
        cells = (_cell(int(counts[gold, said]), float(shares[gold, said]), gold == said) for said in range(len(labels)))
        rows.append(f'<tr><th scope="row">{_name(label)}</th>{"".join(cells)}</tr>')
    return f'<table class="matrix"><tr><th>right ↓ said →</th>{heads}</tr>{"".join(rows)}</table>'


def _cell(count: int, ratio: float, is_correct: bool) -> str:
    kind = "none" if not count else "hit" if is_correct else "miss"
    return f'<td class="number {kind}" style="--share:{ratio:.3f}">{count:,}</td>'


def _pairs_table(counts: CountMatrix, labels: Sequence[str]) -> str:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    golds = counts.sum(axis=1)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [(int(place) // len(labels), int(place) % len(labels)) for place in order]
    rows = [
        (
            display_name(labels[gold]),
            display_name(labels[said]),
            f"{wrong[gold, said]:,}",
            format_percent(float(wrong[gold, said] / golds[gold])),
        )
        for gold, said in pairs
        if wrong[gold, said]
    ]
    titles = ("right", "said", "times", "of the right class")
    return table("The pairs most often confused", titles, rows, num_text_columns=2) if rows else ""


def classes_part(scores: TaskScores) -> str:
    """Return precision, recall, F1 and number of each type of entity, or else of each class; of many, lowest first."""
    words = ("type", "entities")
    rows = [*_type_rows(scores)]
    if not rows:
        words = ("class", "examples")
        rows = [*_class_rows(scores)]
    order = ""
    if len(rows) > _MAX_CLASSES:
        rows.sort(key=lambda row: row[3])
        order = f'<p class="note">{min(len(rows), _MAX_ROWS)} of {len(rows):,}, the lowest F1 first</p>'
    written = [
        (name, *(f"{figure:.3f}" for figure in figures), f"{count:,}") for name, *figures, count in rows[:_MAX_ROWS]
    ]
    titles = (words[0], "precision", "recall", "F1", words[1])
    return order + table("By class", titles, written, num_text_columns=1) if rows else ""


def _type_rows(scores: TaskScores) -> Iterator[tuple[str, float, float, float, int]]:
    for name, one in scores.details.get("types", {}).items():
        yield display_name(name), one["precision"], one["recall"], one["f1"], int(one["num_entities"])


def _class_rows(scores: TaskScores) -> Iterator[tuple[str, float, float, float, int]]:
    labels = scores.details.get("labels")
    found = _matches_by_class(scores)
    if found is None or labels is None:
        return
    for label, one in zip(labels, found, strict=True):
        yield display_name(label), one.precision, one.recall, one.f1, one.num_gold


def _matches_by_class(scores: TaskScores) -> Sequence[Matches] | None:
    """Return how each class was found: counted one by one where a text may have several, else by the matrix."""
    counts, found = scores.details.get("confusion"), scores.details.get("found")
    if counts is None:
        return found
    tally = ConfusionTally(len(counts))
    tally.counts += counts
    return tally.by_class()


def calibration_part(scores: TaskScores, error_before: float | None = None) -> str:
    """Return how often the model is right when it is so and so sure; `error_before` is that without a temperature."""
    bins, error = scores.details.get("bins"), scores.metrics.get("calibration_error")
    if bins is None or error is None or not bins[:, 0].sum():
        return ""
    counts = bins[:, 0]  # (bins,), as the sums behind it: of how sure it was, and of how often it was right
    with np.errstate(invalid="ignore"):
        sure, right = bins[:, 1] / counts, bins[:, 2] / counts  # not a number where a bin is empty
    edges = np.linspace(0, 1, len(bins) + 1)
    spans = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges)]
    said = [f"{s:.3f} sure, {r:.3f} right, {n:,.0f} answers" for s, r, n in zip(sure, right, counts, strict=True)]
    plots = draw_bars(
        BarChart(
            title="Right",
            unit="share, by how sure the model was",
            edges=edges,
            heights=right,
            labels=tuple(said),
            expected_heights=sure,
        ),
        _CALIBRATION_LEGEND,
    )
    many = tuple(f"{span}: {n:,.0f} answers" for span, n in zip(spans, counts, strict=True))
    plots += draw_bars(
        BarChart(title="Answers", unit="by how sure the model was", edges=edges, heights=counts, labels=many)
    )
    columns = zip(spans, counts, sure, right, strict=True)
    rows = [(span, f"{n:,.0f}", f"{s:.3f}", f"{r:.3f}") for span, n, s, r in columns if n]
    return (
        f'<p class="note">{_calibration_text(error, error_before)}</p><div class="charts two">{plots}</div>'
        + collapsible(
            "Calibration as a table",
            table("Calibration", ("sure", "answers", "mean", "right"), rows, num_text_columns=1),
        )
    )


def _calibration_text(error: float, before: float | None) -> str:
    told = (
        f"Calibration error {error:.3f}: by so much, on average, how sure the model is differs from how often it is "
        f"right. Where a bar ends below its mark, the model is too sure."
    )
    return told if before is None else f"{told} Before its temperature was fitted on dev, the error was {before:.3f}."


def mistakes_part(scores: TaskScores) -> str:
    """Return the worst mistakes with their texts; the confidence is a percentage unless it is labelled otherwise."""
    mistakes = scores.details.get("mistakes", ())
    cards = [_mistake_card(mistake, scores.confidence_label) for mistake in mistakes]
    more = cards[_NUM_OPEN_MISTAKES:]
    kept = f'<ol class="mistakes">{"".join(cards[:_NUM_OPEN_MISTAKES])}</ol>' if cards else ""
    if not more:
        return kept
    return kept + collapsible(
        f"{len(more)} more", f'<ol class="mistakes" start="{_NUM_OPEN_MISTAKES + 1}">{"".join(more)}</ol>'
    )


def _mistake_card(mistake: Mistake, confidence_label: str) -> str:
    sure = format_percent(mistake.confidence) if confidence_label == "confidence" else f"{mistake.confidence:.2f}"
    return (
        f'<li class="card">{"".join(map(_text, mistake.texts))}'
        f'<dl class="labels"><div><dt>right</dt><dd class="hit" dir="auto">{_name(mistake.expected)}</dd></div>'
        f'<div><dt>said</dt><dd class="miss" dir="auto">{_name(mistake.predicted)}</dd></div>'
        f"<div><dt>{escape(confidence_label)}</dt><dd>{sure}</dd></div></dl>"
        f'<p class="place">{escape(mistake.location)}</p></li>'
    )


def _text(text: str) -> str:
    """Return a text as it is written; of a long one the beginning, and all of it for who asks."""
    if len(text) <= _LONG_TEXT:
        return f'<p class="text" dir="auto">{escape(text)}</p>'
    return (
        f'<details class="long"><summary><span class="text" dir="auto">{escape(text[:_EXCERPT])}…</span> '
        f"<u>all {len(text):,} characters</u></summary>"
        f'<p class="text" dir="auto">{escape(text)}</p></details>'
    )


def display_name(label: str) -> str:
    """Return a label, or words for the label that is empty."""
    return label if label.strip() else "(nothing)"


def _name(label: str) -> str:
    return escape(display_name(label))
