"""Is this run all right? Each warning on a series made for it, once, and none on healthy ones."""

import math
from collections.abc import Iterable

import pytest

from bertworks.training.health import HealthMonitor, HealthWarning
from bertworks.training.loop import Step

FLOOR = 6.0


def step(number: int, loss: float, norm: float = 1.0) -> Step:
    return Step(number, 0, {"masked": loss, "pair": 0.5}, 3e-4, norm, float(number), number)


def warnings(health: HealthMonitor, losses: Iterable[float]) -> list[HealthWarning]:
    found = (health.check_step(step(number, loss)) for number, loss in enumerate(losses, 1))
    return [one for one in found if one is not None]


def falling(start: float, end: float, steps: int, pace: float) -> list[float]:
    """From start to nearly end, exponentially, with a little noise that repeats every three steps."""
    return [end + (start - end) * math.exp(-pace * n) + (-0.3, 0.0, 0.3)[n % 3] for n in range(steps)]


HEALTHY = {
    "quick": falling(10.3, 2.0, 3_000, 0.005),
    "slowly through the floor": [10.3 - n * 0.0015 for n in range(4_000)],
    "a plateau at the floor that ends": [6.05] * 900 + falling(6.0, 3.0, 1_000, 0.01),
    "noisy from the start": [10.3 + (0.9 if n % 2 else -0.9) for n in range(400)],
    "a spike": [4.0] * 500 + [30.0] + [4.0] * 500,
}


@pytest.mark.parametrize("losses", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_run_gets_no_warning(losses: list[float]):
    assert warnings(HealthMonitor(FLOOR), losses) == []


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (5.0, math.nan), (5.0, math.inf), (-math.inf, 1.0)]
)
def test_a_loss_or_norm_that_is_no_number_stops_the_run(loss: float, norm: float):
    warning = HealthMonitor(FLOOR).check_step(step(12, loss, norm))
    assert warning is not None
    assert warning.should_stop
    assert warning.text.startswith(f"step 12: the loss is {loss} and the gradients' norm {norm}.")
    assert "3.0e-04" in warning.text
    assert "start a new run with a lower rate or a longer warmup" in warning.text


def test_a_loss_without_masked_pieces_is_followed_by_its_first_part():
    warning = HealthMonitor(FLOOR).check_step(Step(1, 0, {"label": math.nan}, 1e-4, 1.0, 1.0, 1))
    assert warning is not None
    assert warning.should_stop


def test_a_loss_that_rises_for_good_is_told_once_with_rate_and_remedy():
    """It falls to 4 and then jumps to 8: the smoothed loss passes 5 when 4 * 0.98^n < 3, after 15 steps."""
    found = warnings(HealthMonitor(FLOOR), [4.0] * 200 + [8.0] * 300)
    assert len(found) == 1
    assert not found[0].should_stop
    assert found[0].text.startswith("step 215: the loss rose from 4.00 to 5.05.")
    assert "lower rate or lengthen warmup" in found[0].text


def test_a_rise_in_the_first_hundred_steps_is_still_warm_up():
    assert warnings(HealthMonitor(FLOOR), [4.0] + [8.0] * 99) == []
    assert len(warnings(HealthMonitor(FLOOR), [4.0] + [8.0] * 100)) == 1


def test_a_loss_that_stays_at_the_floor_is_told_once_after_patience():
    found = warnings(HealthMonitor(FLOOR, patience=50), [6.05] * 300)
    assert len(found) == 1
    assert not found[0].should_stop
    assert found[0].text.startswith("step 50: the loss stays at 6.05")
    assert "(6.00)" in found[0].text
    assert "`bertworks doctor` tells" in found[0].text


@pytest.mark.parametrize("loss", [5.85, 6.15])
def test_a_loss_beside_the_floor_is_not_at_the_floor(loss: float):
    assert warnings(HealthMonitor(FLOOR, patience=50), [loss] * 300) == []


def test_leaving_the_floor_starts_the_patience_anew():
    health = HealthMonitor(FLOOR, patience=50)
    assert warnings(health, ([6.0] * 40 + [15.0] * 2 + [6.0] * 40) * 3) == []


def overfit(trained: list[float], held_out: list[float]) -> list[HealthWarning]:
    health = HealthMonitor(FLOOR)
    found = []
    for number, (loss, other) in enumerate(zip(trained, held_out, strict=True)):
        for _ in range(300):
            assert health.check_step(step(number, loss)) is None
        warning = health.check_held_out(other, 300 * (number + 1))
        found += [warning] if warning else []
    return found


FALLING = [4.0, 3.5, 3.0, 2.5, 2.0, 1.5]


def test_held_out_loss_that_rises_three_times_while_training_falls_is_told_once():
    found = overfit(FALLING, [4.0, 3.8, 3.9, 4.0, 4.1, 4.2])
    assert len(found) == 1
    assert found[0].text.startswith("step 1500: the held-out loss has risen three times (3.800 to 4.100)")
    assert not found[0].should_stop


@pytest.mark.parametrize(
    ("trained", "held_out"),
    [
        (FALLING, [4.0, 3.8, 3.6, 3.5, 3.4, 3.3]),
        (FALLING, [4.0, 4.1, 4.2, 4.1, 4.2, 4.3]),  # twice, a fall between, twice
        (FALLING, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0]),
        ([3.0, 3.1, 3.2, 3.3, 3.4, 3.5], [4.0, 4.1, 4.2, 4.3, 4.4, 4.5]),  # both rise: another illness
    ],
    ids=["falls", "wavers", "stays", "training rises too"],
)
def test_held_out_loss_of_a_run_that_does_not_overfit_is_not_told(trained: list[float], held_out: list[float]):
    assert overfit(trained, held_out) == []


def test_held_out_loss_before_any_step_is_no_reason_to_warn():
    assert HealthMonitor(FLOOR).check_held_out(10.3, 0) is None
