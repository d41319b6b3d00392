"""What all jobs of a comparison came to: a list of Done in, the standing of every member out, also as JSON holds it."""

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
    """Return a standing for each member and share of the budget that is reached, in the order of the recipe."""
    points = [one for done in results for one in done.points]
    scores = [one for done in results for one in done.scores]
    return [
        _member_result(comparison, member.name, own, [one for one in scores if one.member == member.name])
        for member in comparison.members
        for share in comparison.eval_ratios
        if (own := [point for name, _, point in points if name == member.name and point.budget_ratio == share])
    ]


def _member_result(
    comparison: CompareRecipe, member: str, points: Sequence[Point], scores: Sequence[Score]
) -> MemberResult:
    share, tasks = points[0].budget_ratio, [task.title for task in comparison.tasks]
    by_seed: dict[int, dict[str, float]] = {}
    for score in scores:
        if score.point.budget_ratio == share:
            by_seed.setdefault(score.seed, {})[score.task] = score.value
    whole = [statistics.fmean(own.values()) for own in by_seed.values() if len(own) == len(tasks)]
    return MemberResult(
        member,
        share,
        SeedStatistics.from_values(point.steps for point in points),
        SeedStatistics.from_values(point.num_tokens for point in points),
        SeedStatistics.from_values(point.seconds / 60 for point in points),
        SeedStatistics.from_values(point.flops for point in points),
        points[0].num_parameters,
        points[0].loss_part,
        SeedStatistics.from_values(point.held_out_loss for point in points),
        {task: SeedStatistics.from_values(own[task] for own in by_seed.values() if task in own) for task in tasks},
        {score.task: score.metric for score in scores},
        SeedStatistics.from_values(whole),
    )


def member_results_to_json(member_results: Sequence[MemberResult]) -> list[dict[str, Any]]:
    """Return standings as JSON holds them; what is not a number is null."""
    return [_finite(asdict(one)) for one in member_results]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
