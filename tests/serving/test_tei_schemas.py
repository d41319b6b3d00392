"""Bodies of TEI: which inputs are one, a pair or a batch."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from bertworks.serving import tei_schemas as schemas


def parse(body_class: type[BaseModel], fields: dict[str, Any]) -> Any:
    return body_class.model_validate(fields)


@pytest.mark.parametrize(
    ("inputs", "batch"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], "b", [3]], [[1, 2], "b", [3]]),
        ([], []),
    ],
)
def test_inputs_to_embed_are_texts_or_token_ids(inputs, batch):
    for body_class in (schemas.TeiEmbedBody, schemas.TeiEmbedAllBody):
        assert parse(body_class, {"inputs": inputs}).batch() == batch


@pytest.mark.parametrize(
    ("inputs", "batch", "is_batch"),
    [
        ("a", [("a",)], False),
        (["a"], [("a",)], False),
        (["a", "b"], [("a", "b")], False),
        ([["a"], ["b", "c"]], [("a",), ("b", "c")], True),
    ],
)
def test_inputs_to_predict_are_a_text_a_pair_or_a_batch_of_lists(inputs, batch, is_batch):
    body = parse(schemas.TeiPredictBody, {"inputs": inputs})
    assert (body.batch(), body.is_batch) == (batch, is_batch)


@pytest.mark.parametrize("inputs", [[], ["a", "b", "c"], [[]], [["a", "b", "c"]], [["a"], "b"], 3, None, {"text": "a"}])
def test_other_inputs_to_predict_are_refused(inputs):
    with pytest.raises(ValidationError):
        parse(schemas.TeiPredictBody, {"inputs": inputs})


def test_unknown_fields_are_ignored_and_null_is_the_default():
    body = parse(schemas.TeiEmbedBody, {"inputs": "a", "parameters": {"wait": True}, "truncate": None})
    assert (body.truncate, body.truncation_direction, body.normalize) == (None, "Right", True)
    assert parse(schemas.TeiTokenizeBody, {"inputs": "a"}).batch() == ["a"]
    assert parse(schemas.TeiSimilarityParameters, {"truncation_direction": "left"}).truncation_direction == "left"
