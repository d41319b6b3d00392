"""The report of a run: its folder in, one `report.html` out that needs nothing else, neither files nor scripts.

Read are `metrics.jsonl`, `samples.jsonl`, `recipe.toml` and `run.json`, which holds ln_v, unigram_entropy, machine {…},
corpus {…}, warnings […], started and finished. Whatever is missing is left out, and the page says so. Memory grows
with the number of logged steps, by about 0.2 KB each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.disk import write_text
from bertworks.errors import FolderError
from bertworks.records import MASK_TOKEN, METRICS, SAMPLES, History, SampleRecord
from bertworks.reports.curves import Boundary, Chart, Curve, Reference, StepAxis, draw_chart
from bertworks.reports.page import (
    absent_part,
    collapsible,
    fact_card,
    format_duration,
    format_number,
    format_percent,
    page_of,
    recipe_part,
    scrollable,
    spaced_indices,
    table,
    tiles,
    warnings_card,
)
from bertworks.reports.step_charts import raw_and_smooth_curves, step_charts

REPORT, RUN_INFO, RECIPE = "report.html", "run.json", "recipe.toml"
_PAIR_LOSS = "pair"  # the loss over two-way answers about a pair of segments
_MAX_SAMPLE_STEPS, _MAX_TEXTS, _MAX_CANDIDATES, _MAX_ROWS = 6, 20, 5, 40


@dataclass(frozen=True, slots=True)
class PretrainRun:
    """All that a report tells: the history, what `run.json` and the recipe say, and what could not be read."""

    name: str
    history: History
    run_info: Mapping[str, Any]
    recipe: str
    absent: tuple[str, ...]

    @property
    def pair_task_name(self) -> str:
        return "sentence order" if '"masked-order"' in self.recipe else "next sentence"

    def get_number(self, key: str) -> float | None:
        value = self.run_info.get(key)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if fits and value is not None else None


def write_report(run: Path) -> Path:
    """Write the report of the run folder `run`, finished or not, and return its path."""
    if not run.is_dir():
        raise FolderError(f"there is no run folder {run}; check the name")
    told = _read_run(run)
    parts = (
        _tiles(told),
        _warnings(told),
        _curves(told),
        _samples(told.history.samples),
        _run_info_cards(told),
        recipe_part(told.recipe),
        absent_part(told.absent),
    )
    write_text(run / REPORT, page_of(f"Training run {told.name}", _state(told), verdict(told), parts))
    return run / REPORT


def _read_run(run: Path) -> PretrainRun:
    history = History.read(run)
    absent = list(history.read_errors)
    if not history.columns:
        absent.append(f"{METRICS} holds no step: there are no curves.")
    if not history.held_out:
        absent.append(f"{METRICS} holds no held-out scores.")
    if not history.samples:
        absent.append(f"{SAMPLES} holds no filled blanks.")
    facts: Any = {}
    recipe = ""
    try:
        facts = json.loads((run / RUN_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        absent.append(
            f"{RUN_INFO} {_describe_error(error)}: reference lines, machine, corpus and warnings are left out."
        )
    if not isinstance(facts, dict):
        absent.append(
            f"{RUN_INFO} does not hold an object: reference lines, machine, corpus and warnings are left out."
        )
        facts = {}
    try:
        recipe = (run / RECIPE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        absent.append(f"{RECIPE} {_describe_error(error)}: the recipe is left out.")
    return PretrainRun(run.resolve().name, history, facts, recipe, tuple(absent))


def _describe_error(error: Exception) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"


def _state(run: PretrainRun) -> str:
    started, finished = _format_time(run.run_info.get("started")), _format_time(run.run_info.get("finished"))
    step = f"step {run.history.last('step'):,.0f}" if run.history.columns else "no step recorded"
    begin = f"started {started}, " if started else ""
    return f"{begin}finished {finished}, {step}" if finished else f"{begin}not finished, {step}"


def _format_time(value: Any) -> str:
    try:
        return datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M")
    except (TypeError, ValueError):
        return "" if value is None else str(value)


def verdict(run: PretrainRun) -> str:
    """Say in a few sentences what came of the run."""
    history = run.history
    name = history.token_loss
    training = np.array(history.losses[name][1]) if name in history.losses else np.array([])
    if not history.held_out:
        last_loss = f"; the last training loss is {training[-1]:.3f}" if len(training) else ""
        return f"Nothing was scored on held-out text yet{last_loss}."
    last = history.held_out[-1]
    loss = last.losses.get(name, math.nan)
    words = [f"Held-out loss {loss:.3f}: {format_percent(last.accuracy)} of the hidden pieces are filled in right."]
    if last.pair_accuracy is not None:
        words.append(f"On pairs ({run.pair_task_name}), {format_percent(last.pair_accuracy)} of the answers are right.")
    words.append(_compare_with_baselines(loss, run.get_number("ln_v"), run.get_number("unigram_entropy")))
    best = min(history.held_out, key=lambda record: _or_infinite(record.losses.get(name, math.nan)))
    if best.losses.get(name, math.nan) < loss - 0.02:
        words.append(f"It was lower at step {best.step:,}: {best.losses[name]:.3f}.")
    num_lost = int((~np.isfinite(training)).sum())
    if num_lost:
        words.append(f"{num_lost:,} of {len(training):,} recorded training losses are not finite numbers.")
    return " ".join(filter(None, words))


def _compare_with_baselines(loss: float, ln_v: float | None, entropy: float | None) -> str:
    if not math.isfinite(loss):
        return "The model is broken: its loss is not a finite number."
    if entropy is not None and loss < entropy:
        return (
            f"That is {entropy - loss:.2f} nats better than knowing only how frequent each piece is: it reads context."
        )
    if ln_v is not None and loss >= ln_v:
        return "That is no better than guessing among all pieces: it has learned nothing."
    if entropy is not None:
        return "That is not yet better than knowing only how frequent each piece is: it does not use context."
    return ""


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _tiles(run: PretrainRun) -> str:
    history = run.history
    figures: list[tuple[str, str]] = []
    if history.held_out:
        last = history.held_out[-1]
        figures.append(("held-out loss", f"{last.losses.get(history.token_loss, math.nan):.3f}"))
        figures += [("perplexity", format_number(last.perplexity)), ("accuracy", format_percent(last.accuracy))]
        if last.pair_accuracy is not None:
            figures.append((f"{run.pair_task_name} accuracy", format_percent(last.pair_accuracy)))
    if history.columns:
        figures.append(("time in training", format_duration(history.last("seconds"))))
        figures.append(("pieces seen", format_number(history.last("pieces"))))
    return tiles(figures)


def _warnings(run: PretrainRun) -> str:
    if "warnings" not in run.run_info:
        return ""
    given = run.run_info["warnings"]
    return warnings_card([str(one) for one in given] if isinstance(given, list) else [str(given)])


def _curves(run: PretrainRun) -> str:
    history = run.history
    if not history.columns and not history.held_out:
        return ""
    steps = [*history.columns.get("step", ())[:1], *history.columns.get("step", ())[-1:]]
    steps += [record.step for record in history.held_out[:1] + history.held_out[-1:]]
    pairs = zip(history.phases, history.phases[1:], strict=False)
    frame = StepAxis.from_steps(steps, [Boundary(step, f"{old} → {new}") for (_, old), (step, new) in pairs])
    drawn = "".join(draw_chart(chart, frame) for chart in _charts(run))
    return f'<h2>Curves</h2><div class="charts">{drawn}</div>{_held_out_table(history)}'


def _charts(run: PretrainRun) -> list[Chart]:
    history = run.history
    charts = [_loss_chart(run, name, "tall" if name == history.token_loss else "low") for name in _loss_names(history)]
    if history.held_out:
        charts.insert(1, _accuracy_chart(run))
    return charts + step_charts(history)


def _loss_names(history: History) -> list[str]:
    return list(dict.fromkeys([*history.losses, *(name for record in history.held_out for name in record.losses)]))


def _loss_chart(run: PretrainRun, name: str, size: str) -> Chart:
    history = run.history
    curves: list[Curve] = []
    if name in history.losses:
        steps, values = (np.array(column) for column in history.losses[name])
        curves += raw_and_smooth_curves("training, ", steps, values, history)
    scored = [(float(record.step), record.losses[name]) for record in history.held_out if name in record.losses]
    if scored:
        curves.append(Curve("held out", "held-out", "dots", *np.array(scored).T))
    references = []
    ln_v, entropy = run.get_number("ln_v"), run.get_number("unigram_entropy")
    if name == _PAIR_LOSS:
        references.append(Reference(math.log(2), f"guessing: ln 2 = {math.log(2):.2f}", "above"))
    if name == history.token_loss and ln_v is not None:
        references.append(Reference(ln_v, f"guessing: ln V = {ln_v:.2f}", "above"))
    if name == history.token_loss and entropy is not None:
        references.append(Reference(entropy, f"knowing only how frequent pieces are: {entropy:.2f}", "below"))
    unit = "nats a piece" if name == history.token_loss else "nats"
    return Chart(f"Loss: {name}", unit, tuple(curves), tuple(references), size)


def _accuracy_chart(run: PretrainRun) -> Chart:
    history = run.history
    steps = np.array([record.step for record in history.held_out], dtype=np.float64)
    right = 100 * np.array([record.accuracy for record in history.held_out])
    curves = [Curve("hidden pieces", "held-out", "dots", steps, right)]
    pairs = [math.nan if r.pair_accuracy is None else 100 * r.pair_accuracy for r in history.held_out]
    if not all(map(math.isnan, pairs)):
        curves.append(Curve(f"pairs: {run.pair_task_name}", "pairs", "dots", steps, np.array(pairs)))
    return Chart("Accuracy", "% right, held out", tuple(curves))


def _held_out_table(history: History) -> str:
    if not history.held_out:
        return ""
    names = _loss_names(history)
    kept = [history.held_out[place] for place in spaced_indices(len(history.held_out), _MAX_ROWS)]
    head = ["step", "phase", *(f"loss: {name}" for name in names), "perplexity", "accuracy", "pairs"]
    rows = []
    for record in kept:
        losses = [f"{record.losses[name]:.3f}" if name in record.losses else "–" for name in names]
        pairs = "–" if record.pair_accuracy is None else format_percent(record.pair_accuracy)
        scores = (format_number(record.perplexity), format_percent(record.accuracy), pairs)
        rows.append([f"{record.step:,}", record.phase, *losses, *scores])
    shown = f"{len(kept)} of {len(history.held_out):,}" if len(kept) < len(history.held_out) else f"all {len(kept)}"
    return collapsible(f"Held-out scores as a table ({shown})", table("Held-out scores", head, rows))


def _samples(samples: Sequence[SampleRecord]) -> str:
    if not samples:
        return ""
    moments = sorted({sample.step for sample in samples})
    kept = [moments[place] for place in _early_spaced_indices(len(moments), _MAX_SAMPLE_STEPS)]
    texts = list(dict.fromkeys(sample.text for sample in samples))
    by_place = {(sample.text, sample.step): sample for sample in samples}
    cards = []
    for text in texts[:_MAX_TEXTS]:
        shown = [(step, by_place[text, step]) for step in kept if (text, step) in by_place]
        cards.append(_sample_card(text, shown) if shown else "")
    return (
        "<h2>Blanks filled in as training went on</h2>"
        f'<p class="note">The likeliest pieces for each blank at {len(kept)} of {len(moments):,} recorded moments; '
        f"{min(len(texts), _MAX_TEXTS)} of {len(texts)} texts.</p>{''.join(cards)}"
    )


def _sample_card(text: str, samples: Sequence[tuple[int, SampleRecord]]) -> str:
    titles = "".join(f"<th>step {step:,}</th>" for step, _ in samples)
    num_blanks = max(len(sample.predictions) for _, sample in samples)
    rows = []
    for blank in range(num_blanks):
        fillings = (sample.predictions[blank] if blank < len(sample.predictions) else () for _, sample in samples)
        cells = "".join(f"<td>{''.join(map(_candidate_bar, best[:_MAX_CANDIDATES]))}</td>" for best in fillings)
        rows.append(f"<tr><th>{blank + 1 if num_blanks > 1 else ''}</th>{cells}</tr>")
    marked = escape(text)
    for number in range(1, num_blanks + 1):
        marked = marked.replace(
            escape(MASK_TOKEN), f'<span class="blank">{number if num_blanks > 1 else "?"}</span>', 1
        )
    grid = (
        f'<table class="samples" style="min-width:{8 * len(samples)}rem;max-width:{14 * len(samples)}rem">'
        f"<tr><th></th>{titles}</tr>{''.join(rows)}</table>"
    )
    return f'<div class="card"><h3>{marked}</h3>{scrollable("What was filled in", grid)}</div>'


def _candidate_bar(candidate: tuple[str, float]) -> str:
    piece, chance = candidate
    width = 100 * min(max(chance, 0.0), 1.0) if math.isfinite(chance) else 0.0
    return (
        f'<div class="filling"><b>{escape(piece)}</b><span>{format_percent(chance)}</span>'
        f'<i><u style="width:{width:.1f}%"></u></i></div>'
    )


def _run_info_cards(run: PretrainRun) -> str:
    cards = []
    for title, key in (("Machine", "machine"), ("Corpus", "corpus")):
        given = run.run_info.get(key)
        if isinstance(given, dict) and given:
            cards.append(fact_card(title, given))
    return f'<h2>Machine and corpus</h2><div class="facts">{"".join(cards)}</div>' if cards else ""


def _early_spaced_indices(count: int, limit: int) -> list[int]:
    """Return up to `most` places of `count`, closer together early on, when a model changes most."""
    return sorted({round(place) - 1 for place in np.geomspace(1, count, min(count, limit)).tolist()})
