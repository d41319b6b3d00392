"""The schedule of a run: its recipe and the records so far in, learning rates and evaluations of every step out."""

from __future__ import annotations

from pathlib import Path

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.records import StepRecord, read_records
from bertworks.settings import parse_duration
from bertworks.training.schedule import Schedule, ScheduleStep, StepSchedule, TimeSchedule

_NUM_QUARTERS = 4


class EvaluationSteps:
    """Decides after which steps a run is evaluated: every `eval_steps`, and whenever a further quarter of it is over.

    Thus a run that is shorter than `eval_steps` has four evaluations. With a time budget, a resumed run that repeats
    steps uses their recorded times, so that it evaluates after the same ones.
    """

    def __init__(self, recipe: PretrainRecipe, output: Path) -> None:
        self._eval_steps = recipe.eval_steps
        self._num_steps = sum(phase.steps for phase in recipe.phases)
        self._budget = parse_duration(recipe.budget)
        self._recorded_seconds = (
            {} if self._budget is None else {record.step: record.seconds for record in step_records(output)}
        )
        self._quarters_over = 0

    def resume_after(self, step: int, seconds: float) -> None:
        """Continue after `step`, which ended after `seconds` of training."""
        self._quarters_over = self._count_quarters(step, seconds)

    def is_due(self, step: int, seconds: float) -> bool:
        """Return whether to evaluate after `step`, which ended after `seconds`; called once for every step."""
        quarters_over = self._count_quarters(step, seconds)
        is_quarter_over = quarters_over > self._quarters_over
        self._quarters_over = max(self._quarters_over, quarters_over)
        return is_quarter_over or step % self._eval_steps == 0

    def _count_quarters(self, step: int, seconds: float) -> int:
        if self._budget is None:
            return _NUM_QUARTERS * step // self._num_steps
        progress = self._recorded_seconds.get(step, seconds) / self._budget
        return min(_NUM_QUARTERS, int(_NUM_QUARTERS * progress))


def build_schedule(recipe: PretrainRecipe, output: Path) -> Schedule:
    """Return the recipe's schedule. One with a time budget replays the recorded steps before it follows the clock."""
    budget = parse_duration(recipe.budget)
    phases = recipe.resolve_phases()
    peaks = tuple(phase.learning_rate for phase in phases)
    if budget is None:
        return StepSchedule(
            tuple(phase.steps for phase in phases),
            recipe.warmup_steps,
            recipe.learning_rate,
            recipe.schedule,
            phase_peaks=peaks,
            decay_ratio=recipe.decay_ratio,
        )
    phase_indices = recipe.phase_indices()
    history = {
        record.step - 1: ScheduleStep(phase_indices[record.phase], record.learning_rate)
        for record in step_records(output)
    }
    return TimeSchedule(
        budget=budget,
        phase_ratios=tuple(phase.budget_ratio for phase in phases),
        warmup_ratio=recipe.warmup_ratio,
        peak_learning_rate=recipe.learning_rate,
        history=history,
        decay=recipe.schedule,
        phase_peaks=peaks,
        decay_ratio=recipe.decay_ratio,
    )


def step_records(output: Path) -> list[StepRecord]:
    """Return the records of the steps of a run, in their order."""
    return [record for record in read_records(output) if isinstance(record, StepRecord)]
