"""Health warnings: each is issued once on a series of losses made for it, and none on healthy runs."""

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from bertworks.training.health import HealthMonitor, HealthWarning
from bertworks.training.loop import Step

UNIGRAM_ENTROPY = 6.0


def step(number: int, loss: float, norm: float = 1.0) -> Step:
    return Step(
        number=number,
        phase=0,
        losses={"mlm": loss, "nsp": 0.5},
        learning_rate=3e-4,
        grad_norm=norm,
        seconds=float(number),
        num_tokens=number,
    )


def warnings(health: HealthMonitor, losses: Iterable[float]) -> list[HealthWarning]:
    results = (health.check_step(step(number, loss)) for number, loss in enumerate(losses, 1))
    return [warning for warning in results if warning is not None]


def decaying(start: float, end: float, steps: int, rate: float) -> list[float]:
    """Exponential decay from start to end, with noise that repeats every three steps."""
    return [end + (start - end) * math.exp(-rate * n) + (-0.3, 0.0, 0.3)[n % 3] for n in range(steps)]


HEALTHY = {
    "quick": decaying(10.3, 2.0, 3_000, 0.005),
    "slowly through the unigram entropy": [10.3 - n * 0.0015 for n in range(4_000)],
    "a plateau at the unigram entropy that ends": [6.05] * 900 + decaying(6.0, 3.0, 1_000, 0.01),
    "noisy from the start": [10.3 + (0.9 if n % 2 else -0.9) for n in range(400)],
    "a spike": [4.0] * 500 + [30.0] + [4.0] * 500,
}


@pytest.mark.parametrize("losses", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_run_gets_no_warning(losses: list[float]):
    assert warnings(HealthMonitor(UNIGRAM_ENTROPY), losses) == []


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (5.0, math.nan), (5.0, math.inf), (-math.inf, 1.0)]
)
def test_a_nonfinite_loss_or_norm_stops_the_run(loss: float, norm: float):
    warning = HealthMonitor(UNIGRAM_ENTROPY).check_step(step(12, loss, norm))
    assert warning is not None
    assert warning.should_stop
    assert warning.text.startswith(f"step 12: the loss is {loss} and the gradient norm {norm}.")
    assert "3.0e-04" in warning.text
    assert "start a new run with a lower learning_rate or more warmup_steps" in warning.text


def test_the_first_loss_part_is_watched():
    warning = HealthMonitor(UNIGRAM_ENTROPY).check_step(replace(step(1, 1.0), losses={"class": math.nan}))
    assert warning is not None
    assert warning.should_stop


def test_a_diverging_loss_is_reported_once_with_learning_rate_and_remedy():
    """It falls to 4 and then jumps to 8: the smoothed loss passes 5 when 4 * 0.98^n < 3, after 15 steps."""
    issued = warnings(HealthMonitor(UNIGRAM_ENTROPY), [4.0] * 200 + [8.0] * 300)
    assert len(issued) == 1
    assert not issued[0].should_stop
    assert issued[0].text.startswith("step 215: the loss rose from 4.00 to 5.05.")
    assert "lower learning_rate or raise warmup_steps" in issued[0].text


def test_a_rise_in_the_first_hundred_steps_is_not_reported():
    assert warnings(HealthMonitor(UNIGRAM_ENTROPY), [4.0] + [8.0] * 99) == []
    assert len(warnings(HealthMonitor(UNIGRAM_ENTROPY), [4.0] + [8.0] * 100)) == 1


def test_a_loss_that_stays_at_the_unigram_entropy_is_reported_once():
    issued = warnings(HealthMonitor(UNIGRAM_ENTROPY, patience=50), [6.05] * 300)
    assert len(issued) == 1
    assert not issued[0].should_stop
    assert issued[0].text.startswith("step 50: the loss stays at 6.05")
    assert "(6.00)" in issued[0].text
    assert "(see `bertworks doctor`)" in issued[0].text


@pytest.mark.parametrize("loss", [5.85, 6.15])
def test_a_loss_near_the_unigram_entropy_is_not_reported(loss: float):
    assert warnings(HealthMonitor(UNIGRAM_ENTROPY, patience=50), [loss] * 300) == []


def test_leaving_the_unigram_entropy_resets_the_patience():
    health = HealthMonitor(UNIGRAM_ENTROPY, patience=50)
    assert warnings(health, ([6.0] * 40 + [15.0] * 2 + [6.0] * 40) * 3) == []


def held_out_warnings(train_losses: list[float], held_out_losses: list[float]) -> list[HealthWarning]:
    health = HealthMonitor(UNIGRAM_ENTROPY)
    issued = []
    for number, (loss, held_out_loss) in enumerate(zip(train_losses, held_out_losses, strict=True)):
        for _ in range(300):
            assert health.check_step(step(number, loss)) is None
        warning = health.check_held_out(held_out_loss, 300 * (number + 1))
        issued += [warning] if warning else []
    return issued


FALLING = [4.0, 3.5, 3.0, 2.5, 2.0, 1.5]


def test_overfitting_is_reported_once():
    issued = held_out_warnings(FALLING, [4.0, 3.8, 3.9, 4.0, 4.1, 4.2])
    assert len(issued) == 1
    assert issued[0].text.startswith("step 1500: the held-out loss has risen three times (3.800 to 4.100)")
    assert not issued[0].should_stop


@pytest.mark.parametrize(
    ("train_losses", "held_out_losses"),
    [
        (FALLING, [4.0, 3.8, 3.6, 3.5, 3.4, 3.3]),
        (FALLING, [4.0, 4.1, 4.2, 4.1, 4.2, 4.3]),  # twice, a fall between, twice
        (FALLING, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0]),
        ([3.0, 3.1, 3.2, 3.3, 3.4, 3.5], [4.0, 4.1, 4.2, 4.3, 4.4, 4.5]),  # both rise: not overfitting
    ],
    ids=["falls", "wavers", "stays", "training rises too"],
)
def test_a_run_that_does_not_overfit_is_not_reported(train_losses: list[float], held_out_losses: list[float]):
    assert held_out_warnings(train_losses, held_out_losses) == []


def test_a_held_out_loss_before_the_first_step_is_not_reported():
    assert HealthMonitor(UNIGRAM_ENTROPY).check_held_out(10.3, 0) is None
