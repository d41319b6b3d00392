"""Recipes: TOML files and `section.key=value` overrides in, validated frozen dataclasses out, and back to TOML."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertworks.disk import write_text
from bertworks.errors import FolderError, SettingsError, show_value
from bertworks.reading import MAX_DEPTH, check_path, parse_toml, unreadable_reason

Settings = TypeVar("Settings")

_LONGEST_NAME = 100  # that is compared with others
_LARGEST_INTEGER = 10**18  # what arrays and files can count
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Names that other tools and papers use for our settings.
_SYNONYMS = {
    "lr": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "length": "max_length",
    "max_len": "max_length",
    "max_seq_length": "max_length",
    "out": "output",
    "dropout": "hidden_dropout_prob",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "width": "hidden_size",
    "hidden": "hidden_size",
    "warmup": "warmup_steps",
}


def recipe_path(name: str, kind: str = "") -> Path:
    """Return the file of a recipe: `name` is a path or the name of a built-in recipe in the subfolder `kind`."""
    path = Path(name)
    check_path(path)
    if path.suffix == ".toml" or path.is_file():  # not exists(): the folder of a run may have the recipe's name
        return path
    built_in = Path(__file__).parent / "recipes" / kind / f"{name}.toml"
    if built_in.exists():
        return built_in
    names = ", ".join(recipe_names(kind))
    raise SettingsError(f"there is no recipe '{name}'; name a .toml file or one of: {names}")


def recipe_names(kind: str = "") -> list[str]:
    """Return the names of the built-in recipes in the subfolder `kind`."""
    return sorted(file.stem for file in (Path(__file__).parent / "recipes" / kind).glob("*.toml"))


def read_recipe(path: Path, kind: type[Settings]) -> Settings:
    """Read the recipe file `path` as the dataclass `kind`. It may name one `base` recipe in the same folder."""
    return from_table(kind, recipe_table(path), str(path))


def recipe_table(path: Path) -> dict[str, Any]:
    """Read a recipe as a nested dict, merged over the recipe that its `base` key names."""
    table = _read_toml(path)
    base = table.pop("base", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise SettingsError(f"{path}: base must be the name of a recipe file, such as 'small.toml'")
    base_table = _read_toml(path.parent / base)
    if "base" in base_table:
        raise SettingsError(f"{path.parent / base} has a base itself; only one level of base recipes is supported")
    return merge_tables(base_table, table)


def merge_tables(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `overrides`; nested dicts are merged, every other value is replaced."""
    merged = dict(base)
    for key, value in overrides.items():
        are_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge_tables(merged[key], value) if are_tables else value
    return merged


def override(table: dict[str, Any], values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return a recipe table with the values of dotted keys such as "model.hidden_size" replaced; None replaces nothing.

    `kind` is the dataclass of the recipe: it says which keys exist.
    """
    for key, value in values.items():
        key = str(key)  # a wrong one may be anything
        if value is None:
            continue
        if hasattr(value, "tolist"):  # a number of numpy, as from a grid of learning rates
            value = value.tolist()
        elif isinstance(value, tuple):
            value = list(value)
        if not isinstance(value, dict):  # the keys of a whole section are checked when the recipe is built
            _check_key(key, kind)
        for name in reversed(key.split(".")):
            value = {name: value}
        table = merge_tables(table, value)
    return table


def apply_overrides(table: dict[str, Any], assignments: Iterable[str], kind: type[Any]) -> dict[str, Any]:
    """Return a recipe table with assignments such as "model.hidden_size=256" applied; see `override`.

    Values are TOML; a value that is no TOML is taken as a string, so that quotes are not needed: "schedule=cosine".
    """
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not key or not equals:
            raise SettingsError(
                f"{show_value(assignment)} is no assignment; write section.key=value, e.g. model.hidden_size=256"
            )
        table = override(table, {key: _parse_value(text)}, kind)
    return table


def _check_key(key: str, kind: type[Any]) -> None:
    keys = list(_dotted_keys(kind))
    free_tables = [name for name in keys if name.endswith(".")]
    if key in keys or any(key.startswith(name) and key.count(".") < MAX_DEPTH for name in free_tables):
        return
    by_last_name: dict[str, str] = {}
    for name in keys:
        by_last_name.setdefault(name.rstrip(".").rsplit(".", 1)[-1], name)
    nearest = nearest_name(key.rsplit(".", 1)[-1], by_last_name)
    if nearest:
        raise SettingsError(f"there is no setting {show_value(key)}; did you mean '{by_last_name[nearest]}'?")
    raise SettingsError(f"there is no setting {show_value(key)}; the settings are: {', '.join(keys)}")


def _dotted_keys(kind: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys of a dataclass and, as section.key, those of its sections; a free-form table ends with a dot."""
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        name = prefix + field.name
        options = typing.get_args(hints[field.name]) or (hints[field.name],)
        sections = [option for option in options if is_dataclass(option) and isinstance(option, type)]
        if typing.get_origin(hints[field.name]) is dict:
            yield f"{name}."
        elif sections and typing.get_origin(hints[field.name]) is not tuple:
            yield from _dotted_keys(sections[0], f"{name}.")
        else:
            yield name


def _parse_value(text: str) -> Any:
    try:
        table = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return table["value"] if len(table) == 1 else text


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` probably means, by synonym ("lr") or by spelling; None if none is close.

    Options count as names: "--lr" finds "--learning-rate".
    """
    by_key = {_as_key(candidate): candidate for candidate in known}
    synonym = _SYNONYMS.get(_as_key(name), "")
    if synonym in by_key:
        return by_key[synonym]
    close = difflib.get_close_matches(_as_key(name), by_key, 1)
    return by_key[close[0]] if close else None


def _as_key(name: str) -> str:
    return name[:_LONGEST_NAME].lstrip("-").replace("-", "_")


def from_table(kind: type[Settings], table: dict[str, Any], location: str) -> Settings:
    """Build the dataclass `kind` from a table; `location` names the table in errors."""
    fields_by_name = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields_by_name:
            nearest = nearest_name(key, fields_by_name)
            suggestion = f"; did you mean '{nearest}'?" if nearest else "."
            raise SettingsError(
                f"{location}: there is no key {show_value(key)}{suggestion} Known here: {', '.join(fields_by_name)}"
            )
    missing = [name for name, field in fields_by_name.items() if name not in table and not _has_default(field)]
    if missing:
        raise SettingsError(f"{location}: missing {', '.join(missing)}; these keys have no default")
    hints = typing.get_type_hints(kind)
    values = {
        key: convert_value(hints[key], _with_defaults(fields_by_name[key], value), f"{location}, {key}")
        for key, value in table.items()
    }
    try:
        return kind(**values)
    except SettingsError as error:  # raised by __post_init__, which does not know the location
        raise SettingsError(f"{location}: {error}") from None


def _with_defaults(field: Field[Any], value: Any) -> Any:
    """Return the table of a section; what it leaves out is as in a recipe without this section, which may have other
    defaults than the dataclass of the section by itself."""
    if not isinstance(value, dict) or field.default_factory is MISSING or isinstance(field.default_factory, type):
        return value
    default = field.default_factory()
    return asdict(default) | value if is_dataclass(default) and not isinstance(default, type) else value


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


@dataclass(frozen=True, slots=True)
class Condition:
    """What a value must be beside its type, in words, and whether it is: Annotated[int, Condition("even", …)]."""

    description: str
    is_met: Callable[[Any], bool]


def convert_value(kind: Any, value: Any, location: str) -> Any:
    """Convert a TOML or JSON value to the type `kind`: integers also to floats, lists to tuples, strings to paths.

    A value of another type, or that does not meet the Condition of an Annotated type, raises a SettingsError that
    begins with `location`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        plain_kind, condition = arguments
        return _convert_annotated(plain_kind, condition, value, location)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, location)
    if origin is dict or (is_dataclass(kind) and isinstance(kind, type)):
        if not isinstance(value, dict):
            raise SettingsError(f"{location}: expected a table, got {show_value(value)}")
        if origin is not dict:
            return from_table(kind, value, location)
        return {key: convert_value(arguments[1], item, f"{location}, {key}") for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise SettingsError(f"{location}: expected a list, got {show_value(value)}")
        return tuple(convert_value(arguments[0], item, f"{location}[{index}]") for index, item in enumerate(value))
    if kind is Any:
        return value
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        raise SettingsError(f"{location}: the number has more than 18 digits; give a smaller one")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not kind:
        raise SettingsError(f"{location}: expected {_type_name(kind)}, got {show_value(value)}")
    if isinstance(value, float) and math.isnan(value):  # it would pass every comparison with a limit
        raise SettingsError(f"{location}: nan is not a number; give one")
    return value


def _convert_annotated(kind: Any, condition: Condition, value: Any, location: str) -> Any:
    message = f"{location}: expected {condition.description}, got {show_value(value)}"
    try:
        converted = convert_value(kind, value, location)
    except SettingsError:
        raise SettingsError(message) from None
    if not condition.is_met(converted):
        raise SettingsError(message)
    return converted


def _convert_union(kinds: tuple[Any, ...], value: Any, location: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert_value(kind, value, location)
            except SettingsError:
                continue
    expected = " or ".join(_type_name(kind) for kind in kinds if kind is not type(None))
    raise SettingsError(f"{location}: expected {expected}, got {show_value(value)}")


def _type_name(kind: Any) -> str:
    names = {
        int: "an integer",
        float: "a number",
        str: "a string",
        bool: "true or false",
        dict: "a table",
        tuple: "a list",
    }
    return names.get(typing.get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))


def parse_duration(text: str) -> float | None:
    """Return the seconds of "90s", "30m", "2h", "1h30m" or "4d"; None for an empty string."""
    if not text:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or seconds == 0:
        raise SettingsError(f"'{text}' is no duration; write it as 90s, 30m, 2h or 1h30m")
    return seconds


def to_toml(recipe: Any) -> str:
    """Return a recipe dataclass as TOML with every value written out, defaults too."""
    lines, tables, lists = [], [], []
    for key, value in asdict(recipe).items():
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *(f"{k} = {_toml_value(v)}" for k, v in value.items() if v is not None)]
        elif isinstance(value, tuple | list):
            for item in value:
                lists += ["", f"[[{key}]]", *(f"{k} = {_toml_value(v)}" for k, v in item.items() if v is not None)]
        else:
            lines += [f"{key} = {_toml_value(value)}"] if value is not None else []
    return "\n".join([*lines, *tables, *lists]) + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def write_recipe(folder: Path, text: str, ignore_patterns: Sequence[str]) -> None:
    """Write recipe.toml into the folder of a run, or check that the one there is the same.

    A folder that holds other files is refused, except files that match `ignore_patterns`: those that a run writes
    before its recipe.
    """
    path = folder / "recipe.toml"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise FolderError(
            f"{folder} holds a run of another recipe (see {path}); choose another folder with --output, or start with "
            f"that recipe to continue it"
        )
    if not path.exists() and _has_other_files(folder, ignore_patterns):
        raise FolderError(f"{folder} already holds other files; choose an empty or new folder with --output")
    write_text(path, text)


def _has_other_files(folder: Path, ignore_patterns: Sequence[str]) -> bool:
    if folder.is_file():
        return True
    return folder.exists() and any(not any(map(path.match, ignore_patterns)) for path in folder.iterdir())


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"there is no recipe {path}; check the name") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} cannot be read: it is not UTF-8 text ({error.reason}); is it a recipe?") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
