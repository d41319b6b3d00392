"""Batches of a run: each phase has its own batch size, masks and order of examples."""

from dataclasses import replace

import pytest
import torch
from small_run import RECIPE, prepare_corpus

from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.sampling.batch import Batch

ONE_PHASE = replace(RECIPE, micro_batch_size=0, phases=(PhaseRecipe(32, steps=8),))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus.open(prepare_corpus(tmp_path_factory.mktemp("batches")))


def with_phases(*phases: PhaseRecipe) -> PretrainRecipe:
    return replace(ONE_PHASE, phases=phases)


def mask_ratio(batches: list[Batch]) -> float:
    return sum(len(batch.targets) for batch in batches) / sum(batch.num_tokens for batch in batches)


def test_phase_has_its_own_batch_size(corpus):
    recipe = with_phases(PhaseRecipe(32, steps=8), PhaseRecipe(32, steps=8, batch_size=24))
    batches = PretrainBatches(corpus, replace(recipe, micro_batch_size=10))
    assert [len(batch.input_ids) for batch in batches.get_batches(0, 0)] == [8]
    assert [len(batch.input_ids) for batch in batches.get_batches(1, 3)] == [10, 10, 4]
    assert PretrainBatches(corpus, recipe).micro_batch_size == 24  # the largest batch in one


def test_phase_has_its_own_mask_prob_and_held_out_batches_that_of_the_recipe(corpus):
    recipe = with_phases(
        PhaseRecipe(32, steps=8, mask_prob=0.4, batch_size=64), PhaseRecipe(32, steps=8, batch_size=64)
    )
    batches = PretrainBatches(corpus, recipe)
    assert mask_ratio(batches.get_batches(0, 0)) > 0.3
    assert mask_ratio(batches.get_batches(1, 0)) < 0.2
    first, second = (list(batches.get_held_out_batches(phase)[0]) for phase in (0, 1))
    assert mask_ratio(first) < 0.2
    assert all(torch.equal(one.input_ids, other.input_ids) for one, other in zip(first, second, strict=True))


def test_second_phase_of_a_length_has_other_examples_and_the_first_one_those_of_a_single_phase(corpus):
    two_phases = PretrainBatches(corpus, with_phases(PhaseRecipe(32, steps=8), PhaseRecipe(32, steps=8)))
    (single,) = PretrainBatches(corpus, ONE_PHASE).get_batches(0, 0)
    (first,), (second,) = two_phases.get_batches(0, 0), two_phases.get_batches(1, 0)
    assert torch.equal(first.input_ids, single.input_ids)
    assert first.input_ids.shape != second.input_ids.shape or not torch.equal(first.input_ids, second.input_ids)
