"""Line charts of a run: a Chart of steps and values in, inline SVG with labels in HTML out.

The SVG is stretched to the width of the page. Line widths do not scale, and all text is HTML beside the SVG, so it has
the same size on a phone and on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from bertworks.messages import fill, localize

Values = npt.NDArray[np.float64]

MAX_POINTS = 2_000
WIDTH, HEIGHT = 1_000, 400  # of the SVG view box
_MAX_DOTS = 60
_MAX_TICKS = 6
_SMOOTHING = 50  # the smoothing window is this fraction of all records
_MIN_SMOOTHING = 5  # but at least five of them, if there are twenty or more
_LOGARITHMIC_FROM = 100  # use a logarithmic axis if the maximum is this many times the median


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values over steps. `css_class` is "training", "held-out" or "pairs"; `shape` is "band", "line" or "dots".

    A value that is not finite leaves a gap.
    """

    name: str
    css_class: str
    shape: str
    steps: Values
    values: Values


@dataclass(frozen=True, slots=True)
class Reference:
    """A horizontal line to compare curves with; its label is "above" or "below" it, by `side`."""

    value: float
    label: str
    side: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step that all charts mark: the start of a phase, or the best step."""

    step: int
    label: str


@dataclass(frozen=True, slots=True)
class StepAxis:
    """The x axis that all charts of a page share."""

    first_step: float
    last_step: float
    boundaries: tuple[Boundary, ...] = ()

    @classmethod
    def from_steps(cls, steps: Sequence[float], boundaries: Sequence[Boundary] = ()) -> StepAxis:
        """Return an axis that holds these steps; it starts at zero unless they start far from it."""
        first, last = min(steps, default=0.0), max(steps, default=1.0)
        first = 0.0 if first <= last / 10 or first == last else first
        return cls(first, max(last, first + 1), tuple(boundaries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves that share a y axis. `size` is "tall" or "low"."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    references: tuple[Reference, ...] = ()
    size: str = "low"


@dataclass(frozen=True, slots=True)
class Axis:
    """A y axis: its range and ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    scale: str  # "linear" or "logarithmic"

    def heights(self, values: Values) -> Values:
        """Return the vertical positions of values: 0 at the bottom, 1 at the top."""
        if self.scale == "logarithmic":
            values = np.maximum(values, np.finfo(np.float64).tiny)  # zero has no logarithm
            return (np.log10(values) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (values - self.low) / (self.high - self.low)

    def height(self, value: float) -> float:
        return float(self.heights(np.array([value]))[0])


def downsample(values: Values, limit: int = MAX_POINTS) -> npt.NDArray[np.intp]:
    """Return the indices of at most `limit` values whose plot looks like that of all values.

    They are the first, the last, and the minimum and maximum of each interval, so no spike is lost. An interval without
    finite values keeps one of them, so that the gap is drawn.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), (limit - 2) // 2 + 1).astype(np.intp)
    finite = np.isfinite(values)
    minima, maxima = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    indices = {0, len(values) - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        indices |= {start + int(minima[start:end].argmin()), start + int(maxima[start:end].argmax())}
    return np.array(sorted(indices), dtype=np.intp)


def running_mean(values: Values, width: int) -> Values:
    """Return the mean of up to `width` values around each one, ignoring those that are not finite."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    indices = np.arange(len(values))
    starts, ends = np.maximum(indices - width // 2, 0), np.minimum(indices + width // 2 + 1, len(values))
    num_finite = counts[ends] - counts[starts]
    means = (sums[ends] - sums[starts]) / np.maximum(num_finite, 1)
    return np.where(num_finite > 0, means, np.nan)


def smooth(steps: Values, values: Values, boundaries: Sequence[int]) -> Values:
    """Smooth each phase separately, since loss and throughput depend on the sequence length; gaps stay gaps."""
    width = max(len(values) // _SMOOTHING, min(len(values) // 4, _MIN_SMOOTHING))
    parts = np.split(values, np.searchsorted(steps, boundaries))
    return np.where(np.isfinite(values), np.concatenate([running_mean(part, width) for part in parts]), np.nan)


def axis_for(values: Values) -> Axis:
    """Return an axis that holds these finite values; logarithmic if outliers would flatten the others."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > _LOGARITHMIC_FROM * float(np.median(values)):
        bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
        powers = range(bottom, top + 1, math.ceil((top - bottom) / _MAX_TICKS))
        return Axis(10.0**bottom, 10.0**top, tuple(10.0**power for power in powers), "logarithmic")
    if 0 <= low < 0.7 * high:
        low = 0.0
    if math.isclose(low, high, abs_tol=1e-100):  # center a flat curve; put zero at the bottom
        low, high = (min(2 * low, 0.0), max(2 * high, 0.0)) if abs(low) > 1e-100 else (0.0, 1.0)
    distance = tick_distance(high - low)
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    ticks = tuple(n * distance for n in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks, "linear")


def tick_distance(span: float) -> float:
    """Return the distance, 1, 2 or 5 times a power of ten, that puts at most six ticks on a span."""
    power = 10.0 ** math.floor(math.log10(span / _MAX_TICKS))
    return next(power * digit for digit in (1, 2, 5, 10) if span / (power * digit) <= _MAX_TICKS)


def format_tick(value: float) -> str:
    """Format a number briefly: 0, 2.5, 7.5k, 1.5M, 2e-5."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.6g}"


def draw_chart(chart: Chart, step_axis: StepAxis) -> str:
    """Return a figure: caption, legend if there are several curves, and plot."""
    values = np.concatenate([*(c.values for c in chart.curves), [r.value for r in chart.references]])
    values = values[np.isfinite(values)]
    caption = f"<figcaption>{escape(localize(chart.title))} <small>{escape(localize(chart.unit))}</small></figcaption>"
    if not any(np.isfinite(curve.values).any() for curve in chart.curves):
        empty = f'<p class="empty">{localize("no finite values")}</p>'
        return f'<figure class="{chart.size}">{caption}{empty}</figure>'
    axis = axis_for(values)
    if axis.scale == "logarithmic":
        caption = caption.replace("</small>", f"{localize(', logarithmic')}</small>")
    label = f"{localize(chart.title)}, {localize(chart.unit)}: {'; '.join(map(_aria_label, chart.curves))}"
    lines = [*_lines(chart, axis, step_axis), *(_draw_curve(curve, axis, step_axis) for curve in chart.curves)]
    plotted = plot(label, axis, lines, _labels(chart, axis, step_axis))
    return f'<figure class="{chart.size}">{caption}{_legend(chart.curves)}{plotted}</figure>'


def plot(label: str, axis: Axis, lines: Iterable[str], labels: Iterable[str]) -> str:
    """Return a plot with the grid of its y axis: `lines` are SVG paths, `labels` HTML, `label` for screen readers."""
    heights = [axis.height(tick) for tick in axis.ticks]
    ticks = zip(heights, axis.ticks, strict=True)
    return "".join(
        [
            f'<div class="plot" role="img" aria-label="{escape(label)}">',
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">',
            *(_horizontal_line("grid", height) for height in heights),
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
        + "".join(f"<li><i class='{c.css_class} {c.shape}'></i>{escape(localize(c.name))}</li>" for c in curves)
        + "</ul>"
    )


def _aria_label(curve: Curve) -> str:
    name, finite = localize(curve.name), curve.values[np.isfinite(curve.values)]
    if not len(finite):
        return fill("{} has no finite values", name)
    return fill("{} from {} to {}", name, f"{finite[0]:.4g}", f"{finite[-1]:.4g}")


def _lines(chart: Chart, axis: Axis, step_axis: StepAxis) -> Iterator[str]:
    for reference in chart.references:
        yield _horizontal_line("reference", axis.height(reference.value))
    for boundary in step_axis.boundaries:
        yield f'<path class="boundary" d="M{_x_fraction(boundary.step, step_axis) * WIDTH:.1f} 0V{HEIGHT}"/>'


def _horizontal_line(css_class: str, height: float) -> str:
    return f'<path class="{css_class}" d="M0 {(1 - height) * HEIGHT:.1f}H{WIDTH}"/>'


def _draw_curve(curve: Curve, axis: Axis, step_axis: StepAxis) -> str:
    indices = downsample(curve.values)
    steps, values = curve.steps[indices], curve.values[indices]
    xs = (steps - step_axis.first_step) / (step_axis.last_step - step_axis.first_step) * WIDTH
    ys = (1 - axis.heights(values)) * HEIGHT
    path = f'<path class="{curve.css_class} {curve.shape}" d="{_path(xs, ys)}"/>'
    has_dot = np.isfinite(ys) if curve.shape == "dots" and len(indices) <= _MAX_DOTS else _is_isolated(ys)
    dots = zip(xs[has_dot], ys[has_dot], steps[has_dot], values[has_dot], strict=True)
    return path + "".join(_dot(curve.css_class, *dot) for dot in dots)


def _dot(css_class: str, x: float, y: float, step: float, value: float) -> str:
    tooltip = fill("step {}: {}", f"{step:,.0f}", f"{value:.4g}")
    return f'<path class="{css_class} dot" d="M{x:.1f} {y:.1f}h0"><title>{tooltip}</title></path>'


def _path(xs: Values, ys: Values) -> str:
    """Return the SVG path through all points, with gaps; isolated points are drawn as dots."""
    is_on_path = np.isfinite(ys) & ~_is_isolated(ys)
    parts: list[str] = []
    command = "M"
    for x, y, is_drawn in zip(xs.tolist(), ys.tolist(), is_on_path.tolist(), strict=True):
        if is_drawn:
            parts.append(f"{command}{x:.1f} {y:.1f}")
        command = "L" if is_drawn else "M"
    return "".join(parts)


def _is_isolated(values: Values) -> npt.NDArray[np.bool_]:
    """Return which values are between two gaps, so that no line would show them."""
    finite = np.concatenate([[False], np.isfinite(values), [False]])
    return finite[1:-1] & ~finite[:-2] & ~finite[2:]


def _labels(chart: Chart, axis: Axis, step_axis: StepAxis) -> Iterator[str]:
    distance = max(tick_distance(step_axis.last_step - step_axis.first_step), 1)
    first, last = math.ceil(step_axis.first_step / distance), math.floor(step_axis.last_step / distance)
    for tick in (n * distance for n in range(first, last + 1)):
        yield f'<span class="x" style="left:{_x_fraction(tick, step_axis) * 100:.2f}%">{format_tick(tick)}</span>'
    for reference in chart.references:
        top = (1 - axis.height(reference.value)) * 100
        yield f'<span class="level {reference.side}" style="top:{top:.2f}%">{escape(localize(reference.label))}</span>'
    free_from = 0.0
    for boundary in step_axis.boundaries:
        x = _x_fraction(boundary.step, step_axis)
        if x >= free_from:  # skip labels that would overlap the previous one
            css_class = "phase late" if x > 0.9 else "phase"
            yield f'<span class="{css_class}" style="left:{x * 100:.2f}%">{escape(localize(boundary.label))}</span>'
            free_from = x + 0.15


def _x_fraction(step: float, step_axis: StepAxis) -> float:
    return (step - step_axis.first_step) / (step_axis.last_step - step_axis.first_step)
