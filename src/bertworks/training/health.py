"""Training health: steps and held-out losses in, warnings with the probable cause and the remedy out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertworks.training.loop import Step

# Weight of the exponential moving average of the loss: about the mean of the last hundred steps.
_SMOOTHING = 0.02


@dataclass(frozen=True, slots=True)
class HealthWarning:
    """A problem of a run; with `should_stop`, training cannot recover."""

    text: str
    should_stop: bool = False


class HealthMonitor:
    """Watches the losses of a run against two baselines.

    `unigram_entropy` is the loss of a model that predicts token frequencies, `uniform_loss` (ln V) that of a uniform
    distribution over the vocabulary.
    """

    def __init__(self, unigram_entropy: float, uniform_loss: float = math.inf, patience: int = 1_000) -> None:
        self._unigram_entropy = unigram_entropy
        self._uniform_loss = uniform_loss
        self._patience = patience
        self._smoothed_loss: float | None = None
        self._lowest_loss = math.inf
        self._num_steps = 0
        self._num_steps_at_unigram = 0
        self._issued_kinds: set[str] = set()
        self._held_out_losses: list[float] = []
        self._train_losses: list[float] = []

    def check_step(self, step: Step) -> HealthWarning | None:
        """Return a warning about a step; each kind is issued once."""
        loss = next(iter(step.losses.values()))
        if step.has_overflow:
            return None  # expected: loss scaling finds its scale this way
        if not (math.isfinite(loss) and math.isfinite(step.grad_norm)):
            return HealthWarning(
                f"step {step.number}: the loss is {loss} and the gradient norm {step.grad_norm}. Usually the learning "
                f"rate ({step.learning_rate:.1e}) is too high, or fp16 overflowed: start a new run with a lower "
                f"learning_rate or more warmup_steps",
                should_stop=True,
            )
        self._num_steps += 1
        self._smoothed_loss = (
            loss if self._smoothed_loss is None else self._smoothed_loss + _SMOOTHING * (loss - self._smoothed_loss)
        )
        self._lowest_loss = min(self._lowest_loss, self._smoothed_loss)
        if self._smoothed_loss > self._lowest_loss + 1.0 and self._num_steps > 100:
            return self._warn_once(
                "diverging",
                f"step {step.number}: the loss rose from {self._lowest_loss:.2f} to {self._smoothed_loss:.2f}. The "
                f"learning rate ({step.learning_rate:.1e}) is too high for this model or batch size: lower "
                f"learning_rate or raise warmup_steps",
            )
        if self._num_steps == self._patience and self._smoothed_loss > (self._unigram_entropy + self._uniform_loss) / 2:
            return self._warn_once(
                "uniform",
                f"step {step.number}: the loss is {self._smoothed_loss:.2f} after {self._num_steps:,} steps, closer to "
                f"ln V ({self._uniform_loss:.2f}) than to the unigram entropy ({self._unigram_entropy:.2f}). The "
                f"learning rate ({step.learning_rate:.1e}) is far too low or too high, or the warmup is very long",
            )
        # A healthy run passes the unigram entropy; the warning is for one that stays there.
        self._num_steps_at_unigram = (
            self._num_steps_at_unigram + 1 if abs(self._smoothed_loss - self._unigram_entropy) < 0.1 else 0
        )
        if self._num_steps_at_unigram >= self._patience:
            return self._warn_once(
                "unigram",
                f"step {step.number}: the loss stays at {self._smoothed_loss:.2f}, the unigram entropy "
                f"({self._unigram_entropy:.2f}): the model predicts token frequencies only. If it does not fall soon, "
                f"the learning rate is too low or far too high, or the text is a shuffled list of sentences (see "
                f"`bertworks doctor`)",
            )
        return None

    def check_held_out(self, loss: float, step: int) -> HealthWarning | None:
        """Return a warning if the held-out loss rises while the training loss falls."""
        self._held_out_losses.append(loss)
        self._train_losses.append(self._smoothed_loss if self._smoothed_loss is not None else math.inf)
        if len(self._held_out_losses) < 4:
            return None
        rises = all(
            later > earlier
            for earlier, later in zip(self._held_out_losses[-4:], self._held_out_losses[-3:], strict=False)
        )
        if rises and self._train_losses[-1] < self._train_losses[-4]:
            return self._warn_once(
                "overfitting",
                f"step {step}: the held-out loss has risen three times ({self._held_out_losses[-4]:.3f} to {loss:.3f}) "
                f"while the training loss fell: the model overfits. The best checkpoint is kept; stop here, or use "
                f"more text, a smaller model or more dropout",
            )
        return None

    def _warn_once(self, kind: str, text: str) -> HealthWarning | None:
        if kind in self._issued_kinds:
            return None
        self._issued_kinds.add(kind)
        return HealthWarning(text)
