"""Charts that all training reports share: the History of a run in, learning rate, throughput and gradient norm out."""

from __future__ import annotations

import numpy as np

from bertworks.records import History
from bertworks.reports.curves import Chart, Curve, Values, smooth


def step_charts(history: History) -> list[Chart]:
    """Return the charts of learning rate, throughput and gradient norm; none if no step was recorded."""
    steps = history.column("step")
    if not len(steps):
        return []
    learning_rate = Curve(
        name="learning rate",
        css_class="training",
        shape="line",
        steps=steps,
        values=history.column("learning_rate"),
    )
    throughput = _throughput(history.column("seconds"), history.column("num_tokens"))
    grad_norm = history.column("grad_norm")
    return [
        Chart(title="Learning rate", unit="by step", curves=(learning_rate,)),
        Chart(title="Throughput", unit="tokens/s", curves=raw_and_smooth_curves("", steps, throughput, history)),
        Chart(
            title="Gradient norm",
            unit="before clipping",
            curves=raw_and_smooth_curves("", steps, grad_norm, history),
        ),
    ]


def raw_and_smooth_curves(prefix: str, steps: Values, values: Values, history: History) -> tuple[Curve, ...]:
    """Return two curves of the same values: as recorded, and smoothed by a running mean."""
    means = smooth(steps, values, [step for step, _ in history.phases[1:]])
    return (
        Curve(name=f"{prefix}recorded", css_class="training", shape="band", steps=steps, values=values),
        Curve(name=f"{prefix}smoothed", css_class="training", shape="line", steps=steps, values=means),
    )


def _throughput(seconds: Values, num_tokens: Values) -> Values:
    """Return tokens/s between consecutive records; NaN where no time passed."""
    durations, counts = np.diff(seconds, prepend=0.0), np.diff(num_tokens, prepend=0.0)
    return np.divide(counts, durations, out=np.full(len(durations), np.nan), where=durations > 0)
