"""The content of a pretraining report: a run folder in, its records, run.json and recipe out, as far as they exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.objectives.registry import OBJECTIVES
from bertworks.reading import parse_json, parse_toml
from bertworks.records import METRICS, SAMPLES, History

RUN_INFO, _RECIPE = "run.json", "recipe.toml"
_MAX_ACRONYM = 4  # letters


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRun:
    """The content of a report: the history, `run.json`, the recipe, and sentences on what could not be read."""

    name: str
    history: History
    run_info: Mapping[str, Any]
    recipe: str
    absent: tuple[str, ...]

    @property
    def token_accuracy_name(self) -> str:
        return f"{self.loss_name(self.history.token_loss)} accuracy"

    @property
    def pair_accuracy_name(self) -> str:
        return f"{self.loss_name(self.pair_loss or '')} accuracy"

    def loss_name(self, part: str) -> str:
        """Return the name of a loss part for readers: acronyms in capitals; on pairs, what the objective calls it."""
        pair_task = self._pair_task if part == self.pair_loss else ""
        return pair_task or (part.upper() if len(part) <= _MAX_ACRONYM else part)

    @property
    def loss_names(self) -> list[str]:
        """The parts of the loss, in the order in which they were recorded."""
        history = self.history
        return list(dict.fromkeys([*history.losses, *(name for record in history.held_out for name in record.losses)]))

    @property
    def pair_loss(self) -> str | None:
        """The loss part over sentence pairs, if there is one."""
        return next((name for name in self.loss_names if name != self.history.token_loss), None)

    def get_number(self, key: str) -> float | None:
        """Return a finite number of run.json, or None."""
        value = self.run_info.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def recipe_value(self, key: str) -> Any:
        """Return a value of the recipe, None if it has none or is no TOML."""
        try:
            return parse_toml(self.recipe).get(key)
        except ValueError:
            return None

    @property
    def _pair_task(self) -> str:
        """What the objective calls its task on sentence pairs; empty if it has none."""
        objective = OBJECTIVES.get(str(self.recipe_value("objective")))
        return "" if objective is None else objective.pair_task


def read_pretrain_run(run: Path) -> PretrainRun:
    """Read a run folder, finished or not; what is missing or damaged is named in `absent`."""
    history = History.read(run)
    absent = list(history.read_errors)
    if not history.columns:
        absent.append(f"{METRICS} has no steps: there are no curves.")
    if not history.held_out:
        absent.append(f"{METRICS} has no held-out scores.")
    if not history.samples:
        absent.append(f"{SAMPLES} has no fill-mask samples.")
    run_info: Any = {}
    recipe = ""
    omitted = "baselines, machine, corpus and warnings are omitted"
    try:
        run_info = parse_json((run / RUN_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        absent.append(_describe_absence(RUN_INFO, error, omitted))
    if not isinstance(run_info, dict):
        absent.append(f"{RUN_INFO} is not a JSON object: {omitted}.")
        run_info = {}
    try:
        recipe = (run / _RECIPE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        absent.append(_describe_absence(_RECIPE, error, "the recipe is omitted"))
    return PretrainRun(name=run.resolve().name, history=history, run_info=run_info, recipe=recipe, absent=tuple(absent))


def _describe_absence(name: str, error: Exception, omitted: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{name} is missing: {omitted}."
    return f"{name} cannot be read ({error}): {omitted}."
