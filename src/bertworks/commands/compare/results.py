"""Aggregate a comparison over seeds: JobResults in, one MemberResult per member and point out, also as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bertworks.commands.compare.member import JobResult, Point, Score
from bertworks.commands.compare.recipe import CompareRecipe
from bertworks.metrics.seeds import MemberResult, SeedStatistics


def collect_member_results(comparison: CompareRecipe, results: Sequence[JobResult]) -> list[MemberResult]:
    """Return a result for each member and evaluated part of the budget, in the order of the recipe."""
    points = [point for result in results for point in result.points]
    scores = [score for result in results for score in result.scores]
    return [
        _member_result(comparison, member.name, member_points, [s for s in scores if s.member == member.name])
        for member in comparison.members
        for ratio in comparison.eval_ratios
        if (
            member_points := [point for name, _, point in points if name == member.name and point.budget_ratio == ratio]
        )
    ]


def _member_result(
    comparison: CompareRecipe, member: str, points: Sequence[Point], scores: Sequence[Score]
) -> MemberResult:
    ratio, tasks = points[0].budget_ratio, [task.title for task in comparison.tasks]
    by_seed: dict[int, dict[str, float]] = {}
    for score in scores:
        if score.point.budget_ratio == ratio:
            by_seed.setdefault(score.seed, {})[score.task] = score.value
    means = [statistics.fmean(values.values()) for values in by_seed.values() if len(values) == len(tasks)]
    return MemberResult(
        member=member,
        budget_ratio=ratio,
        steps=SeedStatistics.from_values(point.steps for point in points),
        tokens=SeedStatistics.from_values(point.num_tokens for point in points),
        minutes=SeedStatistics.from_values(point.seconds / 60 for point in points),
        flops=SeedStatistics.from_values(point.flops for point in points),
        num_parameters=points[0].num_parameters,
        loss_part=points[0].loss_part,
        held_out_loss=SeedStatistics.from_values(point.held_out_loss for point in points),
        scores={
            task: SeedStatistics.from_values(values[task] for values in by_seed.values() if task in values)
            for task in tasks
        },
        main_metrics={score.task: score.metric for score in scores},
        mean_score=SeedStatistics.from_values(means),
    )


def member_results_to_json(member_results: Sequence[MemberResult]) -> list[dict[str, Any]]:
    """Return the results as JSON values; NaN and infinity become null."""
    return [_finite(asdict(result)) for result in member_results]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
