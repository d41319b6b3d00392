"""Static vectors behind the port: vectors of texts, classes told and explained; and what a table cannot do is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import RULE, TASKS, WORDS

from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import write_vectors
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.model import load
from bertworks.inference.predictor import Predictor
from bertworks.tasks.module import TaskModule

TEXT = "john sat on the mat in paris"


@pytest.fixture(scope="module")
def asked(
    ask_app: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[int, Any, Path]]:
    folder = tmp_path_factory.mktemp("static")
    table = np.random.default_rng(0).standard_normal((len(WORDS), 12)).astype(np.float32)
    write_vectors(folder / "vectors", StaticVectors(WORDS, table), "folder")
    base = load(folder / "vectors")
    module = TaskModule(base.encoder, TASKS["classify"], torch.Generator().manual_seed(1))
    save_finetuned(folder / "classes", Predictor(module, base.tokenizer, RULE), {"base": "vectors"})
    app = ask_app(models=(f"vectors={folder / 'vectors'}", f"classes={folder / 'classes'}"))

    def ask(name: str, endpoint: str, body: dict[str, Any]) -> tuple[int, Any, Path]:
        answer = app("POST", f"/v1/models/{name}/{endpoint}", body)
        return answer.status_code, answer.json(), folder / name

    return ask


def test_texts_have_the_vectors_of_the_folder(asked: Callable[..., tuple[int, Any, Path]]):
    status, told, folder = asked("vectors", "embed", {"inputs": [TEXT, "a dull film"]})
    assert status == 200
    np.testing.assert_allclose(told["vectors"], load(folder).encode([TEXT, "a dull film"]), atol=1e-6)


def test_classes_are_told_and_explained(asked: Callable[..., tuple[int, Any, Path]]):
    status, told, folder = asked("classes", "predict", {"inputs": [TEXT]})
    assert status == 200
    assert told["predictions"][0]["label"] == load(folder).predict([TEXT])[0].label
    status, told, _ = asked("classes", "explain", {"input": TEXT})
    assert status == 200
    assert any(word["weight"] for word in told["texts"][0]["words"])


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [("attention", {"text": TEXT}), ("fill", {"text": "the [MASK] sat"}), ("generate", {"text": "the", "pieces": 2})],
)
def test_what_a_table_cannot_do_is_refused(asked: Callable[..., tuple[int, Any, Path]], endpoint: str, body: dict):
    status, told, _ = asked("vectors", endpoint, body)
    assert status == 422
    assert told["error"]["message"]
