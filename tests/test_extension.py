"""One file and one line add an encoder or an objective: it is pretrained, resumed, used, fine-tuned and served.

tests/tasks/test_new_task.py does the same for a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloze_objective
import mixer_encoder
import numpy as np
import pytest
from fastapi.testclient import TestClient
from small_run import RECIPE, WORDS, assert_same, prepare_corpus, run

import bertworks
from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.commands.show import ShowRequest, examples
from bertworks.encoders.families import ENCODERS
from bertworks.errors import BertworksError
from bertworks.objectives.registry import OBJECTIVES
from bertworks.serving.server import ServeRequest, load_app

pytestmark = pytest.mark.usefixtures("one_thread", "registration")

# What differs from the recipe of a small BERT.
NEW_PARTS = {
    "encoder": {"model": {"family": "mixer"}},
    "objective": {"objective": "cloze"},
    "both": {"model": {"family": "mixer"}, "objective": "cloze"},
}


@pytest.fixture(scope="module")
def registration() -> Iterator[None]:
    """The one line of each: the family and the objective are registered."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(ENCODERS, mixer_encoder.FAMILY.model_type, mixer_encoder.FAMILY)
        monkeypatch.setitem(OBJECTIVES, cloze_objective.OBJECTIVE.name, cloze_objective.OBJECTIVE)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", params=NEW_PARTS)
def recipe(request: pytest.FixtureRequest, registration: None) -> PretrainRecipe:
    changes: dict[str, Any] = dict(NEW_PARTS[request.param])
    if "model" in changes:
        changes["model"] = ModelRecipe(
            **changes["model"], size="tiny", max_position_embeddings=32, hidden_dropout_prob=0.0
        )
    return replace(RECIPE, **changes)


@pytest.fixture(scope="module")
def output(
    corpus: Path, recipe: PretrainRecipe, tmp_path_factory: pytest.TempPathFactory, one_thread: None, registration: None
) -> Path:
    output = tmp_path_factory.mktemp("run") / "run"
    run(corpus, output, recipe)
    return output


def test_it_is_pretrained_and_resumes_bit_identically(
    corpus: Path, recipe: PretrainRecipe, output: Path, tmp_path: Path
):
    run(corpus, tmp_path / "resumed", recipe, stop_after=5)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(output, tmp_path / "resumed")
    assert (output / "report.html").is_file()


def test_its_masked_tokens_are_predicted(output: Path):
    result = bertworks.load(output / "model").fill_mask("the river [MASK] cloud .", top_k=3)
    assert len(result.mask_candidates[0]) == 3


def test_its_texts_are_embedded(output: Path):
    vectors = bertworks.load(output / "model").encode(["the river", "bread and stone"])
    assert vectors.shape == (2, 16)
    assert np.isfinite(vectors).all()


@pytest.fixture(scope="module")
def classifier(output: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    lines = [f"the {first} {second}\t{'water' if first == 'river' else 'land'}" for first in WORDS for second in WORDS]
    lines += [f"the river {word}\twater" for word in WORDS * 8]
    (folder / "train.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    bertworks.finetune(
        "classify", model=output / "model", train=folder / "train.tsv", dev=folder / "train.tsv", output=folder / "run",
        epochs=4, learning_rate=1e-2,
    )  # fmt: skip
    return folder / "run" / "model"


def test_it_is_fine_tuned_evaluated_and_predicts(classifier: Path):
    assert bertworks.evaluate(classifier, classifier.parents[1] / "train.tsv")["accuracy"] > 0.9
    labels = [prediction.label for prediction in bertworks.predict(classifier, ["the river stone", "the garden bread"])]
    assert labels == ["water", "land"]


def test_it_is_explained(classifier: Path):
    from bertworks.inference.attribution import example_from_texts, explain
    from bertworks.inference.finetuned import load_predictor

    predictor = load_predictor(str(classifier))
    explanation = explain(predictor, example_from_texts(predictor.module.task, ["the river stone"]), "water")
    weights = {word["word"]: word["weight"] for text in explanation.to_dict()["texts"] for word in text["words"]}
    assert max(weights, key=lambda word: abs(weights[word])) == "river"


def test_it_is_served(classifier: Path):
    with TestClient(load_app(ServeRequest(models=(f"water={classifier}",))).app, "http://127.0.0.1") as client:
        answer = client.post("/v1/models/water/predict", json={"inputs": ["the river stone"]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["predictions"][0]["label"] == "water"


def test_it_is_exported_or_refused_in_one_sentence(classifier: Path, recipe: PretrainRecipe, tmp_path: Path):
    if recipe.model.family == "bert":
        certificate = bertworks.export(classifier, "onnx", tmp_path / "onnx")
        assert certificate["mean_cosine"] > 0.9999
    else:  # the graph writer does not know its layer
        with pytest.raises(BertworksError, match="mixer"):
            bertworks.export(classifier, "onnx", tmp_path / "onnx")
    assert bertworks.export(classifier, "safetensors-fp16", tmp_path / "fp16")["mean_cosine"] > 0.999


def test_its_examples_are_shown(corpus: Path):
    request = ShowRequest(folder=corpus, objective="cloze", max_length=16, num_examples=2)
    assert [len(example.masked_tokens) for example in examples(request)] == [1, 1]
