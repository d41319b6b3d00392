"""Pretraining recipes: the keys that a TOML file may have, with the paper's values as defaults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.precision import check_precision
from bertworks.errors import SettingsError
from bertworks.objectives.registry import check_objective
from bertworks.sampling.masking import MaskSettings
from bertworks.settings import apply_overrides, from_table, override, parse_duration, recipe_table
from bertworks.training.optimizer import AdamSettings, LayerwiseSettings
from bertworks.training.schedule import DECAY_RATIO, DECAYS

POSITION_INITS = ("normal", "sinusoidal", "neighbors")
OUTPUT_BIAS_INITS = ("zero", "unigram")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecipe:
    """A model family and size; the other keys are those of transformers' config.json and override the size's values.

    size              tiny, mini, small, medium, base or large: the values of the keys that are left out
    num_hidden_layers, hidden_size, num_attention_heads, intermediate_size
                      instead of the size's values
    max_position_embeddings
                      the largest max_length of the model
    family            a model_type of transformers, such as bert, roberta, albert or electra; elmo or awd-lstm
    hidden_act        None: the activation function of the family
    hidden_dropout_prob  also of attention weights
    position_init     initialization of the learned position embeddings: "normal"; "sinusoidal": sines and cosines;
                      "neighbors": sinusoidal, and the heads of the first two layers initially attend to neighbors
    output_bias_init  "zero", or "unigram": the output bias of the MLM head starts at the unigram log-probabilities
    spelling          what ELMo encodes words from: characters (its default), strokes, shuffled-strokes or words
    softmax_kind      ELMo's output layer: adaptive (its default), sampled or full softmax
    mem_len           number of tokens of previous sequences that XLNet attends to (with permutation-stream)
    generator_size    size of ELECTRA's generator over that of the discriminator (with rtd)
    local_attention   number of positions that local layers of ModernBERT attend to, half of them to each side
    global_attn_every_n_layers  how often a layer of ModernBERT has global attention, beginning with the first

    position_init and output_bias_init shorten the beginning of a run; the paper's recipes leave them at their defaults.
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
    generator_size: float | None = None
    local_attention: int | None = None
    global_attn_every_n_layers: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("position_init", POSITION_INITS), ("output_bias_init", OUTPUT_BIAS_INITS)):
            if getattr(self, name) not in choices:
                raise SettingsError(f"{name} is '{getattr(self, name)}'; choose one of: {', '.join(choices)}")

    def config(self, vocab_size: int) -> EncoderConfig:
        """Return the config of a model with this vocabulary size."""
        changes = {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.hidden_act,
            "spelling": self.spelling,
            "softmax_kind": self.softmax_kind,
            "mem_len": self.mem_len,
            "generator_size": self.generator_size,
            "local_attention": self.local_attention,
            "global_attn_every_n_layers": self.global_attn_every_n_layers,
        }
        return (
            family_of(self.family)
            .config_from_preset(self.size, vocab_size)
            .resized(
                max_length=self.max_position_embeddings,
                dropout_prob=self.hidden_dropout_prob,
                **{name: value for name, value in changes.items() if value is not None},
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecipe:
    """A part of the run at one sequence length: `steps` steps, or `budget_ratio` of the recipe's time budget.

    max_length      tokens of an example, special tokens included
    steps           of the optimizer, if the recipe has no time budget
    budget_ratio    fraction of the time budget
    mask_prob       of the training examples of this phase; None: that of the recipe, as for the next two
    batch_size      examples per step over all processes
    learning_rate   the peak, which the schedule's factor multiplies in this phase
    """

    max_length: int = field(kw_only=False)
    steps: int = 0
    budget_ratio: float = 0.0
    mask_prob: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        phase = f"phase of max_length {self.max_length}"
        if self.mask_prob is not None and not 0 < self.mask_prob <= 1:
            raise SettingsError(
                f"{phase}: mask_prob is {self.mask_prob}; it must be above 0 and at most 1, such as 0.15"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(f"{phase}: batch_size is {self.batch_size}; it must be at least 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"{phase}: learning_rate is {self.learning_rate}; it must be above 0, such as 1e-4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase with the recipe's values where it has none of its own.

    `name` identifies it in records, reports and the order of examples: its max_length, with a number if an earlier
    phase has the same, such as "128 (2)".
    """

    name: str
    max_length: int
    steps: int
    budget_ratio: float
    masking: MaskSettings
    batch_size: int
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRecipe:
    """A pretraining run.

    objective          what is predicted: mlm-nsp, mlm-sop, mlm, causal, causal-stream, permutation, permutation-stream,
                       bilm or rtd
    batch_size         examples per step over all processes
    micro_batch_size   examples computed at once, whose gradients accumulate; 0: as many as memory allows
    learning_rate      the peak, reached after the warmup
    warmup_steps       steps over which the learning rate rises to the peak
    warmup_ratio       fraction of a time budget over which it rises, instead of warmup_steps
    phases             consecutive parts of the run; each may have its own mask_prob, batch_size and learning_rate
    schedule           how the learning rate decays after the warmup; "wsd" (warmup, stable, decay) stays at the peak,
                       then decays linearly to zero over the last `decay_ratio` of the run
    decay_ratio        of "wsd": fraction of the run over which the learning rate decays
    ema_decay          decay of an exponential moving average of the weights, which evaluations and the written model
                       use; 0: none
    num_fresh_epochs   examples and masks repeat after so many epochs; 0: never (dynamic masking)
    budget             a time limit such as "30m"; empty: the phases count steps
    seed               of initialization, sampling, masking and dropout
    save_steps         steps between checkpoints
    eval_steps         steps between evaluations on the held-out split
    num_eval_examples  held-out examples of an evaluation; the same ones with the same masks every time
    precision          compute dtype: auto is bf16 where the device multiplies it in hardware; the weights are fp32
    compile            compile each layer with torch.compile
    activation_checkpointing
                       recompute activations in the backward pass: less memory, more time
    layerwise          learning rates by layer depth, for a model that continues pretraining
    """

    model: ModelRecipe = field(default_factory=ModelRecipe)
    objective: str = "mlm-nsp"
    masking: MaskSettings = field(default_factory=MaskSettings)
    num_fresh_epochs: int = 0
    optimizer: AdamSettings = field(default_factory=AdamSettings)
    batch_size: int = 256
    micro_batch_size: int = 0
    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    warmup_ratio: float = 0.05
    schedule: str = "linear"
    decay_ratio: float = DECAY_RATIO
    ema_decay: float = 0.0
    phases: tuple[PhaseRecipe, ...] = (
        PhaseRecipe(128, steps=900_000, budget_ratio=0.9),
        PhaseRecipe(512, steps=100_000, budget_ratio=0.1),
    )
    budget: str = ""
    seed: int = 0
    save_steps: int = 1_000
    eval_steps: int = 1_000
    num_eval_examples: int = 512
    compile: bool = False
    activation_checkpointing: bool = False
    precision: str = "auto"
    layerwise: LayerwiseSettings = field(default_factory=LayerwiseSettings)

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_phases()
        parse_duration(self.budget)

    @property
    def num_steps(self) -> int | None:
        """The steps of all phases; None if a time budget decides."""
        return None if self.budget else sum(phase.steps for phase in self.phases)

    def resolve_phases(self) -> tuple[Phase, ...]:
        """Return the phases with their names and all values filled in."""
        lengths = [phase.max_length for phase in self.phases]
        phases = []
        for index, phase in enumerate(self.phases):
            number = lengths[: index + 1].count(phase.max_length)
            mask_prob = self.masking.mask_prob if phase.mask_prob is None else phase.mask_prob
            phases.append(
                Phase(
                    name=f"{phase.max_length}" if number == 1 else f"{phase.max_length} ({number})",
                    max_length=phase.max_length,
                    steps=phase.steps,
                    budget_ratio=phase.budget_ratio,
                    masking=replace(self.masking, mask_prob=mask_prob),
                    batch_size=self.batch_size if phase.batch_size is None else phase.batch_size,
                    learning_rate=self.learning_rate if phase.learning_rate is None else phase.learning_rate,
                )
            )
        return tuple(phases)

    def phase_indices(self) -> dict[str, int]:
        """Return the index of each phase by its name in the records."""
        return {phase.name: index for index, phase in enumerate(self.resolve_phases())}

    def _check_choices(self) -> None:
        self.model.config(vocab_size=1)  # raises for an unknown family, size or activation
        check_objective(self.model.family, self.objective)
        if self.layerwise.unfreeze_ratio:
            raise SettingsError(
                "layerwise.unfreeze_ratio is for fine-tuning; set the number of steps: layerwise.unfreeze_steps"
            )
        if self.schedule not in DECAYS:
            raise SettingsError(f"there is no schedule '{self.schedule}'; choose one of: {', '.join(DECAYS)}")
        check_precision(self.precision)

    def _check_numbers(self) -> None:
        for name in ("batch_size", "save_steps", "eval_steps", "num_eval_examples"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("micro_batch_size", "warmup_steps", "num_fresh_epochs"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"learning_rate is {self.learning_rate}; it must be above 0, such as 1e-4")
        if not 0 < self.decay_ratio <= 1:
            raise SettingsError(f"decay_ratio is {self.decay_ratio}; it must be above 0 and at most 1, such as 0.2")
        for name, value in (
            ("warmup_ratio", self.warmup_ratio),
            ("ema_decay", self.ema_decay),
            ("model.hidden_dropout_prob", self.model.hidden_dropout_prob),
        ):
            if not 0 <= value < 1:
                raise SettingsError(f"{name} is {value}; it must be at least 0 and below 1")

    def _check_phases(self) -> None:
        if not self.phases:
            raise SettingsError("a recipe needs at least one phase; add [[phases]] with max_length and steps")
        for number, phase in enumerate(self.phases, 1):
            if phase.max_length > self.model.max_position_embeddings:
                raise SettingsError(
                    f"phase {number} has max_length {phase.max_length}, but the model has only "
                    f"{self.model.max_position_embeddings} positions; raise model.max_position_embeddings or lower "
                    f"max_length"
                )
            if not self.budget and phase.steps < 1:
                raise SettingsError(f"phase {number} needs steps (or the recipe a budget, such as budget = '30m')")
            if self.budget and phase.budget_ratio <= 0:
                raise SettingsError(f"phase {number} needs its part of the budget, such as budget_ratio = 0.9")
        num_steps = sum(phase.steps for phase in self.phases)
        if not self.budget and self.warmup_steps >= num_steps:
            raise SettingsError(
                f"warmup_steps is {self.warmup_steps:,}, but the run has {num_steps:,} steps; lower it or add steps"
            )


def read_pretrain_recipe(path: Path, values: Mapping[str, Any], assignments: Iterable[str] = ()) -> PretrainRecipe:
    """Return a recipe with the values of dotted keys (None: unchanged) and KEY=VALUE assignments applied."""
    table = override(recipe_table(path), values, PretrainRecipe)
    return from_table(PretrainRecipe, apply_overrides(table, assignments, PretrainRecipe), str(path))
