"""The recipe of a fine-tuning run: settings in, validated settings out; `defaults` sets what they leave open."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.pretrain.recipe import ModelRecipe
from bertworks.embeddings.strategies import get_strategy
from bertworks.encoders.precision import check_precision
from bertworks.errors import SettingsError
from bertworks.sampling.windows import WindowRule
from bertworks.settings import apply_overrides, from_table, override, recipe_table
from bertworks.training.optimizer import AdamSettings, LayerwiseSettings
from bertworks.training.schedule import InverseSqrtSchedule, Schedule, SlantedTriangularSchedule, StepSchedule

SCHEDULES = ("linear", "slanted-triangular", "inverse-sqrt")
FEATURE_PRECISIONS = ("fp32", "fp16")
HEADS = ("linear", "recurrent")
# The paper's grid of hyperparameters.
GRID_BATCH_SIZES, GRID_LEARNING_RATES, GRID_EPOCHS = (16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRecipe:
    """The settings of a fine-tuning run.

    batch_size, learning_rate, epochs
                          0: by model and data (commands/finetune/defaults.py); --recipe paper has the paper's
    warmup_ratio          fraction of the steps over which the learning rate rises
    warmup_steps          the number of these steps instead; 0: by warmup_ratio
    schedule              linear: linear decay to zero; slanted-triangular: ULMFiT's; inverse-sqrt: the Transformer's
    seed                  of the head's initialization, the order of examples and dropout
    max_length, overlap   of windows over long texts; 0 and -1: the defaults of task and model
    truncate              truncate long texts instead of sliding a window, and count the lost tokens
    pair_order            given: segments A, B as they are; both: also B, A, for symmetric pairs (GPT's paper); only for
                          classify and regress; empty: both for MRPC and STS-B
    dropout               overrides the model's dropout; by default 0.1 for a model that was pretrained without
    r_drop                weight of R-Drop (alpha in its paper): each batch is computed with two dropout masks, and
                          different predictions are a loss; only for classify; by default 2 for few examples
    distill_weight        weight of distillation from a bag of words: TF-IDF + logistic regression, fitted to the
                          training texts, predicts the classes of recombined ones, which are learned, too; only for
                          classify and single texts; by default 2 for few examples, a narrow model, and a task where the
                          bag of words makes errors
    class_weights         weights of the classes in the loss: "balanced" (inverse to their frequency) or "spam=3,ham=1"
    mlm_weight            weight of an auxiliary masked-LM loss; 0: none
    lm_weight             weight of an auxiliary causal-LM loss, for causal models (GPT uses 0.5); 0: none
    evals_per_epoch       evaluations on dev per epoch; 0.5: after every second one; 0: about ten in a run
    patience              stop after this many evaluations without improvement; 0: never (the best is kept)
    target_metric         stop when dev reaches it, e.g. accuracy=0.9
    max_restarts          how often a run that collapsed to one class is restarted with other settings
    precision             compute dtype: auto is bf16 where the device multiplies it in hardware; the weights are fp32
    activation_checkpointing
                          recompute activations in the backward pass: less memory, more time
    feature_layers        a feature strategy such as concat-last-four: the encoder is frozen, these layers are computed
                          once and cached, and a recurrent head is trained on them; "": train the whole model
    head                  linear: the paper's; recurrent: a BiLSTM on the last layer, trained with the whole model (an
                          ablation of the paper; with feature_layers the head is always recurrent)
    recurrent_hidden_size
                          of the BiLSTM in each direction; 0: the model's hidden size
    feature_precision     of cached features: fp32 or fp16
    max_train_examples    use this many training examples, evenly spaced; 0: all
    baselines             score simple models of the same training examples on dev and test (classify and regress); it
                          does not change the model
    adapt                 language modeling on the training texts before the labels are learned
    model                 the config of a new model, for training from scratch
    """

    batch_size: int = 0
    learning_rate: float = 0.0
    epochs: int = 0
    warmup_ratio: float = 0.1
    warmup_steps: int = 0
    schedule: str = "linear"
    seed: int = 0
    max_length: int = 0
    overlap: int = -1
    truncate: bool = False
    pair_order: str = ""
    dropout: float | None = None
    r_drop: float | None = None
    distill_weight: float | None = None
    class_weights: str = ""
    mlm_weight: float = 0.0
    lm_weight: float = 0.0
    evals_per_epoch: float = 0.0
    patience: int = 0
    target_metric: str = ""
    max_restarts: int = 2
    precision: str = "auto"
    activation_checkpointing: bool = False
    feature_layers: str = ""
    head: str = "linear"
    recurrent_hidden_size: int = 0
    feature_precision: str = "fp32"
    max_train_examples: int = 0
    baselines: bool = True
    optimizer: AdamSettings = field(default_factory=partial(AdamSettings, name="auto"))
    layerwise: LayerwiseSettings = field(default_factory=LayerwiseSettings)
    adapt: AdaptSettings = field(default_factory=AdaptSettings)
    model: ModelRecipe | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "evals_per_epoch"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be above 0, or 0 for the default")
        if not 0 <= self.learning_rate < math.inf:
            raise SettingsError(f"learning_rate is {self.learning_rate}; give a number above 0, such as 3e-5")
        if self.schedule not in SCHEDULES:
            raise SettingsError(f"there is no schedule '{self.schedule}'; choose one of: {', '.join(SCHEDULES)}")
        check_precision(self.precision)
        if not 0 <= self.warmup_ratio < 1:
            raise SettingsError(f"warmup_ratio is {self.warmup_ratio}; it must be at least 0 and below 1")
        for name in ("warmup_steps", "mlm_weight", "lm_weight", "max_train_examples", "recurrent_hidden_size"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.mlm_weight and self.lm_weight:
            raise SettingsError("mlm_weight and lm_weight are both set; choose one auxiliary loss")
        self._check_head()
        parse_target_metric(self.target_metric)
        for name in ("r_drop", "distill_weight"):
            weight = getattr(self, name)
            if weight is not None and not 0 <= weight < math.inf:
                raise SettingsError(f"{name} is {weight}; it must be at least 0, 0: none")
        if self.r_drop and self.dropout == 0:
            raise SettingsError("r_drop compares two dropout masks, but dropout is 0; set only one")

    def _check_head(self) -> None:
        if self.head not in HEADS:
            raise SettingsError(f"there is no head '{self.head}'; choose one of: {', '.join(HEADS)}")
        if self.feature_precision not in FEATURE_PRECISIONS:
            choices = ", ".join(FEATURE_PRECISIONS)
            raise SettingsError(f"there is no feature_precision '{self.feature_precision}'; choose one of: {choices}")
        if not self.feature_layers:
            return
        get_strategy(self.feature_layers)
        if self.mlm_weight or self.lm_weight:
            raise SettingsError("feature_layers freezes the encoder, so an auxiliary loss has no effect; set only one")

    def window_rule(self, default: WindowRule, model_max_length: int) -> WindowRule:
        """Return the window rule: these settings over the task's default, limited to the model's positions."""
        if self.max_length > model_max_length:
            raise SettingsError(
                f"max_length is {self.max_length}, but the model has {model_max_length} positions; lower it"
            )
        max_length = self.max_length or min(default.max_length, model_max_length)
        overlap = self.overlap if self.overlap >= 0 else min(default.overlap, max_length // 4)
        return WindowRule(max_length, overlap, self.truncate, self.pair_order or "given")

    def make_schedule(self, num_steps: int) -> Schedule:
        """Return the learning-rate schedule of a run with this many steps."""
        if self.schedule == "slanted-triangular":
            return SlantedTriangularSchedule(num_steps, self.warmup_ratio, self.learning_rate)
        warmup_steps = self.warmup_steps or round(self.warmup_ratio * num_steps)
        if self.schedule == "inverse-sqrt":
            return InverseSqrtSchedule(num_steps, warmup_steps, self.learning_rate)
        return StepSchedule((num_steps,), warmup_steps, self.learning_rate)


def read_finetune_recipe(
    path: Path | None, values: Mapping[str, Any], assignments: Iterable[str] = ()
) -> FinetuneRecipe:
    """Return the recipe in a file, or the default one, with the values of dotted keys (None: unchanged) and assignments
    KEY=VALUE applied."""
    table = override(recipe_table(path) if path else {}, values, FinetuneRecipe)
    table = apply_overrides(table, assignments, FinetuneRecipe)
    return from_table(FinetuneRecipe, table, str(path or "options"))


def parse_target_metric(text: str) -> tuple[str, float] | None:
    """Return name and value of "accuracy=0.9"; None for an empty text."""
    if not text:
        return None
    match = re.fullmatch(r"([a-z_0-9]+)=(\d+(?:\.\d+)?)", text)
    if not match:
        raise SettingsError(f"target_metric is '{text}'; write it as accuracy=0.9")
    if float(match[2]) > 1:
        raise SettingsError(f"target_metric {text} is never reached: metrics are at most 1; write it as {match[1]}=0.9")
    return match[1], float(match[2])
