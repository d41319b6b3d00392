"""Schedules: learning learning_rates and phases, worked out by hand, by steps and by wall-clock time."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertworks.training.schedule import (
    InverseSqrtSchedule,
    ScheduleStep,
    StepSchedule,
    TimeSchedule,
    schedule_factor,
)


def learning_rates(schedule: StepSchedule, steps: range) -> list[float]:
    return [schedule.at(step, 0.0).learning_rate for step in steps]


def test_linear_warmup_and_decay_to_zero_at_the_last_step():
    """Ten steps, four of warmup, peak 8: up by 2 per step, then down by 8 / 6 over six steps."""
    values = learning_rates(StepSchedule((10,), 4, 8.0), range(10))
    assert values == pytest.approx([2, 4, 6, 8, 40 / 6, 32 / 6, 4, 16 / 6, 8 / 6, 0])


def test_inverse_sqrt_warmup_and_decay():
    """Four steps of warmup to a peak of 8; half of it after four times as many steps; nothing after the last step."""
    schedule = InverseSqrtSchedule(16, 4, 8.0)
    values = [schedule.at(step, 0.0).learning_rate for step in (0, 1, 3, 8, 15)]
    assert values == pytest.approx([2, 4, 8, 16 / 3, 4])
    assert schedule.at(16, 0.0) == ScheduleStep(None, 0.0)


def test_the_learning_rates_of_the_paper():
    paper = StepSchedule((900_000, 100_000), 10_000, 1e-4)
    assert paper.at(0, 0.0) == ScheduleStep(0, pytest.approx(1e-8))
    assert paper.at(4_999, 0.0) == ScheduleStep(0, pytest.approx(5e-5))
    assert paper.at(9_999, 0.0) == ScheduleStep(0, pytest.approx(1e-4))
    assert paper.at(504_999, 0.0) == ScheduleStep(0, pytest.approx(5e-5))  # half-way between 10,000 and 1,000,000
    assert paper.at(899_999, 0.0) == ScheduleStep(0, pytest.approx(1e-4 * 100 / 990))
    assert paper.at(900_000, 0.0).phase == 1
    assert paper.at(999_999, 0.0) == ScheduleStep(1, 0.0)
    assert paper.at(1_000_000, 0.0) == ScheduleStep(None, 0.0)


def test_decay_without_warmup():
    assert learning_rates(StepSchedule((4,), 0, 1.0), range(4)) == pytest.approx([0.75, 0.5, 0.25, 0.0])


def test_cosine_decay():
    """Four steps after one of warmup: a quarter, a half, three quarters and all of half a period."""
    values = learning_rates(StepSchedule((5,), 1, 2.0, "cosine"), range(5))
    assert values == pytest.approx([2.0, 1 + 2**-0.5, 1.0, 1 - 2**-0.5, 0.0])
    half_way = TimeSchedule(
        budget=10.0, phase_ratios=(1.0,), warmup_ratio=0.2, peak_learning_rate=2.0, history={}, decay="cosine"
    ).at(0, 6.0)
    assert half_way == ScheduleStep(0, pytest.approx(1.0))


def test_slanted_triangular_decay_ends_at_a_32nd_of_the_peak():
    values = learning_rates(StepSchedule((5,), 1, 32.0, "slanted-triangular"), range(5))
    assert values == pytest.approx([32.0, 24.25, 16.5, 8.75, 1.0])


def test_wsd_warms_up_stays_at_the_peak_and_decays_to_zero():
    """Ten steps: two of warmup, the last four decay."""
    values = learning_rates(StepSchedule((6, 4), 2, 4.0, "wsd", decay_ratio=0.4), range(10))
    assert values == pytest.approx([2, 4, 4, 4, 4, 4, 3, 2, 1, 0])
    schedule = TimeSchedule(
        budget=100.0,
        phase_ratios=(1.0,),
        warmup_ratio=0.1,
        peak_learning_rate=4.0,
        history={},
        decay="wsd",
        decay_ratio=0.4,
    )
    expected = {0.0: 0.0, 5.0: 2.0, 10.0: 4.0, 40.0: 4.0, 60.0: 4.0, 70.0: 3.0, 90.0: 1.0}
    for seconds, learning_rate in expected.items():
        assert schedule.at(0, seconds).learning_rate == pytest.approx(learning_rate)


def test_wsd_decays_after_the_warmup_if_both_overlap():
    """Half of ten steps is warmup, so that the decay has five steps instead of eight."""
    values = learning_rates(StepSchedule((10,), 5, 5.0, "wsd", decay_ratio=0.8), range(10))
    assert values == pytest.approx([1, 2, 3, 4, 5, 4, 3, 2, 1, 0])


RATIOS = st.floats(0.01, 0.99)


@pytest.mark.parametrize("decay", ["linear", "cosine", "wsd"])
@given(progress=st.floats(0, 1), warmup=RATIOS, decay_ratio=RATIOS)
def test_factor_is_in_0_to_1_continuous_and_zero_at_the_end(
    decay: str, progress: float, warmup: float, decay_ratio: float
):
    factor = schedule_factor(progress, warmup, 1.0, decay, decay_ratio)
    assert 0 <= factor <= 1
    nearby = schedule_factor(min(1.0, progress + 1e-7), warmup, 1.0, decay, decay_ratio)
    assert abs(nearby - factor) < 1e-4  # the steepest part is 1 / 0.01, for cosine times pi / 2
    assert schedule_factor(1.0, warmup, 1.0, decay, decay_ratio) == 0
    assert schedule_factor(warmup, warmup, 1.0, decay, decay_ratio) == pytest.approx(1.0)


@given(position=st.floats(0, 1), warmup=RATIOS, decay_ratio=RATIOS)
def test_wsd_is_constant_in_the_stable_part(position: float, warmup: float, decay_ratio: float):
    assume(warmup + decay_ratio < 1)
    progress = warmup + position * (1 - decay_ratio - warmup)
    assert schedule_factor(progress, warmup, 1.0, "wsd", decay_ratio) == pytest.approx(1.0, abs=1e-12)


def test_phases_follow_one_another_and_the_run_ends_after_the_last():
    schedule = StepSchedule((2, 0, 3), 1, 1.0)
    assert [schedule.at(step, 0.0).phase for step in range(7)] == [0, 0, 2, 2, 2, None, None]


def test_the_factor_multiplies_the_peak_of_each_phase():
    """Linear decay over four steps: 3/4 and 1/2 of the first peak, 1/4 and 0 of the second."""
    values = learning_rates(StepSchedule((2, 2), 0, 1.0, phase_peaks=(4.0, 8.0)), range(4))
    assert values == pytest.approx([3.0, 2.0, 2.0, 0.0])
    schedule = TimeSchedule(
        budget=10.0,
        phase_ratios=(0.5, 0.5),
        warmup_ratio=0.0,
        peak_learning_rate=1.0,
        history={},
        phase_peaks=(4.0, 8.0),
    )
    assert [schedule.at(0, seconds).learning_rate for seconds in (2.5, 7.5)] == pytest.approx([3.0, 2.0])


def test_a_step_schedule_ignores_the_time():
    schedule = StepSchedule((5,), 1, 1.0)
    assert schedule.at(2, 0.0) == schedule.at(2, 1e9)


def test_a_time_schedule_follows_the_time_spent():
    """100 seconds, a tenth of them warmup, peak 9."""
    schedule = TimeSchedule(budget=100.0, phase_ratios=(0.9, 0.1), warmup_ratio=0.1, peak_learning_rate=9.0, history={})
    expected = {0.0: 0.0, 5.0: 4.5, 10.0: 9.0, 55.0: 4.5, 91.0: 0.9, 99.0: 0.1}
    for seconds, learning_rate in expected.items():
        assert schedule.at(0, seconds).learning_rate == pytest.approx(learning_rate)


def test_a_time_schedule_ends_on_time_with_learning_rate_zero():
    schedule = TimeSchedule(budget=100.0, phase_ratios=(1.0,), warmup_ratio=0.1, peak_learning_rate=9.0, history={})
    assert 0 < schedule.at(7, 99.999).learning_rate < 1e-3
    assert schedule.at(7, 100.0) == ScheduleStep(None, 0.0)
    assert schedule.at(7, 250.0) == ScheduleStep(None, 0.0)


def test_phase_ratios_need_not_sum_to_one():
    schedule = TimeSchedule(budget=60.0, phase_ratios=(2.0, 1.0), warmup_ratio=0.0, peak_learning_rate=1.0, history={})
    assert [schedule.at(0, seconds).phase for seconds in (0.0, 39.9, 40.1, 59.9, 60.0)] == [0, 0, 1, 1, None]


def test_phase_ratios_that_round_below_one_still_end_in_the_last_phase():
    ratios = (0.7, 0.2, 0.1)  # in floating point 0.7 + 0.2 + 0.1 is 0.9999999999999999
    schedule = TimeSchedule(budget=1.0, phase_ratios=ratios, warmup_ratio=0.0, peak_learning_rate=1.0, history={})
    step = schedule.at(0, 0.9999999999999999)
    assert step.phase == 2
    assert step.learning_rate < 1e-9


def test_a_resumed_run_repeats_its_history_and_then_follows_the_time():
    history = {0: ScheduleStep(0, 0.25), 1: ScheduleStep(1, 0.125)}
    schedule = TimeSchedule(
        budget=100.0, phase_ratios=(0.5, 0.5), warmup_ratio=0.0, peak_learning_rate=1.0, history=history
    )
    assert schedule.at(0, 90.0) == ScheduleStep(0, 0.25)
    assert schedule.at(1, 500.0) == ScheduleStep(1, 0.125)  # even if the resumed run was slower than the budget
    assert schedule.at(2, 20.0) == ScheduleStep(0, pytest.approx(0.8))
    assert schedule.at(2, 500.0) == ScheduleStep(None, 0.0)
