"""Served static vectors: embeddings, classification and explanations; unsupported endpoints are rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import TASKS, WINDOW_RULE, WORDS

from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import write_vectors
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.model import load
from bertworks.inference.predictor import Predictor
from bertworks.tasks.module import TaskModule

TEXT = "john sat on the mat in paris"


@pytest.fixture(scope="module")
def post(
    make_client: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[int, Any, Path]]:
    """Send a request to the static vectors or a classifier on them; return status, response and model folder."""
    folder = tmp_path_factory.mktemp("static")
    table = np.random.default_rng(0).standard_normal((len(WORDS), 12)).astype(np.float32)
    write_vectors(folder / "vectors", StaticVectors(WORDS, table), "folder")
    base = load(folder / "vectors")
    module = TaskModule(base.encoder, TASKS["classify"], torch.Generator().manual_seed(1))
    save_finetuned(folder / "classifier", Predictor(module, base.tokenizer, WINDOW_RULE), {"base": "vectors"})
    client = make_client(models=(f"vectors={folder / 'vectors'}", f"classifier={folder / 'classifier'}"))

    def send(name: str, endpoint: str, body: dict[str, Any]) -> tuple[int, Any, Path]:
        response = client("POST", f"/v1/models/{name}/{endpoint}", body)
        return response.status_code, response.json(), folder / name

    return send


def test_embeddings_are_those_of_the_library(post: Callable[..., tuple[int, Any, Path]]):
    status, response, folder = post("vectors", "embed", {"inputs": [TEXT, "a dull film"]})
    assert status == 200
    np.testing.assert_allclose(response["vectors"], load(folder).encode([TEXT, "a dull film"]), atol=1e-6)


def test_texts_are_classified_and_explained(post: Callable[..., tuple[int, Any, Path]]):
    status, response, folder = post("classifier", "predict", {"inputs": [TEXT]})
    assert status == 200
    assert response["predictions"][0]["label"] == load(folder).predict([TEXT])[0].label
    status, response, _ = post("classifier", "explain", {"input": TEXT})
    assert status == 200
    assert any(word["weight"] for word in response["texts"][0]["words"])


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("attention", {"text": TEXT}),
        ("fill-mask", {"text": "the [MASK] sat"}),
        ("generate", {"text": "the", "max_new_tokens": 2}),
    ],
)
def test_unsupported_endpoints_are_rejected(post: Callable[..., tuple[int, Any, Path]], endpoint: str, body: dict):
    status, response, _ = post("vectors", endpoint, body)
    assert status == 422
    assert f"does not support {endpoint}" in response["error"]["message"]
