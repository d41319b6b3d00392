"""What does a recipe take? A recipe in; its steps, pieces, operations, memory, and days here and elsewhere out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertworks.commands.plan.benchmark import Benchmark, StepTiming, num_trial_sequences, trial_of
from bertworks.commands.plan.forecast import LossBand, effective_tokens, forecast_loss, step_flops
from bertworks.commands.plan.hardware import Hardware, parse_hardware
from bertworks.commands.plan.run import summarize_corpus
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.stack import BertConfig
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.settings import parse_duration
from bertworks.training.memory import largest_micro_batch_size, num_parameters, step_bytes

PAPER_VOCAB_SIZE = 30_522  # what is assumed where no corpus says otherwise
DEFAULT_HARDWARE = ("16xTPUv2", "64xTPUv2", "1xA100", "8xA100")  # what is told where nobody asks for other hardware

# The days that the paper tells, by size, with the chips.
_PAPER_TRAINING = {"base": (16, 4.0), "large": (64, 4.0)}

_TRIAL_SECONDS = 20.0  # for each phase: two steps of one row of Large at 512 on two cores
_USABLE_MEMORY_RATIO = 0.8  # of the free memory, as in a run
_SECONDS_PER_DAY = 86_400.0

FORMULAS = {
    "flops_of_a_step": "3 * (layers * (2 * P * (4 * D^2 + 2 * D * F) + 4 * P * T * D) + 2 * H * (D^2 + D * V) "
    "+ 2 * B * D^2); B = batch, T = length, P = B * T, D = width, F = inner width, V = vocabulary, H = hidden places",
    "seconds_of_a_step": "passes of the rows tried * batch / rows + optimizer",
    "days": "sum over phases of steps * seconds_of_a_step / 86400",
    "days_on_hardware": "flops / (devices * peak * utilisation) / 86400",
}


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """What to estimate: a recipe, perhaps a corpus for it, and hardware besides this machine.

    `memory` is how many bytes a run may take here; None: what is free now.
    """

    recipe: PretrainRecipe
    corpus: Path | None = None
    vocabulary: str | None = None
    hardware: tuple[Hardware, ...] = ()
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """A phase of the run here. `rows` were tried at a time to find the seconds of a step."""

    max_length: int
    steps: int
    num_tokens: float
    flops: float
    num_sequences: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class HardwareCost:
    """The run on stated hardware. micro_batch: of one device; 0 if none fits, None if its memory is not known."""

    name: str
    days: float
    micro_batch_size: int | None
    peak_flops: float
    utilisation: float
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a recipe takes. `epochs` and `loss` need a corpus; `published` is what the paper tells of this very run."""

    recipe: PretrainRecipe
    parameters: int
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
    """Measure a few rows of each phase of a recipe, and scale that to the whole of it."""
    recipe = request.recipe
    corpus = None if request.corpus is None else Corpus.open(request.corpus, request.vocabulary)
    vocabulary = PAPER_VOCAB_SIZE if corpus is None else corpus.tokenizer.vocab_size
    sizes = recipe.model.config(vocabulary)
    micro_batch = _fit_micro_batch_size(request, sizes)
    log("measuring the rate of one large product")
    rate = benchmark.matmul_throughput()
    phases = []
    for phase in recipe.phases:
        log(f"measuring a few rows of length {phase.max_length}")
        rows = num_trial_sequences(sizes, micro_batch, phase.max_length, rate, _TRIAL_SECONDS)
        trial = trial_of(recipe, phase.max_length, rows, vocabulary, _TRIAL_SECONDS)
        phases.append(_phase_cost(recipe, sizes, phase, benchmark.time_steps(trial, corpus)))
    pieces = sum(one.num_tokens for one in phases)
    flops = sum(one.flops for one in phases)
    epochs, loss = _forecast_on_corpus(sizes, pieces, corpus, recipe.model.position_init)
    return Estimate(
        recipe,
        num_parameters(sizes),
        vocabulary,
        tuple(phases),
        sum(one.steps for one in phases),
        pieces,
        flops,
        sum(one.steps * one.step_seconds for one in phases) / _SECONDS_PER_DAY,
        micro_batch,
        step_bytes(sizes, micro_batch, _max_length(recipe), recipe.activation_checkpointing),
        rate,
        tuple(_hardware_cost(recipe, sizes, flops, one) for one in request.hardware or _default_hardware(recipe)),
        epochs,
        loss,
        _paper_reference(recipe),
    )


def _fit_micro_batch_size(request: EstimateRequest, config: BertConfig) -> int:
    available = available_bytes() if request.memory is None else request.memory
    recipe, longest = request.recipe, _max_length(request.recipe)
    wanted = min(recipe.micro_batch_size or recipe.batch_size, recipe.batch_size)
    found = largest_micro_batch_size(
        config, wanted, longest, int(_USABLE_MEMORY_RATIO * available), recipe.activation_checkpointing
    )
    if found is None:
        needed = step_bytes(config, 1, longest, recipe.activation_checkpointing)
        raise SettingsError(
            f"one example of length {longest} needs about {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB "
            f"are free, so that this recipe cannot be tried here; free some memory or choose a smaller model"
        )
    return found


def _phase_cost(recipe: PretrainRecipe, config: BertConfig, phase: PhaseRecipe, timing: StepTiming) -> PhaseCost:
    """Scale a trial to its phase. Under a time budget the steps follow from the speed."""
    step_seconds = timing.step_seconds(recipe.batch_size)
    budget = parse_duration(recipe.budget)
    steps = phase.steps
    if budget is not None:
        steps = int(budget * phase.budget_ratio / sum(one.budget_ratio for one in recipe.phases) / step_seconds)
    flops = steps * step_flops(config, recipe.batch_size, phase.max_length, recipe.masking.mask_prob)
    pieces = steps * recipe.batch_size * timing.tokens_per_sequence
    return PhaseCost(phase.max_length, steps, pieces, flops, timing.num_sequences, step_seconds)


def _default_hardware(recipe: PretrainRecipe) -> list[Hardware]:
    return [one for one in map(parse_hardware, DEFAULT_HARDWARE) if one.num_devices <= recipe.batch_size]


def _hardware_cost(recipe: PretrainRecipe, config: BertConfig, flops: float, hardware: Hardware) -> HardwareCost:
    if hardware.num_devices > recipe.batch_size:
        raise SettingsError(
            f"{hardware.label} cannot share a batch of {recipe.batch_size} examples; name at most {recipe.batch_size} devices"
        )
    micro_batch = None
    if hardware.memory is not None:
        share, usable = recipe.batch_size // hardware.num_devices, int(_USABLE_MEMORY_RATIO * hardware.memory)
        micro_batch = (
            largest_micro_batch_size(config, share, _max_length(recipe), usable, recipe.activation_checkpointing) or 0
        )
    days = hardware.seconds(flops) / _SECONDS_PER_DAY
    return HardwareCost(hardware.label, days, micro_batch, hardware.peak_flops, hardware.utilisation, hardware.source)


def _forecast_on_corpus(
    config: BertConfig, num_tokens: float, corpus: Corpus | None, position_init: str
) -> tuple[float | None, LossBand | None]:
    if corpus is None:
        return None, None
    text = summarize_corpus(corpus)
    useful = effective_tokens(num_tokens, text.num_tokens)
    return num_tokens / text.num_tokens, forecast_loss(config, useful, text.unigram_entropy, position_init)


def _paper_reference(recipe: PretrainRecipe) -> str:
    """Return what the paper tells, if this is its very run: a million steps of 256, a tenth of them long."""
    paper = PretrainRecipe()
    is_paper = (recipe.batch_size, recipe.phases, recipe.budget) == (paper.batch_size, paper.phases, paper.budget)
    if not is_paper or recipe.model.size not in _PAPER_TRAINING or recipe.model != ModelRecipe(recipe.model.size):
        return ""
    chips, days = _PAPER_TRAINING[recipe.model.size]
    return f"the paper: {days:g} days on {chips} TPU chips"


def _max_length(recipe: PretrainRecipe) -> int:
    return max(phase.max_length for phase in recipe.phases)
