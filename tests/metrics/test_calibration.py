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

# All four say class 0 with the logit 4, and three are right: a probability of 3/4 wants a logit of ln 3.
SURE = np.array([[4.0, 0.0]] * 4)
THREE_OF_FOUR = np.array([0, 0, 0, 1])


def some_logits(seed: int, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits three times too sure of what the labels are drawn from."""
    generator = np.random.default_rng(seed)
    honest = generator.normal(size=(300, num_classes)) * 2
    chances = np.exp(honest) / np.exp(honest).sum(axis=1, keepdims=True)
    labels = np.array([generator.choice(num_classes, p=row) for row in chances])
    return (honest * 3).astype(np.float32), labels


def test_the_temperature_makes_three_of_four_three_quarters_sure():
    assert fit_temperature(SURE, THREE_OF_FOUR) == pytest.approx(4 / math.log(3), rel=1e-5)


def test_a_model_that_is_not_sure_enough_gets_a_temperature_below_one():
    assert fit_temperature(SURE / 8, THREE_OF_FOUR) == pytest.approx(0.5 / math.log(3), rel=1e-5)


def test_labels_of_their_own_are_fitted_by_their_own_probabilities():
    logits, labels = np.array([[4.0, -4.0]] * 4), np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
    assert fit_temperature(logits, labels) == pytest.approx(4 / math.log(3), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_at_the_temperature_the_loss_of_torch_is_level(seed: int):
    logits, labels = some_logits(seed)
    temperature = torch.tensor(fit_temperature(logits, labels), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double() / temperature, torch.from_numpy(labels))
    loss.backward()
    assert temperature.grad is not None
    assert abs(float(temperature.grad)) < 1e-5
    assert 2.0 < temperature.item() < 4.5  # the logits are three times too large


@pytest.mark.parametrize("seed", range(3))
def test_at_the_temperature_of_labels_the_loss_of_torch_is_level(seed: int):
    logits, labels = some_logits(seed)
    wanted = np.eye(3, dtype=np.float32)[labels]
    temperature = torch.tensor(fit_temperature(logits, wanted), dtype=torch.float64, requires_grad=True)
    scaled = torch.from_numpy(logits).double() / temperature
    torch.nn.functional.binary_cross_entropy_with_logits(scaled, torch.from_numpy(wanted).double()).backward()
    assert temperature.grad is not None
    assert abs(float(temperature.grad)) < 1e-5


def test_a_dev_set_without_a_mistake_leaves_the_probabilities_as_they_are():
    assert fit_temperature(SURE, np.zeros(4, dtype=np.int64)) == 1.0
    assert fit_temperature(SURE, np.array([[1, 1]] * 4)) == 1.0


def test_a_model_that_is_always_wrong_stays_within_the_bounds():
    temperature = fit_temperature(SURE * 5, np.ones(4, dtype=np.int64))
    assert temperature == pytest.approx(HIGHEST_TEMPERATURE, rel=1e-4)
    assert temperature <= HIGHEST_TEMPERATURE


def test_huge_logits_do_not_overflow():
    with np.errstate(over="raise", invalid="raise"):
        assert 0 < fit_temperature(SURE * 1_000, THREE_OF_FOUR) <= HIGHEST_TEMPERATURE


def test_an_ending_that_an_example_lacks_changes_nothing():
    padded = np.concatenate([SURE, np.full((4, 1), -np.inf)], axis=1)
    assert fit_temperature(padded, THREE_OF_FOUR) == pytest.approx(fit_temperature(SURE, THREE_OF_FOUR), rel=1e-9)


def test_the_same_input_gives_the_same_temperature_to_the_bit():
    logits, labels = some_logits(0)
    assert fit_temperature(logits, labels) == fit_temperature(logits.copy(), labels.copy())


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_refused(wrong: float):
    logits = SURE.copy()
    logits[2, 1] = wrong
    with pytest.raises(InputError, match="diverged"):
        fit_temperature(logits, THREE_OF_FOUR)


def test_nothing_to_calibrate_on_is_refused():
    with pytest.raises(InputError, match="no example"):
        fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    with pytest.raises(InputError, match="no example"):
        calibration_error(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))


def test_bins_hold_what_was_said_and_what_came_true():
    probabilities = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6]])
    labels = np.array([0, 1, 1, 0])  # right, wrong, right, wrong
    bins = reliability(probabilities, labels, num_bins=4)
    assert bins == (
        Bin(0.0, 0.25, 0, 0.0, 0.0),
        Bin(0.25, 0.5, 0, 0.0, 0.0),
        Bin(0.5, 0.75, 2, pytest.approx(0.65), 0.0),
        Bin(0.75, 1.0, 2, pytest.approx(0.85), 1.0),
    )
    assert calibration_error(probabilities, labels, num_bins=4) == pytest.approx((2 * 0.65 + 2 * 0.15) / 4)


def test_a_bin_holds_its_upper_edge_and_the_first_holds_zero():
    bins = reliability(np.array([[0.0, 0.5, 0.25, 1.0]]), np.array([[0, 1, 0, 1]]), num_bins=4)
    assert [one.count for one in bins] == [2, 1, 0, 1]


def test_probabilities_that_come_true_have_no_error():
    probabilities = np.array([[0.75, 0.25]] * 4)
    assert calibration_error(probabilities, THREE_OF_FOUR) == pytest.approx(0.0)


def test_each_label_of_each_example_is_a_decision():
    probabilities, labels = np.array([[0.9, 0.2], [0.9, 0.2]]), np.array([[1, 0], [0, 0]])
    # said 0.9, true half the time; said 0.2, never true
    assert calibration_error(probabilities, labels, num_bins=5) == pytest.approx((0.4 + 0.2) / 2)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=50), st.integers(1, 12))
def test_bins_equal_the_curve_of_scikit_learn(decisions: list[tuple[float, int]], num_bins: int):
    # Off the edges, where rounding decides on which side a probability falls.
    chances = np.array([(math.floor(chance * 997) + 0.5) / 998 for chance, _ in decisions])
    labels = np.array([label for _, label in decisions])
    filled = [one for one in reliability(chances[:, None], labels[:, None], num_bins) if one.count]
    accuracies, confidences = calibration_curve(labels, chances, n_bins=num_bins)
    assert [one.accuracy for one in filled] == pytest.approx(accuracies.tolist())
    assert [one.confidence for one in filled] == pytest.approx(confidences.tolist())


def test_calibrating_tells_the_error_before_and_after():
    logits, labels = some_logits(0)
    result = calibrate(logits, labels)
    assert result.temperature == fit_temperature(logits, labels)
    chances = torch.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    assert result.error_before == pytest.approx(calibration_error(chances, labels))
    assert result.error_after < result.error_before / 2
    assert sum(one.count for one in result.bins_before) == sum(one.count for one in result.bins_after) == 300


def test_calibrating_labels_of_their_own_uses_their_own_probabilities():
    logits, labels = np.array([[4.0, -4.0]] * 4), np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
    result = calibrate(logits, labels)
    # said 1 / (1 + e^-4) = 0.982 and came true 3/4 of the time; afterwards said 3/4
    assert result.error_before == pytest.approx(1 / (1 + math.exp(-4)) - 0.75)
    assert result.error_after == pytest.approx(0.0, abs=1e-5)
