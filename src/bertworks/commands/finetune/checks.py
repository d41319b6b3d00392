"""Checks before training: examples and features in; notes and warnings out, or an error for what cannot work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe, parse_target_metric
from bertworks.commands.finetune.request import FinetuneEvent
from bertworks.datasets.overlap import overlap
from bertworks.errors import InputError, SettingsError
from bertworks.inference.predictor import TRUNCATED_TOKENS, Predictor
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Features, Task, examples_in
from bertworks.vocabulary.text_coverage import TextCoverage

# A score of this many dev examples shows which metrics there are.
_NUM_PROBE_EXAMPLES = 32


def check_pair_order(window_rule: WindowRule, task: Task, examples: Sequence[Any]) -> None:
    """Refuse both orders for examples that are not pairs, and for tasks where the order matters."""
    has_pairs = any(len(example.texts) >= 2 for example in examples)
    if window_rule.pair_order == "both" and (task.head_kind != "sequence" or not has_pairs):
        raise SettingsError("pair_order = both needs text pairs to classify or to score; remove it from the recipe")


def check_split(
    split: str, examples: Sequence[Any], featurize: Callable[[Any], Features], coverage: TextCoverage
) -> list[FinetuneEvent]:
    """Featurize a whole split, so that an unknown or a missing label is found before training, not after it."""
    unlabelled = [example for example in examples if example.label is None]
    if unlabelled and (split == "dev" or len(unlabelled) < len(examples)):
        raise InputError(f"{unlabelled[0].location}: the label is missing; add it, or name its column with --label")
    num_truncated = 0
    for features in map(featurize, examples):
        num_truncated += features.num_truncated
        coverage.add(features.sequences)
    events = [FinetuneEvent(note=f"{split}: {num_truncated:,} {TRUNCATED_TOKENS}")] if num_truncated else []
    events += coverage_events(split, coverage)
    if unlabelled:
        events.append(FinetuneEvent(note=f"{split} has no labels and is not scored; use `bertworks predict` on it"))
    return events


def train_coverage_events(all_features: Sequence[Features], coverage: TextCoverage) -> list[FinetuneEvent]:
    """Warn if the vocabulary hardly reads train; a few unknown tokens are in the note on its windows."""
    coverage.add(sequence for features in all_features for sequence in features.sequences)
    return [event for event in coverage_events("train", coverage) if event.warning]


def coverage_events(split: str, coverage: TextCoverage) -> list[FinetuneEvent]:
    """Return a warning if the vocabulary hardly reads a split, else a note if some tokens are unknown."""
    if warnings := coverage.warnings():
        return [FinetuneEvent(warning=f"{split}: {warning.message}") for warning in warnings]
    note = coverage.describe_unknown()
    return [FinetuneEvent(note=f"{split}: {note}")] if note else []


def length_warnings(all_features: Sequence[Features], window_rule: WindowRule) -> list[FinetuneEvent]:
    """Warn about training examples that are too long to be used; refuse if all are."""
    count = sum(not features.is_trainable for features in all_features)
    max_length = window_rule.max_length
    if count == len(all_features):
        raise InputError(f"no training example fits into {max_length} tokens; raise --max-length")
    if not count:
        return []
    return [FinetuneEvent(warning=f"{count:,} training examples do not fit into {max_length} tokens and are skipped")]


def leak_warnings(examples: Mapping[str, Sequence[Any]]) -> list[FinetuneEvent]:
    """Return a warning for each of dev and test that shares texts with train."""
    events = []
    for split in ("dev", "test"):
        shared = overlap(_texts(examples["train"]), _texts(examples.get(split, ())))
        if shared.count:
            first = " / ".join(shared.examples[0])[:80]
            events.append(
                FinetuneEvent(
                    warning=f"{shared.count:,} of {shared.total:,} {split} texts are also in train, so the score on "
                    f"{split} is too optimistic; the first: {first}"
                )
            )
    return events


def _texts(examples: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    return (texts for example in examples for texts in examples_in(example))


def check_target_metric(recipe: FinetuneRecipe, predictor: Predictor, dev: Sequence[Any] | None) -> None:
    """Refuse, before training, a stopping criterion that dev cannot meet."""
    if dev is None and (recipe.target_metric or recipe.patience):
        raise SettingsError("target_metric and patience need scores on dev; name a labelled file with --dev")
    target = parse_target_metric(recipe.target_metric)
    if target is None or dev is None:
        return
    sample = dev[:: max(1, len(dev) // _NUM_PROBE_EXAMPLES)]
    metrics = predictor.module.task.score(predictor.predict(sample)).metrics
    metric_names = [name for name in metrics if not name.endswith(("_error", "loss"))]  # lower is better for these two
    if target[0] not in metric_names:
        raise SettingsError(
            f"target_metric is {recipe.target_metric}, but dev has no metric '{target[0]}'; choose one of: "
            f"{', '.join(metric_names)}"
        )
