"""A model that translates behind the port: predict says what its folder says, embed and tokenize work as for others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertworks.inference.model import load


@pytest.fixture(scope="module")
def asked(ask_app: Callable[..., Any], translator: Path) -> Callable[..., Any]:
    return ask_app(models=(f"old-new={translator}",))


def test_texts_are_translated_as_by_the_folder(asked: Callable[..., Any], translator: Path):
    texts = ["一二", "三四五。" * 6, "五"]  # the second is longer than a row
    answer = asked("POST", "/v1/models/old-new/predict", {"inputs": texts})
    assert answer.status_code == 200
    told = answer.json()
    assert [one["translation"] for one in told["predictions"]] == load(translator).translate(texts)
    assert told["usage"]["windows"] == 4
    assert told["usage"]["cut"] == 0


def test_what_is_no_text_is_refused(asked: Callable[..., Any]):
    answer = asked("POST", "/v1/models/old-new/predict", {"inputs": [{"question": "一", "context": "二"}]})
    assert answer.status_code == 422
    assert "a model for 'translate' reads" in answer.json()["error"]["message"]


def test_the_model_tells_what_it_can(asked: Callable[..., Any]):
    told = asked("GET", "/v1/models/old-new").json()
    assert told["task"] == "translate"
    assert {"predict", "embed", "tokenize", "attention"} <= set(told["can"])
    assert "explain" not in told["can"]
    answer = asked("POST", "/v1/models/old-new/embed", {"inputs": ["一二"]})
    assert answer.status_code == 200
