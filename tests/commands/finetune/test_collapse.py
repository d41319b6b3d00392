"""Collapse to one class: the message names the class, the probable cause and the remedy."""

import numpy as np
import pytest

from bertworks.commands.finetune.collapse import describe_collapse
from bertworks.metrics.classification import ConfusionTally

NAMES = ("not_equivalent", "equivalent")


def one_class(predicted: int, *gold: int) -> np.ndarray:
    """The confusion matrix of `gold` examples per class that are all predicted to be one class."""
    counts = np.zeros((len(gold), len(gold)), dtype=np.int64)
    counts[:, predicted] = gold
    return counts


def test_predicting_only_the_most_frequent_class_is_a_collapse():
    message = describe_collapse(one_class(1, 129, 279), NAMES)
    assert message is not None
    assert message.startswith(
        "collapsed: all 408 dev examples are predicted 'equivalent', the label of 279 of them; dev has 2 classes. "
    )
    assert "learning rate may be too high" in message
    assert message.endswith("The run is restarted with another seed.")


def test_predicting_only_a_rare_class_has_another_cause():
    message = describe_collapse(one_class(0, 129, 279), NAMES)
    assert message is not None
    assert "not the most frequent class" in message


def test_a_dominant_class_is_named_as_the_cause():
    message = describe_collapse(one_class(0, 95, 5), NAMES)
    assert message is not None
    assert "95% of dev" in message


def test_the_caller_gives_the_remedy():
    message = describe_collapse(one_class(0, 1, 1), NAMES, remedy="The learning rate is halved.")
    assert message is not None
    assert message.endswith("The learning rate is halved.")


def test_the_counts_are_those_of_a_confusion_tally():
    tally = ConfusionTally(2)
    tally.add(np.array([1, 1, 1]), np.array([0, 1, 1]))
    assert describe_collapse(tally.counts, NAMES) is not None
    tally.add(np.array([0]), np.array([1]))  # now both classes are predicted
    assert describe_collapse(tally.counts, NAMES) is None


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
    assert describe_collapse(counts, NAMES) is None
