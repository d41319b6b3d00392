"""Whether a model fits, overfits or underfits, and beats its baselines: scores in, one or two sentences out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertworks.commands.finetune.collapse import predicts_one_class
from bertworks.tasks.baselines import BaselineScores
from bertworks.tasks.contract import TaskScores

# On a few hundred dev examples, scores vary by about this much between seeds.
_MAX_GAP = 0.05


def verdict_of(main_metric: str, scores: Mapping[str, TaskScores], baselines: Sequence[BaselineScores] = ()) -> str:
    """Return what the main metric on train and dev means, what to change, and whether a baseline is as good."""
    fit, comparison = _describe_fit(main_metric, scores), _compare_with_baselines(main_metric, scores, baselines)
    return f"{fit}. {comparison}" if comparison else fit


def _compare_with_baselines(
    main_metric: str, scores: Mapping[str, TaskScores], baselines: Sequence[BaselineScores]
) -> str:
    """Return which baseline is at least as good as the model on dev or test, the strongest one; empty if none is.

    Scores that look the same as printed count as equal.
    """
    for baseline in reversed(baselines):
        values = {
            split: (round(baseline_scores.main_value, 3), round(scores[split].main_value, 3))
            for split, baseline_scores in baseline.scores.items()
        }
        lost = {split: pair for split, pair in values.items() if pair[0] >= pair[1]}
        if lost:
            baseline_values = " and ".join(f"{value:.3f} on {split}" for split, (value, _) in lost.items())
            model_values = " and ".join(f"{value:.3f}" for _, value in lost.values())
            return (
                f"The {baseline.title} is at least as good on {' and '.join(lost)}, and far cheaper: its {main_metric} "
                f"is {baseline_values}, that of this model {model_values}."
            )
    return ""


def _describe_fit(main_metric: str, scores: Mapping[str, TaskScores]) -> str:
    if "dev" not in scores:
        return "no dev set, so the score on unseen texts is unknown; give one with --dev"
    train, dev = scores["train"].metrics[main_metric], scores["dev"].metrics[main_metric]
    values = f"{main_metric} is {train:.3f} on train and {dev:.3f} on dev"
    details = scores["dev"].details
    if "confusion" in details and predicts_one_class(details["confusion"]):
        return (
            f"underfits: {values}, and one class is predicted for everything; try more epochs or another learning rate"
        )
    if train < scores["train"].underfit_threshold:
        return f"underfits: {values}; try more epochs, a higher learning rate or a larger model"
    if train - dev > _MAX_GAP:
        return f"overfits: {values}; try more training data, fewer epochs or more dropout"
    return f"fits: {values}"
