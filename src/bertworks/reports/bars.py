"""Bars of a report: a BarChart of edges and heights in, inline SVG with its labels in HTML out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from bertworks.reports.curves import HEIGHT, WIDTH, Axis, Values, axis_for, format_tick, plot, tick_distance

_GAP = 0.06  # of a bar's width stays empty at either side
_MAX_LABELS = 9


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars side by side, all equally wide: bar n stands between the edges n and n + 1, which need not be.

    `words` tell what a bar is. `levels` are where each bar ought to end, and `mark` is a value on the ground with its
    words; either may be missing. A height that is not finite is no bar.
    """

    title: str
    unit: str
    edges: Values  # (N + 1,)
    heights: Values  # (N,)
    labels: tuple[str, ...]
    expected_heights: Values | None = None
    marker: tuple[float, str] | None = None

    def x_fraction(self, value: float) -> float:
        """Return where a value stands: 0 at the left, 1 at the right."""
        return float(np.interp(value, self.edges, np.linspace(0, 1, len(self.edges))))


def draw_bars(chart: BarChart, legend: str = "") -> str:
    """Return a figure: caption, legend and the bars."""
    both = chart.heights if chart.expected_heights is None else np.concatenate([chart.heights, chart.expected_heights])
    axis = axis_for(np.append(both[np.isfinite(both)], 0.0))
    label = f"{chart.title}, {chart.unit}: " + "; ".join(
        words for words, height in zip(chart.labels, chart.heights, strict=True) if np.isfinite(height) and height
    )
    caption = f"<figcaption>{escape(chart.title)} <small>{escape(chart.unit)}</small></figcaption>"
    return f'<figure class="low">{caption}{legend}{plot(label, axis, _bar_paths(chart, axis), _labels(chart))}</figure>'


def _bar_paths(chart: BarChart, axis: Axis) -> Iterator[str]:
    width = WIDTH / len(chart.heights)
    tops = (1 - axis.heights(chart.heights)) * HEIGHT
    for number, (top, words) in enumerate(zip(tops.tolist(), chart.labels, strict=True)):
        left, right = (number + _GAP) * width, (number + 1 - _GAP) * width
        if math.isfinite(top):
            shape = f"M{left:.1f} {HEIGHT}V{top:.1f}H{right:.1f}V{HEIGHT}Z"
            yield f'<path class="bar" d="{shape}"><title>{escape(words)}</title></path>'
        if chart.expected_heights is not None and math.isfinite(level := float(chart.expected_heights[number])):
            yield f'<path class="aim" d="M{left:.1f} {(1 - axis.height(level)) * HEIGHT:.1f}H{right:.1f}"/>'
    if chart.marker is not None:
        yield f'<path class="boundary" d="M{chart.x_fraction(chart.marker[0]) * WIDTH:.1f} 0V{HEIGHT}"/>'


def _labels(chart: BarChart) -> Iterator[str]:
    for tick in _ticks(chart.edges):
        yield f'<span class="x" style="left:{chart.x_fraction(tick) * 100:.2f}%">{format_tick(tick)}</span>'
    if chart.marker is not None:
        across = chart.x_fraction(chart.marker[0])
        kind = "phase late" if across > 0.8 else "phase"
        yield f'<span class="{kind}" style="left:{across * 100:.2f}%">{escape(chart.marker[1])}</span>'


def _ticks(edges: Values) -> list[float]:
    """Return the values to write below the bars: round ones, or where edges are not evenly apart some of them."""
    apart = np.diff(edges)
    if not np.allclose(apart, apart[0]):
        return [float(edge) for edge in edges[:: math.ceil(len(edges) / _MAX_LABELS)]]
    every = tick_distance(float(edges[-1] - edges[0]))
    return [n * every for n in range(math.ceil(edges[0] / every - 1e-9), math.floor(edges[-1] / every + 1e-9) + 1)]
