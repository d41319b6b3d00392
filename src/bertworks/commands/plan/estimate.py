"""What does a recipe take? A recipe in; its steps, pieces, operations, memory, and days here and elsewhere out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertworks.commands.plan.benchmark import Speed, Speedometer, rows_to_try, trial_of
from bertworks.commands.plan.forecast import LossBand, forecast_loss, step_flops, useful_pieces
from bertworks.commands.plan.hardware import Hardware, hardware_of
from bertworks.commands.plan.run import text_of
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, Recipe, seconds_of
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.stack import BertSizes
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.training.memory import fitting_micro_batch, num_parameters, step_bytes

PAPER_VOCABULARY = 30_522  # what is assumed where no corpus says otherwise
STATED = ("16xTPUv2", "64xTPUv2", "1xA100", "8xA100")  # what is told where nobody asks for other hardware

# The days that the paper tells, by size, with the chips.
_PUBLISHED = {"base": (16, 4.0), "large": (64, 4.0)}

_TRIAL_SECONDS = 20.0  # for each phase: two steps of one row of Large at 512 on two cores
_USABLE_RATE = 0.8  # of the free memory, as in a run
_DAY = 86_400.0

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

    recipe: Recipe
    corpus: Path | None = None
    vocabulary: str | None = None
    hardware: tuple[Hardware, ...] = ()
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """A phase of the run here. `rows` were tried at a time to find the seconds of a step."""

    length: int
    steps: int
    pieces: float
    flops: float
    rows: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class HardwareCost:
    """The run on stated hardware. micro_batch: of one device; 0 if none fits, None if its memory is not known."""

    name: str
    days: float
    micro_batch: int | None
    peak: float
    utilisation: float
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a recipe takes. `epochs` and `loss` need a corpus; `published` is what the paper tells of this very run."""

    recipe: Recipe
    parameters: int
    vocabulary: int
    phases: tuple[PhaseCost, ...]
    steps: int
    pieces: float
    flops: float
    days: float
    micro_batch: int
    memory: int
    product_rate: float
    hardware: tuple[HardwareCost, ...]
    epochs: float | None = None
    loss: LossBand | None = None
    published: str = ""


def estimate(
    request: EstimateRequest, speedometer: Speedometer, tell: Callable[[str], None] = lambda text: None
) -> Estimate:
    """Measure a few rows of each phase of a recipe, and scale that to the whole of it."""
    recipe = request.recipe
    corpus = None if request.corpus is None else Corpus.open(request.corpus, request.vocabulary)
    vocabulary = PAPER_VOCABULARY if corpus is None else corpus.tokenizer.size
    sizes = recipe.model.sizes(vocabulary)
    micro_batch = _fitting(request, sizes)
    tell("measuring the rate of one large product")
    rate = speedometer.product_rate()
    phases = []
    for phase in recipe.phases:
        tell(f"measuring a few rows of length {phase.length}")
        rows = rows_to_try(sizes, micro_batch, phase.length, rate, _TRIAL_SECONDS)
        trial = trial_of(recipe, phase.length, rows, vocabulary, _TRIAL_SECONDS)
        phases.append(_cost(recipe, sizes, phase, speedometer.speed(trial, corpus)))
    pieces = sum(one.pieces for one in phases)
    flops = sum(one.flops for one in phases)
    epochs, loss = _on_text(sizes, pieces, corpus, recipe.model.position_start)
    return Estimate(
        recipe,
        num_parameters(sizes),
        vocabulary,
        tuple(phases),
        sum(one.steps for one in phases),
        pieces,
        flops,
        sum(one.steps * one.step_seconds for one in phases) / _DAY,
        micro_batch,
        step_bytes(sizes, micro_batch, _longest(recipe), recipe.recompute),
        rate,
        tuple(_elsewhere(recipe, sizes, flops, one) for one in request.hardware or _stated(recipe)),
        epochs,
        loss,
        _published(recipe),
    )


def _fitting(request: EstimateRequest, sizes: BertSizes) -> int:
    available = available_bytes() if request.memory is None else request.memory
    recipe, longest = request.recipe, _longest(request.recipe)
    wanted = min(recipe.micro_batch or recipe.batch, recipe.batch)
    found = fitting_micro_batch(sizes, wanted, longest, int(_USABLE_RATE * available), recipe.recompute)
    if found is None:
        needed = step_bytes(sizes, 1, longest, recipe.recompute)
        raise SettingsError(
            f"one example of length {longest} needs about {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB "
            f"are free, so that this recipe cannot be tried here; free some memory or choose a smaller model"
        )
    return found


def _cost(recipe: Recipe, sizes: BertSizes, phase: PhaseRecipe, speed: Speed) -> PhaseCost:
    """Scale a trial to its phase. Under a time budget the steps follow from the speed."""
    step_seconds = speed.step_seconds(recipe.batch)
    budget = seconds_of(recipe.budget)
    steps = phase.steps
    if budget is not None:
        steps = int(budget * phase.share / sum(one.share for one in recipe.phases) / step_seconds)
    flops = steps * step_flops(sizes, recipe.batch, phase.length, recipe.masking.rate)
    pieces = steps * recipe.batch * speed.row_pieces
    return PhaseCost(phase.length, steps, pieces, flops, speed.rows, step_seconds)


def _stated(recipe: Recipe) -> list[Hardware]:
    return [one for one in map(hardware_of, STATED) if one.num_devices <= recipe.batch]


def _elsewhere(recipe: Recipe, sizes: BertSizes, flops: float, hardware: Hardware) -> HardwareCost:
    if hardware.num_devices > recipe.batch:
        raise SettingsError(
            f"{hardware.told} cannot share a batch of {recipe.batch} examples; name at most {recipe.batch} devices"
        )
    micro_batch = None
    if hardware.memory is not None:
        share, usable = recipe.batch // hardware.num_devices, int(_USABLE_RATE * hardware.memory)
        micro_batch = fitting_micro_batch(sizes, share, _longest(recipe), usable, recipe.recompute) or 0
    days = hardware.seconds(flops) / _DAY
    return HardwareCost(hardware.told, days, micro_batch, hardware.peak, hardware.utilisation, hardware.source)


def _on_text(
    sizes: BertSizes, pieces: float, corpus: Corpus | None, start: str
) -> tuple[float | None, LossBand | None]:
    if corpus is None:
        return None, None
    text = text_of(corpus)
    useful = useful_pieces(pieces, text.pieces)
    return pieces / text.pieces, forecast_loss(sizes, useful, text.unigram_entropy, start)


def _published(recipe: Recipe) -> str:
    """Return what the paper tells, if this is its very run: a million steps of 256, a tenth of them long."""
    paper = Recipe()
    is_paper = (recipe.batch, recipe.phases, recipe.budget) == (paper.batch, paper.phases, paper.budget)
    if not is_paper or recipe.model.size not in _PUBLISHED or recipe.model != ModelRecipe(recipe.model.size):
        return ""
    chips, days = _PUBLISHED[recipe.model.size]
    return f"the paper: {days:g} days on {chips} TPU chips"


def _longest(recipe: Recipe) -> int:
    return max(phase.length for phase in recipe.phases)
