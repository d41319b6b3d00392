"""What all jobs of a comparison came to: a list of Done in, the standing of every member out, also as JSON holds it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bertworks.commands.compare.member import Done, Point, Score
from bertworks.commands.compare.recipe import Comparison
from bertworks.metrics.seeds import Spread, Standing


def standings_of(comparison: Comparison, found: Sequence[Done]) -> list[Standing]:
    """Return a standing for each member and share of the budget that is reached, in the order of the recipe."""
    points = [one for done in found for one in done.points]
    scores = [one for done in found for one in done.scores]
    return [
        _standing(comparison, member.name, own, [one for one in scores if one.member == member.name])
        for member in comparison.members
        for share in comparison.measured_at
        if (own := [point for name, _, point in points if name == member.name and point.share == share])
    ]


def _standing(comparison: Comparison, member: str, points: Sequence[Point], scores: Sequence[Score]) -> Standing:
    share, tasks = points[0].share, [task.title for task in comparison.tasks]
    by_seed: dict[int, dict[str, float]] = {}
    for score in scores:
        if score.point.share == share:
            by_seed.setdefault(score.seed, {})[score.task] = score.value
    whole = [statistics.fmean(own.values()) for own in by_seed.values() if len(own) == len(tasks)]
    return Standing(
        member,
        share,
        Spread.of(point.steps for point in points),
        Spread.of(point.pieces for point in points),
        Spread.of(point.seconds / 60 for point in points),
        Spread.of(point.flops for point in points),
        points[0].parameters,
        points[0].asks,
        Spread.of(point.held_out for point in points),
        {task: Spread.of(own[task] for own in by_seed.values() if task in own) for task in tasks},
        {score.task: score.figure for score in scores},
        Spread.of(whole),
    )


def told_standings(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return standings as JSON holds them; what is not a number is null."""
    return [_finite(asdict(one)) for one in standings]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
