"""The recipe of a pretraining run: what a TOML file may say, and what it says when it is silent (the paper's)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertConfig
from bertworks.errors import SettingsError
from bertworks.objectives.registry import check_objective
from bertworks.sampling.masking import MaskSettings
from bertworks.sampling.samplers import OBJECTIVE_INPUTS
from bertworks.settings import parse_duration
from bertworks.training.devices import PRECISIONS
from bertworks.training.optimizer import AdamSettings, LayerwiseSettings
from bertworks.training.schedule import DECAYS

POSITION_INITS = ("normal", "waves", "neighbours")
OUTPUT_BIAS_INITS = ("zero", "counts")


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A family and a released size by name, or numbers of one's own; what is given beside a size changes it.

    family           bert, roberta, albert, openai-gpt, xlnet, elmo or awd-lstm; activation is a family's own unless it
                     is given
    Two ways to begin that spare a short run the first stretch of its way; both are off in the paper's recipes.
    position_start   "normal"; "waves": the learned positions begin as sines and cosines, so that a neighbour is found
                     the same way everywhere; "neighbours": besides, the first heads begin by looking at neighbours
    spelling         what an ELMo reads words by: characters (its usual), strokes, shuffled-strokes or words
    scoring          what an ELMo tells words by: adaptive (its usual), sampled or full softmax
    memory           how many pieces an XLNet remembers of the rows before, where rows go on (permuted-stream)
    bias_start       "zero", or "counts": the masked head begins with how frequent pieces are
    """

    size: str = "base"
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int = 512
    hidden_act: str | None = None
    hidden_dropout_prob: float = 0.1
    position_init: str = "normal"
    output_bias_init: str = "zero"
    family: str = "bert"
    spelling: str | None = None
    softmax_kind: str | None = None
    mem_len: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("position_start", POSITION_INITS), ("bias_start", OUTPUT_BIAS_INITS)):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name} is '{getattr(self, name)}'; choose one of: {', '.join(known)}")

    def config(self, vocab_size: int) -> BertConfig:
        released = family_of(self.family).config_from_preset(self.size, vocab_size)
        width = self.hidden_size or released.hidden_size
        released = _apply_family_settings(
            released, {"spelling": self.spelling, "scoring": self.softmax_kind, "memory": self.mem_len}
        )
        return replace(
            released,
            hidden_size=width,
            num_hidden_layers=self.num_hidden_layers or released.num_hidden_layers,
            num_attention_heads=self.num_attention_heads or released.num_attention_heads,
            intermediate_size=self.intermediate_size or (4 * width if self.hidden_size else released.intermediate_size),
            max_position_embeddings=self.max_position_embeddings,
            hidden_act=self.hidden_act or released.hidden_act,
            hidden_dropout_prob=self.hidden_dropout_prob,
            attention_probs_dropout_prob=self.hidden_dropout_prob,
        )


_SETTING_FAMILIES = {"spelling": "ELMo", "scoring": "ELMo", "memory": "XLNet"}


def _apply_family_settings(config: BertConfig, settings: dict[str, Any]) -> BertConfig:
    """Return the sizes with what is told of an ELMo or an XLNet alone."""
    settings = {name: value for name, value in settings.items() if value is not None}
    for name in settings.keys() - {part.name for part in fields(config)}:
        raise SettingsError(
            f"{name} is for {_SETTING_FAMILIES[name]}; leave it out for the family '{config.model_type}'"
        )
    return replace(config, **settings)


@dataclass(frozen=True, slots=True)
class PhaseRecipe:
    """A stretch of the run at one length. `share` of a time budget, or `steps` where steps are counted."""

    max_length: int
    steps: int = 0
    budget_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class PretrainRecipe:
    """A pretraining run. `batch` counts examples of a step over all processes; micro_batch 0 means: as fits.

    The rate rises over `warmup` steps, or the share `warmup_rate` of a budget, and falls to zero as `schedule` says.
    `compile` has torch compile each layer, `recompute` has layers keep less and compute it again, `precision` is that
    of products; `depths` says how the rate depends on the depth of a layer, for a model that goes on learning.
    """

    model: ModelRecipe = field(default_factory=ModelRecipe)
    objective: str = "masked-next"
    masking: MaskSettings = field(default_factory=MaskSettings)
    num_fresh_epochs: int = 0
    optimizer: AdamSettings = field(default_factory=AdamSettings)
    batch_size: int = 256
    micro_batch_size: int = 0
    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    warmup_ratio: float = 0.05
    schedule: str = "linear"
    phases: tuple[PhaseRecipe, ...] = (PhaseRecipe(128, 900_000, 0.9), PhaseRecipe(512, 100_000, 0.1))
    budget: str = ""
    seed: int = 0
    save_steps: int = 1_000
    eval_steps: int = 1_000
    num_eval_examples: int = 512
    compile: bool = False
    activation_checkpointing: bool = False
    precision: str = "fp32"
    layerwise: LayerwiseSettings = field(default_factory=LayerwiseSettings)

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_phases()
        parse_duration(self.budget)

    def _check_choices(self) -> None:
        self.model.config(vocab_size=1)  # refuses what there is not
        if self.objective not in OBJECTIVE_INPUTS:
            raise SettingsError(
                f"there is no objective '{self.objective}'; choose one of: {', '.join(OBJECTIVE_INPUTS)}"
            )
        check_objective(self.model.family, self.objective)
        if self.layerwise.unfreeze_ratio:
            raise SettingsError("depths.unfreeze_rate is for fine-tuning; say how many steps: depths.unfreeze_every")
        if self.schedule not in DECAYS:
            raise SettingsError(f"there is no schedule '{self.schedule}'; choose one of: {', '.join(DECAYS)}")
        if self.precision not in PRECISIONS:
            raise SettingsError(f"there is no precision '{self.precision}'; choose one of: {', '.join(PRECISIONS)}")

    def _check_numbers(self) -> None:
        for name in ("batch", "save_every", "evaluate_every", "evaluate_examples"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in ("micro_batch", "warmup", "num_fresh_epochs"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give 0 or more")
        if not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"rate is {self.learning_rate}; give a number above 0, such as 1e-4")
        for name, share in (("warmup_rate", self.warmup_ratio), ("model.dropout", self.model.hidden_dropout_prob)):
            if not 0 <= share < 1:
                raise SettingsError(f"{name} is {share}; give a number from 0 to below 1")

    def _check_phases(self) -> None:
        if not self.phases:
            raise SettingsError("a recipe needs at least one phase; add [[phases]] with length and steps")
        lengths = [phase.max_length for phase in self.phases]
        if len(set(lengths)) < len(lengths):
            raise SettingsError("two phases have the same length; join them, since a phase is known by its length")
        for number, phase in enumerate(self.phases, 1):
            if phase.max_length > self.model.max_position_embeddings:
                raise SettingsError(
                    f"phase {number} has length {phase.max_length}, but the model has {self.model.max_position_embeddings} positions; "
                    f"raise model.positions or shorten the phase"
                )
            if not self.budget and phase.steps < 1:
                raise SettingsError(f"phase {number} needs steps (or the recipe a budget, such as budget = '30m')")
            if self.budget and phase.budget_ratio <= 0:
                raise SettingsError(f"phase {number} needs a share of the budget, such as share = 0.9")
        num_steps = sum(phase.steps for phase in self.phases)
        if not self.budget and self.warmup_steps >= num_steps:
            raise SettingsError(
                f"warmup takes {self.warmup_steps:,} steps, but the run has only {num_steps:,}; shorten it or add steps"
            )
