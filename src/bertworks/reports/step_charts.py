"""What every run records of its steps: its History in, the charts that all reports share out."""

from __future__ import annotations

import numpy as np

from bertworks.records import History
from bertworks.reports.curves import Chart, Curve, Values, smooth


def step_charts(history: History) -> list[Chart]:
    """Return the charts of learning rate, speed and gradient norm; none if no step was recorded."""
    steps = history.column("step")
    if not len(steps):
        return []
    rate = Curve("learning rate", "training", "line", steps, history.column("rate"))
    speed = _throughput(history.column("seconds"), history.column("pieces"))
    norms = raw_and_smooth_curves("", steps, history.column("grad_norm"), history)
    return [
        Chart("Learning rate", "by step", (rate,)),
        Chart("Speed", "pieces a second", raw_and_smooth_curves("", steps, speed, history)),
        Chart("Gradient norm", "before clipping", norms),
    ]


def raw_and_smooth_curves(prefix: str, steps: Values, values: Values, history: History) -> tuple[Curve, ...]:
    """Return two curves of the same values: each record, and their running mean."""
    means = smooth(steps, values, [step for step, _ in history.phases[1:]])
    return (
        Curve(f"{prefix}each record", "training", "band", steps, values),
        Curve(f"{prefix}smoothed", "training", "line", steps, means),
    )


def _throughput(seconds: Values, tokens: Values) -> Values:
    """Return pieces a second between each record and the one before; gaps where no time passed."""
    taken, seen = np.diff(seconds, prepend=0.0), np.diff(tokens, prepend=0.0)
    return np.divide(seen, taken, out=np.full(len(taken), np.nan), where=taken > 0)
