"""Recipes: TOML in, frozen dataclasses out. Whatever does not belong is refused at the door, with what does."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertworks.errors import SettingsError

Settings = TypeVar("Settings")


def read_recipe(path: Path, kind: type[Settings]) -> Settings:
    """Return the recipe in `path` as an object of the dataclass `kind`. It may name one `base` recipe beside it."""
    return from_table(kind, recipe_table(path), str(path))


def recipe_table(path: Path) -> dict[str, Any]:
    """Return a recipe as plain tables, those of its base filled in; what it says itself goes first."""
    table = _read_toml(path)
    base = table.pop("base", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise SettingsError(f"{path}: base must be the name of a recipe file, such as 'small.toml'")
    below = _read_toml(path.parent / base)
    if "base" in below:
        raise SettingsError(f"{path.parent / base} has a base of its own; a recipe may stand on one other, no more")
    return merge_tables(below, table)


def from_table(kind: type[Settings], table: dict[str, Any], location: str) -> Settings:
    """Return an object of the dataclass `kind` from a table; `where` names the table to people."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean '{close[0]}'?" if close else "."
            raise SettingsError(f"{location}: there is no key '{key}'{hint} Known here: {', '.join(known)}")
    missing = [name for name, field in known.items() if name not in table and not _has_default(field)]
    if missing:
        raise SettingsError(f"{location}: missing {', '.join(missing)}; add what is missing")
    hints = typing.get_type_hints(kind)
    values = {key: _convert(hints[key], value, f"{location}, {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except SettingsError as error:  # the dataclass knows what is wrong, but not where it was written
        raise SettingsError(f"{location}: {error}") from None


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _convert(kind: Any, value: Any, location: str) -> Any:
    """Return `value` as `kind`, or say what was expected. Whole numbers stand for fractions, lists for tuples."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, location)
    if origin is dict or (is_dataclass(kind) and isinstance(kind, type)):
        if not isinstance(value, dict):
            raise SettingsError(f"{location}: expected a table, found {value!r}")
        if origin is not dict:
            return from_table(kind, value, location)
        return {key: _convert(arguments[1], one, f"{location}, {key}") for key, one in value.items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise SettingsError(f"{location}: expected a list, found {value!r}")
        return tuple(_convert(arguments[0], one, f"{location}[{place}]") for place, one in enumerate(value))
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not kind:
        raise SettingsError(f"{location}: expected {_type_name(kind)}, found {value!r}")
    return value


def _convert_union(kinds: tuple[Any, ...], value: Any, location: str) -> Any:
    for kind in kinds:
        if kind is not type(None):
            try:
                return _convert(kind, value, location)
            except SettingsError:
                continue
    expected = " or ".join(_type_name(kind) for kind in kinds if kind is not type(None))
    raise SettingsError(f"{location}: expected {expected}, found {value!r}")


def _type_name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def merge_tables(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return two tables as one, table by table; what stands above goes first."""
    result = dict(base)
    for key, value in overrides.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge_tables(result[key], value) if both else value
    return result


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"there is no recipe {path}; check the name") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
