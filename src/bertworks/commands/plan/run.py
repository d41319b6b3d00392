"""Recommend a recipe: a corpus and a time budget in, after a minute of benchmarks the recipe with the lowest loss out.

A few steps of each size are timed. The size with the lowest forecast loss at the end of the budget is chosen: small
ones see more text in the time, large ones learn more from it (see `forecast`).
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
from bertworks.commands.run_info import unigram_entropy
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.shard import open_shard
from bertworks.encoders.config import EncoderConfig
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.settings import parse_duration
from bertworks.training.memory import largest_micro_batch_size, num_parameters, step_bytes

SIZES = ("tiny", "mini", "small", "medium", "base")
SHORT_LENGTH, LONG_LENGTH = 128, 512

# Peak learning rates: those of our recipes for the small sizes, the paper's for Base.
_LEARNING_RATES = {"tiny": 1e-3, "mini": 1e-3, "small": 5e-4, "medium": 5e-4, "base": 1e-4}

# In a short run more steps help more than a larger batch: choose the largest batch size that leaves enough steps.
_BATCH_SIZES = (256, 128, 64, 32, 16)
_TARGET_STEPS = 10_000
_POSITION_INIT = "neighbors"  # it helps, or at least does no harm, at every budget
_MIN_STEPS = 300  # in fewer, a model learns only the token frequencies

# The paper has 10,000 warmup steps; a run of less than 100,000 steps uses a tenth of them.
_PAPER_WARMUP_STEPS = 10_000
_MAX_WARMUP_RATIO = 0.1
# The paper spends a tenth of its steps on long sequences. If few documents are that long, they get less, or nothing.
_LONG_BUDGET_RATIO = 0.1
_MIN_LONG_BUDGET_RATIO = 0.02

_TRIAL_SEQUENCES = 32
_TRIAL_SECONDS = 8.0  # five sizes and one more length take less than a minute
_USABLE_MEMORY_RATIO = 0.8  # of the free memory, as in a run
_PAPER_EPOCHS = 40
# A model does not overfit on text that it sees only a few times, and dropout then only slows it down. (Geiping and
# Goldstein, "Cramming", 2022, for one epoch; after four, repeated text begins to teach less.)
_EPOCHS_WITHOUT_DROPOUT = 4
_SAVE_SECONDS = 600
_MAX_TOKENS_READ = 20_000_000  # to determine the length of documents

LogFn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for. `memory` is the number of bytes that a run may use; None: what is free now."""

    corpus: Path
    budget: str
    vocabulary: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSummary:
    """What a plan needs to know of a corpus. `long_document_ratio`: tokens in documents of LONG_LENGTH or more."""

    vocab_size: int
    num_tokens: int
    objective: str
    long_document_ratio: float
    uniform_loss: float
    unigram_entropy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCandidate:
    """A size and its forecast for the whole budget at the short length. `reason`: why it is ruled out, if it is."""

    size: str
    num_parameters: int
    batch_size: int
    step_seconds: float
    steps: int
    num_tokens: float
    epochs: float
    memory: int
    loss: LossBand
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The recommendation: a recipe, its forecast, the candidates, and the reason for each choice."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanContext:
    """What is the same for all candidates."""

    budget_text: str
    budget_seconds: float
    corpus: Corpus
    corpus_summary: CorpusSummary
    memory: int
    matmul_throughput: float
    benchmark: Benchmark


def plan(request: PlanRequest, benchmark: Benchmark, log: LogFn = lambda text: None) -> Plan:
    """Time and compare the sizes and recommend a recipe; progress messages go to `log`."""
    budget = parse_duration(request.budget)
    if budget is None:
        raise SettingsError("a plan needs a time budget; give one such as --budget 2h")
    corpus = Corpus.open(request.corpus, request.vocabulary)
    summary = summarize_corpus(corpus)
    log("timing one large matmul")
    context = _PlanContext(
        budget_text=request.budget,
        budget_seconds=budget,
        corpus=corpus,
        corpus_summary=summary,
        memory=int(_USABLE_MEMORY_RATIO * (available_bytes() if request.memory is None else request.memory)),
        matmul_throughput=benchmark.matmul_throughput(),
        benchmark=benchmark,
    )
    candidates, timings = _compare_sizes(context, log)
    best = min(
        (candidate for candidate in candidates if not candidate.reason), key=lambda candidate: candidate.loss.middle
    )
    return _recommend(context, best, candidates, _split_budget(context, best, timings[best.size], log))


def summarize_corpus(corpus: Corpus) -> CorpusSummary:
    """Return the size, objective and baselines of a corpus. One without train or held-out text raises an error."""
    corpus.split("held-out")
    train = corpus.split("train")
    return CorpusSummary(
        vocab_size=corpus.tokenizer.vocab_size,
        num_tokens=train.num_tokens,
        # A document of one sentence gives no sentence pairs for NSP.
        objective="mlm-nsp" if train.length_pairable >= 0.5 * train.length else "mlm",
        long_document_ratio=_long_document_ratio(corpus),
        uniform_loss=math.log(corpus.tokenizer.vocab_size),
        unigram_entropy=unigram_entropy(corpus),
    )


def _long_document_ratio(corpus: Corpus) -> float:
    num_long = num_total = 0
    for shard in corpus.tokens_manifest["shards"]:
        arrays = open_shard(corpus.tokens_folder / shard["file"], shard["sha256"])
        if len(arrays.document_ends):
            ends = arrays.sentence_ends[arrays.document_ends.astype(np.int64) - 1].astype(np.int64)
            lengths = np.diff(ends, prepend=0)
            num_long += int(lengths[lengths >= LONG_LENGTH].sum())
            num_total += int(lengths.sum())
        if num_total > _MAX_TOKENS_READ:
            break
    return num_long / max(num_total, 1)


def _compare_sizes(context: _PlanContext, log: LogFn) -> tuple[list[PlanCandidate], dict[str, StepTiming]]:
    """Time the sizes from the smallest on. One that could not win even at the matmul throughput is not timed."""
    candidates: list[PlanCandidate] = []
    timings: dict[str, StepTiming] = {}
    for size in SIZES:
        best_loss = min((item.loss.middle for item in candidates if not item.reason), default=math.inf)
        upper_bound = _make_candidate(context, size, _fastest_timing(context, size))
        if upper_bound.reason or upper_bound.loss.middle >= best_loss:
            reason = upper_bound.reason or "not timed: even at the matmul throughput of this machine it would lose"
            candidates.append(_make_candidate(context, size, _fastest_timing(context, size), reason))
            continue
        log(f"timing {size} at max_length {SHORT_LENGTH}")
        timings[size] = _benchmark_size(context, size, SHORT_LENGTH, _TRIAL_SEQUENCES)
        candidates.append(_make_candidate(context, size, timings[size]))
    if all(candidate.reason for candidate in candidates):
        raise SettingsError(_refusal_message(context, candidates[0], timings.get(candidates[0].size)))
    return candidates, timings


def _benchmark_size(context: _PlanContext, size: str, max_length: int, batch_size: int) -> StepTiming:
    model, vocab_size = ModelRecipe(size=size), context.corpus_summary.vocab_size
    recipe = PretrainRecipe(model=model, objective=context.corpus_summary.objective)
    num_sequences = num_trial_sequences(
        model.config(vocab_size), batch_size, max_length, context.matmul_throughput, _TRIAL_SECONDS
    )
    trial = trial_of(recipe, max_length, num_sequences, vocab_size, _TRIAL_SECONDS)
    return context.benchmark.time_steps(trial, context.corpus)


def _fastest_timing(context: _PlanContext, size: str) -> StepTiming:
    """Return an upper bound of the speed of a size: all FLOPs at the throughput of one large matmul."""
    flops = step_flops(ModelRecipe(size=size).config(context.corpus_summary.vocab_size), _TRIAL_SEQUENCES, SHORT_LENGTH)
    return StepTiming(
        max_length=SHORT_LENGTH,
        num_sequences=_TRIAL_SEQUENCES,
        tokens_per_sequence=SHORT_LENGTH,
        forward_backward_seconds=flops / context.matmul_throughput,
        optimizer_seconds=0.0,
        num_steps=0,
    )


def _make_candidate(context: _PlanContext, size: str, timing: StepTiming, reason: str = "") -> PlanCandidate:
    config = ModelRecipe(size=size).config(context.corpus_summary.vocab_size)
    batch_size = _choose_batch_size(timing, context.budget_seconds)
    steps = int(context.budget_seconds / timing.step_seconds(batch_size))
    num_tokens = steps * batch_size * timing.tokens_per_sequence
    micro_batch_size = largest_micro_batch_size(config, batch_size, SHORT_LENGTH, context.memory)
    if micro_batch_size is None:
        reason = "does not fit into memory"
    elif steps < _MIN_STEPS:
        reason = reason or f"fewer than {_MIN_STEPS} steps"
    return PlanCandidate(
        size=size,
        num_parameters=num_parameters(config),
        batch_size=batch_size,
        step_seconds=timing.step_seconds(batch_size),
        steps=steps,
        num_tokens=num_tokens,
        epochs=num_tokens / context.corpus_summary.num_tokens,
        memory=step_bytes(config, micro_batch_size or 1, SHORT_LENGTH),
        loss=_forecast_loss(context, config, num_tokens),
        reason=reason,
    )


def _choose_batch_size(timing: StepTiming, budget_seconds: float) -> int:
    """Return the largest batch size that leaves enough steps, or the smallest."""
    return next(
        (size for size in _BATCH_SIZES if budget_seconds / timing.step_seconds(size) >= _TARGET_STEPS),
        _BATCH_SIZES[-1],
    )


def _forecast_loss(context: _PlanContext, config: EncoderConfig, num_tokens: float) -> LossBand:
    effective = effective_tokens(num_tokens, context.corpus_summary.num_tokens)
    return forecast_loss(config, effective, context.corpus_summary.unigram_entropy, _POSITION_INIT)


def _refusal_message(context: _PlanContext, smallest: PlanCandidate, timing: StepTiming | None) -> str:
    if timing is None and smallest.steps >= _MIN_STEPS:
        return (
            f"even {smallest.size}, the smallest size, needs {smallest.memory / 2**30:.1f} GiB, and only "
            f"{context.memory / 2**30:.1f} GiB may be used; free some memory"
        )
    minutes = math.ceil(_MIN_STEPS * smallest.step_seconds / 60)
    return (
        f"{context.budget_text} is too short here: even {smallest.size}, the smallest size, does only "
        f"{smallest.steps} steps in it, and {_MIN_STEPS} are the minimum; give --budget {minutes}m or more"
    )


@dataclass(frozen=True, slots=True)
class _BudgetSplit:
    """The phases of short and long sequences, the tokens they process, and the reason for the split."""

    phases: tuple[PhaseRecipe, ...]
    num_tokens: float
    reason: str


def _split_budget(context: _PlanContext, best: PlanCandidate, short_timing: StepTiming, log: LogFn) -> _BudgetSplit:
    """Give long sequences their part of the time, if there are long documents and time for enough steps."""
    ratio = round(_LONG_BUDGET_RATIO * context.corpus_summary.long_document_ratio, 2)
    long_documents = (
        f"{context.corpus_summary.long_document_ratio:.0%} of the tokens are in documents of {LONG_LENGTH} or more"
    )
    if ratio < _MIN_LONG_BUDGET_RATIO:
        return _short_phase_only(
            best, f"all at {SHORT_LENGTH}: only {long_documents}; positions from {SHORT_LENGTH} on stay untrained"
        )
    log(f"timing {best.size} at max_length {LONG_LENGTH}")
    long_timing = _benchmark_size(context, best.size, LONG_LENGTH, best.batch_size)
    num_long = int(ratio * context.budget_seconds / long_timing.step_seconds(best.batch_size))
    if num_long < _MIN_STEPS:
        return _short_phase_only(
            best,
            f"all at {SHORT_LENGTH}: {ratio:.0%} of the time would be {num_long} steps at {LONG_LENGTH}, fewer than "
            f"{_MIN_STEPS}; positions from {SHORT_LENGTH} on stay untrained",
        )
    num_short = int((1 - ratio) * context.budget_seconds / short_timing.step_seconds(best.batch_size))
    num_tokens = best.batch_size * (
        num_short * short_timing.tokens_per_sequence + num_long * long_timing.tokens_per_sequence
    )
    phases = (
        PhaseRecipe(SHORT_LENGTH, steps=num_short, budget_ratio=round(1 - ratio, 2)),
        PhaseRecipe(LONG_LENGTH, steps=num_long, budget_ratio=ratio),
    )
    return _BudgetSplit(phases, num_tokens, f"{ratio:.0%} of the time at {LONG_LENGTH}: {long_documents}")


def _short_phase_only(best: PlanCandidate, reason: str) -> _BudgetSplit:
    return _BudgetSplit((PhaseRecipe(SHORT_LENGTH, steps=best.steps, budget_ratio=1.0),), best.num_tokens, reason)


def _recommend(
    context: _PlanContext, best: PlanCandidate, candidates: list[PlanCandidate], split: _BudgetSplit
) -> Plan:
    config = ModelRecipe(size=best.size).config(context.corpus_summary.vocab_size)
    max_length = max(phase.max_length for phase in split.phases)
    micro_batch_size = largest_micro_batch_size(config, best.batch_size, max_length, context.memory) or 1
    steps = sum(phase.steps for phase in split.phases)
    epochs = split.num_tokens / context.corpus_summary.num_tokens
    warmup_ratio = round(min(_MAX_WARMUP_RATIO, _PAPER_WARMUP_STEPS / steps), 4)
    recipe = PretrainRecipe(
        model=ModelRecipe(
            size=best.size,
            hidden_dropout_prob=0.0 if epochs <= _EPOCHS_WITHOUT_DROPOUT else 0.1,
            position_init=_POSITION_INIT,
            output_bias_init="unigram",
        ),
        objective=context.corpus_summary.objective,
        batch_size=best.batch_size,
        micro_batch_size=micro_batch_size,
        learning_rate=_LEARNING_RATES[best.size],
        warmup_steps=int(warmup_ratio * steps),
        warmup_ratio=warmup_ratio,
        phases=split.phases,
        budget=context.budget_text,
        save_steps=min(steps, _round(_SAVE_SECONDS / best.step_seconds)),
        eval_steps=min(steps, max(100, _round(steps / 20))),
    )
    return Plan(
        recipe=recipe,
        steps=steps,
        num_tokens=split.num_tokens,
        epochs=epochs,
        memory=step_bytes(config, micro_batch_size, max_length),
        loss=_forecast_loss(context, config, split.num_tokens),
        candidates=tuple(candidates),
        reasons=_reasons(recipe, candidates, split, epochs),
        corpus_summary=context.corpus_summary,
        matmul_throughput=context.matmul_throughput,
    )


def _reasons(
    recipe: PretrainRecipe, candidates: list[PlanCandidate], split: _BudgetSplit, epochs: float
) -> tuple[str, ...]:
    other_sizes = [
        candidate.size for candidate in candidates if not candidate.reason and candidate.size != recipe.model.size
    ]
    alternatives = f"compared with {', '.join(other_sizes)}" if other_sizes else "of the possible sizes"
    reasons = [
        f"size {recipe.model.size}: the lowest forecast loss {alternatives}",
        f"batch_size {recipe.batch_size}: the largest from {_BATCH_SIZES[-1]} to {_BATCH_SIZES[0]} that leaves "
        f"{_TARGET_STEPS:,} steps, or the smallest",
        f"learning_rate {recipe.learning_rate:g}: that of our recipe for this size, after warmup over "
        f"{recipe.warmup_ratio:.1%} of the run",
        split.reason,
        f"hidden_dropout_prob {recipe.model.hidden_dropout_prob:g}: {epochs:.1f} epochs; up to "
        f"{_EPOCHS_WITHOUT_DROPOUT} dropout only slows training down",
    ]
    if recipe.micro_batch_size < recipe.batch_size:
        reasons.append(
            f"micro_batch_size {recipe.micro_batch_size}: what fits into memory; batch_size stays {recipe.batch_size}"
        )
    if recipe.objective == "mlm":
        reasons.append("objective mlm: most of the text is in documents of one sentence, which give no sentence pairs")
    if epochs > _PAPER_EPOCHS:
        reasons.append(
            f"{epochs:.0f} epochs are more than the paper's {_PAPER_EPOCHS}: more text would help more than more time"
        )
    return tuple(reasons)


def _round(number: float) -> int:
    """Round down to 1, 2 or 5 times a power of ten, at least 1."""
    power = 10 ** math.floor(math.log10(max(number, 1.0)))
    return int(max(step * power for step in (1, 2, 5) if step * power <= max(number, 1.0)))
