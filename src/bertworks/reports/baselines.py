"""The baselines in a fine-tuning report: the scores of a model and of simpler ones in, a table with bars out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from bertworks.reports.page import collapsible, format_name, heading, note, scrollable, table
from bertworks.tasks.baselines import BaselineScores
from bertworks.tasks.contract import TaskScores

_MODEL = "this model"


def baselines_part(scores: Mapping[str, TaskScores], baselines: Sequence[BaselineScores]) -> str:
    """Return the main metric of baselines and model by split, with bars, and all metrics in a collapsed table."""
    if not baselines:
        return ""
    splits = list(baselines[0].scores)
    models = [*((baseline.title, baseline.scores) for baseline in baselines), (_MODEL, scores)]
    metric = format_name(scores[splits[0]].main_metric)
    head = "".join(f"<th>{escape(f'{metric} on {split}')}</th>" for split in splits)
    rows = "".join(_row(title, [model_scores[split].main_value for split in splits]) for title, model_scores in models)
    chart = scrollable("Baselines", f'<table class="baselines"><tr><td></td>{head}</tr>{rows}</table>')
    titles = ("", "", *(title for title, _ in models))
    metrics = table("All metrics", titles, _metric_rows(splits, models), num_text_columns=2)
    return (
        f"{heading('Baselines')}{note('Simple models of the same training examples, scored in the same way.')}"
        f'<div class="card">{chart}</div>{collapsible("All metrics", metrics)}'
    )


def _row(title: str, values: Sequence[float]) -> str:
    """Return the row of a model: numbers from 0 to 1 with bars; a negative correlation has none."""
    kind = "own" if title == _MODEL else "other"
    cells = (
        f'<td class="{kind}"><span>{value:.3f}</span><i><u style="width:{100 * max(value, 0.0):.1f}%"></u></i></td>'
        for value in values
    )
    return f'<tr><th scope="row">{escape(title)}</th>{"".join(cells)}</tr>'


def _metric_rows(
    splits: Sequence[str], models: Sequence[tuple[str, Mapping[str, TaskScores]]]
) -> Iterator[tuple[str, ...]]:
    """Yield split, name of the metric, and its value for each model."""
    for split in splits:
        for name in models[-1][1][split].metrics:
            values = (model_scores[split].metrics[name] for _, model_scores in models)
            yield split, format_name(name), *(f"{value:.3f}" for value in values)
