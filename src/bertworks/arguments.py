"""A public function in, the same function out, which refuses arguments of other types than its annotations name.

A wrong argument is then one sentence about it, whatever the code would have done with it: "output is 3; give a path".
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from bertworks.errors import InputError, show_value

P = ParamSpec("P")
R = TypeVar("R")

# What stands for a type in a message, and the classes of its values. An annotation of another type is not checked.
_TYPES: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("a string", (str,)),
    Path: ("a path", (os.PathLike,)),
    bool: ("True or False", (bool,)),
    int: ("an integer", (numbers.Integral,)),
    float: ("a number", (numbers.Real,)),
    Mapping: ("a dict", (Mapping,)),
    Sequence: ("a list", (Sequence,)),
    Callable: ("a function", (Callable,)),  # type: ignore[dict-item]  # an abstract class, as those above
    types.NoneType: ("None", (types.NoneType,)),
}
# Classes that a module imports for annotations only. Their values are checked where they are used.
_NOT_CHECKED = {"Model": Any}


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an argument of a wrong type raises InputError, which names it and the right ones."""
    signature = inspect.signature(function)

    @functools.cache
    def kinds() -> dict[str, list[Any]]:
        annotations = {name: parameter.annotation for name, parameter in signature.parameters.items() if name != "self"}
        holder = types.SimpleNamespace(__annotations__=annotations)  # without that of the result, which is not needed
        hints = typing.get_type_hints(holder, {**function.__globals__, **_NOT_CHECKED})
        return {name: _kinds(hint) for name, hint in hints.items()}

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in kinds() and not any(_is_of(value, kind) for kind in kinds()[name]):
                raise InputError(f"{name} is {show_value(value)}; give {_description(kinds()[name])}")
        return function(*args, **kwargs)

    return checked


def _kinds(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows: those of a union, or the one."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return list(typing.get_args(annotation)) if is_union else [annotation]


def _is_of(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    if origin not in _TYPES:
        return True
    if isinstance(value, str | bool | bytes) and origin not in (str, bool):  # a string is no list, True no number
        return False
    if origin is Sequence and isinstance(value, Sequence):
        (item_kind,) = typing.get_args(kind)
        return all(any(_is_of(item, one) for one in _kinds(item_kind)) for item in value)
    return isinstance(value, _TYPES[origin][1])


def _description(kinds: Sequence[Any]) -> str:
    """Return the types for a message: "a path or None"; what may be a path may be a string, which is not said."""
    names = [kind for kind in kinds if not (kind is str and Path in kinds)]
    return " or ".join(dict.fromkeys(_TYPES[typing.get_origin(kind) or kind][0] for kind in names))
