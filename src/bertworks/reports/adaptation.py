"""The adaptation of a model to the texts of a task, as a part of the fine-tuning report: its records in, HTML out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bertworks.records import History
from bertworks.reports.curves import Chart, Curve, StepAxis, draw_chart
from bertworks.reports.page import format_duration, heading, note
from bertworks.reports.step_charts import raw_and_smooth_curves

# The loss at the beginning and at the end of training is the mean over this fraction of the steps.
_END_RATIO = 0.1


def adaptation_part(folder: Path) -> str:
    """Return the curve of the language-model loss, and its values before and after; "" if nothing was adapted."""
    history = History.read(folder)
    if not history.losses:
        return ""
    name = history.token_loss
    steps, values = (np.array(column) for column in history.losses[name])
    curves = [*raw_and_smooth_curves("training texts, ", steps, values, history)]
    count = max(1, round(_END_RATIO * len(values)))
    losses = [f"{values[:count].mean():.3f} → {values[-count:].mean():.3f} on the training texts"]
    if history.held_out:
        held_out = np.array([(record.step, record.losses[name]) for record in history.held_out], dtype=np.float64)
        curves.append(
            Curve(name="dev texts", css_class="held-out", shape="dots", steps=held_out[:, 0], values=held_out[:, 1])
        )
        losses.append(f"{held_out[0, 1]:.3f} → {held_out[-1, 1]:.3f} on texts of dev, which are not trained on")
    chart = Chart(title=f"Language-model loss: {name}", unit="nats per token", curves=tuple(curves))
    text = (
        f"Before the labels were learned, the model was trained on the training texts alone: {int(steps[-1]):,} steps "
        f"in {format_duration(history.last('seconds'))}. Loss {', '.join(losses)}."
    )
    figure = draw_chart(chart, StepAxis.from_steps([0.0, float(steps[-1])]))
    return f'{heading("Adaptation")}{note(text)}<div class="charts one">{figure}</div>'
