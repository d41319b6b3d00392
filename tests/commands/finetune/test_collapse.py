"""Collapse to one class: the message names the class, the cause that the training loss supports, and the change."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bertworks.commands.finetune.collapse import (
    TrainingEvidence,
    find_collapse,
    predicts_one_class,
    unpredicted_classes,
)
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.metrics.classification import ConfusionTally

NAMES = ("not_equivalent", "equivalent")
RECIPE = FinetuneRecipe(learning_rate=3e-4, batch_size=16, epochs=4)
# 129 and 279 of 408: the loss of a model that knows only these frequencies.
ENTROPY = -(129 / 408 * math.log(129 / 408) + 279 / 408 * math.log(279 / 408))


def one_class(predicted: int, *gold: int) -> np.ndarray:
    """The confusion matrix of `gold` examples per class that are all predicted to be one class."""
    counts = np.zeros((len(gold), len(gold)), dtype=np.int64)
    counts[:, predicted] = gold
    return counts


def evidence(loss: float, num_steps: int = 1_000, **changes: Any) -> TrainingEvidence:
    """A run whose loss was the same at each step."""
    return TrainingEvidence(
        recipe=replace(RECIPE, **changes),
        losses=[loss] * num_steps,
        default_learning_rate=3e-4,
        tried_learning_rates=[changes.get("learning_rate", 3e-4)],
        can_weight_classes=True,
    )


def collapse_of(loss: float, num_steps: int = 1_000, **changes: Any) -> Any:
    return find_collapse(one_class(1, 129, 279), NAMES, evidence(loss, num_steps, **changes))


def test_the_message_names_what_was_seen_the_cause_and_the_change():
    collapse = collapse_of(ENTROPY, num_steps=50)
    assert collapse.describe(is_last=False) == (
        "collapsed: all 408 dev examples are predicted 'equivalent', the label of 279 of them; dev has 2 classes. "
        "The training loss ended at 0.624; knowing the class frequencies alone gives 0.624. So nothing was learned: 50 "
        "steps are too few. The run is restarted with epochs = 12."
    )
    assert collapse.describe(is_last=True).endswith("There are no restarts left: the model is saved as it is.")


@pytest.mark.parametrize(
    ("loss", "num_steps", "changes", "cause", "restart"),
    [
        (2.0, 1_000, {}, "the learning rate is too high", {"learning_rate": 1e-4}),
        (math.nan, 1_000, {}, "the learning rate is too high", {"learning_rate": 1e-4}),
        (ENTROPY, 1_000, {"learning_rate": 1e-6}, "1e-06 is too low for this model", {"learning_rate": 3e-4}),
        (ENTROPY, 1_000, {}, "nothing was learned in 1,000 steps at learning rate 0.0003", {"learning_rate": 1e-4}),
        (0.1, 1_000, {}, "train was learned, but nothing that holds for dev", {"epochs": 2}),
    ],
)
def test_the_training_loss_tells_the_cause(
    loss: float, num_steps: int, changes: dict[str, Any], cause: str, restart: dict[str, Any]
):
    collapse = collapse_of(loss, num_steps, **changes)
    assert cause in collapse.cause
    assert collapse.changes == pytest.approx(restart)


def test_only_the_last_fifth_of_the_losses_counts():
    losses = [5.0] * 800 + [ENTROPY] * 200
    collapse = find_collapse(one_class(1, 129, 279), NAMES, replace(evidence(ENTROPY), losses=losses))
    assert collapse is not None
    assert "nothing was learned" in collapse.cause


def test_each_restart_tries_another_learning_rate():
    """Nothing is learned at the default: a third of it is tried, then three times as much, then more epochs."""
    seen = []
    tried: list[float] = []
    recipe = RECIPE
    for _ in range(3):
        tried.append(recipe.learning_rate)
        run = replace(evidence(ENTROPY), recipe=recipe, tried_learning_rates=list(tried))
        collapse = find_collapse(one_class(1, 129, 279), NAMES, run)
        assert collapse is not None
        seen.append(dict(collapse.changes))
        recipe = replace(recipe, **collapse.changes)
    assert seen == [{"learning_rate": pytest.approx(1e-4)}, {"learning_rate": pytest.approx(9e-4)}, {"epochs": 12}]


def test_a_dominant_class_calls_for_class_weights():
    run = evidence(0.19)
    collapse = find_collapse(one_class(0, 95, 5), NAMES, run)
    assert collapse is not None
    assert collapse.cause == "One class is 95% of the examples."
    assert collapse.changes == {"class_weights": "balanced"}
    for other in (replace(run, can_weight_classes=False), evidence(0.19, class_weights="balanced")):
        collapse = find_collapse(one_class(0, 95, 5), NAMES, other)
        assert collapse is not None
        assert collapse.changes == {"epochs": 12}


def test_the_counts_are_those_of_a_confusion_tally():
    tally = ConfusionTally(2)
    tally.add(np.array([1, 1, 1]), np.array([0, 1, 1]))
    assert predicts_one_class(tally.counts)
    tally.add(np.array([0]), np.array([1]))  # now both classes are predicted
    assert not predicts_one_class(tally.counts)


@pytest.mark.parametrize(
    "counts",
    [
        np.array([[49, 1], [50, 0]]),  # two classes are predicted
        one_class(1, 0, 10),  # dev has one class only
        one_class(0, 0, 10),  # all wrong, but dev still has one class only
        one_class(0, 0, 0),  # no predictions
    ],
)
def test_other_confusions_are_no_collapse(counts: np.ndarray):
    assert find_collapse(counts, NAMES, evidence(ENTROPY)) is None


def test_classes_that_are_never_predicted():
    counts = np.array([[8, 2, 0, 0], [1, 9, 0, 0], [0, 3, 0, 0], [0, 0, 0, 0]])
    assert unpredicted_classes(counts, ("a", "b", "c", "d")) == ["c"]  # dev has no d
