"""Scores of classes, labels and values: worked out by hand, equal to scikit-learn and scipy, in bounded memory."""

import math
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bertworks.errors import InputError, SettingsError
from bertworks.metrics.classification import METRICS, ConfusionTally, CorrelationTally, LabelsTally, Matches

CLASSES = st.integers(1, 30).flatmap(
    lambda size: st.tuples(*[hnp.arrays(np.int64, size, elements=st.integers(0, 4))] * 2)
)
LABELS = st.tuples(st.integers(1, 20), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(*[hnp.arrays(np.int64, shape, elements=st.integers(0, 1))] * 2)
)
# Few different values, so that there are many equal ones.
VALUES = st.integers(2, 30).flatmap(
    lambda size: st.tuples(*[hnp.arrays(np.float64, size, elements=st.integers(-5, 5).map(float))] * 2)
)


def numbers(*values: float) -> np.ndarray:
    return np.array(values)


# Six examples of two classes: 2 right of class 1, 1 right of class 0, 2 called 1 that are 0, 1 called 0 that is 1.
GUESSES = numbers(1, 1, 1, 1, 0, 0)
TRUTH = numbers(1, 1, 0, 0, 0, 1)


def test_accuracy_is_the_share_that_is_right():
    assert METRICS["accuracy"](GUESSES, TRUTH) == 3 / 6


def test_f1_is_that_of_class_one():
    # precision 2 / 4, recall 2 / 3
    assert METRICS["f1"](GUESSES, TRUTH) == pytest.approx(4 / 7)


def test_macro_f1_is_the_mean_over_classes():
    # class 0: precision 1 / 2, recall 1 / 3, F1 2 / 5
    assert METRICS["macro_f1"](GUESSES, TRUTH) == pytest.approx((4 / 7 + 2 / 5) / 2)


def test_matthews_is_the_correlation_of_two_classes():
    # (2 * 1 - 2 * 1) / sqrt(...) = 0; with one more right: (3 * 1 - 1 * 1) / sqrt(4 * 4 * 2 * 2)
    assert METRICS["matthews"](GUESSES, TRUTH) == 0.0
    assert METRICS["matthews"](numbers(1, 1, 1, 1, 0, 0), numbers(1, 1, 1, 0, 0, 1)) == pytest.approx(2 / 8)


def test_pearson_and_spearman_differ_where_the_order_is_right_but_the_line_is_not():
    predictions, labels = numbers(1, 2, 3, 10), numbers(1, 2, 3, 4)
    # centred: -3 -2 -1 6 and -1.5 -0.5 0.5 1.5
    assert METRICS["pearson"](predictions, labels) == pytest.approx((4.5 + 1 - 0.5 + 9) / math.sqrt(50 * 5))
    assert METRICS["spearman"](predictions, labels) == pytest.approx(1.0)
    assert METRICS["spearman"](predictions, -labels) == pytest.approx(-1.0)


def test_equal_values_share_the_mean_of_their_ranks():
    # ranks 1.5 1.5 3 against 1 2 3: centred -0.5 -0.5 1 and -1 0 1
    assert METRICS["spearman"](numbers(7, 7, 9), numbers(1, 2, 3)) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


@pytest.mark.parametrize("name", ["pearson", "spearman", "matthews"])
def test_a_constant_prediction_correlates_with_nothing(name: str):
    assert METRICS[name](numbers(1, 1, 1), numbers(0, 1, 2)) == 0.0


def test_a_constant_that_is_no_round_number_is_still_constant():
    assert METRICS["pearson"](np.full(7, 0.1), np.arange(7)) == 0.0


def test_metrics_of_several_labels():
    predictions = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]])
    labels = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]])
    # 2 right of 3 predicted and 3 there; F1 of the labels: 2 / 3, 1, 0; the first and the last example are wholly right
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(4 / 6)
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(2 / 3)


def test_matches_without_anything_found_score_zero():
    nothing = Matches(0, 0, 0)
    assert (nothing.precision, nothing.recall, nothing.f1) == (0.0, 0.0, 0.0)


def test_each_class_tells_what_was_found_and_what_was_there():
    tally = ConfusionTally(3)
    tally.add(GUESSES, TRUTH)
    assert tally.by_class() == (Matches(1, 2, 3), Matches(2, 4, 3), Matches(0, 0, 0))
    assert tally.counts.tolist() == [[1, 2, 0], [1, 2, 0], [0, 0, 0]]


def test_f1_of_more_than_two_classes_is_refused_with_the_way_out():
    with pytest.raises(SettingsError, match="macro_f1"):
        METRICS["f1"](numbers(0, 1, 2), numbers(0, 1, 1))
    with pytest.raises(SettingsError, match="micro_f1"):
        METRICS["f1"](np.eye(2), np.eye(2))


@pytest.mark.parametrize("tally", [ConfusionTally(2), LabelsTally(2), CorrelationTally()])
def test_scores_of_nothing_are_refused(tally: ConfusionTally | LabelsTally | CorrelationTally):
    with pytest.raises(InputError, match="no example"):
        tally.scores()


def test_values_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match="diverged"):
        METRICS["pearson"](numbers(1, math.nan), numbers(1, 2))


def test_a_class_below_zero_is_our_mistake_and_does_not_count_from_the_end():
    with pytest.raises(AssertionError):
        ConfusionTally(3).add(numbers(0, -1), numbers(0, 1))


@given(CLASSES)
def test_scores_of_classes_equal_those_of_scikit_learn(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where a class was never predicted
        theirs = {
            "accuracy": sklearn.metrics.accuracy_score(labels, predictions),
            "macro_f1": sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0.0),
            "micro_f1": sklearn.metrics.f1_score(labels, predictions, average="micro"),
            "matthews": sklearn.metrics.matthews_corrcoef(labels, predictions),
        }
    assert {name: METRICS[name](predictions, labels) for name in theirs} == pytest.approx(theirs, abs=1e-12)


@given(CLASSES)
def test_f1_of_two_classes_equals_that_of_scikit_learn(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair[0] % 2, pair[1] % 2
    theirs = sklearn.metrics.f1_score(labels, predictions, zero_division=0.0)
    assert METRICS["f1"](predictions, labels) == pytest.approx(theirs, abs=1e-12)


@given(LABELS)
def test_scores_of_labels_equal_those_of_scikit_learn(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair
    if labels.shape[1] == 1:
        # scikit-learn takes one column for classes, and would count its zeros too.
        predictions, labels = np.tile(predictions, 2), np.tile(labels, 2)
    theirs = {
        "micro_f1": sklearn.metrics.f1_score(labels, predictions, average="micro", zero_division=0.0),
        "macro_f1": sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0.0),
        "accuracy": sklearn.metrics.accuracy_score(labels, predictions),
    }
    assert {name: METRICS[name](predictions, labels) for name in theirs} == pytest.approx(theirs, abs=1e-12)


@given(VALUES)
def test_correlations_equal_those_of_scipy(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of constants
        theirs = {
            "pearson": scipy.stats.pearsonr(predictions, labels).statistic,
            "spearman": scipy.stats.spearmanr(predictions, labels).statistic,
        }
    theirs = {name: 0.0 if math.isnan(value) else value for name, value in theirs.items()}
    assert {name: METRICS[name](predictions, labels) for name in theirs} == pytest.approx(theirs, abs=1e-9)


@given(CLASSES)
def test_every_metric_is_the_same_with_its_sides_exchanged(pair: tuple[np.ndarray, np.ndarray]):
    first, second = pair[0] % 2, pair[1] % 2
    for metric in METRICS.values():
        assert metric(first, second) == pytest.approx(metric(second, first), abs=1e-12)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_batches_of_any_size_give_the_scores_of_the_whole(size: int):
    generator = np.random.default_rng(0)
    guesses, truth = generator.integers(0, 3, (2, 100))
    several, right = generator.integers(0, 2, (2, 100, 4))
    values, wanted = generator.normal(size=(2, 100)).astype(np.float32)
    for tally, ours, theirs in (
        (ConfusionTally(3), guesses, truth),
        (LabelsTally(4), several, right),
        (CorrelationTally(), values, wanted),
    ):
        for start in range(0, 100, size):
            tally.add(ours[start : start + size], theirs[start : start + size])
        scores = tally.scores()
        assert len(scores) >= 2
        assert scores == pytest.approx({name: METRICS[name](ours, theirs) for name in scores}, abs=1e-12)


@pytest.mark.parametrize("tally", [ConfusionTally(10), LabelsTally(10)])
def test_counting_takes_no_more_memory_however_many_examples(tally: ConfusionTally | LabelsTally):
    shape = (1_000, 10) if isinstance(tally, LabelsTally) else (1_000,)
    guesses, truth = np.random.default_rng(0).integers(0, 2, (2, *shape))
    tally.add(guesses, truth)
    tracemalloc.start()
    for _ in range(200):
        tally.add(guesses, truth)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 10_000  # 200,000 examples; one byte of each would be twenty times that
    assert tally.scores()["accuracy"] == METRICS["accuracy"](guesses, truth)


def test_a_correlation_keeps_two_numbers_an_example():
    tally = CorrelationTally()
    values = np.arange(1_000, dtype=np.float32)
    tracemalloc.start()
    for _ in range(100):
        tally.add(values, values)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000 * 16 * 1.25  # the arrays keep some room to grow
