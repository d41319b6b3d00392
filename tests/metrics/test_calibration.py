"""Calibration: temperatures and bins worked out by hand, parity with torch's losses and scikit-learn's curve."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from bertworks.errors import InputError
from bertworks.metrics.calibration import (
    HIGHEST_TEMPERATURE,
    Bin,
    calibrate,
    calibration_error,
    fit_temperature,
    reliability,
)

# All four predict class 0 with logit 4, and three are correct: a probability of 3/4 needs a logit of ln 3.
CONFIDENT_LOGITS = np.array([[4.0, 0.0]] * 4)
THREE_OF_FOUR = np.array([0, 0, 0, 1])


def sample_logits(seed: int, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits three times as large as those from which the labels are sampled."""
    generator = np.random.default_rng(seed)
    true_logits = generator.normal(size=(300, num_classes)) * 2
    probabilities = np.exp(true_logits) / np.exp(true_logits).sum(axis=1, keepdims=True)
    labels = np.array([generator.choice(num_classes, p=row) for row in probabilities])
    return (true_logits * 3).astype(np.float32), labels


def test_the_temperature_of_an_overconfident_model_by_hand():
    assert fit_temperature(CONFIDENT_LOGITS, THREE_OF_FOUR) == pytest.approx(4 / math.log(3), rel=1e-5)


def test_an_underconfident_model_gets_a_temperature_below_one():
    assert fit_temperature(CONFIDENT_LOGITS / 8, THREE_OF_FOUR) == pytest.approx(0.5 / math.log(3), rel=1e-5)


def test_multi_label_temperature_by_hand():
    logits, labels = np.array([[4.0, -4.0]] * 4), np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
    assert fit_temperature(logits, labels) == pytest.approx(4 / math.log(3), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_torch_s_loss_is_zero_at_the_temperature(seed: int):
    logits, labels = sample_logits(seed)
    temperature = torch.tensor(fit_temperature(logits, labels), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double() / temperature, torch.from_numpy(labels))
    loss.backward()
    assert temperature.grad is not None
    assert abs(float(temperature.grad)) < 1e-5
    assert 2.0 < temperature.item() < 4.5  # the logits are three times too large


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_torch_s_multi_label_loss_is_zero_at_the_temperature(seed: int):
    logits, labels = sample_logits(seed)
    targets = np.eye(3, dtype=np.float32)[labels]
    temperature = torch.tensor(fit_temperature(logits, targets), dtype=torch.float64, requires_grad=True)
    scaled = torch.from_numpy(logits).double() / temperature
    torch.nn.functional.binary_cross_entropy_with_logits(scaled, torch.from_numpy(targets).double()).backward()
    assert temperature.grad is not None
    assert abs(float(temperature.grad)) < 1e-5


def test_without_mistakes_the_temperature_is_one():
    assert fit_temperature(CONFIDENT_LOGITS, np.zeros(4, dtype=np.int64)) == 1.0
    assert fit_temperature(CONFIDENT_LOGITS, np.array([[1, 1]] * 4)) == 1.0


def test_a_model_that_is_always_wrong_stays_within_the_bounds():
    temperature = fit_temperature(CONFIDENT_LOGITS * 5, np.ones(4, dtype=np.int64))
    assert temperature == pytest.approx(HIGHEST_TEMPERATURE, rel=1e-4)
    assert temperature <= HIGHEST_TEMPERATURE


def test_huge_logits_do_not_overflow():
    with np.errstate(over="raise", invalid="raise"):
        assert 0 < fit_temperature(CONFIDENT_LOGITS * 1_000, THREE_OF_FOUR) <= HIGHEST_TEMPERATURE


def test_padded_endings_do_not_change_the_temperature():
    padded = np.concatenate([CONFIDENT_LOGITS, np.full((4, 1), -np.inf)], axis=1)
    assert fit_temperature(padded, THREE_OF_FOUR) == pytest.approx(
        fit_temperature(CONFIDENT_LOGITS, THREE_OF_FOUR), rel=1e-9
    )


def test_the_temperature_is_deterministic():
    logits, labels = sample_logits(0)
    assert fit_temperature(logits, labels) == fit_temperature(logits.copy(), labels.copy())


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_nan_and_infinity_raise_an_error(wrong: float):
    logits = CONFIDENT_LOGITS.copy()
    logits[2, 1] = wrong
    with pytest.raises(InputError, match="diverged"):
        fit_temperature(logits, THREE_OF_FOUR)


def test_no_examples_raise_an_error():
    with pytest.raises(InputError, match="there are no examples"):
        fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    with pytest.raises(InputError, match="there are no examples"):
        calibration_error(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))


def test_bins_have_mean_confidence_and_accuracy():
    probabilities = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6]])
    labels = np.array([0, 1, 1, 0])  # correct, wrong, correct, wrong
    bins = reliability(probabilities, labels, num_bins=4)
    assert bins == (
        Bin(low=0.0, high=0.25, count=0, confidence=0.0, accuracy=0.0),
        Bin(low=0.25, high=0.5, count=0, confidence=0.0, accuracy=0.0),
        Bin(low=0.5, high=0.75, count=2, confidence=pytest.approx(0.65), accuracy=0.0),
        Bin(low=0.75, high=1.0, count=2, confidence=pytest.approx(0.85), accuracy=1.0),
    )
    assert calibration_error(probabilities, labels, num_bins=4) == pytest.approx((2 * 0.65 + 2 * 0.15) / 4)


def test_a_bin_includes_its_upper_edge_and_the_first_includes_zero():
    bins = reliability(np.array([[0.0, 0.5, 0.25, 1.0]]), np.array([[0, 1, 0, 1]]), num_bins=4)
    assert [one.count for one in bins] == [2, 1, 0, 1]


def test_calibrated_probabilities_have_no_error():
    probabilities = np.array([[0.75, 0.25]] * 4)
    assert calibration_error(probabilities, THREE_OF_FOUR) == pytest.approx(0.0)


def test_each_label_of_a_multi_label_example_is_a_prediction():
    probabilities, labels = np.array([[0.9, 0.2], [0.9, 0.2]]), np.array([[1, 0], [0, 0]])
    # confidence 0.9, correct half the time; confidence 0.2, never correct
    assert calibration_error(probabilities, labels, num_bins=5) == pytest.approx((0.4 + 0.2) / 2)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=50), st.integers(1, 12))
def test_bins_equal_scikit_learn_s_calibration_curve(predictions: list[tuple[float, int]], num_bins: int):
    # Not on the edges of bins, where rounding decides.
    probabilities = np.array([(math.floor(probability * 997) + 0.5) / 998 for probability, _ in predictions])
    labels = np.array([label for _, label in predictions])
    bins = [one for one in reliability(probabilities[:, None], labels[:, None], num_bins) if one.count]
    accuracies, confidences = calibration_curve(labels, probabilities, n_bins=num_bins)
    assert [one.accuracy for one in bins] == pytest.approx(accuracies.tolist())
    assert [one.confidence for one in bins] == pytest.approx(confidences.tolist())


def test_calibrate_returns_the_error_before_and_after():
    logits, labels = sample_logits(0)
    result = calibrate(logits, labels)
    assert result.temperature == fit_temperature(logits, labels)
    probabilities = torch.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    assert result.error_before == pytest.approx(calibration_error(probabilities, labels))
    assert result.error_after < result.error_before / 2
    assert sum(one.count for one in result.bins_before) == sum(one.count for one in result.bins_after) == 300


def test_calibrate_multi_label():
    logits, labels = np.array([[4.0, -4.0]] * 4), np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
    result = calibrate(logits, labels)
    # confidence 1 / (1 + e^-4) = 0.982, correct 3/4 of the time; afterwards confidence 3/4
    assert result.error_before == pytest.approx(1 / (1 + math.exp(-4)) - 0.75)
    assert result.error_after == pytest.approx(0.0, abs=1e-5)
