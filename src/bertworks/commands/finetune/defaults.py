"""Defaults that follow from model and data: a recipe with unset values in, a resolved recipe and its reasons out.

The rule was found by measurement; docs/recipes.md has the tables. A run keeps the values that it began with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.models.folder import ModelFolder
from bertworks.tasks.contract import examples_in

# The paper's learning rate and the hidden size of the model that it was found for. Narrower models want a higher one.
_BASE_LEARNING_RATE, _BASE_HIDDEN_SIZE = 3e-5, 768
_MAX_LEARNING_RATE = 1e-3
# Muon takes a learning rate this much above Adam's.
_MUON_RATIO = 4.0
# Of a new recurrent head on a frozen model.
_FEATURES_LEARNING_RATE = 1e-3
# Fewer examples than this get the smaller batch size: more steps for the same computation.
_FEW_EXAMPLES, _SMALL_BATCH_SIZE, _BATCH_SIZE = 2_000, 16, 32
_MIN_STEPS, _MIN_EPOCHS, _MAX_EPOCHS = 600, 3, 30
# Narrower models learn for longer, if a dev set selects the best checkpoint: so many passes at most, and as much
# computation as this many steps of one sequence an example.
_NARROW_PASSES, _NARROW_STEPS = 10, 5_000
# About this many evaluations select the best checkpoint; they may cost this fraction of training at most.
_NUM_EVALS, _MAX_EVAL_COST = 10, 0.25
# Scoring an example costs this fraction of training on it: the forward pass.
_FORWARD_RATIO = 1 / 3
# Fewer sequences than this are worth twice the time: both orders of symmetric pairs, R-Drop with this weight. From as
# many examples on, Muon and distillation are no gain.
_FEW_SEQUENCES, _R_DROP = 20_000, 2.0
# Models narrower than this learn from a bag of words, too, with this weight, unless the task is so easy that it gets
# fewer held-out training examples wrong than this.
_MAX_DISTILL_HIDDEN_SIZE, _DISTILL_WEIGHT, _MIN_TEACHER_ERROR = 384, 2.0, 0.1
# Of a model that was pretrained without dropout.
_DROPOUT = 0.1

# The settings that are resolved here.
_RESOLVED = (
    "learning_rate",
    "batch_size",
    "epochs",
    "dropout",
    "evals_per_epoch",
    "pair_order",
    "r_drop",
    "distill_weight",
)


@dataclass(frozen=True, slots=True)
class Resolution:
    """A recipe without unset values, and why each of them was chosen; `reasons` is empty if all were set."""

    recipe: FinetuneRecipe
    reasons: tuple[str, ...]

    def describe(self) -> str:
        """Return one line for the console; empty if there is nothing to say."""
        return f"defaults for this model and data: {'; '.join(self.reasons)}" if self.reasons else ""


def resolve_defaults(
    recipe: FinetuneRecipe,
    base: ModelFolder,
    examples: Mapping[str, Sequence[Any]],
    previous: Mapping[str, Any] | None = None,
    *,
    is_symmetric: bool = False,
    can_r_drop: bool = False,
    teacher_error: Callable[[], float] | None = None,
    sequences_per_example: float = 1.0,
) -> Resolution:
    """Set what the recipe leaves open, from the model, the number of training examples and of dev examples.

    A run that resumes keeps the values of its resolved recipe, `previous`. With `is_symmetric`, the order of the two
    texts of an example has no meaning; with `can_r_drop`, R-Drop can regularize the task. `teacher_error` returns what
    a bag of words gets wrong on held-out training examples, and is None if it cannot teach the task. Choices and the
    windows of long texts are several `sequences_per_example`.
    """
    recipe = keep_run_values(recipe, previous or {})
    num_examples, num_dev = (
        sum(len(examples_in(example)) for example in examples.get(split, ())) for split in ("train", "dev")
    )
    reasons: list[str] = []
    values: dict[str, Any] = {}
    if recipe.optimizer.name == "auto":
        name = "muon" if num_examples < _FEW_SEQUENCES and _wants_muon(recipe, base) else "adam"
        values["optimizer"] = replace(recipe.optimizer, name=name)
        reasons += ["optimizer muon (the model was pretrained with it)"] if name == "muon" else []
    if not recipe.learning_rate:
        values["learning_rate"], reason = _learning_rate(replace(recipe, **values), base)
        reasons.append(f"learning_rate {values['learning_rate']:g} ({reason})")
    batch_size = recipe.batch_size
    if not batch_size:
        batch_size = values["batch_size"] = _SMALL_BATCH_SIZE if num_examples < _FEW_EXAMPLES else _BATCH_SIZE
        reasons.append(f"batch_size {batch_size} ({num_examples:,} training examples)")
    if recipe.dropout is None and not previous and _lacks_dropout(base):
        values["dropout"] = _DROPOUT
        reasons.append(f"dropout {_DROPOUT:g} (the model was pretrained without)")
    if not recipe.pair_order:
        values["pair_order"] = "both" if is_symmetric and num_examples < _FEW_SEQUENCES else "given"
        reasons += ["pair_order both (symmetric pairs)"] if values["pair_order"] == "both" else []
    if recipe.r_drop is None and not previous:
        num_sequences = num_examples * (2 if values.get("pair_order", recipe.pair_order) == "both" else 1)
        is_used = can_r_drop and num_sequences < _FEW_SEQUENCES and _has_dropout(replace(recipe, **values), base)
        values["r_drop"] = _R_DROP if is_used else 0.0
        reasons += [f"r_drop {_R_DROP:g} ({num_examples:,} training examples)"] if is_used else []
    if recipe.distill_weight is None and not previous:
        is_used = (
            teacher_error is not None
            and num_examples < _FEW_SEQUENCES
            and _is_narrow_transformer(recipe, base)
            and teacher_error() > _MIN_TEACHER_ERROR
        )
        values["distill_weight"] = _DISTILL_WEIGHT if is_used else 0.0
        reasons += (
            [f"distill_weight {_DISTILL_WEIGHT:g} (hidden size below {_MAX_DISTILL_HIDDEN_SIZE})"] if is_used else []
        )
    epochs = recipe.epochs
    if not epochs:
        steps_per_epoch = math.ceil(num_examples / batch_size)
        max_epochs = int(_NARROW_STEPS / (steps_per_epoch * sequences_per_example)) if num_dev else 0
        values["epochs"] = epochs = _epochs(replace(recipe, **values), base, steps_per_epoch, max_epochs)
        reasons.append(f"epochs {epochs} ({epochs * steps_per_epoch:,} steps)")
    evals_per_epoch = recipe.evals_per_epoch or _evals_per_epoch(epochs, num_examples, num_dev)
    resolved = replace(recipe, **values, evals_per_epoch=float(evals_per_epoch))
    return Resolution(resolved, tuple(reasons))


def keep_run_values(recipe: FinetuneRecipe, table: Mapping[str, Any]) -> FinetuneRecipe:
    """Return the recipe with the values that a run, whose resolved recipe is `table`, chose for what it leaves open."""
    unset = FinetuneRecipe()
    kept = {name: table[name] for name in _RESOLVED if name in table and getattr(recipe, name) == getattr(unset, name)}
    if "optimizer" in table and recipe.optimizer.name == "auto":  # a run of before there was a choice has no name
        kept["optimizer"] = replace(recipe.optimizer, name=table["optimizer"].get("name", "adam"))
    return replace(recipe, **kept)


def default_learning_rate(base: ModelFolder, optimizer: str = "adam") -> float:
    """Return the usual fine-tuning learning rate of a model: that of its family, or by its hidden size."""
    if base.family.learning_rate:
        return base.family.learning_rate
    return _by_hidden_size(base.encoder_config.hidden_size, _MUON_RATIO if optimizer == "muon" else 1.0)


def _wants_muon(recipe: FinetuneRecipe, base: ModelFolder) -> bool:
    """Whether a whole Transformer that was pretrained with Muon is trained, at a learning rate of our choice."""
    optimizer = base.metadata.get("recipe", {}).get("optimizer")
    is_pretrained_with_it = isinstance(optimizer, Mapping) and optimizer.get("name") == "muon" and bool(base.tensors)
    is_whole = not recipe.feature_layers and recipe.layerwise.is_equal_for_layers
    return is_pretrained_with_it and is_whole and not recipe.learning_rate


def _lacks_dropout(base: ModelFolder) -> bool:
    """Whether a Transformer was pretrained without dropout, which pays with much text; recurrent families have their
    own kinds of it."""
    return bool(base.tensors) and not base.family.learning_rate and base.encoder_config.hidden_dropout_prob == 0


def _has_dropout(recipe: FinetuneRecipe, base: ModelFolder) -> bool:
    """Whether a whole Transformer is trained with dropout."""
    if recipe.feature_layers or base.family.learning_rate:
        return False
    return (base.encoder_config.hidden_dropout_prob if recipe.dropout is None else recipe.dropout) > 0


def _is_narrow_transformer(recipe: FinetuneRecipe, base: ModelFolder) -> bool:
    """Whether a whole, narrow Transformer is trained: one that knows less of words than a bag of words does."""
    is_transformer = not recipe.feature_layers and not base.family.learning_rate
    return is_transformer and base.encoder_config.hidden_size < _MAX_DISTILL_HIDDEN_SIZE


def _learning_rate(recipe: FinetuneRecipe, base: ModelFolder) -> tuple[float, str]:
    if recipe.feature_layers:
        return _FEATURES_LEARNING_RATE, "a new head on a frozen model"
    if base.family.learning_rate:
        return base.family.learning_rate, f"usual for {base.family.model_type} models"
    return default_learning_rate(base, recipe.optimizer.name), f"hidden size {base.encoder_config.hidden_size}"


def _by_hidden_size(hidden_size: int, ratio: float) -> float:
    """Return 3e-5 for a hidden size of 768, and more for narrower models, times a ratio, to two digits."""
    learning_rate = min(_MAX_LEARNING_RATE, ratio * _BASE_LEARNING_RATE * (_BASE_HIDDEN_SIZE / hidden_size) ** 2)
    return float(f"{learning_rate:.1e}")


def _epochs(recipe: FinetuneRecipe, base: ModelFolder, steps_per_epoch: int, max_narrow: int) -> int:
    """Return three epochs, more of a small set, and up to `max_narrow` for a narrow model: nine passes over the
    examples at 256. R-Drop has two passes an epoch."""
    epochs = max(_MIN_EPOCHS, math.ceil(_MIN_STEPS / steps_per_epoch))
    if not recipe.feature_layers and not base.family.learning_rate:
        num_passes = min(round(_MIN_EPOCHS * _BASE_HIDDEN_SIZE / base.encoder_config.hidden_size), _NARROW_PASSES)
        epochs = max(epochs, min(num_passes // (2 if recipe.r_drop else 1), max_narrow))
    return min(epochs, _MAX_EPOCHS)


def _evals_per_epoch(epochs: int, num_examples: int, num_dev: int) -> float:
    """Return how often dev is scored: about ten times in a run, if that is cheap; below 1: not after each epoch."""
    affordable = _MAX_EVAL_COST * num_examples / (_FORWARD_RATIO * max(num_dev, 1))  # per epoch
    evals_per_epoch = min(max(1.0, _NUM_EVALS / epochs), affordable)
    return float(round(evals_per_epoch)) if evals_per_epoch >= 1 else 1 / math.ceil(1 / evals_per_epoch)
