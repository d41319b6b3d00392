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

from bertworks.commands.plan.benchmark import Benchmark, StepTiming, num_trial_sequences, trial_of
from bertworks.commands.plan.forecast import LossBand, effective_tokens, forecast_loss, step_flops
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.run_facts import unigram_entropy
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.shard import map_shard
from bertworks.encoders.stack import BertConfig
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.settings import parse_duration
from bertworks.training.memory import largest_micro_batch_size, num_parameters, step_bytes

SIZES = ("tiny", "mini", "small", "medium", "base")
SHORT_LENGTH, LONG_LENGTH = 128, 512

# Peak rates: the package's recipes for the small sizes, the paper's for Base.
_LEARNING_RATES = {"tiny": 1e-3, "mini": 1e-3, "small": 5e-4, "medium": 5e-4, "base": 1e-4}

# Until a run is long, more steps help more than larger ones: the batch is the largest that leaves enough of them.
_BATCH_SIZES = (256, 128, 64, 32, 16)
_TARGET_STEPS = 10_000
_POSITION_INIT = "neighbours"  # the head start: no budget for which there is a plan is too large for it
_MIN_STEPS = 300  # in fewer, a model learns how frequent pieces are and no more

# The paper warms up for 10,000 steps; a run below 100,000 for a tenth of its steps.
_PAPER_WARMUP_STEPS = 10_000
_MAX_WARMUP_RATIO = 0.1
# The paper spends a tenth of its steps on long rows. Where fewer documents can fill them, they get less, or nothing.
_LONG_BUDGET_RATIO = 0.1
_MIN_LONG_BUDGET_RATIO = 0.02

_TRIAL_SEQUENCES = 32
_TRIAL_SECONDS = 8.0  # five sizes and one more length come to less than a minute
_USABLE_MEMORY_RATIO = 0.8  # of the free memory, as in a run
_PAPER_EPOCHS = 40
# Text that is seen a few times only cannot be learnt by heart, and dropping values then only slows learning down.
# (Geiping and Goldstein, "Cramming", 2022, for one epoch; four is where repeated text begins to teach less.)
_EPOCHS_WITHOUT_DROPOUT = 4
_SAVE_SECONDS = 600
_MAX_TOKENS_READ = 20_000_000  # to see how long documents are

LogFn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for. `memory` is how many bytes a run may take; None: what is free now."""

    corpus: Path
    budget: str
    vocabulary: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What a plan has to know of a corpus. `long_rate` of its pieces stand in documents that fill a long row."""

    vocab_size: int
    num_tokens: int
    objective: str
    long_document_ratio: float
    ln_v: float
    unigram_entropy: float


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A size and how far it would come in the whole budget at the short length. `reason`: why not, if it cannot be."""

    size: str
    parameters: int
    batch_size: int
    step_seconds: float
    steps: int
    num_tokens: float
    epochs: float
    memory: int
    loss: LossBand
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The recommendation: a recipe, what it should come to, what was compared, and why each number is what it is."""

    recipe: PretrainRecipe
    steps: int
    num_tokens: float
    epochs: float
    memory: int
    loss: LossBand
    candidates: tuple[PlanCandidate, ...]
    reasons: tuple[str, ...]
    corpus_summary: CorpusSummary
    matmul_throughput: float


@dataclass(frozen=True, slots=True)
class _PlanContext:
    """What stays the same while sizes are compared."""

    budget_text: str  # the budget as it was written
    budget_seconds: float
    corpus: Corpus
    corpus_summary: CorpusSummary
    memory: int
    matmul_throughput: float  # of one large product
    benchmark: Benchmark


def plan(request: PlanRequest, benchmark: Benchmark, log: LogFn = lambda text: None) -> Plan:
    """Measure, compare the sizes and recommend a recipe; `tell` hears what is being done."""
    budget = parse_duration(request.budget)
    if budget is None:
        raise SettingsError("a plan needs a time budget; give one such as --budget 2h")
    corpus = Corpus.open(request.corpus, request.vocabulary)
    text = summarize_corpus(corpus)
    memory = int(_USABLE_MEMORY_RATIO * (available_bytes() if request.memory is None else request.memory))
    log("measuring the rate of one large product")
    question = _PlanContext(request.budget, budget, corpus, text, memory, benchmark.matmul_throughput(), benchmark)
    candidates, speeds = _compare_sizes(question, log)
    chosen = min((one for one in candidates if not one.reason), key=lambda one: one.loss.middle)
    return _recommend(question, chosen, candidates, _split_budget(question, chosen, speeds[chosen.size], log))


def summarize_corpus(corpus: Corpus) -> CorpusSummary:
    """Look at a corpus: how much there is, and how long its documents are. One that no run could use is refused."""
    corpus.split("held-out")
    train = corpus.split("train")
    return CorpusSummary(
        corpus.tokenizer.vocab_size,
        train.num_tokens,
        # A document of one sentence gives no pair, so a corpus of such has to do without.
        "masked-next" if train.length_pairable >= 0.5 * train.length else "masked",
        _long_document_ratio(corpus),
        math.log(corpus.tokenizer.vocab_size),
        unigram_entropy(corpus),
    )


def _long_document_ratio(corpus: Corpus) -> float:
    num_long = num_all = 0
    for shard in corpus.tokens_manifest["shards"]:
        arrays = map_shard(corpus.tokens_folder / shard["file"])
        if len(arrays.document_ends):
            ends = arrays.sentence_ends[arrays.document_ends.astype(np.int64) - 1].astype(np.int64)
            lengths = np.diff(ends, prepend=0)
            num_long += int(lengths[lengths >= LONG_LENGTH].sum())
            num_all += int(lengths.sum())
        if num_all > _MAX_TOKENS_READ:
            break
    return num_long / max(num_all, 1)


def _compare_sizes(context: _PlanContext, log: LogFn) -> tuple[list[PlanCandidate], dict[str, StepTiming]]:
    """Try the sizes from the smallest on. One that could not win at the full rate of the machine is not tried."""
    found: list[PlanCandidate] = []
    speeds: dict[str, StepTiming] = {}
    for size in SIZES:
        best = min((one.loss.middle for one in found if not one.reason), default=math.inf)
        fastest = _make_candidate(context, size, _fastest_timing(context, size))
        if fastest.reason or fastest.loss.middle >= best:
            reason = fastest.reason or "not tried: at the full rate of this machine, as told here, it still loses"
            found.append(_make_candidate(context, size, _fastest_timing(context, size), reason))
            continue
        log(f"measuring {size} at length {SHORT_LENGTH}")
        speeds[size] = _benchmark_size(context, size, SHORT_LENGTH, _TRIAL_SEQUENCES)
        found.append(_make_candidate(context, size, speeds[size]))
    if all(one.reason for one in found):
        raise SettingsError(_refusal_message(context, found[0], speeds.get(found[0].size)))
    return found, speeds


def _benchmark_size(context: _PlanContext, size: str, max_length: int, batch_size: int) -> StepTiming:
    model = ModelRecipe(size)
    recipe = PretrainRecipe(model, objective=context.corpus_summary.objective)
    rows = num_trial_sequences(
        model.config(context.corpus_summary.vocab_size),
        batch_size,
        max_length,
        context.matmul_throughput,
        _TRIAL_SECONDS,
    )
    trial = trial_of(recipe, max_length, rows, context.corpus_summary.vocab_size, _TRIAL_SECONDS)
    return context.benchmark.time_steps(trial, context.corpus)


def _fastest_timing(context: _PlanContext, size: str) -> StepTiming:
    """Return the speed that no computation of this size can pass: all arithmetic at the rate of one large product."""
    flops = step_flops(ModelRecipe(size).config(context.corpus_summary.vocab_size), _TRIAL_SEQUENCES, SHORT_LENGTH)
    return StepTiming(SHORT_LENGTH, _TRIAL_SEQUENCES, SHORT_LENGTH, flops / context.matmul_throughput, 0.0, 0)


def _make_candidate(context: _PlanContext, size: str, timing: StepTiming, reason: str = "") -> PlanCandidate:
    sizes = ModelRecipe(size).config(context.corpus_summary.vocab_size)
    batch = _choose_batch_size(timing, context.budget_seconds)
    steps = int(context.budget_seconds / timing.step_seconds(batch))
    pieces = steps * batch * timing.tokens_per_sequence
    micro_batch = largest_micro_batch_size(sizes, batch, SHORT_LENGTH, context.memory)
    if micro_batch is None:
        reason = "does not fit into memory"
    elif steps < _MIN_STEPS:
        reason = reason or f"fewer than {_MIN_STEPS} steps"
    return PlanCandidate(
        size,
        num_parameters(sizes),
        batch,
        timing.step_seconds(batch),
        steps,
        pieces,
        pieces / context.corpus_summary.num_tokens,
        step_bytes(sizes, micro_batch or 1, SHORT_LENGTH),
        _forecast_loss(context, sizes, pieces),
        reason,
    )


def _choose_batch_size(timing: StepTiming, budget_seconds: float) -> int:
    """Return the largest batch that leaves enough steps, or the smallest."""
    return next(
        (one for one in _BATCH_SIZES if budget_seconds / timing.step_seconds(one) >= _TARGET_STEPS), _BATCH_SIZES[-1]
    )


def _forecast_loss(context: _PlanContext, config: BertConfig, num_tokens: float) -> LossBand:
    useful = effective_tokens(num_tokens, context.corpus_summary.num_tokens)
    return forecast_loss(config, useful, context.corpus_summary.unigram_entropy, _POSITION_INIT)


def _refusal_message(context: _PlanContext, smallest: PlanCandidate, timing: StepTiming | None) -> str:
    if timing is None and smallest.steps >= _MIN_STEPS:
        return (
            f"even {smallest.size}, the smallest size, needs {smallest.memory / 2**30:.1f} GiB, and only "
            f"{context.memory / 2**30:.1f} GiB may be taken; free some memory"
        )
    needed = math.ceil(_MIN_STEPS * smallest.step_seconds / 60)
    return (
        f"{context.budget_text} is too short here: even {smallest.size}, the smallest size, does only "
        f"{smallest.steps} steps in it, and {_MIN_STEPS} are the least that teach anything; give "
        f"--budget {needed}m or more"
    )


@dataclass(frozen=True, slots=True)
class _BudgetSplit:
    """How the budget is split between short and long rows, what that comes to, and why."""

    phases: tuple[PhaseRecipe, ...]
    num_tokens: float
    reason: str


def _split_budget(context: _PlanContext, best: PlanCandidate, short_timing: StepTiming, log: LogFn) -> _BudgetSplit:
    """Give long rows their share of the time, if there are documents for them and time for enough steps."""
    share = round(_LONG_BUDGET_RATIO * context.corpus_summary.long_document_ratio, 2)
    told = f"{context.corpus_summary.long_document_ratio:.0%} of the pieces stand in documents of {LONG_LENGTH} or more"
    if share < _MIN_LONG_BUDGET_RATIO:
        return _short_phase_only(
            best, f"all at {SHORT_LENGTH}: only {told}; positions from {SHORT_LENGTH} on stay untrained"
        )
    log(f"measuring {best.size} at length {LONG_LENGTH}")
    long = _benchmark_size(context, best.size, LONG_LENGTH, best.batch_size)
    num_long = int(share * context.budget_seconds / long.step_seconds(best.batch_size))
    if num_long < _MIN_STEPS:
        return _short_phase_only(
            best,
            f"all at {SHORT_LENGTH}: a share of {share:.0%} would be {num_long} steps at {LONG_LENGTH}, fewer than {_MIN_STEPS}; "
            f"positions from {SHORT_LENGTH} on stay untrained",
        )
    num_short = int((1 - share) * context.budget_seconds / short_timing.step_seconds(best.batch_size))
    pieces = best.batch_size * (num_short * short_timing.tokens_per_sequence + num_long * long.tokens_per_sequence)
    phases = (PhaseRecipe(SHORT_LENGTH, num_short, round(1 - share, 2)), PhaseRecipe(LONG_LENGTH, num_long, share))
    return _BudgetSplit(phases, pieces, f"{share:.0%} of the time at {LONG_LENGTH}: {told}")


def _short_phase_only(best: PlanCandidate, reason: str) -> _BudgetSplit:
    return _BudgetSplit((PhaseRecipe(SHORT_LENGTH, best.steps, 1.0),), best.num_tokens, reason)


def _recommend(
    context: _PlanContext, best: PlanCandidate, candidates: list[PlanCandidate], split: _BudgetSplit
) -> Plan:
    sizes = ModelRecipe(best.size).config(context.corpus_summary.vocab_size)
    longest = max(phase.max_length for phase in split.phases)
    micro_batch = largest_micro_batch_size(sizes, best.batch_size, longest, context.memory) or 1
    steps = sum(phase.steps for phase in split.phases)
    epochs = split.num_tokens / context.corpus_summary.num_tokens
    warmup_rate = round(min(_MAX_WARMUP_RATIO, _PAPER_WARMUP_STEPS / steps), 4)
    recipe = PretrainRecipe(
        ModelRecipe(
            best.size,
            hidden_dropout_prob=0.0 if epochs <= _EPOCHS_WITHOUT_DROPOUT else 0.1,
            position_init=_POSITION_INIT,
            output_bias_init="counts",
        ),
        objective=context.corpus_summary.objective,
        batch_size=best.batch_size,
        micro_batch_size=micro_batch,
        learning_rate=_LEARNING_RATES[best.size],
        warmup_steps=int(warmup_rate * steps),
        warmup_ratio=warmup_rate,
        phases=split.phases,
        budget=context.budget_text,
        save_steps=min(steps, _round(_SAVE_SECONDS / best.step_seconds)),
        eval_steps=min(steps, max(100, _round(steps / 20))),
    )
    reasons = _reasons(recipe, candidates, split, epochs)
    memory, loss = step_bytes(sizes, micro_batch, longest), _forecast_loss(context, sizes, split.num_tokens)
    found = (steps, split.num_tokens, epochs, memory, loss)
    return Plan(recipe, *found, tuple(candidates), reasons, context.corpus_summary, context.matmul_throughput)


def _reasons(
    recipe: PretrainRecipe, candidates: list[PlanCandidate], split: _BudgetSplit, epochs: float
) -> tuple[str, ...]:
    others = [one.size for one in candidates if not one.reason and one.size != recipe.model.size]
    compared = f"of {', '.join(others)} and it" if others else "of those that can be"
    told = [
        f"size {recipe.model.size}: the lowest forecast loss {compared}",
        f"batch {recipe.batch_size}: the largest from {_BATCH_SIZES[-1]} to {_BATCH_SIZES[0]} that leaves {_TARGET_STEPS:,} "
        f"steps, or the smallest",
        f"rate {recipe.learning_rate:g}: the package's own for this size; up to it over {recipe.warmup_ratio:.1%} of the run",
        split.reason,
        f"dropout {recipe.model.hidden_dropout_prob:g}: {epochs:.1f} epochs; up to {_EPOCHS_WITHOUT_DROPOUT} it only slows down",
    ]
    if recipe.micro_batch_size < recipe.batch_size:
        told.append(
            f"micro-batches of {recipe.micro_batch_size}: what fits into memory; the batch stays {recipe.batch_size}"
        )
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
