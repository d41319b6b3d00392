"""The report of a comparison: CompareContents in; a Markdown table, an SVG plot, and a page with both out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.disk import write_text
from bertworks.metrics.seeds import MemberResult
from bertworks.reports.page import (
    bullet_list,
    fact_card,
    format_name,
    format_number,
    heading,
    page_of,
    table,
    warnings_card,
)
from bertworks.reports.pretrain import REPORT
from bertworks.reports.scatter import Dot, Scatter, Series, draw_scatter

_FLOPS = "pretraining FLOPs (of matrix multiplications)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareContents:
    """The results of a comparison; `shared_settings` are the same for all members, `failures` are sentences."""

    title: str
    results: Sequence[MemberResult]
    tasks: Sequence[str]
    failures: Sequence[str] = ()
    shared_settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_curve(self) -> bool:
        """Whether members are evaluated at several points of their budget."""
        return len({result.budget_ratio for result in self.results}) > 1

    def metric_name(self, task: str) -> str:
        """Return the name of the main metric of a task."""
        return next((result.main_metrics[task] for result in self.results if task in result.main_metrics), "")


def columns_of(contents: CompareContents) -> list[str]:
    """Return the column titles of the table."""
    metrics = {task: format_name(contents.metric_name(task)) for task in contents.tasks}
    tasks = [f"{task} ({metric})" if metric else task for task, metric in metrics.items()]
    mean = ["mean of tasks"] if len(tasks) > 1 else []
    return ["member", "parameters", "steps", "tokens", "FLOPs", "minutes", "held-out loss", *tasks, *mean, "seeds"]


def rows_of(contents: CompareContents) -> list[list[str]]:
    """Return the rows of the table: one per member and point of its budget; scores in percent."""
    rows = []
    for result in contents.results:
        mean = [result.mean_score.format(1, 100)] if len(contents.tasks) > 1 else []
        rows.append(
            [
                result.member,
                format_number(result.num_parameters),
                f"{result.steps.mean:,.0f}",
                format_number(result.tokens.mean),
                f"{result.flops.mean:.2e}",
                result.minutes.format(1),
                f"{result.held_out_loss.format(2)} ({result.loss_part})",
                *(result.scores[task].format(1, 100) for task in contents.tasks),
                *mean,
                str(len(result.held_out_loss.values)),
            ]
        )
    return rows


def markdown_of(contents: CompareContents) -> str:
    """Return the table in Markdown, with the failures below it."""
    titles = columns_of(contents)
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows_of(contents)]
    if contents.failures:
        lines += ["", "Failed:", "", *(f"- {failure}" for failure in contents.failures)]
    return "\n".join(lines) + "\n"


def score_plot(contents: CompareContents, task: str | None = None) -> str:
    """Return a plot of the mean over tasks, or of one task, against FLOPs, with error bars over seeds."""
    names = dict.fromkeys(result.member for result in contents.results)
    series = [
        Series(name, tuple(_dots([result for result in contents.results if result.member == name], task)))
        for name in names
    ]
    metrics = sorted({contents.metric_name(name) for name in contents.tasks} - {""})
    metric = contents.metric_name(task) if task else " and ".join(metrics)
    title = task or (contents.tasks[0] if len(contents.tasks) == 1 else "Mean of " + ", ".join(contents.tasks))
    y_label = f"{format_name(metric)} on dev, percent; error bars: one standard deviation over seeds"
    return draw_scatter(
        Scatter(title, _FLOPS, y_label, tuple(member_series for member_series in series if member_series.dots))
    )


def _dots(results: Sequence[MemberResult], task: str | None) -> list[Dot]:
    scores = [(result, result.mean_score if task is None else result.scores[task]) for result in results]
    return [Dot(result.flops.mean, 100 * score.mean, 100 * score.std) for result, score in scores if score.values]


def write_compare_report(folder: Path, contents: CompareContents) -> Path:
    """Write the page into the folder and return its path."""
    plots = [score_plot(contents)]
    if len(contents.tasks) > 1:
        plots += [score_plot(contents, task) for task in contents.tasks]
    figures = "".join(f'<figure class="tall">{plot}</figure>' for plot in plots)
    cards = fact_card("Shared settings", contents.shared_settings) + fact_card("Machine", contents.machine)
    parts = (
        table("Results", columns_of(contents), rows_of(contents), num_text_columns=1) if contents.results else "",
        warnings_card([f"Failed: {failure}" for failure in contents.failures]) if contents.failures else "",
        bullet_list("notes", _notes(contents)),
        f'{heading("Score by compute")}<div class="charts">{figures}</div>',
        f'{heading("Settings")}<div class="facts">{cards}</div>',
    )
    num_members = len({result.member for result in contents.results})
    state = f"{num_members} members, {len(contents.tasks)} tasks"
    page = page_of(contents.title, state, _verdict(contents), parts)
    write_text(folder / REPORT, page)
    return folder / REPORT


def _notes(contents: CompareContents) -> list[str]:
    notes = ["Scores are on dev, in percent; ± is the standard deviation over seeds."]
    if len({result.loss_part for result in contents.results}) > 1:
        notes.append("Held-out losses of different objectives (in parentheses) are not comparable.")
    return notes


def _verdict(contents: CompareContents) -> str:
    """Return which member is best, and whether the deviation over seeds supports that."""
    ranked = sorted(
        (result for result in contents.results if result.mean_score.values), key=lambda result: -result.mean_score.mean
    )
    if not ranked:
        return "There are no results yet."
    first = ranked[0]
    if len(ranked) == 1:
        return f"{first.member} scores {first.mean_score.format(1, 100)}."
    second = ranked[1]
    text = f"{_display_name(first, contents)} is best with {first.mean_score.format(1, 100)}, followed by "
    text += f"{_display_name(second, contents)} with {second.mean_score.format(1, 100)}."
    deviations = [s for s in (first.mean_score.std, second.mean_score.std) if not math.isnan(s)]
    if not deviations:
        return f"{text} With one seed the difference may be noise: repeat with more seeds."
    if first.mean_score.mean - second.mean_score.mean < 2 * max(deviations):
        return f"{text} The difference is less than two standard deviations, so it may be noise."
    return text


def _display_name(result: MemberResult, contents: CompareContents) -> str:
    return f"{result.member} after {result.steps.mean:,.0f} steps" if contents.is_curve else result.member
