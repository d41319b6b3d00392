"""The recipe of a fine-tuning run: what a person may say, and what it says when they are silent (the paper's)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from bertworks.commands.pretrain.recipe import ModelRecipe
from bertworks.embeddings.strategies import get_strategy
from bertworks.errors import SettingsError
from bertworks.models.folder import read_folder
from bertworks.models.hub import fetch
from bertworks.sampling.windows import WindowRule
from bertworks.training.devices import PRECISIONS
from bertworks.training.optimizer import AdamSettings, LayerwiseSettings
from bertworks.training.schedule import InverseSqrtSchedule, Schedule, SlantedTriangularSchedule, StepSchedule

SCHEDULES = ("linear", "triangular", "inverse-root")
FEATURE_PRECISIONS = ("full", "half")
HEADS = ("plain", "recurrent")
# The rate when nobody gives one: of a whole model as in the paper, and of a new head on a frozen one.
DEFAULT_LEARNING_RATE, DEFAULT_FEATURES_LEARNING_RATE = 3e-5, 1e-3
_UNSET = math.nan
# The paper's grid.
GRID_BATCH_SIZES, GRID_LEARNING_RATES, GRID_EPOCHS = (16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4)


@dataclass(frozen=True, slots=True)
class FinetuneRecipe:
    """A fine-tuning run.

    batch, rate, epochs   the paper's grid is around these; the rate is 3e-5 if none is given, with features 1e-3
    warmup_rate           share of the steps over which the rate rises
    warmup                over how many steps instead; 0: as warmup_rate says
    schedule              linear: up and down to zero; triangular: ULMFiT's slanted triangle; inverse-root: the
                          Transformer's, down with the root of the step
    model                 what a new model is made of, where none is given to begin with
    length, overlap       windows over long texts; 0: what the task and the model say
    truncate              cut long texts instead, and count
    orders                given: a pair is read as it stands; both: in both orders, for likeness, which has none (GPT's
                          paper); of classify and regress
    dropout               instead of the model's own
    masked_weight         weight of an auxiliary masked-word loss; 0: none
    next_weight           weight of an auxiliary next-piece loss, of a model that reads to the left (GPT's is 0.5)
    evaluations           how often dev is measured in an epoch
    patience              stop after so many measurements without a better one; 0: never
    until                 stop when dev reaches it, such as accuracy=0.9
    restarts              how often a run that collapsed to one class is begun again
    features              a choice of layers, such as concat-last-four: the model is frozen, these layers of it are
                          computed once and kept, and a recurrent head learns from them; "": the whole model learns
    head                  plain: the paper's; recurrent: a BiLSTM on the last layer, which learns with the whole model
                          (one of the paper's ablations; with features the head is a recurrent one anyhow)
    recurrent_width       of an LSTM of that head in each direction; 0: the model's own width
    feature_precision     in which features are kept on disk: full (32 bits) or half (16)
    examples              learn from so many of the training examples, evenly spread over them; 0: from all
    """

    batch_size: int = 32
    learning_rate: float = _UNSET
    epochs: int = 3
    warmup_ratio: float = 0.1
    warmup_steps: int = 0
    schedule: str = "linear"
    seed: int = 0
    max_length: int = 0
    overlap: int = -1
    truncate: bool = False
    pair_order: str = "given"
    dropout: float | None = None
    mlm_weight: float = 0.0
    lm_weight: float = 0.0
    evals_per_epoch: int = 1
    patience: int = 0
    target_metric: str = ""
    max_restarts: int = 2
    precision: str = "fp32"
    activation_checkpointing: bool = False
    feature_layers: str = ""
    head: str = "plain"
    recurrent_hidden_size: int = 0
    feature_precision: str = "full"
    max_train_examples: int = 0
    optimizer: AdamSettings = field(default_factory=AdamSettings)
    layerwise: LayerwiseSettings = field(default_factory=LayerwiseSettings)
    model: ModelRecipe | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.learning_rate):
            object.__setattr__(
                self, "rate", DEFAULT_FEATURES_LEARNING_RATE if self.feature_layers else DEFAULT_LEARNING_RATE
            )
        for name in ("batch", "epochs", "evaluations"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"rate is {self.learning_rate}; give a number above 0, such as 3e-5")
        if self.schedule not in SCHEDULES:
            raise SettingsError(f"there is no schedule '{self.schedule}'; choose one of: {', '.join(SCHEDULES)}")
        if self.precision not in PRECISIONS:
            raise SettingsError(f"there is no precision '{self.precision}'; choose one of: {', '.join(PRECISIONS)}")
        if not 0 <= self.warmup_ratio < 1 or min(self.warmup_steps, self.mlm_weight, self.lm_weight) < 0:
            raise SettingsError("warmup_rate lies from 0 to below 1; warmup, masked_weight and next_weight not below 0")
        if self.mlm_weight and self.lm_weight:
            raise SettingsError("masked_weight and next_weight ask for two auxiliary losses; leave one of them out")
        self._check_features()
        parse_target_metric(self.target_metric)

    def _check_features(self) -> None:
        if self.head not in HEADS:
            raise SettingsError(f"there is no head '{self.head}'; choose one of: {', '.join(HEADS)}")
        if self.max_train_examples < 0:
            raise SettingsError(f"examples is {self.max_train_examples}; give 0 (all) or more")
        if self.recurrent_hidden_size < 0:
            raise SettingsError(
                f"recurrent_width is {self.recurrent_hidden_size}; give 0 (the model's own width) or more"
            )
        if self.feature_precision not in FEATURE_PRECISIONS:
            known = ", ".join(FEATURE_PRECISIONS)
            raise SettingsError(f"features cannot be kept in '{self.feature_precision}'; choose one of: {known}")
        if not self.feature_layers:
            return
        get_strategy(self.feature_layers)
        if self.mlm_weight or self.lm_weight:
            raise SettingsError("with features the model is frozen and learns no masked words; leave one of them out")

    def window_rule(self, default: WindowRule, max_position_embeddings: int) -> WindowRule:
        """Return the window rule: what was said, else what is usual for the task; never longer than the model reads."""
        if self.max_length > max_position_embeddings:
            raise SettingsError(
                f"length is {self.max_length}, but the model has {max_position_embeddings} positions; give at most these"
            )
        length = self.max_length or min(default.max_length, max_position_embeddings)
        overlap = self.overlap if self.overlap >= 0 else min(default.overlap, length // 4)
        return WindowRule(length, overlap, self.truncate, self.pair_order)

    def make_schedule(self, num_steps: int) -> Schedule:
        """Return how the rate rises and falls over so many steps."""
        if self.schedule == "triangular":
            return SlantedTriangularSchedule(num_steps, self.warmup_ratio, self.learning_rate)
        warmup = self.warmup_steps or round(self.warmup_ratio * num_steps)
        if self.schedule == "inverse-root":
            return InverseSqrtSchedule(num_steps, warmup, self.learning_rate)
        return StepSchedule((num_steps,), warmup, self.learning_rate)


def default_learning_rate(model: str) -> float:
    """Return the rate at which models of the family of this one, a folder or one on the hub, are usually fine-tuned."""
    return read_folder(fetch(model)).family.learning_rate


def parse_target_metric(text: str) -> tuple[str, float] | None:
    """Return the figure and value of "accuracy=0.9"; None for nothing."""
    if not text:
        return None
    found = re.fullmatch(r"([a-z_0-9]+)=(\d+(?:\.\d+)?)", text)
    if not found:
        raise SettingsError(f"'{text}' is no goal; write it as accuracy=0.9")
    if float(found[2]) > 1:
        raise SettingsError(f"'{text}' is never reached: no figure is above 1; write it as {found[1]}=0.9")
    return found[1], float(found[2])
