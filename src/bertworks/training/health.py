"""Is this run all right? Steps and held-out figures in, warnings with the probable cause and the remedy out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertworks.training.loop import Step

# How quickly the smoothed loss follows the last one: about the mean of the last hundred steps.
_SMOOTHING = 0.02


@dataclass(frozen=True, slots=True)
class HealthWarning:
    """Something is wrong. `stops` says that going on makes no sense."""

    text: str
    should_stop: bool = False


class HealthMonitor:
    """Follows a run. `floor` is the unigram entropy: the loss of a model that knows only how frequent pieces are;
    `guessing` is ln V, the loss of one that knows nothing."""

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
        """Return a warning about a step, each kind once."""
        loss = next(iter(step.losses.values()))
        if step.has_overflow:
            return None  # half precision looks for its scale: that is how it is found
        if not (math.isfinite(loss) and math.isfinite(step.grad_norm)):
            return HealthWarning(
                f"step {step.number}: the loss is {loss} and the gradients' norm {step.grad_norm}. Most often the learning "
                f"rate is too high (it was {step.learning_rate:.1e}) or half precision overflowed: start a new run with a lower "
                f"rate or a longer warmup",
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
                f"step {step.number}: the loss rose from {self._lowest_loss:.2f} to {self._smoothed_loss:.2f}. The learning rate "
                f"({step.learning_rate:.1e}) is too high for this model or batch: lower rate or lengthen warmup",
            )
        if self._num_steps == self._patience and self._smoothed_loss > (self._unigram_entropy + self._uniform_loss) / 2:
            return self._warn_once(
                "guessing",
                f"step {step.number}: the loss is {self._smoothed_loss:.2f} after {self._num_steps:,} steps, nearer to guessing "
                f"({self._uniform_loss:.2f}) than to knowing how frequent pieces are ({self._unigram_entropy:.2f}). The rate "
                f"({step.learning_rate:.1e}) is far too low or too high, or the warmup very long",
            )
        # A healthy run passes the floor; only one that stays there is told.
        self._num_steps_at_unigram = (
            self._num_steps_at_unigram + 1 if abs(self._smoothed_loss - self._unigram_entropy) < 0.1 else 0
        )
        if self._num_steps_at_unigram >= self._patience:
            return self._warn_once(
                "floor",
                f"step {step.number}: the loss stays at {self._smoothed_loss:.2f}, which is what knowing only how frequent "
                f"pieces are gives ({self._unigram_entropy:.2f}). If it does not fall soon, the rate is too low or far too high, "
                f"or the text is a shuffled list of sentences (`bertworks doctor` tells)",
            )
        return None

    def check_held_out(self, loss: float, step: int) -> HealthWarning | None:
        """Return a warning if held-out text gets worse while training gets better."""
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
                f"step {step}: the held-out loss has risen three times ({self._held_out_losses[-4]:.3f} to {loss:.3f}) while "
                f"the training loss fell: the model learns this text by heart. The best checkpoint is kept; stop here, "
                f"or use more text, a smaller model or more dropout",
            )
        return None

    def _warn_once(self, kind: str, text: str) -> HealthWarning | None:
        if kind in self._issued_kinds:
            return None
        self._issued_kinds.add(kind)
        return HealthWarning(text)
