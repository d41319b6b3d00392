"""A recipe on many cards: every number worked out by hand from its formula."""

import math
from dataclasses import replace

import pytest

from bertworks.commands.plan.hardware import hardware_of
from bertworks.commands.plan.scale import Cluster, parameters_of, scaled
from bertworks.commands.pretrain.recipe import ModelRecipe, Recipe, recipe_path
from bertworks.errors import SettingsError
from bertworks.settings import read_recipe

VOCABULARY = 30_522
PAPER = read_recipe(recipe_path("paper-base"), Recipe)
LARGE = replace(PAPER, model=ModelRecipe("large"))
ONE = Cluster(1, 8, hardware_of("A100"))
EIGHT = Cluster(8, 8, hardware_of("A100"))


def test_parameters_are_those_of_transformers_with_both_heads():
    # 109,482,240 of the encoder, 590,592 + 1,536 + 30,522 of the masked head, 1,538 of the pair's
    assert parameters_of(PAPER, VOCABULARY) == (110_106_428, 12 * 7_087_872)
    assert parameters_of(LARGE, VOCABULARY)[0] == 336_226_108


def test_a_step_of_the_paper_on_eight_cards():
    found = scaled(PAPER, VOCABULARY, ONE, shards=False)
    short, long = found.phases
    assert (found.num_cards, found.rows, found.steps) == (8, 32, 1_000_000)
    assert (short.pieces, long.pieces) == (32_768, 131_072)
    assert found.pieces == 900_000 * 32_768 + 100_000 * 131_072
    # 3 * (12 * (2 * 32768 * 7077888 + 4 * 32768 * 128 * 768) + 2 * 256 * 19 * (768^2 + 768 * 30522) + 2 * 256 * 768^2)
    layers = 12 * (2 * 32_768 * 7_077_888 + 4 * 32_768 * 128 * 768)
    heads = 2 * 256 * 19 * (768**2 + 768 * 30_522) + 2 * 256 * 768**2
    assert short.flops == pytest.approx(3 * (layers + heads))
    assert short.computing == pytest.approx(short.flops / (8 * 312e12 * 0.28))
    # what a ring of eight sends: 2 * 7/8 * 4 bytes of each parameter, at 0.8 * 300e9 bytes a second
    assert short.sent == long.sent == pytest.approx(1.75 * 4 * 110_106_428)
    assert short.network == pytest.approx(770_744_996 / 240e9)
    assert short.network < 2 / 3 * short.computing  # so it is hidden behind the backward pass
    assert short.seconds == short.computing
    assert found.hours == pytest.approx((900_000 * short.seconds + 100_000 * long.seconds) / 3600)
    assert short.read == pytest.approx(256 / short.seconds * 128 * 2.125)
    assert short.read_pages == pytest.approx(256 / short.seconds * 32_768)


def test_what_is_not_hidden_of_the_network_is_added():
    short = scaled(PAPER, VOCABULARY, EIGHT, shards=False).phases[0]
    # 2 * 63/64 * 440,425,712 bytes over 12.5e9 bytes a second, of which 0.8 are reached
    assert short.network == pytest.approx(2 * 63 / 64 * 440_425_712 / 10e9)
    assert short.seconds == pytest.approx(short.computing / 3 + short.network)
    fast = scaled(PAPER, VOCABULARY, replace(EIGHT, network=1e12), shards=False).phases[0]
    assert fast.network == pytest.approx(2 * 63 / 64 * 440_425_712 / 240e9)  # then the links inside are the slowest


def test_a_sharded_model_travels_with_every_micro_batch():
    recipe = replace(PAPER, micro_batch=16)
    others = 110_106_428 - 85_054_464
    for precision, width in (("fp32", 4), ("bf16", 2)):
        found = scaled(replace(recipe, precision=precision), VOCABULARY, ONE, shards=True)
        gathered = 2 * width * 85_054_464 + 4 * others
        assert found.phases[0].sent == pytest.approx(7 / 8 * 2 * (gathered + 4 * 110_106_428))


def test_checkpoints_and_how_often():
    found = scaled(PAPER, VOCABULARY, ONE, shards=False)
    assert found.checkpoint == 12 * 110_106_428
    assert found.stop == pytest.approx(1_321_277_136 / 4e9)
    assert found.writing == pytest.approx(1.321277136)
    assert found.interval == pytest.approx(math.sqrt(2 * 0.330319284 * 3600 * 50_000 / 8))
    mean = found.hours * 3600 / 1_000_000
    assert found.save_every == math.ceil(found.interval / mean)
    assert found.saving_rate == pytest.approx(found.stop / found.interval)
    spread = scaled(PAPER, VOCABULARY, ONE, shards=True)
    assert spread.stop == pytest.approx(found.stop / 8)


def test_saving_never_takes_more_than_three_percent():
    many = scaled(replace(PAPER, batch=2**20), VOCABULARY, Cluster(2**17, 8, hardware_of("H100")), shards=False)
    assert many.interval == pytest.approx(33 * many.stop)  # so many cards fail more often than that
    assert many.saving_rate < 0.031


def test_memory_of_a_card_grows_smaller_when_the_model_is_spread():
    whole, spread = (scaled(LARGE, VOCABULARY, ONE, shards=shards) for shards in (False, True))
    assert spread.memory < whole.memory
    # parameters, gradients, moments and the table's second gradient are there in any case
    assert whole.memory > 4 * (4 * 335_141_888 + VOCABULARY * 1_024)


@pytest.mark.parametrize("name", ["8gpu", "64gpu", "256gpu"])
def test_the_shipped_recipes_have_the_paper_s_pieces_and_32_rows_a_card(name):
    recipe = read_recipe(recipe_path(f"paper-base-{name}"), Recipe)
    cluster = Cluster(int(name.removesuffix("gpu")) // 8, 8, hardware_of("A100"))
    found = scaled(recipe, VOCABULARY, cluster, shards=False)
    assert found.rows == 32
    assert found.pieces == 42_598_400_000
    assert recipe.save_every * found.hours * 3600 / found.steps > 33 * found.stop  # saving takes less than 3 %


@pytest.mark.parametrize(
    ("recipe", "cluster", "told"),
    [
        (PAPER, Cluster(3, 8, hardware_of("A100")), "a batch of 256 cannot be shared equally among 24 cards"),
        (replace(PAPER, budget="2h"), ONE, "counts time, not steps"),
        (replace(LARGE, batch=8), Cluster(1, 8, replace(ONE.card, memory=2**30)), "add --shard"),
    ],
)
def test_what_cannot_be_is_refused(recipe, cluster, told):
    with pytest.raises(SettingsError, match=told):
        scaled(recipe, VOCABULARY, cluster, shards=False)


def test_a_cluster_of_nothing_is_refused():
    for nodes, cards, kind, told in ((0, 8, "A100", "0 nodes"), (1, 8, "TPUv2", "how cards of kind TPUv2 are linked")):
        with pytest.raises(SettingsError, match=told):
            Cluster(nodes, cards, hardware_of(kind))
    with pytest.raises(SettingsError, match="network"):
        Cluster(1, 8, hardware_of("A100"), 0.0)
