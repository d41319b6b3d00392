"""Recipes of pretraining: those that come with the package, the paper's to the number, times, and refusals."""

from dataclasses import replace
from pathlib import Path

import pytest

import bertworks
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.encoders.bert import BertConfig
from bertworks.errors import SettingsError
from bertworks.sampling.masking import MaskSettings
from bertworks.settings import from_table, parse_duration, read_recipe, recipe_path, to_toml
from bertworks.training.memory import num_parameters
from bertworks.training.optimizer import AdamSettings

SHIPPED = sorted((Path(bertworks.__file__).parent / "recipes").glob("*.toml"))
NAMES = {"base", "demo", "large", "medium", "mini", "paper-base", "paper-base-chinese", "paper-large", "small", "tiny"}


def shipped(name: str) -> PretrainRecipe:
    return read_recipe(recipe_path(name), PretrainRecipe)


def test_these_recipes_come_with_the_package():
    assert {path.stem for path in SHIPPED} >= NAMES


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_read_and_fits_its_own_positions(path: Path):
    recipe = read_recipe(path, PretrainRecipe)
    sizes = recipe.model.config(30_522)
    assert max(phase.max_length for phase in recipe.phases) <= sizes.max_position_embeddings
    assert path.read_text(encoding="utf-8").startswith("# ")  # and says what it is for


@pytest.mark.parametrize("name", ["tiny", "mini", "small", "medium", "base", "large"])
def test_a_recipe_of_a_size_trains_that_size(name: str):
    assert shipped(name).model.config(30_522) == BertConfig.from_preset(name, 30_522)


@pytest.mark.parametrize("name", ["paper-base", "paper-large", "paper-base-chinese"])
def test_the_paper_s_recipe_is_the_paper_s(name: str):
    recipe = shipped(name)
    assert recipe.objective == "masked-next"
    assert recipe.batch_size == 256
    assert [(phase.max_length, phase.steps) for phase in recipe.phases] == [(128, 900_000), (512, 100_000)]
    assert recipe.budget == ""
    assert recipe.learning_rate == 1e-4
    assert recipe.warmup_steps == 10_000
    adam = recipe.optimizer
    assert (adam.beta1, adam.beta2, adam.weight_decay) == (0.9, 0.999, 0.01)
    assert (recipe.model.hidden_dropout_prob, recipe.model.config(100).hidden_act) == (0.1, "gelu")
    masking = recipe.masking
    assert (masking.mask_prob, masking.mask_replace_prob, masking.random_replace_prob) == (0.15, 0.8, 0.1)
    assert not masking.whole_words


@pytest.mark.parametrize(
    ("name", "vocabulary", "shape", "count"),
    [
        ("paper-base", 30_522, (12, 768, 12, 3_072), 109_482_240),
        ("paper-large", 30_522, (24, 1_024, 16, 4_096), 335_141_888),
        ("paper-base-chinese", 21_128, (12, 768, 12, 3_072), 102_267_648),
    ],
)
def test_the_paper_s_sizes(name: str, vocabulary: int, shape: tuple[int, ...], count: int):
    sizes = shipped(name).model.config(vocabulary)
    assert (sizes.num_hidden_layers, sizes.hidden_size, sizes.num_attention_heads, sizes.intermediate_size) == shape
    assert (sizes.max_position_embeddings, sizes.type_vocab_size) == (512, 2)
    assert (sizes.hidden_dropout_prob, sizes.attention_probs_dropout_prob, sizes.hidden_act) == (0.1, 0.1, "gelu")
    assert num_parameters(sizes) == count


def test_a_recipe_that_is_silent_says_what_the_paper_says():
    assert from_table(PretrainRecipe, {}, "here") == PretrainRecipe() == shipped("paper-base")


def test_numbers_beside_a_size_change_it():
    sizes = ModelRecipe(
        "tiny",
        num_hidden_layers=3,
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout_prob=0.2,
    ).config(60)
    assert sizes == BertConfig(60, 32, 3, 4, 128, 64, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1h30m", 5_400), ("4d", 345_600), ("0.5h", 1_800), ("1m1.5s", 61.5)],
)
def test_times_are_told_in_units(told: str, seconds: float):
    assert parse_duration(told) == seconds


def test_no_time_is_none():
    assert parse_duration("") is None


@pytest.mark.parametrize("told", ["30", "m", "30 m", "5x", "-5m", "1h 30m", "1.m", "h1", "30m\n", "0s", "0h0m"])
def test_what_is_no_time_is_refused_with_an_example(told: str):
    with pytest.raises(SettingsError, match="is no duration; write it as 90s, 30m, 2h or 1h30m"):
        parse_duration(told)


FULL = PretrainRecipe(
    ModelRecipe(
        "tiny",
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=64,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
    ),
    "masked",
    MaskSettings(0.2, 0.7, 0.2, True, 20),
    3,
    AdamSettings(0.8, 0.99, 1e-8, 0.0, 0.0, False),
    32,
    8,
    3e-05,
    7,
    0.125,
    "cosine",
    (PhaseRecipe(32, 10, 0.25), PhaseRecipe(64, 5, 0.75)),
    "1h30m",
    12_345_678_901,
    11,
    12,
    13,
    True,
)


@pytest.mark.parametrize("recipe", [PretrainRecipe(), FULL, *map(shipped, sorted(NAMES))], ids=str)
def test_a_recipe_written_out_and_read_again_is_the_same(tmp_path: Path, recipe: PretrainRecipe):
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    assert read_recipe(path, PretrainRecipe) == recipe


def test_a_recipe_is_written_in_full():
    text = to_toml(PretrainRecipe())
    for line in ("batch = 256", "rate = 0.0001", "warmup = 10000", "compile = false", 'size = "base"', "eps = 1e-06"):
        assert line in text.splitlines()
    assert text.count("[[phases]]") == 2


def changed(**changes: object) -> PretrainRecipe:
    return replace(PretrainRecipe(), **changes)  # type: ignore[arg-type]


REFUSED = {
    "longer than the positions": (
        {"model": ModelRecipe(max_position_embeddings=256)},
        "phase 2 has length 512, but the model has 256 positions; raise model.positions or shorten the phase",
    ),
    "neither steps nor budget": (
        {"phases": (PhaseRecipe(128, 20_000), PhaseRecipe(512))},
        r"phase 2 needs steps \(or the recipe a budget, such as budget = '30m'\)",
    ),
    "a budget without shares": (
        {"phases": (PhaseRecipe(128, 20_000),), "budget": "2h"},
        "phase 1 needs a share of the budget, such as share = 0.9",
    ),
    "a budget that is no duration": ({"budget": "soon"}, "'soon' is no time"),
    "no phase": ({"phases": ()}, "a recipe needs at least one phase"),
    "an unknown size": ({"model": ModelRecipe("huge")}, "there is no size 'huge'; choose one of: tiny, mini, small"),
    "an unknown objective": ({"objective": "nsp"}, "there is no objective 'nsp'; choose one of: masked-next, masked-"),
    "warm-up as long as the run": (
        {"phases": (PhaseRecipe(128, 10_000),)},
        "warmup takes 10,000 steps, but the run has only 10,000; shorten it or add steps",
    ),
    "no examples in a step": ({"batch": 0}, "batch is 0; give at least 1"),
    "never saving": ({"save_every": 0}, "save_every is 0; give at least 1"),
    "never measuring": ({"evaluate_every": 0}, "evaluate_every is 0; give at least 1"),
    "nothing to measure": ({"evaluate_examples": 0}, "evaluate_examples is 0; give at least 1"),
    "negative micro-batches": ({"micro_batch": -1}, "micro_batch is -1; give 0 or more"),
    "a rate of zero": ({"rate": 0.0}, "rate is 0.0; give a number above 0"),
    "a rate that is no number": ({"rate": float("nan")}, "rate is nan; give a number above 0"),
    "all warm-up": ({"warmup_rate": 1.0}, "warmup_rate is 1.0; give a number from 0 to below 1"),
    "everything dropped": (
        {"model": ModelRecipe(hidden_dropout_prob=1.0)},
        "model.dropout is 1.0; give a number from 0 to below 1",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_a_recipe_that_cannot_work_is_refused(changes: dict[str, object], message: str):
    with pytest.raises(SettingsError, match=message):
        changed(**changes)


def test_with_a_budget_neither_steps_nor_a_warm_up_in_steps_matter():
    recipe = changed(phases=(PhaseRecipe(128, budget_ratio=1.0),), budget="5m")
    assert parse_duration(recipe.budget) == 300


def test_a_misspelt_key_is_refused_with_the_file_and_the_nearest(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text("bacth = 32\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}: there is no key 'bacth'; did you mean 'batch'? Known here: model, ")


def test_a_refused_recipe_names_its_file_and_table(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text("[model]\npositions = 64\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}: phase 1 has length 128, but the model has 64 positions")
    path.write_text("[masking]\nrate = 2\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}, masking: masking rates lie in 0..1")


def test_a_recipe_is_found_by_its_name_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    (tmp_path / "mine").write_text("batch = 8\n", encoding="utf-8")
    assert recipe_path("mini").name == "mini.toml"
    assert recipe_path("mini").is_absolute()
    assert recipe_path("mine") == Path("mine")
    assert recipe_path("other.toml") == Path("other.toml")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        SettingsError, match=r"there is no recipe 'minni'; name a \.toml file or one of: adapt, albert, base, demo"
    ):
        recipe_path("minni")


def test_two_phases_of_one_length_are_refused() -> None:
    with pytest.raises(SettingsError, match="two phases have the same length"):
        PretrainRecipe(phases=(PhaseRecipe(128, 10), PhaseRecipe(128, 20)))
