"""Pretraining recipes: the built-in ones, the paper's values, durations, and validation."""

import tomllib
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

BUILT_IN = sorted((Path(bertworks.__file__).parent / "recipes").glob("*.toml"))
NAMES = {"base", "demo", "large", "medium", "mini", "paper-base", "paper-base-chinese", "paper-large", "small", "tiny"}


def built_in(name: str) -> PretrainRecipe:
    return read_recipe(recipe_path(name), PretrainRecipe)


def test_package_has_the_recipes():
    assert {path.stem for path in BUILT_IN} >= NAMES


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda path: path.stem)
def test_every_built_in_recipe_loads_and_fits_its_positions(path: Path):
    recipe = read_recipe(path, PretrainRecipe)
    config = recipe.model.config(30_522)
    assert max(phase.max_length for phase in recipe.phases) <= config.max_length
    assert path.read_text(encoding="utf-8").startswith("# ")  # a comment says what it is for


@pytest.mark.parametrize("name", ["tiny", "mini", "small", "medium", "base", "large"])
def test_recipe_of_a_size_has_its_preset_config(name: str):
    assert built_in(name).model.config(30_522) == BertConfig.from_preset(name, 30_522)


@pytest.mark.parametrize("name", ["paper-base", "paper-large", "paper-base-chinese"])
def test_paper_recipes_have_the_values_of_the_paper(name: str):
    recipe = built_in(name)
    assert recipe.objective == "mlm-nsp"
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
    ("name", "vocab_size", "shape", "count"),
    [
        ("paper-base", 30_522, (12, 768, 12, 3_072), 109_482_240),
        ("paper-large", 30_522, (24, 1_024, 16, 4_096), 335_141_888),
        ("paper-base-chinese", 21_128, (12, 768, 12, 3_072), 102_267_648),
    ],
)
def test_paper_recipes_have_the_sizes_of_the_paper(name: str, vocab_size: int, shape: tuple[int, ...], count: int):
    config = built_in(name).model.config(vocab_size)
    assert (config.num_hidden_layers, config.hidden_size) == shape[:2]
    assert (config.num_attention_heads, config.intermediate_size) == shape[2:]
    assert (config.max_position_embeddings, config.type_vocab_size) == (512, 2)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.hidden_act) == (0.1, 0.1, "gelu")
    assert num_parameters(config) == count


def test_default_recipe_is_the_paper_s():
    """But for the precision, which the paper's recipe fixes and the default derives from the processor."""
    assert from_table(PretrainRecipe, {}, "here") == PretrainRecipe()
    assert replace(PretrainRecipe(), precision="fp32") == built_in("paper-base")


def test_config_keys_override_the_preset():
    config = ModelRecipe(
        size="tiny",
        num_hidden_layers=3,
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout_prob=0.2,
    ).config(60)
    assert config == BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.2,
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1h30m", 5_400), ("4d", 345_600), ("0.5h", 1_800), ("1m1.5s", 61.5)],
)
def test_duration_is_parsed(text: str, seconds: float):
    assert parse_duration(text) == seconds


def test_empty_duration_is_none():
    assert parse_duration("") is None


@pytest.mark.parametrize("text", ["30", "m", "30 m", "5x", "-5m", "1h 30m", "1.m", "h1", "30m\n", "0s", "0h0m"])
def test_invalid_duration_is_refused_with_an_example(text: str):
    with pytest.raises(SettingsError, match="is no duration; write it as 90s, 30m, 2h or 1h30m"):
        parse_duration(text)


FULL = PretrainRecipe(
    model=ModelRecipe(
        size="tiny",
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=64,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
    ),
    objective="mlm",
    masking=MaskSettings(
        mask_prob=0.2, mask_replace_prob=0.7, random_replace_prob=0.2, whole_words=True, max_predictions=20
    ),
    num_fresh_epochs=3,
    optimizer=AdamSettings(beta1=0.8, beta2=0.99, eps=1e-8, weight_decay=0.0, clip=0.0, bias_correction=False),
    batch_size=32,
    micro_batch_size=8,
    learning_rate=3e-05,
    warmup_steps=7,
    warmup_ratio=0.125,
    schedule="wsd",
    decay_ratio=0.3,
    ema_decay=0.99,
    phases=(
        PhaseRecipe(32, steps=10, budget_ratio=0.25, mask_prob=0.3, batch_size=16, learning_rate=2e-3),
        PhaseRecipe(64, steps=5, budget_ratio=0.75),
    ),
    budget="1h30m",
    seed=12_345_678_901,
    save_steps=11,
    eval_steps=12,
    num_eval_examples=13,
    compile=True,
)


@pytest.mark.parametrize("recipe", [PretrainRecipe(), FULL, *map(built_in, sorted(NAMES))], ids=str)
def test_recipe_survives_writing_and_reading(tmp_path: Path, recipe: PretrainRecipe):
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    assert read_recipe(path, PretrainRecipe) == recipe


def test_recipe_is_written_with_all_defaults():
    text = to_toml(PretrainRecipe())
    for line in (
        "batch_size = 256",
        "learning_rate = 0.0001",
        "warmup_steps = 10000",
        "compile = false",
        'size = "base"',
        "eps = 1e-06",
    ):
        assert line in text.splitlines()
    assert text.count("[[phases]]") == 2


def recipe_with(**changes: object) -> PretrainRecipe:
    return replace(PretrainRecipe(), **changes)  # type: ignore[arg-type]


INVALID = {
    "max_length above the positions": (
        {"model": ModelRecipe(max_position_embeddings=256)},
        "phase 2 has max_length 512, but the model has only 256 positions; raise model.max_position_embeddings or",
    ),
    "neither steps nor budget": (
        {"phases": (PhaseRecipe(128, steps=20_000), PhaseRecipe(512))},
        r"phase 2 needs steps \(or the recipe a budget, such as budget = '30m'\)",
    ),
    "a budget without budget_ratio": (
        {"phases": (PhaseRecipe(128, steps=20_000),), "budget": "2h"},
        "phase 1 needs its part of the budget, such as budget_ratio = 0.9",
    ),
    "a budget that is no duration": ({"budget": "soon"}, "'soon' is no duration"),
    "no phase": ({"phases": ()}, "a recipe needs at least one phase"),
    "unknown size": (
        {"model": ModelRecipe(size="huge")},
        "there is no size 'huge' of the family 'bert'; choose one of: tiny, mini, small",
    ),
    "unknown objective": ({"objective": "nsp"}, "there is no objective 'nsp'; choose one of: mlm-nsp, mlm-sop"),
    "warmup as long as the run": (
        {"phases": (PhaseRecipe(128, steps=10_000),)},
        "warmup_steps is 10,000, but the run has 10,000 steps; lower it or add steps",
    ),
    "no examples in a step": ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    "never saving": ({"save_steps": 0}, "save_steps is 0; it must be at least 1"),
    "never evaluating": ({"eval_steps": 0}, "eval_steps is 0; it must be at least 1"),
    "nothing to evaluate": ({"num_eval_examples": 0}, "num_eval_examples is 0; it must be at least 1"),
    "negative micro-batch size": ({"micro_batch_size": -1}, "micro_batch_size is -1; it must be 0 or more"),
    "learning rate 0": ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be above 0"),
    "learning rate NaN": ({"learning_rate": float("nan")}, "learning_rate is nan; it must be above 0"),
    "no decay": ({"decay_ratio": 0.0}, "decay_ratio is 0.0; it must be above 0 and at most 1"),
    "unknown schedule": ({"schedule": "flat"}, "there is no schedule 'flat'; choose one of: linear, cosine"),
    "an average that never moves": ({"ema_decay": 1.0}, "ema_decay is 1.0; it must be at least 0 and below 1"),
    "only warmup": ({"warmup_ratio": 1.0}, "warmup_ratio is 1.0; it must be at least 0 and below 1"),
    "dropout of everything": (
        {"model": ModelRecipe(hidden_dropout_prob=1.0)},
        "model.hidden_dropout_prob is 1.0; it must be at least 0 and below 1",
    ),
}


@pytest.mark.parametrize(("changes", "message"), INVALID.values(), ids=INVALID)
def test_invalid_recipe_is_refused(changes: dict[str, object], message: str):
    with pytest.raises(SettingsError, match=message):
        recipe_with(**changes)


def test_time_budget_needs_no_steps():
    recipe = recipe_with(phases=(PhaseRecipe(128, budget_ratio=1.0),), budget="5m")
    assert parse_duration(recipe.budget) == 300


def test_misspelt_key_names_the_file_and_the_nearest_key(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text("bacth_size = 32\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}: there is no key 'bacth_size'; did you mean 'batch_size'?")


def test_error_names_the_file_and_the_table(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text("[model]\nmax_position_embeddings = 64\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}: phase 1 has max_length 128, but the model has only 64 positions")
    path.write_text("[masking]\nmask_prob = 2\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}, masking: ")


def test_recipe_is_found_by_name_beside_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    (tmp_path / "mine").write_text("batch_size = 8\n", encoding="utf-8")
    assert recipe_path("mini").name == "mini.toml"
    assert recipe_path("mini").is_absolute()
    assert recipe_path("mine") == Path("mine")
    assert recipe_path("other.toml") == Path("other.toml")


def test_unknown_recipe_lists_the_known_ones():
    with pytest.raises(
        SettingsError, match=r"there is no recipe 'minni'.* name a \.toml file or one of: adapt, albert, base, demo"
    ):
        recipe_path("minni")


def test_phase_without_own_settings_has_those_of_the_recipe():
    own = PhaseRecipe(128, steps=20_000, mask_prob=0.3, batch_size=64, learning_rate=5e-4)
    first, second = recipe_with(phases=(own, PhaseRecipe(256, steps=10))).resolve_phases()
    assert (first.masking, first.batch_size, first.learning_rate) == (MaskSettings(mask_prob=0.3), 64, 5e-4)
    assert (second.masking, second.batch_size, second.learning_rate) == (MaskSettings(), 256, 1e-4)


def test_phases_of_the_same_length_have_different_names():
    lengths = (128, 256, 128, 128)
    recipe = recipe_with(phases=tuple(PhaseRecipe(length, steps=5_000) for length in lengths))
    assert recipe.phase_indices() == {"128": 0, "256": 1, "128 (2)": 2, "128 (3)": 3}


def test_phase_is_written_without_the_settings_it_takes_from_the_recipe():
    phases = tomllib.loads(to_toml(FULL))["phases"]
    assert phases[0].keys() == {"max_length", "steps", "budget_ratio", "mask_prob", "batch_size", "learning_rate"}
    assert phases[1].keys() == {"max_length", "steps", "budget_ratio"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mask_prob", 1.5, "mask_prob is 1.5; it must be above 0 and at most 1"),
        ("mask_prob", 0.0, "mask_prob is 0.0; it must be above 0"),
        ("batch_size", 0, "batch_size is 0; it must be at least 1"),
        ("learning_rate", -1e-3, "learning_rate is -0.001; it must be above 0"),
    ],
)
def test_invalid_setting_of_a_phase_is_refused_with_its_place(tmp_path: Path, key: str, value: float, message: str):
    path = tmp_path / "mine.toml"
    path.write_text(f"[[phases]]\nmax_length = 128\nsteps = 20000\n{key} = {value}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=message) as caught:
        read_recipe(path, PretrainRecipe)
    assert str(caught.value).startswith(f"{path}, phases[0]: phase of max_length 128: ")
