"""Recipes: reading TOML, base recipes, overrides, suggestions for unknown names, and writing TOML."""

import typing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.settings import (
    Condition,
    apply_overrides,
    convert_value,
    from_table,
    nearest_name,
    override,
    parse_duration,
    read_recipe,
    recipe_path,
    recipe_table,
    to_toml,
    write_recipe,
)


@dataclass(frozen=True)
class ModelSettings:
    hidden_size: int
    tied: bool = False
    activation: str | None = None
    hidden_dropout_prob: float = 0.1

    def __post_init__(self) -> None:
        if self.hidden_size > 4096:
            raise SettingsError(f"hidden_size is {self.hidden_size}; at most 4096")


@dataclass(frozen=True)
class PhaseSettings:
    max_length: float
    splits: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSettings:
    name: str
    model: ModelSettings
    learning_rate: float = 0.5
    phases: tuple[PhaseSettings, ...] = ()
    data: Path = Path("data")
    workers: int | str = 4
    tags: tuple[str, ...] = field(default_factory=tuple)


MINIMAL = 'name = "minimal"\n[model]\nhidden_size = 128\n'


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def error_of(folder: Path, text: str) -> str:
    """Return the error of reading a recipe, without the file name that it starts with."""
    path = write(folder, text)
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, RunSettings)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_missing_values_are_defaults(tmp_path: Path):
    assert read_recipe(write(tmp_path, MINIMAL), RunSettings) == RunSettings("minimal", ModelSettings(128))


def test_every_type_of_value_is_read(tmp_path: Path):
    text = """
name = "小模型"
learning_rate = 1
data = "corpus/old"
workers = "many"
tags = ["a", "b"]
[model]
hidden_size = 200
tied = true
activation = "gelu"
[[phases]]
max_length = 2
splits = ["train", "dev"]
[[phases]]
max_length = 1.5
"""
    settings = read_recipe(write(tmp_path, text), RunSettings)
    phases = (PhaseSettings(2.0, ("train", "dev")), PhaseSettings(1.5))
    model = ModelSettings(200, True, "gelu")
    assert settings == RunSettings("小模型", model, 1.0, phases, Path("corpus/old"), "many", ("a", "b"))
    assert type(settings.learning_rate) is float  # converted from an integer
    assert type(settings.phases[0].max_length) is float


def test_an_unknown_key_is_refused_with_the_nearest_and_all_known_keys(tmp_path: Path):
    known = "name, model, learning_rate, phases, data, workers, tags"
    expected = f": there is no key 'learning_rat'; did you mean 'learning_rate'? Known here: {known}"
    assert error_of(tmp_path, "learning_rat = 0.1\n" + MINIMAL) == expected


def test_an_unknown_key_that_resembles_no_other_is_refused_with_all_known_keys(tmp_path: Path):
    known = "hidden_size, tied, activation, hidden_dropout_prob"
    assert error_of(tmp_path, MINIMAL + "zzz = 1\n") == f", model: there is no key 'zzz'. Known here: {known}"


def test_a_key_that_is_a_synonym_is_refused_with_our_name(tmp_path: Path):
    assert "no key 'lr'; did you mean 'learning_rate'?" in error_of(tmp_path, "lr = 0.1\n" + MINIMAL)
    assert "no key 'dropout'; did you mean 'hidden_dropout_prob'?" in error_of(tmp_path, MINIMAL + "dropout = 0.1\n")


def test_an_unknown_key_in_a_list_of_tables_is_located(tmp_path: Path):
    text = MINIMAL + "[[phases]]\nmax_length = 1\n[[phases]]\nmax_length = 2\nsplit = []\n"
    expected = ", phases[1]: there is no key 'split'; did you mean 'splits'? Known here: max_length, splits"
    assert error_of(tmp_path, text) == expected


def test_missing_keys_are_named(tmp_path: Path):
    assert error_of(tmp_path, "learning_rate = 0.1\n") == ": missing name, model; these keys have no default"
    assert error_of(tmp_path, 'name = "x"\n[model]\ntied = true\n').startswith(", model: missing hidden_size;")
    assert error_of(tmp_path, MINIMAL + "[[phases]]\n").startswith(", phases[0]: missing max_length;")


MODEL = 'name = "x"\n[model]\nhidden_size = '
WRONG_TYPES = {
    "string for integer": (MODEL + '"big"\n', ", model, hidden_size: expected an integer"),
    "float for integer": (MODEL + "1.5\n", ", model, hidden_size: expected an integer"),
    "boolean for integer": (MODEL + "true\n", ", model, hidden_size: expected an integer"),
    "nan for float": ("learning_rate = nan\n" + MINIMAL, ", learning_rate: nan is not a number; give one"),
    "boolean for float": ("learning_rate = true\n" + MINIMAL, ", learning_rate: expected a number, got True"),
    "integer for string": ("name = 3\n[model]\nhidden_size = 1\n", ", name: expected a string, got 3"),
    "integer for boolean": (MINIMAL + "tied = 1\n", ", model, tied: expected true or false, got 1"),
    "integer for optional string": (MINIMAL + "activation = 1\n", ", model, activation: expected a string, got 1"),
    "none of a union": ("workers = 0.5\n" + MINIMAL, ", workers: expected an integer or a string, got 0.5"),
    "string for table": ('name = "x"\nmodel = "big"\n', ", model: expected a table, got 'big'"),
    "string for list": ('tags = "a"\n' + MINIMAL, ", tags: expected a list, got 'a'"),
    "table for list of tables": (MINIMAL + "[phases]\nmax_length = 1\n", ", phases: expected a list"),
    "integer in list of strings": ('tags = ["a", 2]\n' + MINIMAL, ", tags[1]: expected a string, got 2"),
    "string in list of tables": ('phases = ["a"]\n' + MINIMAL, ", phases[0]: expected a table, got 'a'"),
    "nested": (MINIMAL + "[[phases]]\nmax_length = 1\nsplits = [3]\n", ", phases[0], splits[0]: expected a string"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_refused_with_its_location(tmp_path: Path, text: str, message: str):
    assert error_of(tmp_path, text).startswith(message)


def test_an_error_of_the_dataclass_is_located_once(tmp_path: Path):
    assert error_of(tmp_path, MODEL + "9999\n") == ", model: hidden_size is 9999; at most 4096"


def test_a_recipe_is_merged_over_its_base(tmp_path: Path):
    base = (
        'name = "base"\nlearning_rate = 0.2\n[model]\nhidden_size = 128\ntied = true\n'
        "[[phases]]\nmax_length = 1\n[[phases]]\nmax_length = 2\n"
    )
    write(tmp_path, base, "base.toml")
    text = 'base = "base.toml"\nname = "large"\n[model]\nhidden_size = 256\n[[phases]]\nmax_length = 9\n'
    settings = read_recipe(write(tmp_path, text), RunSettings)
    # Tables are merged; lists are replaced.
    assert settings == RunSettings("large", ModelSettings(256, True), 0.2, (PhaseSettings(9.0),))


def test_a_base_is_relative_to_the_recipe_not_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "recipes", MINIMAL, "base.toml")
    path = write(tmp_path / "recipes", 'base = "base.toml"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert recipe_table(path) == {"name": "minimal", "model": {"hidden_size": 128}}


def test_a_base_of_a_base_is_refused(tmp_path: Path):
    write(tmp_path, MINIMAL, "lowest.toml")
    base = write(tmp_path, 'base = "lowest.toml"\n', "base.toml")
    with pytest.raises(SettingsError) as caught:
        read_recipe(write(tmp_path, 'base = "base.toml"\n'), RunSettings)
    assert str(caught.value) == f"{base} has a base itself; only one level of base recipes is supported"


def test_a_base_that_is_no_name_or_missing_is_refused(tmp_path: Path):
    assert error_of(tmp_path, "base = 3\n" + MINIMAL).startswith(": base must be the name of a recipe file")
    with pytest.raises(SettingsError, match=r"there is no recipe .*gone\.toml; check the name"):
        read_recipe(write(tmp_path, 'base = "gone.toml"\n' + MINIMAL), RunSettings)


def test_an_unreadable_recipe_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="there is no recipe"):
        read_recipe(tmp_path / "none.toml", RunSettings)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_recipe(tmp_path, RunSettings)
    assert error_of(tmp_path, "name = \n").startswith(" is not valid TOML: ")
    (tmp_path / "run.toml").write_bytes(b"name = '\xff'\n")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_recipe(tmp_path / "run.toml", RunSettings)


def test_a_table_need_not_come_from_a_file():
    assert from_table(ModelSettings, {"hidden_size": 7}, "here") == ModelSettings(7)
    with pytest.raises(SettingsError, match=r"^here: missing hidden_size"):
        from_table(ModelSettings, {}, "here")


TABLE = {"name": "minimal", "model": {"hidden_size": 128}}


def test_overrides_are_toml_values_of_dotted_keys():
    assignments = ["model.hidden_size=256", "learning_rate = 1e-3", "model.tied=true", 'tags=["a", "b"]']
    table = apply_overrides(TABLE, assignments, RunSettings)
    assert from_table(RunSettings, table, "here") == RunSettings(
        "minimal", ModelSettings(256, True), 1e-3, tags=("a", "b")
    )
    assert TABLE == {"name": "minimal", "model": {"hidden_size": 128}}  # unchanged


def test_an_override_without_quotes_is_a_string():
    assert apply_overrides({}, ["name=large model", "model.activation='gelu'"], RunSettings) == {
        "name": "large model",
        "model": {"activation": "gelu"},
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("lr=1", "there is no setting 'lr'; did you mean 'learning_rate'?"),
        ("dropout=1", "there is no setting 'dropout'; did you mean 'model.hidden_dropout_prob'?"),
        ("modle.hidden_size=1", "there is no setting 'modle.hidden_size'; did you mean 'model.hidden_size'?"),
        ("zzz=1", "there is no setting 'zzz'; the settings are: name, model.hidden_size, model.tied, "),
        ("name", "'name' is no assignment; write section.key=value"),
        ("=1", "'=1' is no assignment"),
    ],
)
def test_a_wrong_override_is_refused_with_the_nearest_name(assignment: str, message: str):
    with pytest.raises(SettingsError) as caught:
        apply_overrides(TABLE, [assignment], RunSettings)
    assert str(caught.value).startswith(message)


def test_the_nearest_name_is_a_synonym_or_a_similar_spelling():
    options = ["--learning-rate", "--batch-size", "--max-length", "--output"]
    assert nearest_name("--lr", options) == "--learning-rate"
    assert nearest_name("--max-seq-length", options) == "--max-length"
    assert nearest_name("--out", options) == "--output"
    assert nearest_name("--batch-sise", options) == "--batch-size"
    assert nearest_name("--zzz", options) is None
    assert nearest_name("warmup", ["warmup_ratio", "warmup_steps"]) == "warmup_steps"


def test_toml_of_a_recipe_has_every_value():
    settings = RunSettings("小模型", ModelSettings(128, True), phases=(PhaseSettings(2.0),), data="d", workers="many")  # type: ignore[arg-type]
    text = to_toml(settings)
    assert 'name = "小模型"' in text
    assert "learning_rate = 0.5" in text  # defaults are written, too
    assert "activation" not in text  # None is not
    assert "[model]\nhidden_size = 128\ntied = true\n" in text
    assert "[[phases]]\nmax_length = 2.0\n" in text


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("0.5d", 43200)]
)
def test_durations(text: str, seconds: float | None):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "3", "2 h", "0s", "-1h", "1h nothing"])
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(SettingsError, match="is no duration; write it as 90s, 30m, 2h or 1h30m"):
        parse_duration(text)


def test_a_recipe_is_written_into_an_empty_folder_and_compared_afterwards(tmp_path: Path):
    write_recipe(tmp_path / "run", "seed = 1\n", ())
    write_recipe(tmp_path / "run", "seed = 1\n", ())
    with pytest.raises(FolderError, match=r"holds a run of another recipe .* with --output"):
        write_recipe(tmp_path / "run", "seed = 2\n", ())


def test_a_recipe_is_not_written_into_a_folder_with_other_files(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match="already holds other files"):
        write_recipe(tmp_path, "seed = 1\n", ("*.part",))
    write_recipe(tmp_path, "seed = 1\n", ("*.txt",))
    assert (tmp_path / "recipe.toml").read_text() == "seed = 1\n"


def test_built_in_recipes_are_found_by_name():
    assert recipe_path("mini").is_file()
    assert recipe_path("mine.toml") == Path("mine.toml")
    with pytest.raises(SettingsError, match=r"there is no recipe 'minni'; name a \.toml file or one of: adapt"):
        recipe_path("minni")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers = " + "[" * 5_000, "is not valid TOML: lists and tables are nested more than 64 deep"),
        ("workers = " + "9" * 5_000, "is not valid TOML: Exceeds the limit"),
        (MINIMAL.replace("128", "0x" + "f" * 5_000), "the number has more than 18 digits"),
    ],
)
def test_a_hostile_recipe_is_refused_in_one_sentence(tmp_path: Path, text: str, message: str):
    error = error_of(tmp_path, text)
    assert message in error
    assert "\n" not in error
    assert len(error) < 300


def test_a_recipe_name_of_300_characters_is_refused():
    with pytest.raises(InputError, match="its name is too long for a file"):
        recipe_path("n" * 300)


def test_a_value_of_another_type_is_shown_shortened():
    with pytest.raises(SettingsError) as error:
        convert_value(int, "x" * 10_000, "recipe.toml, seed")
    assert len(str(error.value)) < 150


def test_an_annotated_type_has_a_condition():
    even = typing.Annotated[int, Condition("an even number", lambda value: value % 2 == 0)]
    assert convert_value(even, 4, "x") == 4
    assert convert_value(tuple[even, ...], [2, 4], "x") == (2, 4)
    for value in (3, 2.0, True, "4"):
        with pytest.raises(SettingsError, match=f"^x: expected an even number, got {value!r}$"):
            convert_value(even, value, "x")
    with pytest.raises(SettingsError, match=r"^x\[1\]: expected an even number, got 5$"):
        convert_value(tuple[even, ...], [2, 5], "x")


def test_an_override_may_be_a_number_of_numpy():
    values = {"learning_rate": np.float32(0.5), "epochs": np.int64(3)}
    table = override({}, values, FinetuneRecipe)
    assert table == {"learning_rate": 0.5, "epochs": 3}
    assert from_table(FinetuneRecipe, table, "options").epochs == 3


def test_a_key_that_is_no_string_is_refused_as_an_unknown_one():
    with pytest.raises(SettingsError, match="there is no setting '3'; the settings are: batch_size"):
        override({}, {3: 4}, FinetuneRecipe)
