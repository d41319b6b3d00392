"""A served translation model: predictions are those of the library, and the other endpoints work as usual."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertworks.inference.model import load


@pytest.fixture(scope="module")
def client(make_client: Callable[..., Any], translator: Path) -> Callable[..., Any]:
    return make_client(models=(f"old-new={translator}",))


def test_translations_are_those_of_the_library(client: Callable[..., Any], translator: Path):
    texts = ["一二", "三四五。" * 6, "五"]  # the second needs two windows
    response = client("POST", "/v1/models/old-new/predict", {"inputs": texts})
    assert response.status_code == 200
    fields = response.json()
    assert [prediction["translation"] for prediction in fields["predictions"]] == load(translator).translate(texts)
    assert fields["usage"]["num_windows"] == 4
    assert fields["usage"]["num_truncated"] == 0


def test_inputs_other_than_texts_are_rejected(client: Callable[..., Any]):
    response = client("POST", "/v1/models/old-new/predict", {"inputs": [{"question": "一", "context": "二"}]})
    assert response.status_code == 422
    assert "the task 'translate' takes" in response.json()["error"]["message"]


def test_capabilities_of_a_translation_model(client: Callable[..., Any]):
    fields = client("GET", "/v1/models/old-new").json()
    assert fields["task"] == "translate"
    assert {"predict", "embed", "tokenize", "attention"} <= set(fields["capabilities"])
    assert "explain" not in fields["capabilities"]
    response = client("POST", "/v1/models/old-new/embed", {"inputs": ["一二"]})
    assert response.status_code == 200
