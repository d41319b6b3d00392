"""Print training events: a stream of events in, a status line on a terminal or plain lines elsewhere out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bertworks.commands.finetune.request import FinetuneEvent
    from bertworks.commands.pretrain.request import TrainEvent
    from bertworks.vocabulary.text_coverage import CoverageWarning

# Off a terminal, a line is printed once in so many steps.
_PRETRAIN_LOG_STEPS, _FINETUNE_LOG_STEPS = 100, 50


def format_duration(seconds: float) -> str:
    """Return a duration as people write it: 40 s, 12 min, 3 h 20 min, 5 d 4 h."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 2:
        return f"{seconds:.0f} s"
    if hours < 2:
        return f"{minutes:.0f} min"
    if days < 2:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(days)} d {int(hours) % 24} h"


def print_warnings(warnings: Iterable[CoverageWarning], prefix: str = "") -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        print(f"warning: {prefix}{warning.message}", file=sys.stderr, flush=True)


class StatusLine:
    """Prints steps over one another on a terminal, and one of many elsewhere; everything else on lines of its own."""

    def __init__(self, log_steps: int) -> None:
        self._log_steps = log_steps
        self._is_open = False

    def show_step(self, number: int, text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\x1b[K{text}", end="", flush=True)
            self._is_open = True
        elif number % self._log_steps == 0:
            print(text, flush=True)

    def show(self, text: str, is_warning: bool = False) -> None:
        if self._is_open:
            print()
            self._is_open = False
        print(f"warning: {text}" if is_warning else text, file=sys.stderr if is_warning else sys.stdout, flush=True)


class PretrainPrinter:
    """Prints the events of a pretraining run; `pair_task` names the task on sentence pairs (NSP, SOP)."""

    def __init__(self, pair_task: str = "NSP") -> None:
        self._line = StatusLine(_PRETRAIN_LOG_STEPS)
        self._pair_task = pair_task

    def show(self, event: TrainEvent) -> None:
        if event.step is not None:
            step = event.step
            losses = ", ".join(f"{name} {loss:.3f}" for name, loss in step.losses.items())
            unigram, uniform = event.reference_losses
            self._line.show_step(
                step.number,
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

    def __init__(self) -> None:
        self._line = StatusLine(_FINETUNE_LOG_STEPS)

    def show(self, event: FinetuneEvent) -> None:
        if event.step is not None:
            step = event.step
            losses = ", ".join(f"{name} {loss:.3f}" for name, loss in step.losses.items())
            seconds_left = step.seconds / step.number * (event.num_steps - step.number)
            prefix = "" if event.phase == "finetune" else f"{event.phase}: "
            self._line.show_step(
                step.number,
                f"{prefix}step {step.number:,} of {event.num_steps:,}: {losses}; "
                f"learning rate {step.learning_rate:.1e}; {format_duration(seconds_left)} left",
            )
        elif event.score is not None:
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in event.score.metrics.items())
            self._line.show(f"{event.score.split}, step {event.score.step:,}: {metrics}")
        else:
            self._line.show(event.warning or event.note, is_warning=bool(event.warning))
