"""A model that translates behind the port: predict says what its folder says, embed and tokenize work as for others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.encoders.transformer import Transformer, released
from bertworks.engines.windows import WindowRule
from bertworks.tasks.beams import Searching
from bertworks.tasks.model import load
from bertworks.tasks.module import TaskModule
from bertworks.tasks.predicting import Predictor
from bertworks.tasks.sealed import seal
from bertworks.tasks.translate import Translate
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"一二三四五。"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    place = tmp_path_factory.mktemp("translator")
    (place / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    sizes = replace(released("tiny", len(PIECES)), width=8, num_layers=1, num_heads=2, inner=16, positions=16)
    encoder = Transformer(sizes, torch.Generator().manual_seed(3))
    task = Translate(cut="zh", searching=Searching(beams=2, max_more=3))
    seal(place / "model", Predictor(TaskModule(encoder, task), Tokenizer.load(place), WindowRule(16, 0)), {})
    return place / "model"


@pytest.fixture(scope="module")
def asked(ask_app: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    return ask_app(models=(f"old-new={folder}",))


def test_texts_are_translated_as_by_the_folder(asked: Callable[..., Any], folder: Path):
    texts = ["一二", "三四五。" * 6, "五"]  # the second is longer than a row
    answer = asked("POST", "/v1/models/old-new/predict", {"inputs": texts})
    assert answer.status_code == 200
    told = answer.json()
    assert [one["translation"] for one in told["predictions"]] == load(folder).translate(texts)
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
