"""Recipes as TOML: what is read, what is filled in from a base, and what is refused with the way out."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bertworks.errors import SettingsError
from bertworks.settings import from_table, read_recipe, recipe_table


@dataclass(frozen=True)
class Oven:
    heat: int
    fan: bool = False
    door: str | None = None

    def __post_init__(self) -> None:
        if self.heat > 300:
            raise SettingsError(f"heat is {self.heat}; at most 300")


@dataclass(frozen=True)
class Layer:
    height: float
    fruit: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cake:
    name: str
    oven: Oven
    sugar: float = 0.5
    layers: tuple[Layer, ...] = ()
    book: Path = Path("book")
    guests: int | str = 4
    tags: tuple[str, ...] = field(default_factory=tuple)


def write(folder: Path, text: str, name: str = "cake.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


PLAIN = 'name = "plain"\n[oven]\nheat = 180\n'


def refused(folder: Path, text: str) -> str:
    """Return the sentence that a recipe is refused with, without the name of its file, which has to come first."""
    path = write(folder, text)
    with pytest.raises(SettingsError) as caught:
        read_recipe(path, Cake)
    found = str(caught.value)
    assert found.startswith(str(path))
    return found.removeprefix(str(path))


def test_what_is_not_said_is_the_default(tmp_path: Path):
    assert read_recipe(write(tmp_path, PLAIN), Cake) == Cake("plain", Oven(180))


def test_every_kind_of_value_is_read(tmp_path: Path):
    text = """
name = "奶油"
sugar = 1
book = "shelf/old"
guests = "many"
tags = ["a", "b"]
[oven]
heat = 200
fan = true
door = "glass"
[[layers]]
height = 2
fruit = ["plum", "pear"]
[[layers]]
height = 1.5
"""
    cake = read_recipe(write(tmp_path, text), Cake)
    layers = (Layer(2.0, ("plum", "pear")), Layer(1.5))
    expected = Cake("奶油", Oven(200, True, "glass"), 1.0, layers, Path("shelf/old"), "many", ("a", "b"))
    assert cake == expected
    assert type(cake.sugar) is float  # a whole number stands for a fraction
    assert type(cake.layers[0].height) is float


def test_an_unknown_key_is_refused_with_the_nearest_and_all_known_ones(tmp_path: Path):
    found = refused(tmp_path, "suger = 0.1\n" + PLAIN)
    known = "name, oven, sugar, layers, book, guests, tags"
    assert found == f": there is no key 'suger'; did you mean 'sugar'? Known here: {known}"


def test_an_unknown_key_that_resembles_nothing_is_refused_with_all_known_ones(tmp_path: Path):
    assert refused(tmp_path, PLAIN + "zzz = 1\n") == ", oven: there is no key 'zzz'. Known here: heat, fan, door"


def test_an_unknown_key_in_a_list_of_tables_is_found(tmp_path: Path):
    text = PLAIN + "[[layers]]\nheight = 1\n[[layers]]\nheight = 2\nfriut = []\n"
    expected = ", layers[1]: there is no key 'friut'; did you mean 'fruit'? Known here: height, fruit"
    assert refused(tmp_path, text) == expected


def test_missing_keys_are_named(tmp_path: Path):
    assert refused(tmp_path, "sugar = 0.1\n") == ": missing name, oven; add what is missing"
    assert refused(tmp_path, 'name = "x"\n[oven]\nfan = true\n') == ", oven: missing heat; add what is missing"
    assert refused(tmp_path, PLAIN + "[[layers]]\n") == ", layers[0]: missing height; add what is missing"


WRONG = {
    "a text for a whole number": ('name = "x"\n[oven]\nheat = "hot"\n', ", oven, heat: expected a whole number"),
    "a fraction for a whole number": ('name = "x"\n[oven]\nheat = 1.5\n', ", oven, heat: expected a whole number"),
    "true for a whole number": ('name = "x"\n[oven]\nheat = true\n', ", oven, heat: expected a whole number"),
    "true for a fraction": ("sugar = true\n" + PLAIN, ", sugar: expected a number, found True"),
    "a number for a text": ("name = 3\n[oven]\nheat = 1\n", ", name: expected a text, found 3"),
    "a number for true or false": (PLAIN + "fan = 1\n", ", oven, fan: expected true or false, found 1"),
    "a number for an optional text": (PLAIN + "door = 1\n", ", oven, door: expected a text, found 1"),
    "neither of two kinds": ("guests = 0.5\n" + PLAIN, ", guests: expected a whole number or a text, found 0.5"),
    "a text for a table": ('name = "x"\noven = "big"\n', ", oven: expected a table, found 'big'"),
    "a text for a list": ('tags = "a"\n' + PLAIN, ", tags: expected a list, found 'a'"),
    "a table for a list of tables": (PLAIN + "[layers]\nheight = 1\n", ", layers: expected a list"),
    "a number in a list of texts": ('tags = ["a", 2]\n' + PLAIN, ", tags[1]: expected a text, found 2"),
    "a text in a list of tables": ('layers = ["a"]\n' + PLAIN, ", layers[0]: expected a table, found 'a'"),
    "deep down": (PLAIN + "[[layers]]\nheight = 1\nfruit = [3]\n", ", layers[0], fruit[0]: expected a text, found 3"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_value_of_the_wrong_kind_is_refused_with_its_place(tmp_path: Path, text: str, message: str):
    assert refused(tmp_path, text).startswith(message)


def test_what_a_table_refuses_itself_is_told_with_its_place_once(tmp_path: Path):
    assert refused(tmp_path, 'name = "x"\n[oven]\nheat = 999\n') == ", oven: heat is 999; at most 300"


def test_a_base_fills_in_what_a_recipe_does_not_say(tmp_path: Path):
    below = (
        'name = "below"\nsugar = 0.2\n[oven]\nheat = 180\nfan = true\n[[layers]]\nheight = 1\n[[layers]]\nheight = 2\n'
    )
    write(tmp_path, below, "below.toml")
    above = 'base = "below.toml"\nname = "above"\n[oven]\nheat = 220\n[[layers]]\nheight = 9\n'
    cake = read_recipe(write(tmp_path, above), Cake)
    # Tables are merged key by key; a list replaces the other whole.
    assert cake == Cake("above", Oven(220, True), 0.2, (Layer(9.0),))


def test_a_base_lies_beside_the_recipe_not_where_the_command_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "recipes", PLAIN, "below.toml")
    path = write(tmp_path / "recipes", 'base = "below.toml"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert recipe_table(path) == {"name": "plain", "oven": {"heat": 180}}


def test_a_base_of_a_base_is_refused(tmp_path: Path):
    write(tmp_path, PLAIN, "lowest.toml")
    below = write(tmp_path, 'base = "lowest.toml"\n', "below.toml")
    with pytest.raises(SettingsError) as caught:
        read_recipe(write(tmp_path, 'base = "below.toml"\n'), Cake)
    assert str(caught.value) == f"{below} has a base of its own; a recipe may stand on one other, no more"


def test_a_base_that_is_no_name_or_not_there_is_refused(tmp_path: Path):
    assert refused(tmp_path, "base = 3\n" + PLAIN).startswith(": base must be the name of a recipe file")
    with pytest.raises(SettingsError, match=r"there is no recipe .*gone\.toml; check the name"):
        read_recipe(write(tmp_path, 'base = "gone.toml"\n' + PLAIN), Cake)


def test_a_recipe_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path):
    with pytest.raises(SettingsError, match="there is no recipe"):
        read_recipe(tmp_path / "none.toml", Cake)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_recipe(tmp_path, Cake)
    assert refused(tmp_path, "name = \n").startswith(" is not valid TOML: ")
    (tmp_path / "cake.toml").write_bytes(b"name = '\xff'\n")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_recipe(tmp_path / "cake.toml", Cake)


def test_a_table_need_not_come_from_a_file():
    assert from_table(Oven, {"heat": 7}, "here") == Oven(7)
    with pytest.raises(SettingsError, match=r"^here: missing heat"):
        from_table(Oven, {}, "here")
