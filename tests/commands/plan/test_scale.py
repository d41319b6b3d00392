"""A recipe on a GPU cluster: every number worked out by hand from its formula."""

import math
from dataclasses import replace

import pytest

from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.plan.hardware import parse_hardware
from bertworks.commands.plan.scale import Cluster, count_parameters, estimate_on_cluster
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.errors import SettingsError
from bertworks.settings import read_recipe, recipe_path

VOCAB_SIZE = 30_522
PAPER = read_recipe(recipe_path("paper-base"), PretrainRecipe)
LARGE = replace(PAPER, model=ModelRecipe(size="large"))
ONE_NODE = Cluster(1, 8, parse_hardware("A100"))
EIGHT_NODES = Cluster(8, 8, parse_hardware("A100"))


def test_parameters_are_those_of_transformers_with_both_heads():
    # 109,482,240 of the encoder, 590,592 + 1,536 + 30,522 of the MLM head, 1,538 of the NSP head
    assert count_parameters(PAPER, VOCAB_SIZE) == (110_106_428, 12 * 7_087_872)
    assert count_parameters(LARGE, VOCAB_SIZE)[0] == 336_226_108


def test_paper_recipe_on_eight_gpus():
    result = estimate_on_cluster(PAPER, VOCAB_SIZE, ONE_NODE, shard=False)
    short, long = result.phases
    assert (result.num_gpus, result.sequences_per_gpu, result.steps) == (8, 32, 1_000_000)
    assert (short.num_tokens, long.num_tokens) == (32_768, 131_072)
    assert result.num_tokens == 900_000 * 32_768 + 100_000 * 131_072
    # 3 * (12 * (2 * 32768 * 7077888 + 4 * 32768 * 128 * 768) + 2 * 256 * 19 * (768^2 + 768 * 30522) + 2 * 256 * 768^2)
    layers = 12 * (2 * 32_768 * 7_077_888 + 4 * 32_768 * 128 * 768)
    heads = 2 * 256 * 19 * (768**2 + 768 * 30_522) + 2 * 256 * 768**2
    assert short.flops == pytest.approx(3 * (layers + heads))
    assert short.compute_seconds == pytest.approx(short.flops / (8 * 312e12 * 0.28))
    # A ring all-reduce over eight sends 2 * 7/8 * 4 bytes of each parameter, at 0.8 * 300e9 bytes/s.
    assert short.bytes_sent == long.bytes_sent == pytest.approx(1.75 * 4 * 110_106_428)
    assert short.network_seconds == pytest.approx(770_744_996 / 240e9)
    assert short.network_seconds < 2 / 3 * short.compute_seconds  # so it overlaps with the backward pass
    assert short.step_seconds == short.compute_seconds
    assert result.hours == pytest.approx((900_000 * short.step_seconds + 100_000 * long.step_seconds) / 3600)
    assert short.read_bandwidth == pytest.approx(256 / short.step_seconds * 128 * 2.125)
    assert short.max_read_bandwidth == pytest.approx(256 / short.step_seconds * 32_768)


def test_phases_have_their_own_batch_size_and_mask_prob():
    phases = (PhaseRecipe(128, steps=20_000, batch_size=64, mask_prob=0.3), PhaseRecipe(128, steps=1))
    result = estimate_on_cluster(replace(PAPER, phases=phases), VOCAB_SIZE, ONE_NODE, shard=False)
    first, second = result.phases
    config = PAPER.model.config(VOCAB_SIZE)
    assert (first.name, first.num_tokens, first.flops) == ("128", 64 * 128, step_flops(config, 64, 128, 0.3))
    assert (second.name, second.num_tokens, second.flops) == ("128 (2)", 256 * 128, step_flops(config, 256, 128, 0.15))
    assert (result.batch_size, result.sequences_per_gpu) == (256, 32)
    odd = (PhaseRecipe(128, steps=20_000, batch_size=60), PhaseRecipe(128, steps=1))
    with pytest.raises(SettingsError, match="batch_size 60 is no multiple of 8 GPUs"):
        estimate_on_cluster(replace(PAPER, phases=odd), VOCAB_SIZE, ONE_NODE, shard=False)


def test_network_time_beyond_the_overlap_is_added():
    short = estimate_on_cluster(PAPER, VOCAB_SIZE, EIGHT_NODES, shard=False).phases[0]
    # 2 * 63/64 * 440,425,712 bytes at 0.8 * 12.5e9 bytes/s
    assert short.network_seconds == pytest.approx(2 * 63 / 64 * 440_425_712 / 10e9)
    assert short.step_seconds == pytest.approx(short.compute_seconds / 3 + short.network_seconds)
    fast = estimate_on_cluster(PAPER, VOCAB_SIZE, replace(EIGHT_NODES, network_bandwidth=1e12), shard=False).phases[0]
    assert fast.network_seconds == pytest.approx(
        2 * 63 / 64 * 440_425_712 / 240e9
    )  # the links inside a node are the slowest


def test_sharded_model_is_gathered_for_every_micro_batch():
    recipe = replace(PAPER, micro_batch_size=16)
    num_other = 110_106_428 - 85_054_464
    for precision, num_bytes in (("fp32", 4), ("bf16", 2)):
        result = estimate_on_cluster(replace(recipe, precision=precision), VOCAB_SIZE, ONE_NODE, shard=True)
        gathered = 2 * num_bytes * 85_054_464 + 4 * num_other
        assert result.phases[0].bytes_sent == pytest.approx(7 / 8 * 2 * (gathered + 4 * 110_106_428))


def test_checkpoint_size_and_interval():
    result = estimate_on_cluster(PAPER, VOCAB_SIZE, ONE_NODE, shard=False)
    assert result.checkpoint_bytes == 12 * 110_106_428
    assert result.checkpoint_stall_seconds == pytest.approx(1_321_277_136 / 4e9)
    assert result.checkpoint_write_seconds == pytest.approx(1.321277136)
    assert result.checkpoint_interval_seconds == pytest.approx(math.sqrt(2 * 0.330319284 * 3600 * 50_000 / 8))
    step_seconds = result.hours * 3600 / 1_000_000
    assert result.save_steps == math.ceil(result.checkpoint_interval_seconds / step_seconds)
    assert result.checkpoint_overhead_ratio == pytest.approx(
        result.checkpoint_stall_seconds / result.checkpoint_interval_seconds
    )
    sharded = estimate_on_cluster(PAPER, VOCAB_SIZE, ONE_NODE, shard=True)
    assert sharded.checkpoint_stall_seconds == pytest.approx(result.checkpoint_stall_seconds / 8)


def test_averaged_weights_take_memory_and_disk():
    plain, averaged = (
        estimate_on_cluster(replace(PAPER, ema_decay=decay), VOCAB_SIZE, ONE_NODE, shard=False) for decay in (0.0, 0.99)
    )
    assert averaged.checkpoint_bytes - plain.checkpoint_bytes == 4 * 110_106_428
    assert averaged.memory - plain.memory == 4 * 109_482_240  # as all estimates of memory, without heads


def test_saving_takes_at_most_three_percent():
    result = estimate_on_cluster(
        replace(PAPER, batch_size=2**20), VOCAB_SIZE, Cluster(2**17, 8, parse_hardware("H100")), shard=False
    )
    assert result.checkpoint_interval_seconds == pytest.approx(
        33 * result.checkpoint_stall_seconds
    )  # so many GPUs fail more often than that
    assert result.checkpoint_overhead_ratio < 0.031


def test_sharding_reduces_memory_per_gpu():
    replicated, sharded = (estimate_on_cluster(LARGE, VOCAB_SIZE, ONE_NODE, shard=shard) for shard in (False, True))
    assert sharded.memory < replicated.memory
    # at least parameters, gradients, moments and a second gradient of the embeddings
    assert replicated.memory > 4 * (4 * 335_141_888 + VOCAB_SIZE * 1_024)


@pytest.mark.parametrize("name", ["8gpu", "64gpu", "256gpu"])
def test_gpu_recipes_have_the_paper_s_tokens_and_32_sequences_per_gpu(name):
    recipe = read_recipe(recipe_path(f"paper-base-{name}"), PretrainRecipe)
    cluster = Cluster(int(name.removesuffix("gpu")) // 8, 8, parse_hardware("A100"))
    result = estimate_on_cluster(recipe, VOCAB_SIZE, cluster, shard=False)
    assert result.sequences_per_gpu == 32
    assert result.num_tokens == 42_598_400_000
    assert (
        recipe.save_steps * result.hours * 3600 / result.steps > 33 * result.checkpoint_stall_seconds
    )  # saving takes under 3 %


@pytest.mark.parametrize(
    ("recipe", "cluster", "message"),
    [
        (PAPER, Cluster(3, 8, parse_hardware("A100")), "batch_size 256 is no multiple of 24 GPUs"),
        (replace(PAPER, budget="2h"), ONE_NODE, "has a time budget"),
        (replace(LARGE, batch_size=8), Cluster(1, 8, replace(ONE_NODE.gpu, memory=2**30)), "add --shard"),
    ],
)
def test_invalid_combination_is_refused(recipe, cluster, message):
    with pytest.raises(SettingsError, match=message):
        estimate_on_cluster(recipe, VOCAB_SIZE, cluster, shard=False)


def test_invalid_cluster_is_refused():
    for num_nodes, gpu, message in ((0, "A100", "not 0 nodes"), (1, "TPUv2", "between TPUv2 devices is not known")):
        with pytest.raises(SettingsError, match=message):
            Cluster(num_nodes, 8, parse_hardware(gpu))
    with pytest.raises(SettingsError, match="network"):
        Cluster(1, 8, parse_hardware("A100"), 0.0)
