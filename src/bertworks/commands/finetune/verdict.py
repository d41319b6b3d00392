"""Does a model fit? Scores of train and dev in, one sentence out: under-fitted, over-fitted or fits."""

from __future__ import annotations

from collections.abc import Mapping

from bertworks.commands.finetune.collapse import describe_collapse
from bertworks.tasks.contract import TaskScores

# Dev scores of a few hundred examples vary by about this much from one seed to the next.
_GAP = 0.05


def verdict_of(main_metric: str, scores: Mapping[str, TaskScores]) -> str:
    """Return what the main figure on train and dev says, and what to do about it."""
    if "dev" not in scores:
        return "without dev texts nobody can say how well the model does on new ones; give some with --dev"
    train, dev = scores["train"].metrics[main_metric], scores["dev"].metrics[main_metric]
    told = f"{main_metric} is {train:.3f} on train and {dev:.3f} on dev"
    details = scores["dev"].details
    if "confusion" in details and describe_collapse(details["confusion"], details["labels"]):
        return f"under-fitted: {told}, but everything is called one class; more epochs or another rate help"
    if train < scores["train"].underfit_threshold:
        return f"under-fitted: {told}; more epochs, a higher rate or a larger model help"
    if train - dev > _GAP:
        return f"over-fitted: {told}; more texts, fewer epochs or more dropout help"
    return f"fits: {told}"
