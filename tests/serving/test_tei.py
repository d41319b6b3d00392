"""TEI's endpoints over HTTP: shapes of requests, responses and errors, and which of several models answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import TASKS

from bertworks.inference.model import load
from bertworks.serving.security import Limits


def error_of(response: Any) -> tuple[int, str]:
    fields = response.json()
    assert set(fields) == {"error", "error_type"}
    return response.status_code, fields["error_type"]


@pytest.fixture(scope="module")
def matryoshka(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence embedding model with two prompts and a smaller vector size."""
    folder = tmp_path_factory.mktemp("matryoshka") / "model"
    shutil.copytree(folders["sentences"], folder)
    prompts = {"query": "who is ", "document": "it is "}
    settings = {"prompts": prompts, "default_prompt_name": "document", "truncate_dim": 8}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def matryoshka_client(make_client: Callable[..., Any], matryoshka: Path) -> Any:
    return make_client(models=(f"matryoshka={matryoshka}",))


def test_embed_returns_normalized_vectors_of_a_text_or_a_batch(client, folders):
    texts = ["a cat sat", "我喜欢看电影"]
    expected = load(folders["sentences"]).encode(texts)
    np.testing.assert_allclose(client("POST", "/embed", {"inputs": texts}).json(), expected, atol=1e-5)
    np.testing.assert_allclose(client("POST", "/embed", {"inputs": texts[0]}).json(), expected[:1], atol=1e-5)
    raw = np.array(client("POST", "/embed", {"inputs": texts, "normalize": False}).json())
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    assert abs(norms - 1).min() > 0.01
    np.testing.assert_allclose(raw / norms, expected, atol=1e-5)


def test_long_texts_are_truncated_unless_truncate_is_false(client):
    text = " ".join(["cat"] * 14 + ["dog"] * 20)  # the model reads 14 tokens
    (expected,) = client("POST", "/embed", {"inputs": " ".join(["cat"] * 14)}).json()
    (last,) = client("POST", "/embed", {"inputs": " ".join(["dog"] * 14)}).json()
    for options in ({}, {"truncate": True}, {"truncate": None}, {"truncation_direction": "Right"}):
        np.testing.assert_allclose(client("POST", "/embed", {"inputs": text, **options}).json(), [expected], atol=1e-6)
    (vector,) = client("POST", "/embed", {"inputs": text, "truncation_direction": "Left"}).json()
    np.testing.assert_allclose(vector, last, atol=1e-6)
    response = client("POST", "/embed", {"inputs": text, "truncate": False})
    assert error_of(response) == (413, "Validation")
    assert "34 tokens" in response.json()["error"]


def test_embed_all_returns_a_vector_for_each_token(client, folders):
    response = client("POST", "/embed_all", {"inputs": ["a cat", "dog"]})
    assert [np.array(vectors).shape for vectors in response.json()] == [(4, 24), (3, 24)]
    mean = np.array(response.json()[0]).mean(0)
    expected = load(folders["sentences"]).encode(["a cat"])[0]
    np.testing.assert_allclose(mean / np.linalg.norm(mean), expected, atol=1e-5)


def test_dimensions_and_prompts_are_those_of_the_folder(matryoshka_client, matryoshka, folders):
    model = load(folders["sentences"])
    (vector,) = matryoshka_client(
        "POST", "/embed", {"inputs": "john", "dimensions": 8.0, "prompt_name": "query"}
    ).json()
    expected = model.encode(["who is john"])[0][:8]
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)
    (vector,) = matryoshka_client("POST", "/embed", {"inputs": "john"}).json()
    whole = model.encode(["it is john"])[0]
    np.testing.assert_allclose(vector, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-5)  # the folder's truncate_dim
    (vector,) = matryoshka_client("POST", "/embed", {"inputs": "john", "dimensions": 24}).json()
    np.testing.assert_allclose(vector, whole, atol=1e-5)
    body = {"model": "matryoshka", "input": "john"}
    for dimensions, size in ((None, 8), (24, 24)):
        answer = matryoshka_client("POST", "/v1/embeddings", {**body, "dimensions": dimensions}).json()
        np.testing.assert_allclose(answer["data"][0]["embedding"], whole[:size], atol=1e-5)
    assert error_of(matryoshka_client("POST", "/embed", {"inputs": "a", "dimensions": 9})) == (422, "Validation")
    response = matryoshka_client("POST", "/embed", {"inputs": "a", "prompt_name": "passage"})
    assert error_of(response) == (413, "Validation")
    assert "its prompts are: query, document" in response.json()["error"]
    assert error_of(matryoshka_client("POST", "/embed", {"inputs": [5], "prompt_name": "query"})) == (413, "Validation")
    url, inputs = "/v1/models/matryoshka/embed", {"inputs": ["john"]}
    for prompt in ("query", "document"):
        answer = matryoshka_client("POST", url, {**inputs, "prompt_name": prompt}).json()
        expected = load(matryoshka).encode(["john"], prompt_name=prompt)
        np.testing.assert_allclose(answer["vectors"], expected, atol=1e-5)
    assert matryoshka_client("POST", url, {**inputs, "prompt_name": "passage"}).status_code == 422
    (tokens,) = matryoshka_client("POST", "/tokenize", {"inputs": "john", "prompt_name": "query"}).json()
    assert [token["text"] for token in tokens] == ["[CLS]", "who", "is", "john", "[SEP]"]


def test_predict_returns_classes_by_descending_score(client, folders):
    (expected,) = load(folders["classify"]).predict(["a charming film"])
    predictions = client("POST", "/predict", {"inputs": "a charming film"}).json()
    assert predictions[0]["label"] == expected.label
    assert predictions[0]["score"] > predictions[1]["score"]
    assert {prediction["label"]: prediction["score"] for prediction in predictions} == pytest.approx(
        dict(expected.probabilities), abs=1e-5
    )
    pair = ["a cat", "a dog"]
    batch = client("POST", "/predict", {"inputs": [["a charming film"], pair]}).json()
    assert [one["label"] for one in batch[0]] == [one["label"] for one in predictions]
    single = client("POST", "/predict", {"inputs": pair}).json()
    assert [one["score"] for one in single] == pytest.approx([one["score"] for one in batch[1]], abs=1e-5)
    raw = client("POST", "/predict", {"inputs": "a charming film", "raw_scores": True}).json()
    assert {one["label"]: one["score"] for one in raw} == pytest.approx(
        dict(zip(("bad", "good"), expected.logits.tolist(), strict=True)), abs=1e-5
    )


def test_rerank_ranks_texts_by_the_score_of_a_pair_with_the_query(client, folders):
    texts = ["the cat sat", "a dull film", "john in paris"]
    model = load(folders["regress"])
    values = [model.predict([{"sentence1": "who sat?", "sentence2": text}])[0].value for text in texts]
    order = sorted(range(3), key=lambda index: -values[index])
    ranks = client("POST", "/rerank", {"query": "who sat?", "texts": texts, "raw_scores": True}).json()
    assert [rank["index"] for rank in ranks] == order
    assert [rank["score"] for rank in ranks] == pytest.approx([values[index] for index in order], abs=1e-5)
    assert set(ranks[0]) == {"index", "score"}
    ranks = client("POST", "/rerank", {"query": "who sat?", "texts": texts, "return_text": True}).json()
    assert [rank["text"] for rank in ranks] == [texts[index] for index in order]
    sigmoids = [1 / (1 + np.exp(-values[index])) for index in order]
    assert [rank["score"] for rank in ranks] == pytest.approx(sigmoids, abs=1e-5)


def test_without_a_reranker_rerank_says_so(make_client, folders):
    client = make_client(models=(f"sst2={folders['classify']}",))
    response = client("POST", "/rerank", {"query": "a", "texts": ["b"]})
    assert error_of(response) == (424, "Backend")
    assert response.json()["error"].startswith("no served model scores pairs")
    assert error_of(client("POST", "/rerank?model=sst2", {"query": "a", "texts": ["b"]})) == (424, "Backend")
    only_vectors = make_client(models=(f"minilm={folders['sentences']}",))
    assert error_of(only_vectors("POST", "/predict", {"inputs": "a"})) == (424, "Backend")


def test_similarity_returns_cosines(client, folders):
    vectors = load(folders["sentences"]).encode(["a cat", "a dog", "a cat"])
    body = {"inputs": {"source_sentence": "a cat", "sentences": ["a dog", "a cat"]}, "parameters": None}
    scores = client("POST", "/similarity", body).json()
    assert scores == pytest.approx([float(vectors[0] @ vectors[1]), 1.0], abs=1e-5)
    body["parameters"] = {"truncate": False}
    assert client("POST", "/similarity", body).json() == scores


def test_tokenize_returns_the_tokens_of_each_text(client):
    (tokens,) = client("POST", "/tokenize", {"inputs": "Cats", "add_special_tokens": False}).json()
    assert [(token["text"], token["start"], token["stop"]) for token in tokens] == [("Cat", 0, 3), ("s", 3, 4)]
    batch = client("POST", "/tokenize", {"inputs": ["Cats", "我"]}).json()
    assert [token["special"] for token in batch[1]] == [True, False, True]
    assert batch[0][1:3] == tokens


def test_info_describes_the_model_and_the_limits(client):
    info = client("GET", "/info?model=regress").json()
    assert info["model_id"] == "regress"
    assert info["model_type"] == {"reranker": {"id2label": {"0": "value"}, "label2id": {"value": 0}}}
    assert (info["max_input_length"], info["max_client_batch_size"], info["auto_truncate"]) == (32, 512, True)
    assert info["model_dtype"] in ("float32", "bfloat16")
    assert client("GET", "/info").json()["model_id"] == next(iter(TASKS))
    assert error_of(client("GET", "/info?model=none")) == (404, "Validation")


def test_the_first_suitable_model_answers_or_the_one_that_is_named(client, folders):
    def vector(path: str) -> list[float]:
        return client("POST", path, {"inputs": "a cat"}).json()[0]

    assert vector("/embed") == vector("/embed?model=sentences")
    named = np.array(vector("/embed?model=tag"))
    expected = load(folders["tag"]).encode(["a cat"])[0]
    np.testing.assert_allclose(named, expected / np.linalg.norm(expected), atol=1e-5)
    assert [one["label"] for one in client("POST", "/predict?model=regress", {"inputs": "a"}).json()] == ["value"]
    assert error_of(client("POST", "/predict?model=tag", {"inputs": "a"})) == (424, "Backend")
    assert error_of(client("POST", "/embed?model=none", {"inputs": "a"})) == (404, "Validation")
    assert (
        'bertworks_requests_total{endpoint="tei_embed",model="sentences",status="200"}'
        in client("GET", "/metrics").text
    )


def test_without_an_embedding_model_the_first_one_embeds(make_client, folders):
    client = make_client(models=(f"sst2={folders['classify']}", f"bert={folders['pretrained']}"))
    (vector,) = client("POST", "/embed", {"inputs": "a cat", "normalize": False}).json()
    np.testing.assert_allclose(vector, load(folders["classify"]).encode(["a cat"])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/embed", {"inputs": []}, (400, "Empty")),
        ("/embed", {"inputs": ""}, (400, "Empty")),
        ("/embed", {"inputs": ["a", ""]}, (400, "Empty")),
        ("/embed", {"inputs": 3}, (400, "Validation")),
        ("/embed", {}, (400, "Validation")),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, (400, "Validation")),
        ("/embed", {"inputs": [[99_999]]}, (422, "Tokenizer")),
        ("/embed", {"inputs": ["a"] * 6}, (413, "Validation")),
        ("/embed", {"inputs": "a" * 101}, (413, "Validation")),
        ("/embed", {"inputs": [5] * 101}, (413, "Validation")),
        ("/embed_all", {"inputs": ["a"] * 6}, (413, "Validation")),
        ("/predict", {"inputs": ""}, (400, "Empty")),
        ("/predict", {"inputs": []}, (400, "Validation")),
        ("/predict", {"inputs": ["a", "b", "c"]}, (400, "Validation")),
        ("/predict", {"inputs": [["a"]] * 6}, (413, "Validation")),
        ("/rerank", {"query": "a", "texts": []}, (400, "Empty")),
        ("/rerank", {"query": "a", "texts": ["b"] * 6}, (413, "Validation")),
        ("/rerank", {"query": "a", "texts": ["cat " * 24], "truncate": False}, (200, "")),
        ("/rerank", {"query": "a cat" * 5, "texts": ["cat " * 25], "truncate": False}, (413, "Validation")),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, (400, "Empty")),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 5}}, (413, "Validation")),
        ("/similarity", {"inputs": "a"}, (400, "Validation")),
        ("/tokenize", {"inputs": []}, (400, "Empty")),
        ("/tokenize", {"inputs": ["a"] * 6}, (413, "Validation")),
    ],
)
def test_invalid_requests_have_the_shape_and_status_of_tei(path, body, expected, small_client):
    response = small_client("POST", path, body)
    if expected[0] == 200:
        assert response.status_code == 200
    else:
        assert error_of(response) == expected


@pytest.fixture(scope="module")
def small_client(make_client: Callable[..., Any]) -> Any:
    """A client of an app with small limits."""
    return make_client(limits=Limits(inputs=5, characters=100))


def test_the_reference_shows_the_routes_with_their_parameter(client):
    page = client("GET", "/docs").text
    for path in ("/embed", "/embed_all", "/predict", "/rerank", "/similarity", "/tokenize", "/info"):
        assert f"<code>{path}</code>" in page
    assert "<td><code>model</code></td><td>query</td>" in page
    assert "<p>list of list of number</p>" in page


def test_answers_have_teis_headers_of_what_was_computed(client):
    bodies = {
        "/embed": {"inputs": ["a cat", "我"]},
        "/embed_all": {"inputs": ["a cat", "我"]},
        "/predict": {"inputs": "a cat"},
        "/rerank": {"query": "a", "texts": ["cat", "我"]},
        "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["cat"]}},
    }
    characters = {"/embed": 6, "/embed_all": 6, "/predict": 5, "/rerank": 6, "/similarity": 4}
    tokens = {"/embed": 7, "/embed_all": 7, "/predict": 4, "/rerank": 10, "/similarity": 6}
    for path, body in bodies.items():
        headers = client("POST", path, body).headers
        assert headers["x-compute-type"] == "cpu"
        assert int(headers["x-compute-characters"]) == characters[path], path
        assert int(headers["x-compute-tokens"]) == tokens[path], path
        parts = [int(headers[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
        assert 0 <= sum(parts) <= int(headers["x-total-time"]) == int(headers["x-compute-time"])
    assert "x-compute-time" not in client("POST", "/tokenize", {"inputs": "a"}).headers


def test_a_single_value_has_the_label_of_the_folder(make_client, folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(folders["regress"], folder)
    (folder / "bertworks.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    (folder / "config.json").write_text(json.dumps({**config, **labels}))
    client = make_client(models=(f"model={folder}",))
    assert [one["label"] for one in client("POST", "/predict", {"inputs": "a"}).json()] == ["LABEL_0"]
    assert client("GET", "/info").json()["model_type"] == {"reranker": labels}
