"""Collapse: when one class is said of everything the sentence names it, the reason and what will be done."""

import numpy as np
import pytest

from bertworks.commands.finetune.collapse import describe_collapse
from bertworks.metrics.classification import ConfusionTally

NAMES = ("not_equivalent", "equivalent")


def all_called(only: int, *gold: int) -> np.ndarray:
    """The counts where every example, so many of class 0, 1, …, was called `only`."""
    counts = np.zeros((len(gold), len(gold)), dtype=np.int64)
    counts[:, only] = gold
    return counts


def test_saying_the_most_frequent_class_of_everything_is_a_collapse():
    sentence = describe_collapse(all_called(1, 129, 279), NAMES)
    assert sentence is not None
    assert sentence.startswith(
        "collapsed: all 408 dev examples were called 'equivalent', which 279 of them are, though dev has 2 classes. "
    )
    assert "learning rate is too high" in sentence
    assert sentence.endswith("The run is started again with another seed.")


def test_saying_a_rare_class_of_everything_has_another_reason():
    sentence = describe_collapse(all_called(0, 129, 279), NAMES)
    assert sentence is not None
    assert "not even the most frequent class" in sentence


def test_where_nearly_all_are_of_one_class_that_is_the_reason():
    sentence = describe_collapse(all_called(0, 95, 5), NAMES)
    assert sentence is not None
    assert "95% of dev" in sentence


def test_the_caller_says_what_will_be_done():
    sentence = describe_collapse(all_called(0, 1, 1), NAMES, remedy="The rate is halved.")
    assert sentence is not None
    assert sentence.endswith("The rate is halved.")


def test_the_counts_are_those_of_the_tally():
    tally = ConfusionTally(2)
    tally.add(np.array([1, 1, 1]), np.array([0, 1, 1]))
    assert describe_collapse(tally.counts, NAMES) is not None
    tally.add(np.array([0]), np.array([1]))  # now both classes were said
    assert describe_collapse(tally.counts, NAMES) is None


@pytest.mark.parametrize(
    "counts",
    [
        np.array([[49, 1], [50, 0]]),  # two classes were said
        all_called(1, 0, 10),  # dev has one class only
        all_called(0, 0, 10),  # all wrong, but dev still has one class only
        all_called(0, 0, 0),  # nothing was said
    ],
)
def test_anything_else_is_no_collapse(counts: np.ndarray):
    assert describe_collapse(counts, NAMES) is None
