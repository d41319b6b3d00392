"""Whether a pretraining run has learned: its held-out losses in, a few sentences out.

The loss is compared with that of step 0 and with the unigram entropy, never with one alone: a run that starts from a
good model is below the unigram entropy before its first step, and a new model falls far below step 0 by learning no
more than the frequencies of tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from bertworks.records import HeldOutRecord
from bertworks.reports.page import format_percent
from bertworks.reports.pretrain_run import PretrainRun, read_pretrain_run

# Smaller differences of losses, in nats, are not progress.
_MIN_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class PretrainVerdict:
    """Sentences on the result of a run; `has_failed`: it learned nothing, or nothing but the frequencies of tokens."""

    text: str
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class _Baseline:
    name: str
    loss: float


def read_verdict(run: Path) -> PretrainVerdict:
    """Return the verdict on the run in a folder."""
    return verdict_of(read_pretrain_run(run))


def verdict_of(run: PretrainRun) -> PretrainVerdict:
    """Return the held-out loss and accuracies of the last evaluation, the lowest loss, and what it is compared with."""
    training = np.array(run.history.losses[run.history.token_loss][1] if run.history.losses else [])
    if not run.history.held_out:
        last_loss = f"; the last training loss is {training[-1]:.3f}" if len(training) else ""
        return PretrainVerdict(f"There is no held-out evaluation yet{last_loss}.")
    last = run.history.held_out[-1]
    best = _lowest(run)
    comparison = _compare(run, best)
    sentences = [_describe_scores(run, last)]
    if _loss(run, best) < _loss(run, last) - _MIN_GAIN:
        sentences.append(f"The lowest loss is {_loss(run, best):.3f}, at step {best.step:,}.")
    sentences.append(comparison.text)
    if ema_decay := run.recipe_value("ema_decay"):
        sentences.append(
            f"Held-out scores and the model use the exponential moving average of the weights ({ema_decay})."
        )
    num_not_finite = int((~np.isfinite(training)).sum())
    if num_not_finite:
        sentences.append(f"{num_not_finite:,} of {len(training):,} recorded training losses are not finite.")
    return PretrainVerdict(" ".join(filter(None, sentences)), comparison.has_failed)


def _describe_scores(run: PretrainRun, record: HeldOutRecord) -> str:
    loss, accuracy = f"{_loss(run, record):.3f}", format_percent(record.accuracy)
    tokens = run.loss_name(run.history.token_loss)
    if record.pair_accuracy is None:
        return f"Held-out loss {loss}, {tokens} accuracy {accuracy}."
    pairs, pair_accuracy = run.loss_name(run.pair_loss or ""), format_percent(record.pair_accuracy)
    return f"Held-out loss {loss}, {tokens} accuracy {accuracy}, {pairs} accuracy {pair_accuracy}."


def _loss(run: PretrainRun, record: HeldOutRecord) -> float:
    return record.losses.get(run.history.token_loss, math.nan)


def _lowest(run: PretrainRun) -> HeldOutRecord:
    """Return the evaluation after step 0 with the lowest loss, among the last ones that were at the same length."""
    last = run.history.held_out[-1]
    records = takewhile(lambda record: _length(record) == _length(last), reversed(run.history.held_out))
    return min(
        (record for record in records if record.step),
        key=lambda record: (np.nan_to_num(_loss(run, record), nan=math.inf), record.step),
        default=last,
    )


def _length(record: HeldOutRecord) -> str:
    """Return the max_length of a phase: the name of the second one with 128 is "128 (2)"."""
    return record.phase.partition(" ")[0]


def _compare(run: PretrainRun, best: HeldOutRecord) -> PretrainVerdict:
    """Compare the loss of an evaluation with that of step 0 and with the unigram entropy."""
    loss = _loss(run, best)
    if not math.isfinite(_loss(run, run.history.held_out[-1])):
        return PretrainVerdict("Training diverged: the loss is not finite.", has_failed=True)
    if best.step == 0:
        return PretrainVerdict("There is no evaluation after step 0 yet.")
    start, unigram = _start(run), run.get_number("unigram_entropy")
    if start is None or unigram is None:
        return PretrainVerdict("")
    is_below_start, is_below_unigram = start.loss - loss >= _MIN_GAIN, unigram - loss >= _MIN_GAIN
    so_far = "" if run.run_info.get("finished") else " so far"
    if is_below_start and is_below_unigram:
        return PretrainVerdict(
            f"That is {start.loss - loss:.2f} nats below {start.name} ({start.loss:.2f}) and {unigram - loss:.2f} nats "
            f"below the unigram entropy ({unigram:.2f}): the model uses context."
        )
    if is_below_start:
        text = (
            f"That is {start.loss - loss:.2f} nats below {start.name} ({start.loss:.2f}), but not below the unigram "
            f"entropy ({unigram:.2f}): the model has learned nothing but the frequencies of tokens{so_far}, it does "
            f"not use context."
        )
    elif is_below_unigram:
        text = (
            f"That is {unigram - loss:.2f} nats below the unigram entropy ({unigram:.2f}), but not below {start.name} "
            f"({start.loss:.2f}): the model has learned nothing in this run{so_far}."
        )
    else:
        text = (
            f"That is below neither {start.name} ({start.loss:.2f}) nor the unigram entropy ({unigram:.2f}): the model "
            f"has learned nothing{so_far}."
        )
    return PretrainVerdict(text, has_failed=True)


def _start(run: PretrainRun) -> _Baseline | None:
    """Return the loss at step 0; if that was not evaluated, the uniform loss, which a new model has about."""
    for record in run.history.held_out:
        if record.step == 0 and math.isfinite(_loss(run, record)):
            return _Baseline("step 0", _loss(run, record))
    uniform_loss = run.get_number("uniform_loss")
    return None if uniform_loss is None else _Baseline("the uniform loss ln V", uniform_loss)
