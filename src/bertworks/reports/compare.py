"""The report of a comparison: CompareContents in; a table in Markdown, a picture in SVG, and a page of both out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.disk import write_text
from bertworks.metrics.seeds import MemberResult, SeedStatistics
from bertworks.reports.page import bullet_list, fact_card, format_number, page_of, table, warnings_card
from bertworks.reports.pretrain import REPORT
from bertworks.reports.scatter import Dot, Scatter, Series, draw_scatter

_FLOPS = "operations of pretraining (FLOPs of its matrix products)"


@dataclass(frozen=True, slots=True)
class CompareContents:
    """What a comparison came to. `terms` are what was the same for all members; `failures` sentences."""

    title: str
    results: Sequence[MemberResult]
    tasks: Sequence[str]
    failures: Sequence[str] = ()
    shared_settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_curve(self) -> bool:
        """Whether members are measured several times on their way."""
        return len({one.budget_ratio for one in self.results}) > 1

    def metric_name(self, task: str) -> str:
        """Return the name of the main figure of a task."""
        return next((one.main_metrics[task] for one in self.results if task in one.main_metrics), "")


def columns_of(contents: CompareContents) -> list[str]:
    """Return the titles of the table."""
    tasks = [f"{task} ({figure.replace('_', ' ')})" if (figure := contents.metric_name(task)) else task
             for task in contents.tasks]  # fmt: skip
    mean = ["mean of tasks"] if len(tasks) > 1 else []
    return ["member", "parameters", "steps", "pieces", "FLOPs", "minutes", "held-out loss", *tasks, *mean, "seeds"]


def rows_of(contents: CompareContents) -> list[list[str]]:
    """Return the rows of the table: a member, or a member at each point of its way; scores in percent."""
    rows = []
    for one in contents.results:
        mean = [one.mean_score.format(1, 100)] if len(contents.tasks) > 1 else []
        rows.append(
            [
                one.member,
                format_number(one.num_parameters),
                f"{one.steps.mean:,.0f}",
                format_number(one.tokens.mean),
                f"{one.flops.mean:.2e}",
                one.minutes.format(1),
                f"{one.held_out_loss.format(2)} ({one.loss_part})",
                *(one.scores[task].format(1, 100) for task in contents.tasks),
                *mean,
                str(len(one.held_out_loss.values)),
            ]
        )
    return rows


def markdown_of(contents: CompareContents) -> str:
    """Return the table in Markdown, what failed below it."""
    titles = columns_of(contents)
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows_of(contents)]
    if contents.failures:
        lines += ["", "Failed:", "", *(f"- {one}" for one in contents.failures)]
    return "\n".join(lines) + "\n"


def picture_of(contents: CompareContents, task: str | None = None) -> str:
    """Return the picture: the mean of the tasks, or one task, against operations, with bars of a deviation."""
    names = dict.fromkeys(one.member for one in contents.results)
    series = [
        Series(name, tuple(_dots([one for one in contents.results if one.member == name], task))) for name in names
    ]
    figures = sorted({contents.metric_name(one) for one in contents.tasks} - {""})
    told = contents.metric_name(task) if task else " and ".join(figures)
    what = task or (contents.tasks[0] if len(contents.tasks) == 1 else "Mean of " + ", ".join(contents.tasks))
    up = f"{told.replace('_', ' ')} on dev, percent; bars: one standard deviation over seeds"
    return draw_scatter(Scatter(what, _FLOPS, up, tuple(one for one in series if one.dots)))


def _dots(results: Sequence[MemberResult], task: str | None) -> list[Dot]:
    found = [(one, one.mean_score if task is None else one.scores[task]) for one in results]
    return [_dot(one, spread) for one, spread in found if spread.values]


def _dot(result: MemberResult, spread: SeedStatistics) -> Dot:
    return Dot(result.flops.mean, 100 * spread.mean, 100 * spread.std)


def write_compare_report(folder: Path, contents: CompareContents) -> Path:
    """Write the page into the folder and return its path."""
    pictures = [picture_of(contents)]
    if len(contents.tasks) > 1:
        pictures += [picture_of(contents, task) for task in contents.tasks]
    drawn = "".join(f'<figure class="tall">{picture}</figure>' for picture in pictures)
    cards = fact_card("The same for all", contents.shared_settings) + fact_card("Machine", contents.machine)
    parts = (
        table("Standings", columns_of(contents), rows_of(contents), num_text_columns=1) if contents.results else "",
        warnings_card([f"Failed: {one}" for one in contents.failures]) if contents.failures else "",
        bullet_list("notes", _notes(contents)),
        f'<h2>Quality against compute</h2><div class="charts">{drawn}</div>',
        f'<h2>Terms</h2><div class="facts">{cards}</div>',
    )
    members = len({one.member for one in contents.results})
    page = page_of(contents.title, f"{members} members, {len(contents.tasks)} tasks", _verdict(contents), parts)
    write_text(folder / REPORT, page)
    return folder / REPORT


def _notes(contents: CompareContents) -> list[str]:
    told = ["Scores are on dev, in percent; ± is the standard deviation of one seed."]
    if len({one.loss_part for one in contents.results}) > 1:
        told.append("Held-out losses of different questions (in brackets) do not compare.")
    return told


def _verdict(contents: CompareContents) -> str:
    """Say who is ahead, and whether the seeds allow to say so."""
    ranked = sorted((one for one in contents.results if one.mean_score.values), key=lambda one: -one.mean_score.mean)
    if not ranked:
        return "Nothing is measured yet."
    if len(ranked) == 1:
        return f"{ranked[0].member} came to {ranked[0].mean_score.format(1, 100)}."
    first, second = ranked[:2]
    ahead = f"{_display_name(first, contents)} is ahead with {first.mean_score.format(1, 100)}, before "
    ahead += f"{_display_name(second, contents)} with {second.mean_score.format(1, 100)}."
    spread = max((s for s in (first.mean_score.std, second.mean_score.std) if not math.isnan(s)), default=None)
    if spread is None:
        return f"{ahead} One seed proves nothing: repeat with more."
    if first.mean_score.mean - second.mean_score.mean < 2 * spread:
        return f"{ahead} That is less than two deviations: more seeds may turn it round."
    return ahead


def _display_name(result: MemberResult, contents: CompareContents) -> str:
    return f"{result.member} after {result.steps.mean:,.0f} steps" if contents.is_curve else result.member
