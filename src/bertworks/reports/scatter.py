"""Scatter plots with error bars: series of points in, one standalone SVG file out.

It has its own colours and fonts, so it looks the same in a page, in the docs and on paper. A series has a colour and a
marker shape, and a line connects its points. Styles are inline, so the CSS of a surrounding page does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from bertworks.reports.curves import Axis, axis_for, format_tick

# Colours that colour-blind readers tell apart on white (after Okabe and Ito).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#b8860b", "#56b4e9", "#444444", "#8c564b", "#e41a1c")
_SHAPES = ("circle", "square", "diamond", "triangle", "cross")
_WIDTH, _TOP, _BOTTOM, _LEFT, _RIGHT = 860, 56, 62, 74, 24
_PLOT_HEIGHT, _LINE_HEIGHT = 330, 22
_LOGARITHMIC_FROM = 8.0  # use a logarithmic x axis if the maximum is this many times the minimum
_TEXT = "font-family='system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif'"


@dataclass(frozen=True, slots=True)
class Dot:
    """A point; `deviation` is the error bar, NaN if it is unknown."""

    x: float
    y: float
    deviation: float = math.nan


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one name, from left to right."""

    name: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """A scatter plot: title, axis labels and series."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


def draw_scatter(scatter: Scatter) -> str:
    """Return the plot as SVG; without points, a plot that says so."""
    legend = _legend(scatter.series)
    height = _TOP + _PLOT_HEIGHT + _BOTTOM + _LINE_HEIGHT * (1 + max((row for row, _, _ in legend), default=0))
    dots = [dot for series in scatter.series for dot in series.dots]
    area = list(_plot_area(scatter, dots)) if dots else [_text(_WIDTH / 2, height / 2, "no results yet")]
    description = f"{scatter.title}: {scatter.y_label} by {scatter.x_label}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" {_TEXT}>',
            f"<title>{escape(description)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(_LEFT, 26, scatter.title, size=17, anchor="start", weight=600),
            _text(_LEFT, 45, scatter.y_label, anchor="start"),
            *area,
            *(_legend_entry(row, left, index, scatter.series[index].name) for row, left, index in legend),
            "</svg>\n",
        ]
    )


def _plot_area(scatter: Scatter, dots: Sequence[Dot]) -> Iterator[str]:
    """Yield grid, axes, and all series."""
    y_axis, x_axis = _y_axis(dots), _x_axis([dot.x for dot in dots])
    bottom = _TOP + _PLOT_HEIGHT
    for tick in y_axis.ticks:
        y = bottom - y_axis.height(tick) * _PLOT_HEIGHT
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" style="stroke:#e4e3dc"/>'
        yield _text(_LEFT - 10, y + 4, format_tick(tick), anchor="end")
    for tick in x_axis.ticks:
        x = _x_position(tick, x_axis)
        yield f'<path d="M{x:.1f} {bottom}v5" style="stroke:#7c7a74"/>'
        yield _text(x, bottom + 21, format_tick(tick))
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" style="stroke:#7c7a74"/>'
    scale = ", logarithmic" if x_axis.scale == "logarithmic" else ""
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 44, scatter.x_label + scale)
    for index, series in enumerate(scatter.series):
        yield from _draw_series(series, index, x_axis, y_axis)


def _draw_series(series: Series, index: int, x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    """Yield the line, the error bars and the points of a series."""
    color, bottom = _COLORS[index % len(_COLORS)], _TOP + _PLOT_HEIGHT
    points = [(_x_position(dot.x, x_axis), bottom - y_axis.height(dot.y) * _PLOT_HEIGHT, dot) for dot in series.dots]
    if len(points) > 1:
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
        yield f'<path d="M{line}" style="fill:none;stroke:{color};stroke-width:1.5;opacity:.7"/>'
    for x, y, dot in points:
        tooltip = f"{series.name}: {dot.y:.4g}"
        if math.isfinite(dot.deviation):
            tooltip += f" ± {dot.deviation:.2g}"
            reach = dot.deviation / (y_axis.high - y_axis.low) * _PLOT_HEIGHT
            low, high = y + reach, y - reach
            bar = f"M{x - 5:.1f} {high:.1f}h10M{x - 5:.1f} {low:.1f}h10M{x:.1f} {high:.1f}V{low:.1f}"
            yield f'<path d="{bar}" style="fill:none;stroke:{color};stroke-width:1.5;opacity:.8"/>'
        yield _marker(x, y, index, tooltip)


def _y_axis(dots: Sequence[Dot]) -> Axis:
    """Return a y axis that holds all error bars. It need not start at zero, so that small differences are visible."""
    deviations = [0.0 if math.isnan(dot.deviation) else dot.deviation for dot in dots]
    ends = [dot.y + sign * deviation for dot, deviation in zip(dots, deviations, strict=True) for sign in (-1, 1)]
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return _linear_axis(low - margin, high + margin)


def _linear_axis(low: float, high: float) -> Axis:
    shifted = axis_for(np.array([-(high - low), 0.0]) - 1e-9)  # the tick distance depends only on the span
    distance = shifted.ticks[1] - shifted.ticks[0]
    ticks = tuple(n * distance for n in range(math.ceil(low / distance), math.floor(high / distance) + 1))
    return Axis(low, high, ticks, "linear")


def _x_axis(values: Sequence[float]) -> Axis:
    """Return an x axis, logarithmic if the maximum is many times the minimum."""
    low, high = min(values), max(values)
    if low > 0 and high >= _LOGARITHMIC_FROM * low:
        low, high = low / 1.3, high * 1.3
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = (digit * 10.0**power for power in powers for digit in (1, 2, 5))
        return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), "logarithmic")
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return _linear_axis(max(low - margin, 0.0) if low >= 0 else low - margin, high + margin)


def _x_position(value: float, axis: Axis) -> float:
    return _LEFT + axis.height(value) * (_WIDTH - _LEFT - _RIGHT)


def _marker(x: float, y: float, index: int, tooltip: str = "") -> str:
    """Return the marker of a series: its shape in its colour."""
    color, shape = _COLORS[index % len(_COLORS)], _SHAPES[index % len(_SHAPES)]
    paths = {
        "circle": "m-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0",
        "square": "m-5-5h10v10h-10z",
        "diamond": "m0-7l7 7l-7 7l-7-7z",
        "triangle": "m0-7l6.5 11.5h-13z",
        "cross": "m-5.5-5.5l11 11m0-11l-11 11",
    }
    fill = "none" if shape == "cross" else color
    width = 3 if shape == "cross" else 1
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    style = f"fill:{fill};stroke:{color};stroke-width:{width}"
    return f'<path d="M{x:.1f} {y:.1f}{paths[shape]}" style="{style}">{title}</path>'


def _legend(series: Sequence[Series]) -> list[tuple[int, float, int]]:
    """Return (row, left, index of the series) of each legend entry below the plot."""
    entries, row, left = [], 0, float(_LEFT)
    for index, one_series in enumerate(series):
        width = 34 + 7.6 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in one_series.name)
        if left > _LEFT and left + width > _WIDTH - _RIGHT:
            row, left = row + 1, float(_LEFT)
        entries.append((row, left, index))
        left += width
    return entries


def _legend_entry(row: int, left: float, index: int, name: str) -> str:
    y = _TOP + _PLOT_HEIGHT + _BOTTOM + row * _LINE_HEIGHT + 6
    return _marker(left + 7, y - 4, index) + _text(left + 20, y, name, anchor="start")


def _text(x: float, y: float, text: str, size: int = 13, anchor: str = "middle", weight: int = 400) -> str:
    color = "#11110f" if weight > 400 else "#52514e"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{color}">{escape(text)}</text>'
    )
