"""Does a model fit? Scores of train and dev in, one sentence out: under-fitted, over-fitted or fits."""

from __future__ import annotations

from collections.abc import Mapping

from bertworks.commands.finetune.collapse import collapsed
from bertworks.tasks.contract import Scored

# Dev scores of a few hundred examples vary by about this much from one seed to the next.
_GAP = 0.05


def verdict_of(main: str, scored: Mapping[str, Scored]) -> str:
    """Return what the main figure on train and dev says, and what to do about it."""
    if "dev" not in scored:
        return "without dev texts nobody can say how well the model does on new ones; give some with --dev"
    train, dev = scored["train"].figures[main], scored["dev"].figures[main]
    told = f"{main} is {train:.3f} on train and {dev:.3f} on dev"
    details = scored["dev"].details
    if "confusion" in details and collapsed(details["confusion"], details["labels"]):
        return f"under-fitted: {told}, but everything is called one class; more epochs or another rate help"
    if train < scored["train"].low:
        return f"under-fitted: {told}; more epochs, a higher rate or a larger model help"
    if train - dev > _GAP:
        return f"over-fitted: {told}; more texts, fewer epochs or more dropout help"
    return f"fits: {told}"
