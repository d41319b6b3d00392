"""Arguments of public functions: each is checked by its annotation, and a wrong one is refused by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks
from bertworks import api
from bertworks.arguments import check_arguments
from bertworks.errors import InputError
from bertworks.model import Model

FUNCTIONS = [getattr(api, name) for name in bertworks.__all__ if hasattr(api, name) and name[0].islower()]
METHODS = [Model.save, Model.export, Model.evaluate, Model.push_to_hub]
# Annotations of which nothing is checked here: data of any kind, texts, and models.
OPEN = ("Any", "Labelled", "Iterable", "Model")


def checked_parameters() -> list[tuple[Callable[..., Any], str]]:
    return [
        (function, name)
        for function in [*FUNCTIONS, *METHODS]
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and not any(word in parameter.annotation for word in OPEN)
    ]


@pytest.mark.parametrize(("function", "name"), checked_parameters())
def test_every_argument_of_a_wrong_type_is_refused_by_name(function: Callable[..., Any], name: str):
    others = {
        key: "x"
        for key, one in inspect.signature(function).parameters.items()
        if one.default is inspect.Parameter.empty
    }
    with pytest.raises(InputError, match=rf"^{name} is <object object.*>; give (a|an|True|a) "):
        function(**{**others, name: object()})


def test_functions_and_their_arguments_are_covered():
    assert len(FUNCTIONS) == 11
    assert len(checked_parameters()) > 80


@check_arguments
def sample(
    path: str | Path = ".",
    *,
    paths: Sequence[str | Path] = (),
    count: int | None = None,
    ratio: float = 0.1,
    columns: Mapping[str, str] | None = None,
    show: bool | None = None,
    call: Callable[[Any], None] | None = None,
    model: str | Path | Model = "",
) -> str:
    return "called"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": 3}, "path is 3; give a path"),
        ({"path": b"x"}, "path is b'x'; give a path"),
        ({"path": None}, "path is None; give a path"),
        ({"paths": "a.txt"}, "paths is 'a.txt'; give a list"),
        ({"paths": ["a.txt", 3]}, r"paths is \['a.txt', 3\]; give a list"),
        ({"count": "3"}, "count is '3'; give an integer or None"),
        ({"count": 3.0}, "count is 3.0; give an integer or None"),
        ({"count": True}, "count is True; give an integer or None"),
        ({"ratio": "high"}, "ratio is 'high'; give a number"),
        ({"columns": ["text"]}, r"columns is \['text'\]; give a dict or None"),
        ({"show": 1}, "show is 1; give True or False or None"),
        ({"call": 3}, "call is 3; give a function or None"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: dict[str, Any], message: str):
    with pytest.raises(InputError, match=f"^{message}$"):
        sample(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": Path("x"), "paths": ("a", Path("b")), "count": np.int64(3), "ratio": np.float32(0.5)},
        {"ratio": 1, "columns": {"text": "sms"}, "show": False, "call": print, "model": object()},
        {"count": None, "columns": None},
    ],
)
def test_right_arguments_pass_as_they_are(arguments: dict[str, Any]):
    assert sample(**arguments) == "called"


def test_a_missing_or_unknown_argument_is_pythons_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        sample(nope=1)  # type: ignore[call-arg]
