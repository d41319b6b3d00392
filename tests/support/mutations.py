"""Hostile versions of valid files: bytes or a JSON value in, strategies of mutated bytes out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

DEPTH = 5_000
LONG_NAME = "n" * 300
# Bytes that confuse parsers: deep nesting, long numbers and names, zero bytes, other encodings, quotes, line ends.
SNIPPETS = (
    b"[" * DEPTH,
    b'{"a":' * DEPTH,
    b"9" * 5_000,
    b"-1",
    b"0",
    b"1e999",
    b"2147483648",
    b"1000000000000",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"',
    b"'",
    b"\\",
    b"\\ud800",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xe4\xb8",
    b"\r",
    b"\n\n",
    b"\t",
    b",",
    b"=",
    LONG_NAME.encode(),
)


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


# Values that a member of a JSON file may have instead of its own.
VALUES = (
    *(None, True, False, 0, 1, -1, 3, 7, 1_000, 10**9, 2**31, 2**40, 2**63, 10**30),
    *(0.5, -1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "0", "a\nb", "\ud800", "\u0000", "../x", LONG_NAME, "(a+)+$", "\\p{"),
    *([], {}, [[]], [1, 2], ["a"], {"a": 1}, {"0": "a"}, [None], _nested(100)),
)


@st.composite
def mutated_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with one to three changes: flips, insertions, deletions, repetitions, or an early end."""
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.sampled_from(_BYTE_CHANGES))(draw, data)
    return data


def _position(draw: st.DrawFn, data: bytes) -> int:
    # Headers and footers decide what is read of a binary file.
    end = len(data)
    near = st.one_of(st.integers(0, end), st.integers(0, min(end, 64)), st.integers(max(0, end - 64), end))
    return draw(near)


def _flip(draw: st.DrawFn, data: bytes) -> bytes:
    if not data:
        return data
    start = min(_position(draw, data), len(data) - 1)
    return data[:start] + bytes([draw(st.integers(0, 255))]) + data[start + 1 :]


def _insert(draw: st.DrawFn, data: bytes) -> bytes:
    start = _position(draw, data)
    return data[:start] + draw(st.sampled_from(SNIPPETS)) + data[start:]


def _delete(draw: st.DrawFn, data: bytes) -> bytes:
    start, end = sorted((_position(draw, data), _position(draw, data)))
    return data[:start] + data[end:]


def _repeat(draw: st.DrawFn, data: bytes) -> bytes:
    start, end = sorted((_position(draw, data), _position(draw, data)))
    return data[:end] + data[start:end] * draw(st.integers(1, 3)) + data[end:]


def _truncate(draw: st.DrawFn, data: bytes) -> bytes:
    return data[: _position(draw, data)]


_BYTE_CHANGES: tuple[Callable[[st.DrawFn, bytes], bytes], ...] = (_flip, _insert, _delete, _repeat, _truncate)


@st.composite
def mutated_json(draw: st.DrawFn, value: Any) -> bytes:
    """JSON in which one or two values, at any depth, are replaced, removed or repeated."""
    value = {"root": copy.deepcopy(value)}
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(value))
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        change = draw(st.integers(0, 5))
        if change == 0 and container is not value:
            del container[key]
        elif change == 1 and isinstance(container, list):
            container.append(container[key])
        elif change == 2 and isinstance(container, dict) and container is not value:
            container[draw(st.sampled_from(("x", "", "0", "-1", LONG_NAME)))] = container.pop(key)
        else:
            container[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return json.dumps(value["root"]).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@st.composite
def mutated_toml(draw: st.DrawFn, text: str) -> bytes:
    """TOML in which the values of one or two lines are others."""
    lines = text.splitlines()
    assigned = [index for index, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    for _ in range(draw(st.integers(1, 2))):
        index = draw(st.sampled_from(assigned))
        lines[index] = f"{lines[index].partition('=')[0]}= {draw(st.sampled_from(TOML_VALUES))}"
    return "\n".join(lines).encode()


TOML_VALUES = (
    *("0", "-1", "1", "3", "1000000000", "1099511627776", "9" * 30, "9" * 5_000, "0x" + "f" * 5_000),
    *("0.0", "-0.5", "1e308", "1e999", "nan", "inf", "true", "false", '""', '"x"', '"\\u0000"', f'"{LONG_NAME}"'),
    *("[]", "{}", "[1, 2]", '["a"]', "{a = 1}", "1979-05-27", "[" * DEPTH, "{a." + "a." * 500 + "a = 1}", "[[[[1]]]]"),
)


@st.composite
def mutated_lines(draw: st.DrawFn, data: bytes) -> bytes:
    """JSON Lines of which one is mutated as JSON."""
    lines = data.splitlines()
    index = draw(st.integers(0, len(lines) - 1))
    lines[index] = draw(mutated_json(json.loads(lines[index])))
    return b"\n".join(lines) + b"\n"


# Kind of mutation -> the content of a file -> a strategy of mutated contents.
MUTATIONS: dict[str, Callable[[bytes], st.SearchStrategy[bytes]]] = {
    "bytes": mutated_bytes,
    "json": lambda data: mutated_json(json.loads(data)),
    "lines": mutated_lines,
    "toml": lambda data: mutated_toml(data.decode()),
}
