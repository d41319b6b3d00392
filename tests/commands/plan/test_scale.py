"""A recipe on many cards: every number worked out by hand from its formula."""

import math
from dataclasses import replace

import pytest

from bertworks.commands.plan.hardware import parse_hardware
from bertworks.commands.plan.scale import Cluster, count_parameters, estimate_on_cluster
from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.errors import SettingsError
from bertworks.settings import read_recipe, recipe_path

VOCABULARY = 30_522
PAPER = read_recipe(recipe_path("paper-base"), PretrainRecipe)
LARGE = replace(PAPER, model=ModelRecipe("large"))
ONE = Cluster(1, 8, parse_hardware("A100"))
EIGHT = Cluster(8, 8, parse_hardware("A100"))


def test_parameters_are_those_of_transformers_with_both_heads():
    # 109,482,240 of the encoder, 590,592 + 1,536 + 30,522 of the masked head, 1,538 of the pair's
    assert count_parameters(PAPER, VOCABULARY) == (110_106_428, 12 * 7_087_872)
    assert count_parameters(LARGE, VOCABULARY)[0] == 336_226_108


def test_a_step_of_the_paper_on_eight_cards():
    found = estimate_on_cluster(PAPER, VOCABULARY, ONE, shard=False)
    short, long = found.phases
    assert (found.num_gpus, found.sequences_per_gpu, found.steps) == (8, 32, 1_000_000)
    assert (short.num_tokens, long.num_tokens) == (32_768, 131_072)
    assert found.num_tokens == 900_000 * 32_768 + 100_000 * 131_072
    # 3 * (12 * (2 * 32768 * 7077888 + 4 * 32768 * 128 * 768) + 2 * 256 * 19 * (768^2 + 768 * 30522) + 2 * 256 * 768^2)
    layers = 12 * (2 * 32_768 * 7_077_888 + 4 * 32_768 * 128 * 768)
    heads = 2 * 256 * 19 * (768**2 + 768 * 30_522) + 2 * 256 * 768**2
    assert short.flops == pytest.approx(3 * (layers + heads))
    assert short.compute_seconds == pytest.approx(short.flops / (8 * 312e12 * 0.28))
    # what a ring of eight sends: 2 * 7/8 * 4 bytes of each parameter, at 0.8 * 300e9 bytes a second
    assert short.bytes_sent == long.bytes_sent == pytest.approx(1.75 * 4 * 110_106_428)
    assert short.network_seconds == pytest.approx(770_744_996 / 240e9)
    assert short.network_seconds < 2 / 3 * short.compute_seconds  # so it is hidden behind the backward pass
    assert short.step_seconds == short.compute_seconds
    assert found.hours == pytest.approx((900_000 * short.step_seconds + 100_000 * long.step_seconds) / 3600)
    assert short.read_bandwidth == pytest.approx(256 / short.step_seconds * 128 * 2.125)
    assert short.max_read_bandwidth == pytest.approx(256 / short.step_seconds * 32_768)


def test_what_is_not_hidden_of_the_network_is_added():
    short = estimate_on_cluster(PAPER, VOCABULARY, EIGHT, shard=False).phases[0]
    # 2 * 63/64 * 440,425,712 bytes over 12.5e9 bytes a second, of which 0.8 are reached
    assert short.network_seconds == pytest.approx(2 * 63 / 64 * 440_425_712 / 10e9)
    assert short.step_seconds == pytest.approx(short.compute_seconds / 3 + short.network_seconds)
    fast = estimate_on_cluster(PAPER, VOCABULARY, replace(EIGHT, network_bandwidth=1e12), shard=False).phases[0]
    assert fast.network_seconds == pytest.approx(
        2 * 63 / 64 * 440_425_712 / 240e9
    )  # then the links inside are the slowest


def test_a_sharded_model_travels_with_every_micro_batch():
    recipe = replace(PAPER, micro_batch_size=16)
    others = 110_106_428 - 85_054_464
    for precision, width in (("fp32", 4), ("bf16", 2)):
        found = estimate_on_cluster(replace(recipe, precision=precision), VOCABULARY, ONE, shard=True)
        gathered = 2 * width * 85_054_464 + 4 * others
        assert found.phases[0].bytes_sent == pytest.approx(7 / 8 * 2 * (gathered + 4 * 110_106_428))


def test_checkpoints_and_how_often():
    found = estimate_on_cluster(PAPER, VOCABULARY, ONE, shard=False)
    assert found.checkpoint_bytes == 12 * 110_106_428
    assert found.checkpoint_stall_seconds == pytest.approx(1_321_277_136 / 4e9)
    assert found.checkpoint_write_seconds == pytest.approx(1.321277136)
    assert found.checkpoint_interval_seconds == pytest.approx(math.sqrt(2 * 0.330319284 * 3600 * 50_000 / 8))
    mean = found.hours * 3600 / 1_000_000
    assert found.save_steps == math.ceil(found.checkpoint_interval_seconds / mean)
    assert found.checkpoint_overhead_ratio == pytest.approx(
        found.checkpoint_stall_seconds / found.checkpoint_interval_seconds
    )
    spread = estimate_on_cluster(PAPER, VOCABULARY, ONE, shard=True)
    assert spread.checkpoint_stall_seconds == pytest.approx(found.checkpoint_stall_seconds / 8)


def test_saving_never_takes_more_than_three_percent():
    many = estimate_on_cluster(
        replace(PAPER, batch_size=2**20), VOCABULARY, Cluster(2**17, 8, parse_hardware("H100")), shard=False
    )
    assert many.checkpoint_interval_seconds == pytest.approx(
        33 * many.checkpoint_stall_seconds
    )  # so many cards fail more often than that
    assert many.checkpoint_overhead_ratio < 0.031


def test_memory_of_a_card_grows_smaller_when_the_model_is_spread():
    whole, spread = (estimate_on_cluster(LARGE, VOCABULARY, ONE, shard=shards) for shards in (False, True))
    assert spread.memory < whole.memory
    # parameters, gradients, moments and the table's second gradient are there in any case
    assert whole.memory > 4 * (4 * 335_141_888 + VOCABULARY * 1_024)


@pytest.mark.parametrize("name", ["8gpu", "64gpu", "256gpu"])
def test_the_shipped_recipes_have_the_paper_s_pieces_and_32_rows_a_card(name):
    recipe = read_recipe(recipe_path(f"paper-base-{name}"), PretrainRecipe)
    cluster = Cluster(int(name.removesuffix("gpu")) // 8, 8, parse_hardware("A100"))
    found = estimate_on_cluster(recipe, VOCABULARY, cluster, shard=False)
    assert found.sequences_per_gpu == 32
    assert found.num_tokens == 42_598_400_000
    assert (
        recipe.save_steps * found.hours * 3600 / found.steps > 33 * found.checkpoint_stall_seconds
    )  # saving takes less than 3 %


@pytest.mark.parametrize(
    ("recipe", "cluster", "told"),
    [
        (PAPER, Cluster(3, 8, parse_hardware("A100")), "a batch of 256 cannot be shared equally among 24 cards"),
        (replace(PAPER, budget="2h"), ONE, "counts time, not steps"),
        (replace(LARGE, batch_size=8), Cluster(1, 8, replace(ONE.gpu, memory=2**30)), "add --shard"),
    ],
)
def test_what_cannot_be_is_refused(recipe, cluster, told):
    with pytest.raises(SettingsError, match=told):
        estimate_on_cluster(recipe, VOCABULARY, cluster, shard=False)


def test_a_cluster_of_nothing_is_refused():
    for nodes, cards, kind, told in ((0, 8, "A100", "0 nodes"), (1, 8, "TPUv2", "how cards of kind TPUv2 are linked")):
        with pytest.raises(SettingsError, match=told):
            Cluster(nodes, cards, parse_hardware(kind))
    with pytest.raises(SettingsError, match="network"):
        Cluster(1, 8, parse_hardware("A100"), 0.0)
