"""Evaluations of a run: every eval_steps and after each quarter, at the same steps when it is resumed."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_run import RECIPE

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run_schedule import EvaluationSteps
from bertworks.records import Records, StepRecord

SHORT = replace(RECIPE, eval_steps=500)  # twelve steps
TIMED = replace(SHORT, budget="100s")


def due_steps(recipe: PretrainRecipe, output: Path, seconds: list[float], first: int = 1) -> list[int]:
    """Return the steps after which a run is evaluated; `seconds` are the times at which steps end, from `first` on."""
    evaluation_steps = EvaluationSteps(recipe, output)
    if first > 1:
        evaluation_steps.resume_after(first - 1, 0.0)
    return [step for step, end in enumerate(seconds, first) if evaluation_steps.is_due(step, end)]


def test_short_run_is_evaluated_after_each_quarter_of_its_steps(tmp_path):
    assert due_steps(SHORT, tmp_path, [0.0] * 12) == [3, 6, 9, 12]


def test_run_is_evaluated_every_eval_steps_and_after_each_quarter(tmp_path):
    assert due_steps(RECIPE, tmp_path, [0.0] * 12) == [3, 5, 6, 9, 10, 12]
    assert due_steps(replace(RECIPE, eval_steps=3), tmp_path, [0.0] * 12) == [3, 6, 9, 12]


@pytest.mark.parametrize("first", range(2, 12))
def test_resumed_run_is_evaluated_after_the_same_steps(tmp_path, first):
    expected = [step for step in (3, 6, 9, 12) if step >= first]
    assert due_steps(SHORT, tmp_path, [0.0] * (13 - first), first) == expected


def test_quarters_of_a_time_budget(tmp_path):
    seconds = [10.0, 24.0, 26.0, 49.0, 80.0, 90.0, 101.0]
    assert due_steps(TIMED, tmp_path, seconds) == [3, 5, 7]  # step 5 ends two quarters


def test_repeated_steps_are_evaluated_by_their_recorded_times(tmp_path):
    with Records.open(tmp_path, None) as records:
        for step, seconds in enumerate((10.0, 24.0, 26.0, 49.0), 1):
            records.add(
                StepRecord(
                    step=step, phase="16", losses={}, learning_rate=0.0, seconds=seconds, num_tokens=0, grad_norm=0.0
                )
            )
    # Resumed after step 1 on a slower machine: steps 2 to 4 are repeated, 5 and 6 are new.
    assert due_steps(TIMED, tmp_path, [30.0, 55.0, 60.0, 65.0, 80.0], first=2) == [3, 5, 6]
