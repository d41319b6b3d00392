"""What a pretraining takes, and how long a budget lasts: a recipe and its corpus in; operations, pieces, steps out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertworks.commands.compare.recipe import Budget
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.commands.run_facts import count_tokens
from bertworks.corpus.corpus import Corpus
from bertworks.training.flops import count_flops

_MAX_FLOPS_SEQUENCES = 32  # of a step whose operations are counted
_NUM_SAMPLE_SEQUENCES = 512  # by which it is known how long rows are


@dataclass(frozen=True, slots=True)
class Cost:
    """The parameters of the encoder, and the operations of a step of each phase."""

    num_parameters: int
    flops: tuple[float, ...]


def cost_of(recipe: PretrainRecipe, corpus: Corpus) -> Cost:
    """Count the operations of a few rows of each phase, and scale them to the batch."""
    rows = min(recipe.batch_size, _MAX_FLOPS_SEQUENCES)
    short = replace(recipe, batch_size=rows, micro_batch_size=rows, compile=False, activation_checkpointing=False)
    module, _ = build(resolve_model_init(short, corpus.tokenizer, None), short, count_tokens(corpus))
    drawn = PretrainBatches(corpus, short)
    found = [count_flops(module, drawn.get_batches(phase, 0)) for phase in range(len(recipe.phases))]
    parameters = sum(one.numel() for one in module.encoder.parameters())
    return Cost(parameters, tuple(flops * recipe.batch_size / rows for flops in found))


def tokens_per_step(recipe: PretrainRecipe, corpus: Corpus) -> tuple[float, ...]:
    """Return how many pieces a step of each phase has, by the mean of many rows: not all of them are full."""
    short = replace(recipe, batch_size=_NUM_SAMPLE_SEQUENCES, micro_batch_size=_NUM_SAMPLE_SEQUENCES)
    drawn = PretrainBatches(corpus, short)
    found = [
        sum(int(batch.lengths.sum()) for batch in drawn.get_batches(phase, 0)) / _NUM_SAMPLE_SEQUENCES
        for phase in range(len(recipe.phases))
    ]
    return tuple(pieces * recipe.batch_size for pieces in found)


def fit_recipe_to_budget(recipe: PretrainRecipe, budget: Budget, corpus: Corpus) -> PretrainRecipe:
    """Return the recipe with as many steps as the budget lasts, phases and warm-up in their shares of it."""
    if not budget.unit:
        return recipe
    if budget.unit == "seconds":
        return replace(recipe, budget=f"{budget.amount:g}s")
    if budget.unit == "steps":
        num_steps = round(budget.amount)
    else:
        of_step = tokens_per_step(recipe, corpus) if budget.unit == "pieces" else cost_of(recipe, corpus).flops
        shares = _budget_ratios(recipe)
        mean = sum(share * one for share, one in zip(shares, of_step, strict=True)) / sum(shares)
        num_steps = round(budget.amount / mean)
    return set_total_steps(recipe, max(num_steps, len(recipe.phases) + 1))


def set_total_steps(recipe: PretrainRecipe, num_steps: int) -> PretrainRecipe:
    """Return the recipe with so many steps in all; every phase has at least one."""
    shares = _budget_ratios(recipe)
    ends = [round(num_steps * sum(shares[: number + 1]) / sum(shares)) for number in range(len(shares))]
    phases, done = [], 0
    for phase, end in zip(recipe.phases, ends, strict=True):
        steps = max(end - done, 1)
        phases.append(PhaseRecipe(phase.max_length, steps, phase.budget_ratio))
        done += steps
    warmup = min(round(recipe.warmup_ratio * num_steps), num_steps - 1)
    return replace(recipe, phases=tuple(phases), warmup_steps=warmup, budget="")


def total_steps(recipe: PretrainRecipe) -> int:
    return sum(phase.steps for phase in recipe.phases)


def _budget_ratios(recipe: PretrainRecipe) -> list[float]:
    """Return what each phase has of a budget: its share, or where none is said, its steps."""
    shares = [phase.budget_ratio for phase in recipe.phases]
    return shares if all(shares) else [float(phase.steps) for phase in recipe.phases]
