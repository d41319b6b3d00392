"""Recommend a recipe: a corpus and a time budget in, a minute of measuring, the recipe that should come furthest out.

Each size is tried for a few steps. The one whose forecast loss is the lowest at the end of the budget is chosen: small
ones see more text in the time, large ones make more of it, and `training.forecast` says what that comes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertworks.commands.plan.benchmark import Speed, Speedometer, rows_to_try, trial_of
from bertworks.commands.plan.forecast import LossBand, forecast_loss, step_flops, useful_pieces
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, Recipe, seconds_of
from bertworks.commands.run_facts import unigram_entropy
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.shard import map_shard
from bertworks.encoders.stack import BertSizes
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.training.memory import fitting_micro_batch, num_parameters, step_bytes

SIZES = ("tiny", "mini", "small", "medium", "base")
SHORT, LONG = 128, 512

# Peak rates: the package's recipes for the small sizes, the paper's for Base.
_RATES = {"tiny": 1e-3, "mini": 1e-3, "small": 5e-4, "medium": 5e-4, "base": 1e-4}

# Until a run is long, more steps help more than larger ones: the batch is the largest that leaves enough of them.
_BATCHES = (256, 128, 64, 32, 16)
_ENOUGH_STEPS = 10_000
_POSITION_START = "neighbours"  # the head start: no budget for which there is a plan is too large for it
_LEAST_STEPS = 300  # in fewer, a model learns how frequent pieces are and no more

# The paper warms up for 10,000 steps; a run below 100,000 for a tenth of its steps.
_PAPER_WARMUP = 10_000
_MOST_WARMUP_RATE = 0.1
# The paper spends a tenth of its steps on long rows. Where fewer documents can fill them, they get less, or nothing.
_LONG_SHARE = 0.1
_LEAST_LONG_SHARE = 0.02

_TRIAL_ROWS = 32
_TRIAL_SECONDS = 8.0  # five sizes and one more length come to less than a minute
_USABLE_RATE = 0.8  # of the free memory, as in a run
_PAPER_EPOCHS = 40
# Text that is seen a few times only cannot be learnt by heart, and dropping values then only slows learning down.
# (Geiping and Goldstein, "Cramming", 2022, for one epoch; four is where repeated text begins to teach less.)
_EPOCHS_WITHOUT_DROPOUT = 4
_SAVE_SECONDS = 600
_MOST_PIECES_READ = 20_000_000  # to see how long documents are

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for. `memory` is how many bytes a run may take; None: what is free now."""

    corpus: Path
    budget: str
    vocabulary: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """What a plan has to know of a corpus. `long_rate` of its pieces stand in documents that fill a long row."""

    vocabulary: int
    pieces: int
    objective: str
    long_rate: float
    ln_v: float
    unigram_entropy: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A size and how far it would come in the whole budget at the short length. `reason`: why not, if it cannot be."""

    size: str
    parameters: int
    batch: int
    step_seconds: float
    steps: int
    pieces: float
    epochs: float
    memory: int
    loss: LossBand
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The recommendation: a recipe, what it should come to, what was compared, and why each number is what it is."""

    recipe: Recipe
    steps: int
    pieces: float
    epochs: float
    memory: int
    loss: LossBand
    candidates: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    text: Text
    product_rate: float


@dataclass(frozen=True, slots=True)
class _Question:
    """What stays the same while sizes are compared."""

    told: str  # the budget as it was written
    budget: float
    corpus: Corpus
    text: Text
    memory: int
    rate: float  # of one large product
    speedometer: Speedometer


def plan(request: PlanRequest, speedometer: Speedometer, tell: Tell = lambda text: None) -> Plan:
    """Measure, compare the sizes and recommend a recipe; `tell` hears what is being done."""
    budget = seconds_of(request.budget)
    if budget is None:
        raise SettingsError("a plan needs a time budget; give one such as --budget 2h")
    corpus = Corpus.open(request.corpus, request.vocabulary)
    text = text_of(corpus)
    memory = int(_USABLE_RATE * (available_bytes() if request.memory is None else request.memory))
    tell("measuring the rate of one large product")
    question = _Question(request.budget, budget, corpus, text, memory, speedometer.product_rate(), speedometer)
    candidates, speeds = _compare(question, tell)
    chosen = min((one for one in candidates if not one.reason), key=lambda one: one.loss.middle)
    return _recommend(question, chosen, candidates, _long_phase(question, chosen, speeds[chosen.size], tell))


def text_of(corpus: Corpus) -> Text:
    """Look at a corpus: how much there is, and how long its documents are. One that no run could use is refused."""
    corpus.split("held-out")
    train = corpus.split("train")
    return Text(
        corpus.tokenizer.size,
        train.num_pieces,
        # A document of one sentence gives no pair, so a corpus of such has to do without.
        "masked-next" if train.length_paired >= 0.5 * train.length else "masked",
        _long_rate(corpus),
        math.log(corpus.tokenizer.size),
        unigram_entropy(corpus),
    )


def _long_rate(corpus: Corpus) -> float:
    num_long = num_all = 0
    for shard in corpus.pieces_manifest["shards"]:
        arrays = map_shard(corpus.pieces_folder / shard["file"])
        if len(arrays.document_ends):
            ends = arrays.sentence_ends[arrays.document_ends.astype(np.int64) - 1].astype(np.int64)
            lengths = np.diff(ends, prepend=0)
            num_long += int(lengths[lengths >= LONG].sum())
            num_all += int(lengths.sum())
        if num_all > _MOST_PIECES_READ:
            break
    return num_long / max(num_all, 1)


def _compare(question: _Question, tell: Tell) -> tuple[list[Candidate], dict[str, Speed]]:
    """Try the sizes from the smallest on. One that could not win at the full rate of the machine is not tried."""
    found: list[Candidate] = []
    speeds: dict[str, Speed] = {}
    for size in SIZES:
        best = min((one.loss.middle for one in found if not one.reason), default=math.inf)
        fastest = _candidate(question, size, _fastest(question, size))
        if fastest.reason or fastest.loss.middle >= best:
            reason = fastest.reason or "not tried: at the full rate of this machine, as told here, it still loses"
            found.append(_candidate(question, size, _fastest(question, size), reason))
            continue
        tell(f"measuring {size} at length {SHORT}")
        speeds[size] = _measured(question, size, SHORT, _TRIAL_ROWS)
        found.append(_candidate(question, size, speeds[size]))
    if all(one.reason for one in found):
        raise SettingsError(_refusal(question, found[0], speeds.get(found[0].size)))
    return found, speeds


def _measured(question: _Question, size: str, length: int, batch: int) -> Speed:
    model = ModelRecipe(size)
    recipe = Recipe(model, objective=question.text.objective)
    rows = rows_to_try(model.sizes(question.text.vocabulary), batch, length, question.rate, _TRIAL_SECONDS)
    trial = trial_of(recipe, length, rows, question.text.vocabulary, _TRIAL_SECONDS)
    return question.speedometer.speed(trial, question.corpus)


def _fastest(question: _Question, size: str) -> Speed:
    """Return the speed that no computation of this size can pass: all arithmetic at the rate of one large product."""
    flops = step_flops(ModelRecipe(size).sizes(question.text.vocabulary), _TRIAL_ROWS, SHORT)
    return Speed(SHORT, _TRIAL_ROWS, SHORT, flops / question.rate, 0.0, 0)


def _candidate(question: _Question, size: str, speed: Speed, reason: str = "") -> Candidate:
    sizes = ModelRecipe(size).sizes(question.text.vocabulary)
    batch = _batch_of(speed, question.budget)
    steps = int(question.budget / speed.step_seconds(batch))
    pieces = steps * batch * speed.row_pieces
    micro_batch = fitting_micro_batch(sizes, batch, SHORT, question.memory)
    if micro_batch is None:
        reason = "does not fit into memory"
    elif steps < _LEAST_STEPS:
        reason = reason or f"fewer than {_LEAST_STEPS} steps"
    return Candidate(
        size,
        num_parameters(sizes),
        batch,
        speed.step_seconds(batch),
        steps,
        pieces,
        pieces / question.text.pieces,
        step_bytes(sizes, micro_batch or 1, SHORT),
        _loss(question, sizes, pieces),
        reason,
    )


def _batch_of(speed: Speed, budget: float) -> int:
    """Return the largest batch that leaves enough steps, or the smallest."""
    return next((one for one in _BATCHES if budget / speed.step_seconds(one) >= _ENOUGH_STEPS), _BATCHES[-1])


def _loss(question: _Question, sizes: BertSizes, pieces: float) -> LossBand:
    useful = useful_pieces(pieces, question.text.pieces)
    return forecast_loss(sizes, useful, question.text.unigram_entropy, _POSITION_START)


def _refusal(question: _Question, smallest: Candidate, speed: Speed | None) -> str:
    if speed is None and smallest.steps >= _LEAST_STEPS:
        return (
            f"even {smallest.size}, the smallest size, needs {smallest.memory / 2**30:.1f} GiB, and only "
            f"{question.memory / 2**30:.1f} GiB may be taken; free some memory"
        )
    needed = math.ceil(_LEAST_STEPS * smallest.step_seconds / 60)
    return (
        f"{question.told} is too short here: even {smallest.size}, the smallest size, does only "
        f"{smallest.steps} steps in it, and {_LEAST_STEPS} are the least that teach anything; give "
        f"--budget {needed}m or more"
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """How the budget is split between short and long rows, what that comes to, and why."""

    phases: tuple[PhaseRecipe, ...]
    pieces: float
    reason: str


def _long_phase(question: _Question, chosen: Candidate, short: Speed, tell: Tell) -> _Split:
    """Give long rows their share of the time, if there are documents for them and time for enough steps."""
    share = round(_LONG_SHARE * question.text.long_rate, 2)
    told = f"{question.text.long_rate:.0%} of the pieces stand in documents of {LONG} or more"
    if share < _LEAST_LONG_SHARE:
        return _all_short(chosen, f"all at {SHORT}: only {told}; positions from {SHORT} on stay untrained")
    tell(f"measuring {chosen.size} at length {LONG}")
    long = _measured(question, chosen.size, LONG, chosen.batch)
    num_long = int(share * question.budget / long.step_seconds(chosen.batch))
    if num_long < _LEAST_STEPS:
        return _all_short(
            chosen,
            f"all at {SHORT}: a share of {share:.0%} would be {num_long} steps at {LONG}, fewer than {_LEAST_STEPS}; "
            f"positions from {SHORT} on stay untrained",
        )
    num_short = int((1 - share) * question.budget / short.step_seconds(chosen.batch))
    pieces = chosen.batch * (num_short * short.row_pieces + num_long * long.row_pieces)
    phases = (PhaseRecipe(SHORT, num_short, round(1 - share, 2)), PhaseRecipe(LONG, num_long, share))
    return _Split(phases, pieces, f"{share:.0%} of the time at {LONG}: {told}")


def _all_short(chosen: Candidate, reason: str) -> _Split:
    return _Split((PhaseRecipe(SHORT, chosen.steps, 1.0),), chosen.pieces, reason)


def _recommend(question: _Question, chosen: Candidate, candidates: list[Candidate], split: _Split) -> Plan:
    sizes = ModelRecipe(chosen.size).sizes(question.text.vocabulary)
    longest = max(phase.length for phase in split.phases)
    micro_batch = fitting_micro_batch(sizes, chosen.batch, longest, question.memory) or 1
    steps = sum(phase.steps for phase in split.phases)
    epochs = split.pieces / question.text.pieces
    warmup_rate = round(min(_MOST_WARMUP_RATE, _PAPER_WARMUP / steps), 4)
    recipe = Recipe(
        ModelRecipe(
            chosen.size,
            dropout=0.0 if epochs <= _EPOCHS_WITHOUT_DROPOUT else 0.1,
            position_start=_POSITION_START,
            bias_start="counts",
        ),
        objective=question.text.objective,
        batch=chosen.batch,
        micro_batch=micro_batch,
        rate=_RATES[chosen.size],
        warmup=int(warmup_rate * steps),
        warmup_rate=warmup_rate,
        phases=split.phases,
        budget=question.told,
        save_every=min(steps, _round(_SAVE_SECONDS / chosen.step_seconds)),
        evaluate_every=min(steps, max(100, _round(steps / 20))),
    )
    reasons = _reasons(recipe, candidates, split, epochs)
    memory, loss = step_bytes(sizes, micro_batch, longest), _loss(question, sizes, split.pieces)
    found = (steps, split.pieces, epochs, memory, loss)
    return Plan(recipe, *found, tuple(candidates), reasons, question.text, question.rate)


def _reasons(recipe: Recipe, candidates: list[Candidate], split: _Split, epochs: float) -> tuple[str, ...]:
    others = [one.size for one in candidates if not one.reason and one.size != recipe.model.size]
    compared = f"of {', '.join(others)} and it" if others else "of those that can be"
    told = [
        f"size {recipe.model.size}: the lowest forecast loss {compared}",
        f"batch {recipe.batch}: the largest from {_BATCHES[-1]} to {_BATCHES[0]} that leaves {_ENOUGH_STEPS:,} "
        f"steps, or the smallest",
        f"rate {recipe.rate:g}: the package's own for this size; up to it over {recipe.warmup_rate:.1%} of the run",
        split.reason,
        f"dropout {recipe.model.dropout:g}: {epochs:.1f} epochs; up to {_EPOCHS_WITHOUT_DROPOUT} it only slows down",
    ]
    if recipe.micro_batch < recipe.batch:
        told.append(f"micro-batches of {recipe.micro_batch}: what fits into memory; the batch stays {recipe.batch}")
    if recipe.objective == "masked":
        told.append("objective masked: most of the text is in documents of one sentence, which give no pairs")
    if epochs > _PAPER_EPOCHS:
        told.append(
            f"{epochs:.0f} epochs are more than the paper's {_PAPER_EPOCHS}: more text would help more than more time"
        )
    return tuple(told)


def _round(number: float) -> int:
    """Return 1, 2 or 5 times a power of ten: the largest that is not above the number, at least 1."""
    power = 10 ** math.floor(math.log10(max(number, 1.0)))
    return int(max(step * power for step in (1, 2, 5) if step * power <= max(number, 1.0)))
