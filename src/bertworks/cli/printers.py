"""Print training events: a stream of events in, a bar on a terminal or plain lines elsewhere out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bertworks.cli.console import say, warn
from bertworks.cli.progress import format_duration
from bertworks.messages import fill
from bertworks.progress import Progress, ProgressDetail, begin_stage, is_live

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bertworks.cli.bars import Bars
    from bertworks.commands.finetune.request import FinetuneEvent
    from bertworks.commands.pretrain.request import TrainEvent
    from bertworks.vocabulary.text_coverage import CoverageWarning

# Off a terminal, a line is printed once in so many steps.
PRETRAIN_LOG_STEPS, FINETUNE_LOG_STEPS = 100, 50


def print_warnings(warnings: Iterable[CoverageWarning], prefix: str = "") -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        warn(f"warning: {prefix + warning.message}")


class StatusLine:
    """Shows steps as a bar on a terminal, and one of many as a line elsewhere; everything else on lines of its own.

    A context manager: at its end the terminal is free again.
    """

    def __init__(self, log_steps: int) -> None:
        self._log_steps = log_steps
        self._bars: Bars | None = None

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.__exit__()
            self._bars = None

    def show_step(self, progress: Progress, text: str) -> None:
        """Show a step: `progress` in a bar, or `text` as a line."""
        if is_live(sys.stderr):
            self._open_bars().show(progress)
        elif progress.done % self._log_steps == 0:
            say(text)

    def show_stage(self, stage: str) -> None:
        """Show that a stage has begun which counts nothing; only on a terminal."""
        if is_live(sys.stderr):
            self._open_bars().show(begin_stage(stage))

    def show(self, text: str, is_warning: bool = False) -> None:
        """Print a line above the bar."""
        if is_warning:
            warn(f"warning: {text}")
        else:
            say(text)

    def _open_bars(self) -> Bars:
        if self._bars is None:
            from bertworks.cli.bars import Bars

            self._bars = Bars().__enter__()
        return self._bars


class PretrainPrinter:
    """Prints the events of a pretraining run; `pair_task` names the task on sentence pairs (NSP, SOP)."""

    def __init__(self, line: StatusLine, pair_task: str = "NSP") -> None:
        self._line = line
        self._pair_task = pair_task

    def show(self, event: TrainEvent) -> None:
        if event.step is not None:
            step = event.step
            losses = ", ".join(f"{name} {loss:.3f}" for name, loss in step.losses.items())
            unigram, uniform = event.reference_losses
            detail = ProgressDetail(
                text=f"{losses}, {step.num_tokens / step.seconds:,.0f} tokens/s", seconds_left=event.seconds_left
            )
            # A time budget has no number of steps: as many more as fit into the time left.
            num_steps = event.num_steps or round(step.number * (1 + event.seconds_left / step.seconds))
            self._line.show_step(
                Progress("pretrain", step.number, num_steps, "steps", detail=detail),
                f"step {step.number:,}: {losses} (unigram entropy {unigram:.2f}, uniform {uniform:.2f}); "
                f"learning rate {step.learning_rate:.1e}; {step.num_tokens / step.seconds:,.0f} tokens/s; "
                f"{format_duration(event.seconds_left)} left",
            )
        elif event.held_out is not None:
            record = event.held_out
            accuracy, pairs = "MLM accuracy" if "mlm" in record.losses else "token accuracy", ""
            if record.pair_accuracy is not None:
                pairs = f", {self._pair_task} accuracy {record.pair_accuracy:.1%}"
            self._line.show(
                f"held-out, step {record.step:,}: loss {record.loss:.3f}, {accuracy} {record.accuracy:.1%}{pairs}"
            )
        elif event.checkpoint_path is not None:
            self._line.show(f"saved {event.checkpoint_path}")
        else:
            self._line.show(event.warning or event.note, is_warning=bool(event.warning))


class FinetunePrinter:
    """Prints the events of a fine-tuning run."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line

    def show(self, event: FinetuneEvent) -> None:
        if event.step is not None:
            step = event.step
            losses = ", ".join(f"{name} {loss:.3f}" for name, loss in step.losses.items())
            seconds_left = step.seconds / step.number * (event.num_steps - step.number)
            prefix = "" if event.phase == "finetune" else f"{event.phase}: "
            detail = ProgressDetail(text=losses, seconds_left=seconds_left)
            self._line.show_step(
                Progress(event.phase, step.number, event.num_steps, "steps", detail=detail),
                f"{prefix}step {step.number:,} of {event.num_steps:,}: {losses}; "
                f"learning rate {step.learning_rate:.1e}; {format_duration(seconds_left)} left",
            )
        elif event.stage:
            self._line.show_stage(event.stage)
        elif event.score is not None:
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in event.score.metrics.items())
            self._line.show(fill("{}, step {}: {}", event.score.split, f"{event.score.step:,}", metrics))
        else:
            self._line.show(event.warning or event.note, is_warning=bool(event.warning))
