"""A picture of points with error bars: series of them in, one SVG file out that needs nothing else.

It carries its own colours and words, so that it is the same in a page, in a guide and on paper. A series is told by its
colour and by the shape of its points; points of one series are joined by a line. What a page says of the paths of other
drawings must not reach these, so their looks stand in `style`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from bertworks.reports.curves import Axis, axis_for, format_tick

# Colours that stay apart also for those who see no red or no green (after Okabe and Ito), on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#b8860b", "#56b4e9", "#444444", "#8c564b", "#e41a1c")
_SHAPES = ("circle", "square", "diamond", "triangle", "cross")
_WIDTH, _TOP, _BOTTOM, _LEFT, _RIGHT = 860, 56, 62, 74, 24
_PLOT_HEIGHT, _LINE_HEIGHT = 330, 22
_LOGARITHMIC_FROM = 8.0  # the largest across is so many times the smallest
_TEXT = "font-family='system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif'"


@dataclass(frozen=True, slots=True)
class Dot:
    """A point; `deviation` up and down, not a number if it is not known."""

    x: float
    y: float
    deviation: float = math.nan


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, from left to right."""

    name: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """A picture: what it is called, what its two axes tell, and what stands in it."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


def draw_scatter(scatter: Scatter) -> str:
    """Return the picture as SVG; without any point a picture that says so."""
    names = _legend(scatter.series)
    height = _TOP + _PLOT_HEIGHT + _BOTTOM + _LINE_HEIGHT * (1 + max((row for row, _, _ in names), default=0))
    dots = [dot for one in scatter.series for dot in one.dots]
    inside = list(_plot_area(scatter, dots)) if dots else [_text(_WIDTH / 2, height / 2, "nothing is measured yet")]
    spoken = f"{scatter.title}: {scatter.y_label} by {scatter.x_label}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" {_TEXT}>',
            f"<title>{escape(spoken)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(_LEFT, 26, scatter.title, size=17, anchor="start", weight=600),
            _text(_LEFT, 45, scatter.y_label, anchor="start"),
            *inside,
            *(_legend_entry(row, left, number, scatter.series[number].name) for row, left, number in names),
            "</svg>\n",
        ]
    )


def _plot_area(scatter: Scatter, dots: Sequence[Dot]) -> Iterator[str]:
    """Yield grid, axes, and every series."""
    high, wide = _y_axis(dots), _x_axis([dot.x for dot in dots])
    floor = _TOP + _PLOT_HEIGHT
    for tick in high.ticks:
        y = floor - high.height(tick) * _PLOT_HEIGHT
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" style="stroke:#e4e3dc"/>'
        yield _text(_LEFT - 10, y + 4, format_tick(tick), anchor="end")
    for tick in wide.ticks:
        x = _x_position(tick, wide)
        yield f'<path d="M{x:.1f} {floor}v5" style="stroke:#7c7a74"/>'
        yield _text(x, floor + 21, format_tick(tick))
    yield f'<path d="M{_LEFT} {floor}H{_WIDTH - _RIGHT}" style="stroke:#7c7a74"/>'
    kind = ", logarithmic" if wide.scale == "logarithmic" else ""
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, floor + 44, scatter.x_label + kind)
    for number, series in enumerate(scatter.series):
        yield from _draw_series(series, number, wide, high)


def _draw_series(series: Series, number: int, x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    """Yield the line, the bars and the points of a series."""
    ink, floor = _COLORS[number % len(_COLORS)], _TOP + _PLOT_HEIGHT
    places = [(_x_position(dot.x, x_axis), floor - y_axis.height(dot.y) * _PLOT_HEIGHT, dot) for dot in series.dots]
    if len(places) > 1:
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
        yield f'<path d="M{line}" style="fill:none;stroke:{ink};stroke-width:1.5;opacity:.7"/>'
    for x, y, dot in places:
        if math.isfinite(dot.deviation):
            reach = dot.deviation / (y_axis.high - y_axis.low) * _PLOT_HEIGHT
            top, bottom = y - reach, y + reach
            bar = f"M{x - 5:.1f} {top:.1f}h10M{x - 5:.1f} {bottom:.1f}h10M{x:.1f} {top:.1f}V{bottom:.1f}"
            yield f'<path d="{bar}" style="fill:none;stroke:{ink};stroke-width:1.5;opacity:.8"/>'
        told = f"{series.name}: {dot.y:.4g}" + (f" ± {dot.deviation:.2g}" if math.isfinite(dot.deviation) else "")
        yield _mark(x, y, number, told)


def _y_axis(dots: Sequence[Dot]) -> Axis:
    """Return the axis from bottom to top: it holds all bars."""
    reach = [0.0 if math.isnan(dot.deviation) else dot.deviation for dot in dots]
    ends = [dot.y + sign * by for dot, by in zip(dots, reach, strict=True) for sign in (-1, 1)]
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    # Of a figure far above zero only the part that differs is shown: the axis does not begin at zero.
    return _linear_axis(low - room, high + room)


def _linear_axis(low: float, high: float) -> Axis:
    shifted = axis_for(np.array([-(high - low), 0.0]) - 1e-9)  # ticks of this span, wherever it lies
    every = shifted.ticks[1] - shifted.ticks[0]
    ticks = tuple(n * every for n in range(math.ceil(low / every), math.floor(high / every) + 1))
    return Axis(low, high, ticks, "linear")


def _x_axis(values: Sequence[float]) -> Axis:
    """Return the axis from left to right: by powers of ten where the largest is many times the smallest."""
    low, high = min(values), max(values)
    if low > 0 and high >= _LOGARITHMIC_FROM * low:
        low, high = low / 1.3, high * 1.3
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = (digit * 10.0**power for power in powers for digit in (1, 2, 5))
        return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), "logarithmic")
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return _linear_axis(max(low - room, 0.0) if low >= 0 else low - room, high + room)


def _x_position(value: float, axis: Axis) -> float:
    return _LEFT + axis.height(value) * (_WIDTH - _LEFT - _RIGHT)


def _mark(x: float, y: float, number: int, tooltip: str = "") -> str:
    """Return the point of a series: a shape in its colour, the more series the more shapes."""
    ink, shape = _COLORS[number % len(_COLORS)], _SHAPES[number % len(_SHAPES)]
    paths = {
        "circle": "m-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0",
        "square": "m-5-5h10v10h-10z",
        "diamond": "m0-7l7 7l-7 7l-7-7z",
        "triangle": "m0-7l6.5 11.5h-13z",
        "cross": "m-5.5-5.5l11 11m0-11l-11 11",
    }
    fill = "none" if shape == "cross" else ink
    width = 3 if shape == "cross" else 1
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<path d="M{x:.1f} {y:.1f}{paths[shape]}" style="fill:{fill};stroke:{ink};stroke-width:{width}">{title}</path>'
    )


def _legend(series: Sequence[Series]) -> list[tuple[int, float, int]]:
    """Return the row and the left end of each name below the picture, and its number."""
    found, row, left = [], 0, float(_LEFT)
    for number, one in enumerate(series):
        width = 34 + 7.6 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in one.name)
        if left > _LEFT and left + width > _WIDTH - _RIGHT:
            row, left = row + 1, float(_LEFT)
        found.append((row, left, number))
        left += width
    return found


def _legend_entry(row: int, left: float, number: int, name: str) -> str:
    y = _TOP + _PLOT_HEIGHT + _BOTTOM + row * _LINE_HEIGHT + 6
    return _mark(left + 7, y - 4, number) + _text(left + 20, y, name, anchor="start")


def _text(x: float, y: float, text: str, size: int = 13, anchor: str = "middle", weight: int = 400) -> str:
    ink = "#11110f" if weight > 400 else "#52514e"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{ink}">{escape(text)}</text>'
    )
