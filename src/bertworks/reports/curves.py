"""Curves of a run: a Chart of steps and values in, inline SVG with its labels in HTML out.

The SVG is stretched to whatever width the page has; lines keep their thickness, and all words stand beside it as HTML,
so that they are as large on a phone as on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

MAX_POINTS = 2_000
WIDTH, HEIGHT = 1_000, 400  # of a drawing, in its own units
_MAX_DOTS = 60
_MAX_TICKS = 6
_SMOOTHING = 50  # a smoothed value is the mean of one in so many of all records
_MIN_SMOOTHING = 5  # but of five, as soon as there are twenty
_LOGARITHMIC_FROM = 100  # a largest value this many times the median would flatten the rest of a linear axis


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over steps. `ink` is what it shows ("training", "held-out" or "pairs"), `shape` how: "band", "line" or
    "dots". A value that is not finite leaves a gap."""

    name: str
    css_class: str
    shape: str
    steps: Values
    values: Values


@dataclass(frozen=True, slots=True)
class Reference:
    """A level to compare a curve with; its words stand "above" or "below" the line."""

    value: float
    label: str
    side: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step that all charts mark: a new phase begins with it, or it is the best."""

    step: int
    label: str


@dataclass(frozen=True, slots=True)
class StepAxis:
    """What all charts of a page share, so that a step stands at the same place in each."""

    first_step: float
    last_step: float
    boundaries: tuple[Boundary, ...] = ()

    @classmethod
    def from_steps(cls, steps: Sequence[float], boundaries: Sequence[Boundary] = ()) -> StepAxis:
        """Return a frame for these steps: from zero, unless they begin far behind it."""
        first, last = min(steps, default=0.0), max(steps, default=1.0)
        first = 0.0 if first <= last / 10 or first == last else first
        return cls(first, max(last, first + 1), tuple(boundaries))


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share one axis. `size` is "tall" or "low"."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    references: tuple[Reference, ...] = ()
    size: str = "low"


@dataclass(frozen=True, slots=True)
class Axis:
    """The values from bottom to top, and the ticks between them."""

    low: float
    high: float
    ticks: tuple[float, ...]
    scale: str  # "linear" or "logarithmic"

    def heights(self, values: Values) -> Values:
        """Return where values stand: 0 at the bottom, 1 at the top."""
        if self.scale == "logarithmic":
            values = np.maximum(values, np.finfo(np.float64).tiny)  # minus infinity has no logarithm
            return (np.log10(values) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (values - self.low) / (self.high - self.low)

    def height(self, value: float) -> float:
        return float(self.heights(np.array([value]))[0])


def downsample(values: Values, limit: int = MAX_POINTS) -> npt.NDArray[np.intp]:
    """Return the places of at most `limit` values which look like all of them.

    The first and the last stay, and of each stretch its least and its greatest: no spike is lost. A stretch without
    any finite value keeps one of them, so that the gap is seen.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), (limit - 2) // 2 + 1).astype(np.intp)
    finite = np.isfinite(values)
    least, greatest = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    kept = {0, len(values) - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        kept |= {start + int(least[start:end].argmin()), start + int(greatest[start:end].argmax())}
    return np.array(sorted(kept), dtype=np.intp)


def running_mean(values: Values, width: int) -> Values:
    """Return the mean of up to `width` values around each one; those that are not finite do not count."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    starts, ends = np.maximum(places - width // 2, 0), np.minimum(places + width // 2 + 1, len(values))
    num_finite = counts[ends] - counts[starts]
    means = (sums[ends] - sums[starts]) / np.maximum(num_finite, 1)
    return np.where(num_finite > 0, means, np.nan)


def smooth(steps: Values, values: Values, boundaries: Sequence[int]) -> Values:
    """Smooth each phase alone, as another length has another loss and another speed; gaps stay gaps."""
    width = max(len(values) // _SMOOTHING, min(len(values) // 4, _MIN_SMOOTHING))
    parts = np.split(values, np.searchsorted(steps, boundaries))
    return np.where(np.isfinite(values), np.concatenate([running_mean(part, width) for part in parts]), np.nan)


def axis_for(values: Values) -> Axis:
    """Return an axis that holds all these finite values; logarithmic if a few would flatten the others."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > _LOGARITHMIC_FROM * float(np.median(values)):
        bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
        powers = range(bottom, top + 1, math.ceil((top - bottom) / _MAX_TICKS))
        return Axis(10.0**bottom, 10.0**top, tuple(10.0**power for power in powers), "logarithmic")
    if 0 <= low < 0.7 * high:
        low = 0.0
    if math.isclose(low, high, abs_tol=1e-100):  # a flat curve lies in the middle, or on the ground if it is zero
        low, high = (min(2 * low, 0.0), max(2 * high, 0.0)) if abs(low) > 1e-100 else (0.0, 1.0)
    every = tick_distance(high - low)
    ticks = tuple(n * every for n in range(math.floor(low / every + 1e-9), math.ceil(high / every - 1e-9) + 1))
    return Axis(ticks[0], ticks[-1], ticks, "linear")


def tick_distance(span: float) -> float:
    """Return the distance 1, 2 or 5 times a power of ten that puts at most six ticks on a span."""
    power = 10.0 ** math.floor(math.log10(span / _MAX_TICKS))
    return next(power * digit for digit in (1, 2, 5, 10) if span / (power * digit) <= _MAX_TICKS)


def format_tick(value: float) -> str:
    """Return a short number: 0, 2.5, 7.5k, 1.5M, 2e-5."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.6g}"


def draw_chart(chart: Chart, step_axis: StepAxis) -> str:
    """Return a figure: caption, legend if there is more than one curve, and the plot."""
    values = np.concatenate([*(c.values for c in chart.curves), [r.value for r in chart.references]])
    values = values[np.isfinite(values)]
    caption = f"<figcaption>{escape(chart.title)} <small>{escape(chart.unit)}</small></figcaption>"
    if not any(np.isfinite(curve.values).any() for curve in chart.curves):
        return f'<figure class="{chart.size}">{caption}<p class="empty">no finite value was recorded</p></figure>'
    axis = axis_for(values)
    if axis.scale == "logarithmic":
        caption = caption.replace("</small>", ", logarithmic</small>")
    label = f"{chart.title}, {chart.unit}: " + "; ".join(map(_aria_label, chart.curves))
    lines = [*_lines(chart, axis, step_axis), *(_draw_curve(curve, axis, step_axis) for curve in chart.curves)]
    plotted = plot(label, axis, lines, _labels(chart, axis, step_axis))
    return f'<figure class="{chart.size}">{caption}{_legend(chart.curves)}{plotted}</figure>'


def plot(label: str, axis: Axis, lines: Iterable[str], labels: Iterable[str]) -> str:
    """Return a plot over the grid of its axis: lines in the drawing's own units, words that lie beside and on it.

    `label` tells the plot to those who hear the page.
    """
    heights = [axis.height(tick) for tick in axis.ticks]
    ticks = zip(heights, axis.ticks, strict=True)
    return "".join(
        [
            f'<div class="plot" role="img" aria-label="{escape(label)}">',
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">',
            *(_level("grid", height) for height in heights),
            *lines,
            "</svg>",
            *(f'<span class="y" style="top:{(1 - height) * 100:.2f}%">{format_tick(t)}</span>' for height, t in ticks),
            *labels,
            "</div>",
        ]
    )


def _legend(curves: Sequence[Curve]) -> str:
    if len(curves) < 2:
        return ""
    return (
        '<ul class="legend">'
        + "".join(f"<li><i class='{c.css_class} {c.shape}'></i>{escape(c.name)}</li>" for c in curves)
        + "</ul>"
    )


def _aria_label(curve: Curve) -> str:
    finite = curve.values[np.isfinite(curve.values)]
    return (
        f"{curve.name} from {finite[0]:.4g} to {finite[-1]:.4g}" if len(finite) else f"{curve.name} has no finite value"
    )


def _lines(chart: Chart, axis: Axis, step_axis: StepAxis) -> Iterator[str]:
    for reference in chart.references:
        yield _level("reference", axis.height(reference.value))
    for boundary in step_axis.boundaries:
        yield f'<path class="boundary" d="M{_x_fraction(boundary.step, step_axis) * WIDTH:.1f} 0V{HEIGHT}"/>'


def _level(kind: str, height: float) -> str:
    return f'<path class="{kind}" d="M0 {(1 - height) * HEIGHT:.1f}H{WIDTH}"/>'


def _draw_curve(curve: Curve, axis: Axis, step_axis: StepAxis) -> str:
    kept = downsample(curve.values)
    steps, values = curve.steps[kept], curve.values[kept]
    across = (steps - step_axis.first_step) / (step_axis.last_step - step_axis.first_step) * WIDTH
    down = (1 - axis.heights(values)) * HEIGHT
    path = f'<path class="{curve.css_class} {curve.shape}" d="{_path(across, down)}"/>'
    dotted = np.isfinite(down) if curve.shape == "dots" and len(kept) <= _MAX_DOTS else _is_isolated(down)
    dots = zip(across[dotted], down[dotted], steps[dotted], values[dotted], strict=True)
    return path + "".join(_dot(curve.css_class, *dot) for dot in dots)


def _dot(css_class: str, x: float, y: float, step: float, value: float) -> str:
    words = f"step {step:,.0f}: {value:.4g}"
    return f'<path class="{css_class} dot" d="M{x:.1f} {y:.1f}h0"><title>{words}</title></path>'


def _path(xs: Values, ys: Values) -> str:
    """Return the path through all points that have a neighbour."""
    drawn = np.isfinite(ys) & ~_is_isolated(ys)
    parts: list[str] = []
    letter = "M"
    for x, y, is_drawn in zip(xs.tolist(), ys.tolist(), drawn.tolist(), strict=True):
        if is_drawn:
            parts.append(f"{letter}{x:.1f} {y:.1f}")
        letter = "L" if is_drawn else "M"
    return "".join(parts)


def _is_isolated(values: Values) -> npt.NDArray[np.bool_]:
    """Tell which values stand alone between gaps: no line would show them."""
    finite = np.concatenate([[False], np.isfinite(values), [False]])
    return finite[1:-1] & ~finite[:-2] & ~finite[2:]


def _labels(chart: Chart, axis: Axis, step_axis: StepAxis) -> Iterator[str]:
    every = max(tick_distance(step_axis.last_step - step_axis.first_step), 1)
    for number in range(math.ceil(step_axis.first_step / every), math.floor(step_axis.last_step / every) + 1):
        tick = number * every
        yield f'<span class="x" style="left:{_x_fraction(tick, step_axis) * 100:.2f}%">{format_tick(tick)}</span>'
    for reference in chart.references:
        top = (1 - axis.height(reference.value)) * 100
        yield f'<span class="level {reference.side}" style="top:{top:.2f}%">{escape(reference.label)}</span>'
    free_from = 0.0
    for boundary in step_axis.boundaries:
        across = _x_fraction(boundary.step, step_axis)
        if across >= free_from:  # words of boundaries close to each other would lie on one another
            kind = "phase late" if across > 0.9 else "phase"
            yield f'<span class="{kind}" style="left:{across * 100:.2f}%">{escape(boundary.label)}</span>'
            free_from = across + 0.15


def _x_fraction(step: float, step_axis: StepAxis) -> float:
    return (step - step_axis.first_step) / (step_axis.last_step - step_axis.first_step)
