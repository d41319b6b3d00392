"""The page of a report: texts and numbers in, one self-contained HTML file out, without scripts or other files.

Every function escapes its text arguments and returns HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from bertworks.messages import language, localize, localize_sentences


def page_of(title: str, state: str, verdict: str, parts: Iterable[str]) -> str:
    """Return the whole page: title, state of the run, verdict, and the parts in order."""
    page = Template(files("bertworks.reports").joinpath("page.html").read_text(encoding="utf-8"))
    texts = {
        "language": "en" if language() == "en" else "zh-Hans",
        "title": escape(localize(title)),
        "state": escape(localize(state)),
        "verdict": escape(localize_sentences(verdict)),
    }
    return page.substitute(texts, parts="\n".join(part for part in parts if part))


def heading(text: str, small: str = "") -> str:
    """Return the heading of a part, with a small addition such as the split."""
    return f"<h2>{escape(localize(text))}{f' <small>{escape(small)}</small>' if small else ''}</h2>"


def note(text: str) -> str:
    """Return a paragraph of explanation."""
    return f'<p class="note">{escape(localize_sentences(text))}</p>'


def tiles(statistics: Sequence[tuple[str, str]]) -> str:
    """Return the most important numbers in large type, each with its name."""
    cells = (
        f"<div><dt>{escape(localize(name))}</dt><dd>{_with_small_units(value)}</dd></div>" for name, value in statistics
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>' if statistics else ""


def _with_small_units(value: str) -> str:
    return " ".join(
        escape(part) if part.lstrip("-")[:1].isdigit() else f"<small>{escape(part)}</small>" for part in value.split()
    )


def warnings_card(warnings: Sequence[str]) -> str:
    if not warnings:
        return '<p class="note" style="margin-top:.75rem">' + localize("No warnings.") + "</p>"
    return f'<div class="card warnings"><h2>{localize("Warnings")}</h2>{bullet_list("", warnings)}</div>'


def bullet_list(kind: str, items: Iterable[str]) -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{escape(localize_sentences(item))}</li>" for item in items)}</ul>'


def absent_part(absent: Sequence[str]) -> str:
    return heading("Not in this report") + bullet_list("absent", absent) if absent else ""


def recipe_part(recipe: str) -> str:
    if not recipe:
        return ""
    return f'{heading("Recipe")}<div class="card">{scrollable("Recipe", f"<pre>{escape(recipe)}</pre>")}</div>'


def fact_card(title: str, facts: Mapping[str, Any]) -> str:
    """Return a card with a table of names and values."""
    rows = "".join(
        f"<dt>{escape(localize(format_name(k)))}</dt><dd>{escape(_format_value(k, v))}</dd>" for k, v in facts.items()
    )
    return f'<div class="card"><h3>{escape(localize(title))}</h3><dl>{rows}</dl></div>'


def collapsible(summary: str, body: str) -> str:
    """Return a collapsed section."""
    return f"<details><summary>{escape(localize(summary))}</summary>{body}</details>"


def scrollable(label: str, body: str) -> str:
    """Return a region that scrolls horizontally if it is wider than the page; it can have the keyboard focus."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(localize(label))}">{body}</div>'


def table(label: str, titles: Sequence[str], rows: Iterable[Sequence[str]], num_text_columns: int = 0) -> str:
    """Return a table in a card; the first `num_text_columns` columns hold text, all others right-aligned numbers."""
    kinds = [' class="text-column"'] * num_text_columns + [' class="number"'] * (len(titles) - num_text_columns)
    head = "".join(f"<th{kind}>{escape(localize(title))}</th>" for kind, title in zip(kinds, titles, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="card">{scrollable(label, f"<table><tr>{head}</tr>{body}</table>")}</div>'


def format_name(key: Any) -> str:
    return str(key).replace("_", " ")


def _format_value(key: Any, value: Any) -> str:
    if isinstance(value, bool):
        return localize("yes" if value else "no")
    if isinstance(value, int | float) and "memory" in str(key) and value >= 2**20:
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{format_name(k)}: {_format_value(k, v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_format_value(key, item) for item in value)
    return "unknown" if value is None else str(value)


def spaced_indices(count: int, limit: int) -> list[int]:
    """Return up to `limit` evenly spaced indices of `count` items, including the first and the last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, limit)).tolist()})


def format_number(value: float) -> str:
    """Format a number: 12.3, 4,560, 48.2 million, 3.3 billion."""
    if not math.isfinite(value):
        return str(value)
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= unit:
            return f"{value / unit:.3g} {name}" if value < 1e15 else f"{value:.3g}"
    return f"{value:,.0f}" if value >= 1_000 or value == int(value) else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """Format a duration: 42 s, 7 min, 2 h 5 min, 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    days, hours = minutes // 1_440, minutes % 1_440 // 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def format_percent(ratio: float) -> str:
    """Format a ratio: 54.3 %."""
    return f"{100 * ratio:.1f} %" if math.isfinite(ratio) else str(ratio)
