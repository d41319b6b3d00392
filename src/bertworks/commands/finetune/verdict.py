"""Whether a model underfits, overfits or fits: scores of train and dev in, one sentence out."""

from __future__ import annotations

from collections.abc import Mapping

from bertworks.commands.finetune.collapse import predicts_one_class
from bertworks.tasks.contract import TaskScores

# On a few hundred dev examples, scores vary by about this much between seeds.
_MAX_GAP = 0.05


def verdict_of(main_metric: str, scores: Mapping[str, TaskScores]) -> str:
    """Return what the main metric on train and dev means, and what to change."""
    if "dev" not in scores:
        return "no dev set, so the score on unseen texts is unknown; give one with --dev"
    train, dev = scores["train"].metrics[main_metric], scores["dev"].metrics[main_metric]
    values = f"{main_metric} is {train:.3f} on train and {dev:.3f} on dev"
    details = scores["dev"].details
    if "confusion" in details and predicts_one_class(details["confusion"]):
        return (
            f"underfits: {values}, and one class is predicted for everything; try more epochs or another learning rate"
        )
    if train < scores["train"].underfit_threshold:
        return f"underfits: {values}; try more epochs, a higher learning rate or a larger model"
    if train - dev > _MAX_GAP:
        return f"overfits: {values}; try more training data, fewer epochs or more dropout"
    return f"fits: {values}"
