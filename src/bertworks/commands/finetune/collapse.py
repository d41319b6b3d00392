"""Detect a model that predicts one class for everything: a confusion matrix and the training losses in; what probably
caused it, and the settings to restart with, out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.commands.finetune.recipe import FinetuneRecipe

# Predicting only a class that is this frequent may be the best that the loss allows.
_DOMINANT_RATIO = 0.9
# The training loss against that of a model which knows the class frequencies only: diverged above, learned below.
_DIVERGED_RATIO, _LEARNED_RATIO = 1.25, 0.8
# A run of fewer steps may simply be too short.
_FEW_STEPS = 300
# How much a restart changes the learning rate, and at least the number of epochs.
_LEARNING_RATE_FACTOR, _EPOCHS_FACTOR = 3.0, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvidence:
    """What is known of a run that may have collapsed.

    losses                 the task's loss at each step
    default_learning_rate  the usual one of the model
    tried_learning_rates   those of this run and the attempts before it
    can_weight_classes     whether the task's loss takes class weights
    """

    recipe: FinetuneRecipe
    losses: Sequence[float]
    default_learning_rate: float
    tried_learning_rates: Sequence[float] = ()
    can_weight_classes: bool = False


@dataclass(frozen=True, slots=True)
class Collapse:
    """A model that predicts one class. `changes` are settings of the recipe for a restart."""

    observation: str
    cause: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def describe(self, is_last: bool) -> str:
        """Return the message; `is_last`: there is no restart left."""
        if is_last:
            remedy = "There are no restarts left: the model is saved as it is."
        else:
            changes = " and ".join(f"{name} = {_show(value)}" for name, value in self.changes.items())
            remedy = f"The run is restarted with {changes}." if changes else "The run is restarted with another seed."
        return f"{self.observation} {self.cause} {remedy}"


def predicts_one_class(counts: npt.NDArray[Any]) -> bool:
    """Whether a confusion matrix `counts[gold, predicted]` has one predicted class though dev has several."""
    return bool(np.count_nonzero(counts.sum(axis=0)) == 1 and np.count_nonzero(counts.sum(axis=1)) > 1)


def unpredicted_classes(counts: npt.NDArray[Any], names: Sequence[str]) -> list[str]:
    """Return the classes that dev has and the model never predicts."""
    return [
        name
        for name, gold, predicted in zip(names, counts.sum(axis=1), counts.sum(axis=0), strict=True)
        if gold and not predicted
    ]


def find_collapse(counts: npt.NDArray[Any], names: Sequence[str], evidence: TrainingEvidence) -> Collapse | None:
    """Return the collapse that a confusion matrix of dev shows, with its probable cause; None if there is none."""
    if not predicts_one_class(counts):
        return None
    gold, predicted = counts.sum(axis=1), int(counts.sum(axis=0).argmax())
    observation = (
        f"collapsed: all {int(gold.sum()):,} dev examples are predicted '{names[predicted]}', the label of "
        f"{int(gold[predicted]):,} of them; dev has {np.count_nonzero(gold)} classes."
    )
    class_probs = gold[gold > 0] / gold.sum()
    return Collapse(observation, *_diagnose(class_probs, evidence))


def _diagnose(class_probs: npt.NDArray[np.float64], evidence: TrainingEvidence) -> tuple[str, dict[str, Any]]:
    """Return the cause that the training loss supports, and the settings that it calls for."""
    recipe, losses = evidence.recipe, evidence.losses
    entropy = float(-(class_probs * np.log(class_probs)).sum())
    last_loss = float(np.mean(losses[-max(1, len(losses) // 5) :])) if len(losses) else math.nan
    seen = f"The training loss ended at {last_loss:.3f}; knowing the class frequencies alone gives {entropy:.3f}."

    def conclude(sentence: str) -> str:
        return f"{seen} {sentence}"  # each sentence is a message of the catalogue

    if not last_loss <= _DIVERGED_RATIO * entropy:
        return conclude("So training diverged: the learning rate is too high."), _slower(recipe)
    if class_probs.max() >= _DOMINANT_RATIO:
        cause = f"One class is {class_probs.max():.0%} of the examples."
        can_weight = evidence.can_weight_classes and not recipe.class_weights
        return cause, {"class_weights": "balanced"} if can_weight else _longer(recipe)
    if last_loss < _LEARNED_RATIO * entropy:
        cause = conclude("So train was learned, but nothing that holds for dev: check that both are labelled alike.")
        return cause, {"epochs": max(1, recipe.epochs // 2)}
    if recipe.learning_rate < evidence.default_learning_rate / 2 and not _is_tried(evidence, 1.0):
        cause = conclude(f"So nothing was learned: learning rate {recipe.learning_rate:g} is too low for this model.")
        return cause, {"learning_rate": evidence.default_learning_rate}
    if len(losses) < _FEW_STEPS:
        return conclude(f"So nothing was learned: {len(losses):,} steps are too few."), _longer(recipe)
    cause = conclude(f"So nothing was learned in {len(losses):,} steps at learning rate {recipe.learning_rate:g}.")
    factor = next(
        (one for one in (1 / _LEARNING_RATE_FACTOR, _LEARNING_RATE_FACTOR) if not _is_tried(evidence, one)), None
    )
    if factor is None:
        advice = "Other learning rates did not help: check that the labels match the texts."
        return f"{cause} {advice}", _longer(recipe)
    return cause, {"learning_rate": _rounded(factor * evidence.default_learning_rate)}


def _is_tried(evidence: TrainingEvidence, factor: float) -> bool:
    """Whether about this multiple of the default learning rate was tried."""
    target = factor * evidence.default_learning_rate
    return any(0.5 < learning_rate / target < 2 for learning_rate in evidence.tried_learning_rates)


def _slower(recipe: FinetuneRecipe) -> dict[str, Any]:
    return {"learning_rate": _rounded(recipe.learning_rate / _LEARNING_RATE_FACTOR)}


def _longer(recipe: FinetuneRecipe) -> dict[str, Any]:
    return {"epochs": recipe.epochs * _EPOCHS_FACTOR}


def _rounded(learning_rate: float) -> float:
    return float(f"{learning_rate:.1e}")


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
