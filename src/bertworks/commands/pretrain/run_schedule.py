"""The schedule of a run: its recipe and the records so far in, phase and learning rate of every step out."""

from __future__ import annotations

from pathlib import Path

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.records import StepRecord, read_records
from bertworks.settings import parse_duration
from bertworks.training.schedule import Schedule, ScheduleStep, StepSchedule, TimeSchedule


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
        for record in read_records(output)
        if isinstance(record, StepRecord)
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
