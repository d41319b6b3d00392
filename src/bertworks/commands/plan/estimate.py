"""Estimate the cost of a recipe: a recipe in; its steps, tokens, FLOPs, memory, and days here and elsewhere out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bertworks.commands.plan.benchmark import Benchmark, StepTiming, Trial, num_trial_sequences, trial_of
from bertworks.commands.plan.forecast import LossBand, effective_tokens, forecast_loss, step_flops
from bertworks.commands.plan.hardware import Hardware, parse_hardware
from bertworks.commands.plan.run import summarize_corpus
from bertworks.commands.pretrain.recipe import ModelRecipe, Phase, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.config import EncoderConfig
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.settings import parse_duration
from bertworks.training.memory import ema_bytes, largest_micro_batch_size, num_parameters, step_bytes

PAPER_VOCAB_SIZE = 30_522  # assumed without a corpus
DEFAULT_HARDWARE = ("16xTPUv2", "64xTPUv2", "1xA100", "8xA100")

# The paper's training times by size: chips, days.
_PAPER_TRAINING = {"base": (16, 4.0), "large": (64, 4.0)}

_TRIAL_SECONDS = 20.0  # per phase: two steps of one sequence of Large at 512 on two cores
_USABLE_MEMORY_RATIO = 0.8  # of the free memory, as in a run
_SECONDS_PER_DAY = 86_400.0

FORMULAS = {
    "flops_of_a_step": "3 * (layers * (2 * P * (4 * D^2 + 2 * D * F) + 4 * P * T * D) + 2 * M * (D^2 + D * V) "
    "+ 2 * B * D^2); B = batch size, T = max_length, P = B * T, D = hidden size, F = intermediate size, "
    "V = vocabulary size, M = masked tokens",
    "seconds_of_a_step": "forward and backward seconds of the trial * batch size / sequences of the trial + optimizer",
    "days": "sum over phases of steps * seconds_of_a_step / 86400",
    "days_on_hardware": "flops / (devices * peak * utilisation) / 86400",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """A recipe to estimate, optionally with its corpus, and hardware besides this machine.

    `memory` is the number of bytes that a run may use here; None: what is free now.
    """

    recipe: PretrainRecipe
    corpus: Path | None = None
    vocabulary: str | None = None
    hardware: tuple[Hardware, ...] = ()
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """A phase of the run on this machine. `num_sequences`: the batch size at which a step was timed."""

    name: str
    max_length: int
    batch_size: int
    steps: int
    num_tokens: float
    flops: float
    num_sequences: int
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareCost:
    """The run on specified hardware. micro_batch_size is per device; 0: none fits, None: its memory is unknown."""

    name: str
    days: float
    micro_batch_size: int | None
    peak_flops: float
    utilisation: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of a recipe. `epochs` and `loss` need a corpus; `paper_reference`: the paper's cost of the same run."""

    recipe: PretrainRecipe
    num_parameters: int
    vocab_size: int
    phases: tuple[PhaseCost, ...]
    steps: int
    num_tokens: float
    flops: float
    days: float
    micro_batch_size: int
    memory: int
    matmul_throughput: float
    hardware: tuple[HardwareCost, ...]
    epochs: float | None = None
    loss: LossBand | None = None
    paper_reference: str = ""


def estimate(
    request: EstimateRequest, benchmark: Benchmark, log: Callable[[str], None] = lambda text: None
) -> Estimate:
    """Time a trial of each phase of a recipe, and scale it to the whole run."""
    recipe = request.recipe
    corpus = None if request.corpus is None else Corpus.open(request.corpus, request.vocabulary)
    vocab_size = PAPER_VOCAB_SIZE if corpus is None else corpus.tokenizer.vocab_size
    config = recipe.model.config(vocab_size)
    micro_batch_size = _fit_micro_batch_size(request, config)
    log("timing one large matmul")
    throughput = benchmark.matmul_throughput()
    phases = []
    for phase in recipe.resolve_phases():
        log(f"timing steps at max_length {phase.name}")
        max_sequences = min(micro_batch_size, phase.batch_size)
        num_sequences = num_trial_sequences(config, max_sequences, phase.max_length, throughput, _TRIAL_SECONDS)
        trial = _trial_of_phase(recipe, phase, num_sequences, vocab_size)
        phases.append(_phase_cost(recipe, config, phase, benchmark.time_steps(trial, corpus)))
    num_tokens = sum(phase.num_tokens for phase in phases)
    flops = sum(phase.flops for phase in phases)
    epochs, loss = _forecast_on_corpus(config, num_tokens, corpus, recipe.model.position_init)
    hardware = request.hardware or _default_hardware(recipe)
    return Estimate(
        recipe=recipe,
        num_parameters=num_parameters(config),
        vocab_size=vocab_size,
        phases=tuple(phases),
        steps=sum(phase.steps for phase in phases),
        num_tokens=num_tokens,
        flops=flops,
        days=sum(phase.steps * phase.step_seconds for phase in phases) / _SECONDS_PER_DAY,
        micro_batch_size=micro_batch_size,
        memory=step_bytes(config, micro_batch_size, _max_length(recipe), recipe.activation_checkpointing)
        + ema_bytes(config, recipe.ema_decay),
        matmul_throughput=throughput,
        hardware=tuple(_hardware_cost(recipe, config, flops, devices) for devices in hardware),
        epochs=epochs,
        loss=loss,
        paper_reference=_paper_reference(recipe),
    )


def _trial_of_phase(recipe: PretrainRecipe, phase: Phase, num_sequences: int, vocab_size: int) -> Trial:
    return trial_of(replace(recipe, masking=phase.masking), phase.max_length, num_sequences, vocab_size, _TRIAL_SECONDS)


def _fit_micro_batch_size(request: EstimateRequest, config: EncoderConfig) -> int:
    available = available_bytes() if request.memory is None else request.memory
    recipe, max_length = request.recipe, _max_length(request.recipe)
    largest = max(phase.batch_size for phase in recipe.resolve_phases())
    target_size = min(recipe.micro_batch_size or largest, largest)
    average_bytes = ema_bytes(config, recipe.ema_decay)
    usable = int(_USABLE_MEMORY_RATIO * available) - average_bytes
    size = largest_micro_batch_size(config, target_size, max_length, usable, recipe.activation_checkpointing)
    if size is None:
        required = step_bytes(config, 1, max_length, recipe.activation_checkpointing) + average_bytes
        raise SettingsError(
            f"one example of length {max_length} needs about {required / 2**30:.1f} GiB, and {available / 2**30:.1f} "
            f"GiB are free, so this recipe cannot be timed here; free some memory or choose a smaller model"
        )
    return size


def _phase_cost(recipe: PretrainRecipe, config: EncoderConfig, phase: Phase, timing: StepTiming) -> PhaseCost:
    """Scale a trial to its phase. With a time budget, the speed determines the number of steps."""
    step_seconds = timing.step_seconds(phase.batch_size)
    budget = parse_duration(recipe.budget)
    steps = phase.steps
    if budget is not None:
        total_ratio = sum(recipe_phase.budget_ratio for recipe_phase in recipe.phases)
        steps = int(budget * phase.budget_ratio / total_ratio / step_seconds)
    return PhaseCost(
        name=phase.name,
        max_length=phase.max_length,
        batch_size=phase.batch_size,
        steps=steps,
        num_tokens=steps * phase.batch_size * timing.tokens_per_sequence,
        flops=steps * step_flops(config, phase.batch_size, phase.max_length, phase.masking.mask_prob),
        num_sequences=timing.num_sequences,
        step_seconds=step_seconds,
    )


def _default_hardware(recipe: PretrainRecipe) -> list[Hardware]:
    smallest = min(phase.batch_size for phase in recipe.resolve_phases())
    return [devices for devices in map(parse_hardware, DEFAULT_HARDWARE) if devices.num_devices <= smallest]


def _hardware_cost(recipe: PretrainRecipe, config: EncoderConfig, flops: float, hardware: Hardware) -> HardwareCost:
    batch_sizes = [phase.batch_size for phase in recipe.resolve_phases()]
    if hardware.num_devices > min(batch_sizes):
        raise SettingsError(
            f"a batch of {min(batch_sizes)} examples cannot be split over {hardware.label}; name at most "
            f"{min(batch_sizes)} devices"
        )
    micro_batch_size = None
    if hardware.memory is not None:
        local_size, usable = max(batch_sizes) // hardware.num_devices, int(_USABLE_MEMORY_RATIO * hardware.memory)
        usable -= ema_bytes(config, recipe.ema_decay)
        micro_batch_size = (
            largest_micro_batch_size(config, local_size, _max_length(recipe), usable, recipe.activation_checkpointing)
            or 0
        )
    return HardwareCost(
        name=hardware.label,
        days=hardware.seconds(flops) / _SECONDS_PER_DAY,
        micro_batch_size=micro_batch_size,
        peak_flops=hardware.peak_flops,
        utilisation=hardware.utilisation,
        source=hardware.source,
    )


def _forecast_on_corpus(
    config: EncoderConfig, num_tokens: float, corpus: Corpus | None, position_init: str
) -> tuple[float | None, LossBand | None]:
    if corpus is None:
        return None, None
    summary = summarize_corpus(corpus)
    effective = effective_tokens(num_tokens, summary.num_tokens)
    return num_tokens / summary.num_tokens, forecast_loss(config, effective, summary.unigram_entropy, position_init)


def _paper_reference(recipe: PretrainRecipe) -> str:
    """Return the paper's training time if this is the paper's run: a million steps of 256, a tenth of them at 512."""
    paper = PretrainRecipe()
    is_paper = (recipe.batch_size, recipe.phases, recipe.budget) == (paper.batch_size, paper.phases, paper.budget)
    if not is_paper or recipe.model.size not in _PAPER_TRAINING or recipe.model != ModelRecipe(size=recipe.model.size):
        return ""
    chips, days = _PAPER_TRAINING[recipe.model.size]
    return f"the paper: {days:g} days on {chips} TPU chips"


def _max_length(recipe: PretrainRecipe) -> int:
    return max(phase.max_length for phase in recipe.phases)
