"""Bar charts of a report: a BarChart of edges and heights in, inline SVG with labels in HTML out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from bertworks.messages import localize
from bertworks.reports.curves import HEIGHT, WIDTH, Axis, Values, axis_for, format_tick, plot, tick_distance

_GAP = 0.06  # left empty on each side of a bar, as a fraction of its width
_MAX_LABELS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars drawn equally wide; bar n spans the values from edge n to edge n + 1, which may be unevenly spaced.

    labels            the tooltip of each bar
    expected_heights  where each bar should end, drawn as a line
    marker            a value on the x axis to mark, and its label
    A height that is not finite draws no bar.
    """

    title: str
    unit: str
    edges: Values  # (N + 1,)
    heights: Values  # (N,)
    labels: tuple[str, ...]
    expected_heights: Values | None = None
    marker: tuple[float, str] | None = None

    def x_fraction(self, value: float) -> float:
        """Return the horizontal position of a value: 0 at the left, 1 at the right."""
        return float(np.interp(value, self.edges, np.linspace(0, 1, len(self.edges))))


def draw_bars(chart: BarChart, legend: str = "") -> str:
    """Return a figure: caption, legend and bars."""
    values = chart.heights
    if chart.expected_heights is not None:
        values = np.concatenate([values, chart.expected_heights])
    axis = axis_for(np.append(values[np.isfinite(values)], 0.0))
    label = f"{chart.title}, {chart.unit}: " + "; ".join(
        text for text, height in zip(chart.labels, chart.heights, strict=True) if np.isfinite(height) and height
    )
    caption = f"<figcaption>{escape(localize(chart.title))} <small>{escape(localize(chart.unit))}</small></figcaption>"
    return f'<figure class="low">{caption}{legend}{plot(label, axis, _bar_paths(chart, axis), _labels(chart))}</figure>'


def _bar_paths(chart: BarChart, axis: Axis) -> Iterator[str]:
    width = WIDTH / len(chart.heights)
    tops = (1 - axis.heights(chart.heights)) * HEIGHT
    for index, (top, label) in enumerate(zip(tops.tolist(), chart.labels, strict=True)):
        left, right = (index + _GAP) * width, (index + 1 - _GAP) * width
        if math.isfinite(top):
            shape = f"M{left:.1f} {HEIGHT}V{top:.1f}H{right:.1f}V{HEIGHT}Z"
            yield f'<path class="bar" d="{shape}"><title>{escape(label)}</title></path>'
        if chart.expected_heights is not None and math.isfinite(expected := float(chart.expected_heights[index])):
            yield f'<path class="expected" d="M{left:.1f} {(1 - axis.height(expected)) * HEIGHT:.1f}H{right:.1f}"/>'
    if chart.marker is not None:
        yield f'<path class="boundary" d="M{chart.x_fraction(chart.marker[0]) * WIDTH:.1f} 0V{HEIGHT}"/>'


def _labels(chart: BarChart) -> Iterator[str]:
    for tick in _ticks(chart.edges):
        yield f'<span class="x" style="left:{chart.x_fraction(tick) * 100:.2f}%">{format_tick(tick)}</span>'
    if chart.marker is not None:
        x = chart.x_fraction(chart.marker[0])
        css_class = "phase late" if x > 0.8 else "phase"
        yield f'<span class="{css_class}" style="left:{x * 100:.2f}%">{escape(chart.marker[1])}</span>'


def _ticks(edges: Values) -> list[float]:
    """Return the values to label: round numbers, or some of the edges where they are unevenly spaced."""
    widths = np.diff(edges)
    if not np.allclose(widths, widths[0]):
        return [float(edge) for edge in edges[:: math.ceil(len(edges) / _MAX_LABELS)]]
    distance = tick_distance(float(edges[-1] - edges[0]))
    first, last = math.ceil(edges[0] / distance - 1e-9), math.floor(edges[-1] / distance + 1e-9)
    return [n * distance for n in range(first, last + 1)]
