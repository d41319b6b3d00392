"""Texts in memory: lists, iterators and tables have the same file, and what is not a text is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.datasets.memory_texts import write_texts
from bertworks.errors import InputError

TEXTS = ["a river", "两\n行"]


@pytest.mark.parametrize(
    "texts", [TEXTS, tuple(TEXTS), iter(TEXTS), {"id": [1, 2], "text": TEXTS}, [{"review": text} for text in TEXTS]]
)
def test_every_kind_of_texts_has_the_same_file(texts: Any, tmp_path: Path):
    write_texts(texts, tmp_path / "texts.jsonl")
    lines = (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"text": text} for text in TEXTS]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a river", "texts is 'a river'; give a list"),
        (3, "texts is 3; give a list"),
        ([], "texts is empty"),
        (["a", None], "texts, row 1: None is not a text"),
        ([{"text": "a"}, {"text": 2.5}], "texts, row 1: 2.5 is not a text"),
        ([{"foo": "a"}], "texts: no column looks like the text"),
    ],
)
def test_what_is_not_a_text_is_named(texts: Any, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        write_texts(texts, tmp_path / "texts.jsonl")
    assert list(tmp_path.iterdir()) == []
