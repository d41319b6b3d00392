"""What a pretraining takes, and how long a budget lasts: a recipe and its corpus in; operations, pieces, steps out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertworks.commands.compare.recipe import Budget
from bertworks.commands.pretrain.batches import Rows
from bertworks.commands.pretrain.build import build, start_of
from bertworks.commands.pretrain.recipe import PhaseRecipe, Recipe
from bertworks.commands.run_facts import piece_counts
from bertworks.corpus.corpus import Corpus
from bertworks.training.flops import counted_operations

_MOST_ROWS = 32  # of a step whose operations are counted
_ROWS = 512  # by which it is known how long rows are


@dataclass(frozen=True, slots=True)
class Cost:
    """The parameters of the encoder, and the operations of a step of each phase."""

    parameters: int
    flops: tuple[float, ...]


def cost_of(recipe: Recipe, corpus: Corpus) -> Cost:
    """Count the operations of a few rows of each phase, and scale them to the batch."""
    rows = min(recipe.batch, _MOST_ROWS)
    short = replace(recipe, batch=rows, micro_batch=rows, compile=False, recompute=False)
    module, _ = build(start_of(short, corpus.tokenizer, None), short, piece_counts(corpus))
    drawn = Rows(corpus, short)
    found = [counted_operations(module, drawn.draw(phase, 0)) for phase in range(len(recipe.phases))]
    parameters = sum(one.numel() for one in module.encoder.parameters())
    return Cost(parameters, tuple(flops * recipe.batch / rows for flops in found))


def step_pieces(recipe: Recipe, corpus: Corpus) -> tuple[float, ...]:
    """Return how many pieces a step of each phase has, by the mean of many rows: not all of them are full."""
    short = replace(recipe, batch=_ROWS, micro_batch=_ROWS)
    drawn = Rows(corpus, short)
    found = [
        sum(int(batch.lengths.sum()) for batch in drawn.draw(phase, 0)) / _ROWS for phase in range(len(recipe.phases))
    ]
    return tuple(pieces * recipe.batch for pieces in found)


def fitted(recipe: Recipe, budget: Budget, corpus: Corpus) -> Recipe:
    """Return the recipe with as many steps as the budget lasts, phases and warm-up in their shares of it."""
    if not budget.unit:
        return recipe
    if budget.unit == "seconds":
        return replace(recipe, budget=f"{budget.amount:g}s")
    if budget.unit == "steps":
        num_steps = round(budget.amount)
    else:
        of_step = step_pieces(recipe, corpus) if budget.unit == "pieces" else cost_of(recipe, corpus).flops
        shares = _shares(recipe)
        mean = sum(share * one for share, one in zip(shares, of_step, strict=True)) / sum(shares)
        num_steps = round(budget.amount / mean)
    return lasting(recipe, max(num_steps, len(recipe.phases) + 1))


def lasting(recipe: Recipe, num_steps: int) -> Recipe:
    """Return the recipe with so many steps in all; every phase has at least one."""
    shares = _shares(recipe)
    ends = [round(num_steps * sum(shares[: number + 1]) / sum(shares)) for number in range(len(shares))]
    phases, done = [], 0
    for phase, end in zip(recipe.phases, ends, strict=True):
        steps = max(end - done, 1)
        phases.append(PhaseRecipe(phase.length, steps, phase.share))
        done += steps
    warmup = min(round(recipe.warmup_rate * num_steps), num_steps - 1)
    return replace(recipe, phases=tuple(phases), warmup=warmup, budget="")


def total_steps(recipe: Recipe) -> int:
    return sum(phase.steps for phase in recipe.phases)


def _shares(recipe: Recipe) -> list[float]:
    """Return what each phase has of a budget: its share, or where none is said, its steps."""
    shares = [phase.share for phase in recipe.phases]
    return shares if all(shares) else [float(phase.steps) for phase in recipe.phases]
