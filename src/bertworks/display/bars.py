"""Tables of notebooks: named probabilities in, a table with a bar for each out; or named values in, a plain table."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from bertworks.display.explanations import POSITIVE

_MAX_ROWS = 20


def bars_html(title: str, rows: Iterable[tuple[str, float]]) -> str:
    """Return a `<div>` with a title and a row per name, its bar and its value; names that do not fit are counted."""
    all_rows = list(rows)
    shown = "".join(_row(name, value) for name, value in all_rows[:_MAX_ROWS])
    rest = f"<p>and {len(all_rows) - _MAX_ROWS:,} more</p>" if len(all_rows) > _MAX_ROWS else ""
    return f'<div class="prediction"><p><b>{escape(title)}</b></p><table>{shown}</table>{rest}</div>'


def table_html(rows: Iterable[tuple[object, ...]]) -> str:
    """Return a `<div>` with a table of these rows of cells."""
    lines = (f"<tr>{''.join(_cell(escape(str(cell))) for cell in row)}</tr>" for row in rows)
    return f'<div class="prediction"><table>{"".join(lines)}</table></div>'


def _row(name: str, value: float) -> str:
    bar = f"display: inline-block; height: 0.7em; width: {10 * min(max(value, 0.0), 1.0):.2f}em"
    style = f"{bar}; background: rgba({POSITIVE}, 0.7); border-radius: 0.2em"
    cells = (escape(name), f'<span style="{style}"></span>', f"{value:.3f}")
    return f"<tr>{''.join(_cell(cell) for cell in cells)}</tr>"


def _cell(content: str) -> str:
    return f'<td style="text-align: left">{content}</td>'
