"""The report of a pretraining run: a run folder in, one self-contained `report.html` out, without scripts.

It reads `metrics.jsonl`, `samples.jsonl`, `recipe.toml` and `run.json` (uniform_loss, unigram_entropy, machine {…},
corpus {…}, warnings […], started, finished). Missing parts are omitted, and the page lists them. Memory: about 0.2 KB
per logged step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.disk import write_text
from bertworks.errors import FolderError
from bertworks.messages import fill
from bertworks.records import MASK_TOKEN, SampleRecord
from bertworks.reports.curves import Boundary, Chart, Curve, Reference, StepAxis, draw_chart
from bertworks.reports.page import (
    absent_part,
    collapsible,
    fact_card,
    format_duration,
    format_number,
    format_percent,
    heading,
    note,
    page_of,
    recipe_part,
    scrollable,
    spaced_indices,
    table,
    tiles,
    warnings_card,
)
from bertworks.reports.pretrain_run import PretrainRun, read_pretrain_run
from bertworks.reports.pretrain_verdict import verdict_of
from bertworks.reports.step_charts import raw_and_smooth_curves, step_charts

REPORT = "report.html"
_MAX_SAMPLE_STEPS, _MAX_TEXTS, _MAX_CANDIDATES, _MAX_ROWS = 6, 20, 5, 40


def write_pretrain_report(run: Path) -> Path:
    """Write the report of the run folder `run`, finished or not, and return its path."""
    if not run.is_dir():
        raise FolderError(f"there is no run folder {run}; check the path")
    content = read_pretrain_run(run)
    parts = (
        _tiles(content),
        _warnings(content),
        _curves(content),
        _samples(content.history.samples),
        _run_info_cards(content),
        recipe_part(content.recipe),
        absent_part(content.absent),
    )
    page = page_of(f"Pretraining run {content.name}", _state(content), verdict_of(content).text, parts)
    write_text(run / REPORT, page)
    return run / REPORT


def _state(run: PretrainRun) -> str:
    started, finished = _format_time(run.run_info.get("started")), _format_time(run.run_info.get("finished"))
    step = f"step {run.history.last('step'):,.0f}" if run.history.columns else "no steps recorded"
    prefix = f"started {started}, " if started else ""
    return f"{prefix}finished {finished}, {step}" if finished else f"{prefix}not finished, {step}"


def _format_time(value: Any) -> str:
    try:
        return datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M")
    except (TypeError, ValueError):
        return "" if value is None else str(value)


def _tiles(run: PretrainRun) -> str:
    history = run.history
    statistics: list[tuple[str, str]] = []
    if history.held_out:
        last = history.held_out[-1]
        statistics.append(("held-out loss", f"{last.losses.get(history.token_loss, math.nan):.3f}"))
        statistics.append(("perplexity", format_number(last.perplexity)))
        statistics.append((run.token_accuracy_name, format_percent(last.accuracy)))
        if last.pair_accuracy is not None:
            statistics.append((run.pair_accuracy_name, format_percent(last.pair_accuracy)))
    if history.columns:
        statistics.append(("training time", format_duration(history.last("seconds"))))
        statistics.append(("tokens seen", format_number(history.last("num_tokens"))))
    return tiles(statistics)


def _warnings(run: PretrainRun) -> str:
    if "warnings" not in run.run_info:
        return ""
    warnings = run.run_info["warnings"]
    return warnings_card([str(warning) for warning in warnings] if isinstance(warnings, list) else [str(warnings)])


def _curves(run: PretrainRun) -> str:
    history = run.history
    if not history.columns and not history.held_out:
        return ""
    steps = [*history.columns.get("step", ())[:1], *history.columns.get("step", ())[-1:]]
    steps += [record.step for record in history.held_out[:1] + history.held_out[-1:]]
    boundaries = [Boundary(step, f"{old} → {new}") for (_, old), (step, new) in pairwise(history.phases)]
    step_axis = StepAxis.from_steps(steps, boundaries)
    figures = "".join(draw_chart(chart, step_axis) for chart in _charts(run))
    return f'{heading("Curves")}<div class="charts">{figures}</div>{_held_out_table(run)}'


def _charts(run: PretrainRun) -> list[Chart]:
    history = run.history
    charts = [_loss_chart(run, name, "tall" if name == history.token_loss else "low") for name in run.loss_names]
    if history.held_out:
        charts.insert(1, _accuracy_chart(run))
    return charts + step_charts(history)


def _loss_chart(run: PretrainRun, name: str, size: str) -> Chart:
    history = run.history
    curves: list[Curve] = []
    if name in history.losses:
        steps, values = (np.array(column) for column in history.losses[name])
        curves += raw_and_smooth_curves("training, ", steps, values, history)
    held_out = [(float(record.step), record.losses[name]) for record in history.held_out if name in record.losses]
    if held_out:
        steps, values = np.array(held_out).T
        curves.append(Curve(name="held-out", css_class="held-out", shape="dots", steps=steps, values=values))
    return Chart(
        title=f"{run.loss_name(name)} loss",
        unit="nats per token" if name == history.token_loss else "nats",
        curves=tuple(curves),
        references=tuple(_references(run, name)),
        size=size,
    )


def _references(run: PretrainRun, name: str) -> Iterator[Reference]:
    """Yield the baselines of a loss."""
    uniform_loss, unigram_entropy = run.get_number("uniform_loss"), run.get_number("unigram_entropy")
    if name == run.pair_loss:
        yield Reference(math.log(2), f"uniform: ln 2 = {math.log(2):.2f}", "below")
    if name == run.history.token_loss and uniform_loss is not None:
        yield Reference(uniform_loss, f"uniform: ln V = {uniform_loss:.2f}", "above")
    if name == run.history.token_loss and unigram_entropy is not None:
        yield Reference(unigram_entropy, f"unigram entropy: {unigram_entropy:.2f}", "below")


def _accuracy_chart(run: PretrainRun) -> Chart:
    held_out = run.history.held_out
    steps = np.array([record.step for record in held_out], dtype=np.float64)
    tokens = 100 * np.array([record.accuracy for record in held_out])
    pairs = 100 * np.array([math.nan if r.pair_accuracy is None else r.pair_accuracy for r in held_out])
    curves = [
        Curve(name=run.token_accuracy_name, css_class="held-out", shape="dots", steps=steps, values=tokens),
        Curve(name=run.pair_accuracy_name, css_class="pairs", shape="dots", steps=steps, values=pairs),
    ]
    return Chart(title="Accuracy", unit="held-out, %", curves=tuple(curves[:1] if np.isnan(pairs).all() else curves))


def _held_out_table(run: PretrainRun) -> str:
    if not run.history.held_out:
        return ""
    titles, rows = held_out_rows(run, _MAX_ROWS)
    total = len(run.history.held_out)
    count = fill("{} of {}", len(rows), f"{total:,}") if len(rows) < total else fill("all {}", total)
    return collapsible(f"Held-out scores as a table ({count})", table("Held-out scores", titles, rows))


def held_out_rows(run: PretrainRun, limit: int) -> tuple[list[str], list[list[str]]]:
    """Return the titles and up to `limit` evenly spaced rows of the held-out scores, formatted."""
    history = run.history
    names = run.loss_names
    records = [history.held_out[index] for index in spaced_indices(len(history.held_out), limit)]
    loss_titles = [f"{run.loss_name(name)} loss" for name in names]
    titles = ["step", "phase", "time", "tokens seen", *loss_titles, "perplexity", run.token_accuracy_name]
    has_pairs = any(record.pair_accuracy is not None for record in records)
    titles += [run.pair_accuracy_name] if has_pairs else []
    steps, seconds, num_tokens = (history.column(name) for name in ("step", "seconds", "num_tokens"))
    rows = []
    for record in records:
        last = int(steps.searchsorted(record.step, side="right"))  # 0: before the first step
        so_far = slice(max(last - 1, 0), last)
        totals = [format_duration(seconds[so_far].sum()), format_number(num_tokens[so_far].sum())]
        losses = [f"{record.losses[name]:.3f}" if name in record.losses else "–" for name in names]
        row = [f"{record.step:,}", record.phase, *totals, *losses]
        row += [format_number(record.perplexity), format_percent(record.accuracy)]
        if has_pairs:
            row.append("–" if record.pair_accuracy is None else format_percent(record.pair_accuracy))
        rows.append(row)
    return titles, rows


def _samples(samples: Sequence[SampleRecord]) -> str:
    if not samples:
        return ""
    steps = sorted({sample.step for sample in samples})
    shown_steps = [steps[index] for index in _early_spaced_indices(len(steps), _MAX_SAMPLE_STEPS)]
    texts = list(dict.fromkeys(sample.text for sample in samples))
    by_text_and_step = {(sample.text, sample.step): sample for sample in samples}
    cards = []
    for text in texts[:_MAX_TEXTS]:
        text_samples = [
            (step, by_text_and_step[text, step]) for step in shown_steps if (text, step) in by_text_and_step
        ]
        cards.append(_sample_card(text, text_samples) if text_samples else "")
    return (
        heading("Fill-mask samples during training")
        + note(
            f"The most probable tokens for each mask at {len(shown_steps)} of {len(steps):,} recorded steps; "
            f"{min(len(texts), _MAX_TEXTS)} of {len(texts)} texts."
        )
        + "".join(cards)
    )


def _sample_card(text: str, samples: Sequence[tuple[int, SampleRecord]]) -> str:
    titles = "".join(f"<th>{fill('step {}', f'{step:,}')}</th>" for step, _ in samples)
    num_masks = max(len(sample.predictions) for _, sample in samples)
    rows = []
    for mask in range(num_masks):
        predictions = (sample.predictions[mask] if mask < len(sample.predictions) else () for _, sample in samples)
        cells = "".join(f"<td>{''.join(map(_candidate_bar, best[:_MAX_CANDIDATES]))}</td>" for best in predictions)
        rows.append(f"<tr><th>{mask + 1 if num_masks > 1 else ''}</th>{cells}</tr>")
    title = escape(text)
    for number in range(1, num_masks + 1):
        label = number if num_masks > 1 else "?"
        title = title.replace(escape(MASK_TOKEN), f'<span class="mask">{label}</span>', 1)
    grid = (
        f'<table class="samples" style="min-width:{8 * len(samples)}rem;max-width:{14 * len(samples)}rem">'
        f"<tr><th></th>{titles}</tr>{''.join(rows)}</table>"
    )
    return f'<div class="card"><h3>{title}</h3>{scrollable("Predicted tokens", grid)}</div>'


def _candidate_bar(candidate: tuple[str, float]) -> str:
    token, probability = candidate
    width = 100 * min(max(probability, 0.0), 1.0) if math.isfinite(probability) else 0.0
    return (
        f'<div class="candidate"><b>{escape(token)}</b><span>{format_percent(probability)}</span>'
        f'<i><u style="width:{width:.1f}%"></u></i></div>'
    )


def _run_info_cards(run: PretrainRun) -> str:
    cards = []
    for title, key in (("Machine", "machine"), ("Corpus", "corpus")):
        values = run.run_info.get(key)
        if isinstance(values, dict) and values:
            cards.append(fact_card(title, values))
    return f'{heading("Machine and corpus")}<div class="facts">{"".join(cards)}</div>' if cards else ""


def _early_spaced_indices(count: int, limit: int) -> list[int]:
    """Return up to `limit` indices of `count` items, denser at the beginning, where a model changes most."""
    return sorted({round(position) - 1 for position in np.geomspace(1, count, min(count, limit)).tolist()})
