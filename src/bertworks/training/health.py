"""Is this run all right? Steps and held-out figures in, warnings with the probable cause and the remedy out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertworks.training.loop import Step

# How quickly the smoothed loss follows the last one: about the mean of the last hundred steps.
_SMOOTHING = 0.02


@dataclass(frozen=True, slots=True)
class Warning:  # noqa: A001
    """Something is wrong. `stops` says that going on makes no sense."""

    text: str
    stops: bool = False


class Health:
    """Follows a run. `floor` is the unigram entropy: the loss of a model that knows only how frequent pieces are;
    `guessing` is ln V, the loss of one that knows nothing."""

    def __init__(self, floor: float, guessing: float = math.inf, patience: int = 1_000) -> None:
        self._floor = floor
        self._guessing = guessing
        self._patience = patience
        self._smooth: float | None = None
        self._lowest = math.inf
        self._steps = 0
        self._steps_at_floor = 0
        self._told: set[str] = set()
        self._held_out: list[float] = []
        self._trained: list[float] = []

    def step(self, step: Step) -> Warning | None:
        """Return a warning about a step, each kind once."""
        loss = next(iter(step.losses.values()))
        if step.overflowed:
            return None  # half precision looks for its scale: that is how it is found
        if not (math.isfinite(loss) and math.isfinite(step.norm)):
            return Warning(
                f"step {step.number}: the loss is {loss} and the gradients' norm {step.norm}. Most often the learning "
                f"rate is too high (it was {step.rate:.1e}) or half precision overflowed: start a new run with a lower "
                f"rate or a longer warmup",
                stops=True,
            )
        self._steps += 1
        self._smooth = loss if self._smooth is None else self._smooth + _SMOOTHING * (loss - self._smooth)
        self._lowest = min(self._lowest, self._smooth)
        if self._smooth > self._lowest + 1.0 and self._steps > 100:
            return self._once(
                "diverging",
                f"step {step.number}: the loss rose from {self._lowest:.2f} to {self._smooth:.2f}. The learning rate "
                f"({step.rate:.1e}) is too high for this model or batch: lower rate or lengthen warmup",
            )
        if self._steps == self._patience and self._smooth > (self._floor + self._guessing) / 2:
            return self._once(
                "guessing",
                f"step {step.number}: the loss is {self._smooth:.2f} after {self._steps:,} steps, nearer to guessing "
                f"({self._guessing:.2f}) than to knowing how frequent pieces are ({self._floor:.2f}). The rate "
                f"({step.rate:.1e}) is far too low or too high, or the warmup very long",
            )
        # A healthy run passes the floor; only one that stays there is told.
        self._steps_at_floor = self._steps_at_floor + 1 if abs(self._smooth - self._floor) < 0.1 else 0
        if self._steps_at_floor >= self._patience:
            return self._once(
                "floor",
                f"step {step.number}: the loss stays at {self._smooth:.2f}, which is what knowing only how frequent "
                f"pieces are gives ({self._floor:.2f}). If it does not fall soon, the rate is too low or far too high, "
                f"or the text is a shuffled list of sentences (`bertworks doctor` tells)",
            )
        return None

    def held_out(self, loss: float, step: int) -> Warning | None:
        """Return a warning if held-out text gets worse while training gets better."""
        self._held_out.append(loss)
        self._trained.append(self._smooth if self._smooth is not None else math.inf)
        if len(self._held_out) < 4:
            return None
        rises = all(later > earlier for earlier, later in zip(self._held_out[-4:], self._held_out[-3:], strict=False))
        if rises and self._trained[-1] < self._trained[-4]:
            return self._once(
                "overfitting",
                f"step {step}: the held-out loss has risen three times ({self._held_out[-4]:.3f} to {loss:.3f}) while "
                f"the training loss fell: the model learns this text by heart. The best checkpoint is kept; stop here, "
                f"or use more text, a smaller model or more dropout",
            )
        return None

    def _once(self, kind: str, text: str) -> Warning | None:
        if kind in self._told:
            return None
        self._told.add(kind)
        return Warning(text)
