"""When a run does what: rates and phases by hand, by steps and by the clock."""

import pytest

from bertworks.training.schedule import InverseSqrtSchedule, ScheduleStep, StepSchedule, TimeSchedule


def rates(pace: StepSchedule, steps: range) -> list[float]:
    return [pace.at(step, 0.0).learning_rate for step in steps]


def test_rates_rise_over_the_warm_up_and_fall_to_zero_with_the_last_step():
    """Ten steps, four of warm-up, peak 8: up by 2 a step; then, six steps before the end, down by 8 / 6."""
    found = rates(StepSchedule((10,), 4, 8.0), range(10))
    assert found == pytest.approx([2, 4, 6, 8, 40 / 6, 32 / 6, 4, 16 / 6, 8 / 6, 0])


def test_rates_of_the_transformer_rise_over_the_warm_up_and_fall_with_the_root():
    """Four steps of warm-up to a peak of 8; at four times as many steps half of it, behind the last step nothing."""
    pace = InverseSqrtSchedule(16, 4, 8.0)
    found = [pace.at(step, 0.0).learning_rate for step in (0, 1, 3, 8, 15)]
    assert found == pytest.approx([2, 4, 8, 16 / 3, 4])
    assert pace.at(16, 0.0) == ScheduleStep(None, 0.0)


def test_the_paper_s_rates():
    paper = StepSchedule((900_000, 100_000), 10_000, 1e-4)
    assert paper.at(0, 0.0) == ScheduleStep(0, pytest.approx(1e-8))
    assert paper.at(4_999, 0.0) == ScheduleStep(0, pytest.approx(5e-5))
    assert paper.at(9_999, 0.0) == ScheduleStep(0, pytest.approx(1e-4))
    assert paper.at(504_999, 0.0) == ScheduleStep(0, pytest.approx(5e-5))  # half-way between 10,000 and 1,000,000
    assert paper.at(899_999, 0.0) == ScheduleStep(0, pytest.approx(1e-4 * 100 / 990))
    assert paper.at(900_000, 0.0).phase == 1
    assert paper.at(999_999, 0.0) == ScheduleStep(1, 0.0)
    assert paper.at(1_000_000, 0.0) == ScheduleStep(None, 0.0)


def test_without_warm_up_the_rate_only_falls():
    assert rates(StepSchedule((4,), 0, 1.0), range(4)) == pytest.approx([0.75, 0.5, 0.25, 0.0])


def test_a_cosine_falls_slowly_fast_and_slowly_again():
    """Four steps behind a warm-up of one: a quarter, a half, three quarters and all of half a turn."""
    found = rates(StepSchedule((5,), 1, 2.0, "cosine"), range(5))
    assert found == pytest.approx([2.0, 1 + 2**-0.5, 1.0, 1 - 2**-0.5, 0.0])
    half_way = TimeSchedule(
        budget=10.0, phase_ratios=(1.0,), warmup_ratio=0.2, peak_learning_rate=2.0, history={}, decay="cosine"
    ).gather(0, 6.0)
    assert half_way == ScheduleStep(0, pytest.approx(1.0))


def test_a_triangle_ends_at_a_32nd_of_its_peak():
    found = rates(StepSchedule((5,), 1, 32.0, "triangular"), range(5))
    assert found == pytest.approx([32.0, 24.25, 16.5, 8.75, 1.0])


def test_phases_follow_one_another_and_the_run_ends_after_the_last():
    pace = StepSchedule((2, 0, 3), 1, 1.0)
    assert [pace.at(step, 0.0).phase for step in range(7)] == [0, 0, 2, 2, 2, None, None]


def test_steps_do_not_look_at_the_clock():
    pace = StepSchedule((5,), 1, 1.0)
    assert pace.at(2, 0.0) == pace.at(2, 1e9)


def test_by_the_clock_rates_rise_and_fall_with_the_time_spent():
    """100 seconds, a tenth of them warm-up, peak 9."""
    pace = TimeSchedule(budget=100.0, phase_ratios=(0.9, 0.1), warmup_ratio=0.1, peak_learning_rate=9.0, history={})
    expected = {0.0: 0.0, 5.0: 4.5, 10.0: 9.0, 55.0: 4.5, 91.0: 0.9, 99.0: 0.1}
    for seconds, rate in expected.items():
        assert pace.at(0, seconds).learning_rate == pytest.approx(rate)


def test_by_the_clock_a_run_ends_on_time_and_at_rate_zero():
    pace = TimeSchedule(budget=100.0, phase_ratios=(1.0,), warmup_ratio=0.1, peak_learning_rate=9.0, history={})
    assert 0 < pace.at(7, 99.999).learning_rate < 1e-3
    assert pace.at(7, 100.0) == ScheduleStep(None, 0.0)
    assert pace.at(7, 250.0) == ScheduleStep(None, 0.0)


def test_shares_need_not_add_up_to_one():
    pace = TimeSchedule(budget=60.0, phase_ratios=(2.0, 1.0), warmup_ratio=0.0, peak_learning_rate=1.0, history={})
    assert [pace.at(0, seconds).phase for seconds in (0.0, 39.9, 40.1, 59.9, 60.0)] == [0, 0, 1, 1, None]


def test_shares_that_rounding_leaves_short_of_one_still_end_in_the_last_phase():
    shares = (0.7, 0.2, 0.1)  # in floating point 0.7 + 0.2 + 0.1 is 0.9999999999999999
    pace = TimeSchedule(budget=1.0, phase_ratios=shares, warmup_ratio=0.0, peak_learning_rate=1.0, history={})
    moment = pace.at(0, 0.9999999999999999)
    assert moment.phase == 2
    assert moment.learning_rate < 1e-9


def test_a_repeated_run_follows_what_was_recorded_and_then_the_clock():
    recorded = {0: ScheduleStep(0, 0.25), 1: ScheduleStep(1, 0.125)}
    pace = TimeSchedule(
        budget=100.0, phase_ratios=(0.5, 0.5), warmup_ratio=0.0, peak_learning_rate=1.0, history=recorded
    )
    assert pace.at(0, 90.0) == ScheduleStep(0, 0.25)
    assert pace.at(1, 500.0) == ScheduleStep(1, 0.125)  # even when the repetition was slower than the budget
    assert pace.at(2, 20.0) == ScheduleStep(0, pytest.approx(0.8))
    assert pace.at(2, 500.0) == ScheduleStep(None, 0.0)
