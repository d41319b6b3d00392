"""The cost of pretraining, and the steps that fit a budget: a recipe and a corpus in; FLOPs, tokens, steps out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertworks.commands.compare.recipe import Budget
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.run_info import count_tokens
from bertworks.corpus.corpus import Corpus
from bertworks.training.flops import count_flops

_MAX_FLOPS_SEQUENCES = 32  # batch size for which the FLOPs of a step are counted
_NUM_SAMPLE_SEQUENCES = 512  # to estimate the mean length of a sequence


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of parameters of the encoder, and the FLOPs of a step of each phase."""

    num_parameters: int
    flops: tuple[float, ...]


def cost_of(recipe: PretrainRecipe, corpus: Corpus) -> Cost:
    """Count the FLOPs of a small batch of each phase, and scale them to the batch size."""
    batch_sizes = [phase.batch_size for phase in recipe.resolve_phases()]
    num_sequences = min(*batch_sizes, _MAX_FLOPS_SEQUENCES)
    small = replace(_with_batch_size(recipe, num_sequences), compile=False, activation_checkpointing=False)
    module, _ = build(resolve_model_init(small, corpus.tokenizer, None), small, count_tokens(corpus))
    batches = PretrainBatches(corpus, small)
    flops = [count_flops(module, batches.get_batches(phase, 0)) for phase in range(len(recipe.phases))]
    num_parameters = sum(parameter.numel() for parameter in module.encoder.parameters())
    scaled = [count * size / num_sequences for count, size in zip(flops, batch_sizes, strict=True)]
    return Cost(num_parameters, tuple(scaled))


def _with_batch_size(recipe: PretrainRecipe, batch_size: int) -> PretrainRecipe:
    """Return the recipe with one batch size, and micro-batch size, for all phases."""
    phases = tuple(replace(phase, batch_size=None) for phase in recipe.phases)
    return replace(recipe, batch_size=batch_size, micro_batch_size=batch_size, phases=phases)


def tokens_per_step(recipe: PretrainRecipe, corpus: Corpus) -> tuple[float, ...]:
    """Return the mean number of tokens in a step of each phase: not every sequence has the full length."""
    batches = PretrainBatches(corpus, _with_batch_size(recipe, _NUM_SAMPLE_SEQUENCES))
    return tuple(
        sum(int(batch.lengths.sum()) for batch in batches.get_batches(index, 0))
        / _NUM_SAMPLE_SEQUENCES
        * phase.batch_size
        for index, phase in enumerate(recipe.resolve_phases())
    )


def fit_recipe_to_budget(recipe: PretrainRecipe, budget: Budget, corpus: Corpus) -> PretrainRecipe:
    """Return the recipe with as many steps as the budget allows; phases and warmup are scaled with them."""
    if not budget.unit:
        return recipe
    if budget.unit == "seconds":
        return replace(recipe, budget=f"{budget.amount:g}s")
    if budget.unit == "steps":
        num_steps = round(budget.amount)
    else:
        step_costs = tokens_per_step(recipe, corpus) if budget.unit == "tokens" else cost_of(recipe, corpus).flops
        ratios = _budget_ratios(recipe)
        mean = sum(ratio * cost for ratio, cost in zip(ratios, step_costs, strict=True)) / sum(ratios)
        num_steps = round(budget.amount / mean)
    return set_total_steps(recipe, max(num_steps, len(recipe.phases) + 1))


def set_total_steps(recipe: PretrainRecipe, num_steps: int) -> PretrainRecipe:
    """Return the recipe with `num_steps` steps in total; every phase has at least one."""
    ratios = _budget_ratios(recipe)
    ends = [round(num_steps * sum(ratios[: index + 1]) / sum(ratios)) for index in range(len(ratios))]
    phases, num_assigned = [], 0
    for phase, end in zip(recipe.phases, ends, strict=True):
        steps = max(end - num_assigned, 1)
        phases.append(replace(phase, steps=steps))
        num_assigned += steps
    warmup_steps = min(round(recipe.warmup_ratio * num_steps), num_steps - 1)
    return replace(recipe, phases=tuple(phases), warmup_steps=warmup_steps, budget="")


def total_steps(recipe: PretrainRecipe) -> int:
    return sum(phase.steps for phase in recipe.phases)


def _budget_ratios(recipe: PretrainRecipe) -> list[float]:
    """Return the part of a budget that each phase has: its budget_ratio, or if one has none, its steps."""
    ratios = [phase.budget_ratio for phase in recipe.phases]
    return ratios if all(ratios) else [float(phase.steps) for phase in recipe.phases]
