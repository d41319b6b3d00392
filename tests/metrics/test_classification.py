"""Scores of classes, labels and values: by hand, equal to scikit-learn and scipy, in bounded memory."""

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
# Few distinct values, so that there are many ties.
VALUES = st.integers(2, 30).flatmap(
    lambda size: st.tuples(*[hnp.arrays(np.float64, size, elements=st.integers(-5, 5).map(float))] * 2)
)


def array(*values: float) -> np.ndarray:
    return np.array(values)


# Six examples of two classes: 2 true positives, 1 true negative, 2 false positives, 1 false negative.
PREDICTIONS = array(1, 1, 1, 1, 0, 0)
TARGETS = array(1, 1, 0, 0, 0, 1)


def test_accuracy_by_hand():
    assert METRICS["accuracy"](PREDICTIONS, TARGETS) == 3 / 6


def test_f1_is_that_of_class_one():
    # precision 2 / 4, recall 2 / 3
    assert METRICS["f1"](PREDICTIONS, TARGETS) == pytest.approx(4 / 7)


def test_macro_f1_is_the_mean_over_classes():
    # class 0: precision 1 / 2, recall 1 / 3, F1 2 / 5
    assert METRICS["macro_f1"](PREDICTIONS, TARGETS) == pytest.approx((4 / 7 + 2 / 5) / 2)


def test_matthews_is_the_correlation_of_two_classes():
    # (2 * 1 - 2 * 1) / sqrt(...) = 0; with one more correct: (3 * 1 - 1 * 1) / sqrt(4 * 4 * 2 * 2)
    assert METRICS["matthews"](PREDICTIONS, TARGETS) == 0.0
    assert METRICS["matthews"](array(1, 1, 1, 1, 0, 0), array(1, 1, 1, 0, 0, 1)) == pytest.approx(2 / 8)


def test_pearson_and_spearman_differ_for_a_nonlinear_monotonic_relation():
    predictions, labels = array(1, 2, 3, 10), array(1, 2, 3, 4)
    # centered: -3 -2 -1 6 and -1.5 -0.5 0.5 1.5
    assert METRICS["pearson"](predictions, labels) == pytest.approx((4.5 + 1 - 0.5 + 9) / math.sqrt(50 * 5))
    assert METRICS["spearman"](predictions, labels) == pytest.approx(1.0)
    assert METRICS["spearman"](predictions, -labels) == pytest.approx(-1.0)


def test_ties_share_their_mean_rank():
    # ranks 1.5 1.5 3 against 1 2 3: centered -0.5 -0.5 1 and -1 0 1
    assert METRICS["spearman"](array(7, 7, 9), array(1, 2, 3)) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


@pytest.mark.parametrize("name", ["pearson", "spearman", "matthews"])
def test_a_constant_prediction_has_correlation_zero(name: str):
    assert METRICS[name](array(1, 1, 1), array(0, 1, 2)) == 0.0


def test_a_constant_subject_to_rounding_has_correlation_zero():
    assert METRICS["pearson"](np.full(7, 0.1), np.arange(7)) == 0.0


def test_multi_label_metrics_by_hand():
    predictions = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]])
    labels = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]])
    # 2 correct of 3 predicted and 3 gold; F1 of the labels: 2 / 3, 1, 0; the first and the last example match exactly
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(4 / 6)
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(2 / 3)


def test_empty_matches_score_zero():
    matches = Matches(0, 0, 0)
    assert (matches.precision, matches.recall, matches.f1) == (0.0, 0.0, 0.0)


def test_matches_by_class():
    tally = ConfusionTally(3)
    tally.add(PREDICTIONS, TARGETS)
    assert tally.by_class() == (Matches(1, 2, 3), Matches(2, 4, 3), Matches(0, 0, 0))
    assert tally.counts.tolist() == [[1, 2, 0], [1, 2, 0], [0, 0, 0]]


def test_f1_of_more_than_two_classes_raises_an_error():
    with pytest.raises(SettingsError, match="macro_f1"):
        METRICS["f1"](array(0, 1, 2), array(0, 1, 1))
    with pytest.raises(SettingsError, match="micro_f1"):
        METRICS["f1"](np.eye(2), np.eye(2))


@pytest.mark.parametrize("tally", [ConfusionTally(2), LabelsTally(2), CorrelationTally()])
def test_no_examples_raise_an_error(tally: ConfusionTally | LabelsTally | CorrelationTally):
    with pytest.raises(InputError, match="there are no examples"):
        tally.scores()


def test_nan_raises_an_error():
    with pytest.raises(InputError, match="diverged"):
        METRICS["pearson"](array(1, math.nan), array(1, 2))


def test_a_negative_class_is_an_assertion_error():
    with pytest.raises(AssertionError):
        ConfusionTally(3).add(array(0, -1), array(0, 1))


@given(CLASSES)
def test_classification_scores_equal_scikit_learn(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about classes that are never predicted
        expected = {
            "accuracy": sklearn.metrics.accuracy_score(labels, predictions),
            "macro_f1": sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0.0),
            "micro_f1": sklearn.metrics.f1_score(labels, predictions, average="micro"),
            "matthews": sklearn.metrics.matthews_corrcoef(labels, predictions),
        }
    assert {name: METRICS[name](predictions, labels) for name in expected} == pytest.approx(expected, abs=1e-12)


@given(CLASSES)
def test_binary_f1_equals_scikit_learn(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair[0] % 2, pair[1] % 2
    expected = sklearn.metrics.f1_score(labels, predictions, zero_division=0.0)
    assert METRICS["f1"](predictions, labels) == pytest.approx(expected, abs=1e-12)


@given(LABELS)
def test_multi_label_scores_equal_scikit_learn(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair
    if labels.shape[1] == 1:
        # scikit-learn reads a single column as classes.
        predictions, labels = np.tile(predictions, 2), np.tile(labels, 2)
    expected = {
        "micro_f1": sklearn.metrics.f1_score(labels, predictions, average="micro", zero_division=0.0),
        "macro_f1": sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0.0),
        "accuracy": sklearn.metrics.accuracy_score(labels, predictions),
    }
    assert {name: METRICS[name](predictions, labels) for name in expected} == pytest.approx(expected, abs=1e-12)


@given(VALUES)
def test_correlations_equal_scipy(pair: tuple[np.ndarray, np.ndarray]):
    predictions, labels = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about constants
        expected = {
            "pearson": scipy.stats.pearsonr(predictions, labels).statistic,
            "spearman": scipy.stats.spearmanr(predictions, labels).statistic,
        }
    expected = {name: 0.0 if math.isnan(value) else value for name, value in expected.items()}
    assert {name: METRICS[name](predictions, labels) for name in expected} == pytest.approx(expected, abs=1e-9)


@given(CLASSES)
def test_every_metric_is_symmetric(pair: tuple[np.ndarray, np.ndarray]):
    first, second = pair[0] % 2, pair[1] % 2
    for metric in METRICS.values():
        assert metric(first, second) == pytest.approx(metric(second, first), abs=1e-12)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_scores_do_not_depend_on_the_batch_size(size: int):
    generator = np.random.default_rng(0)
    predictions, targets = generator.integers(0, 3, (2, 100))
    label_predictions, label_targets = generator.integers(0, 2, (2, 100, 4))
    values, value_targets = generator.normal(size=(2, 100)).astype(np.float32)
    for tally, inputs, gold in (
        (ConfusionTally(3), predictions, targets),
        (LabelsTally(4), label_predictions, label_targets),
        (CorrelationTally(), values, value_targets),
    ):
        for start in range(0, 100, size):
            tally.add(inputs[start : start + size], gold[start : start + size])
        scores = tally.scores()
        assert len(scores) >= 2
        assert scores == pytest.approx({name: METRICS[name](inputs, gold) for name in scores}, abs=1e-12)


@pytest.mark.parametrize("tally", [ConfusionTally(10), LabelsTally(10)])
def test_counting_takes_constant_memory(tally: ConfusionTally | LabelsTally):
    shape = (1_000, 10) if isinstance(tally, LabelsTally) else (1_000,)
    predictions, targets = np.random.default_rng(0).integers(0, 2, (2, *shape))
    tally.add(predictions, targets)
    tracemalloc.start()
    for _ in range(200):
        tally.add(predictions, targets)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 10_000  # 200,000 examples; one byte of each would be twenty times that
    assert tally.scores()["accuracy"] == METRICS["accuracy"](predictions, targets)


def test_a_correlation_keeps_two_numbers_per_example():
    tally = CorrelationTally()
    values = np.arange(1_000, dtype=np.float32)
    tracemalloc.start()
    for _ in range(100):
        tally.add(values, values)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 100_000 * 16 * 1.25  # arrays overallocate
