"""The HTTP API: responses, errors, limits, and independence of concurrent requests."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_models import TASKS, write_finetuned

from bertworks.choices import POOLINGS
from bertworks.errors import SettingsError
from bertworks.inference.model import load
from bertworks.serving.batch_scheduler import QueueLimits
from bertworks.serving.bundle import BundleRequest, bundle
from bertworks.serving.queues import EmbedQueue
from bertworks.serving.schemas import EmbedBody
from bertworks.serving.security import Limits

INPUTS: dict[str, Any] = {
    "classify": "a charming film",
    "regress": {"sentence1": "a cat sat", "sentence2": "a dog sat"},
    "choose": {"prompt": "the cat", "choices": ["sat on the mat", "was a film"]},
    "tag": "john sat in paris.",
    "answer": {"question": "who sat?", "context": "john sat in paris."},
}


class Gate:
    """Blocks the computation of vectors until it is opened."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()

    def open(self) -> None:
        self.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, compute = Gate(), EmbedQueue.compute

    def blocking_compute(self: EmbedQueue, sequences: Any) -> Any:
        gate.entered.set()
        assert gate.opened.wait(30)
        return compute(self, sequences)

    monkeypatch.setattr(EmbedQueue, "compute", blocking_compute)
    yield gate
    gate.open()


def error_of(response: Any) -> tuple[int, str]:
    fields = response.json()
    assert list(fields) == ["error"]
    assert set(fields["error"]) == {"type", "message", "request_id"}
    assert fields["error"]["request_id"] == response.headers["x-request-id"]
    return response.status_code, fields["error"]["type"]


def test_models_are_listed_with_their_capabilities(client):
    listed = client("GET", "/v1/models").json()
    assert listed["object"] == "list"
    models = {model["name"]: model for model in listed["data"]}
    assert set(models) == {*TASKS, "pretrained", "sentences"}
    assert client("GET", "/v1/models/tag").json() == models["tag"]
    assert {key: models["tag"][key] for key in ("id", "object", "owned_by")} == {
        "id": "tag",
        "object": "model",
        "owned_by": "bertworks",
    }
    assert models["tag"]["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.mark.parametrize("task", list(TASKS))
def test_predictions_of_every_task_are_those_of_the_library(task, client, folders):
    response = client("POST", f"/v1/models/{task}/predict", {"inputs": [INPUTS[task]]})
    assert response.status_code == 200
    (prediction,) = response.json()["predictions"]
    expected = json.loads(json.dumps(load(folders[task]).predict([INPUTS[task]])[0].to_dict()))
    assert set(prediction) == set(expected)
    for name in ("label", "tags", "text", "choice", "words"):
        assert prediction.get(name) == expected.get(name)
    assert prediction.get("value") == pytest.approx(expected.get("value"))


def test_fill_mask_returns_top_k_candidates_and_sequences(client):
    fields = client("POST", "/v1/models/pretrained/fill-mask", {"text": "a [MASK] film", "top_k": 3}).json()
    assert [len(candidates) for candidates in fields["mask_candidates"]] == [3]
    assert len(fields["sequences"]) == 3


def test_vectors_are_those_of_the_library(client, folders):
    texts = ["a cat sat", "我喜欢看电影", ""]
    fields = client("POST", "/v1/models/sentences/embed", {"inputs": texts}).json()
    assert fields["vector_size"] == 24
    np.testing.assert_allclose(fields["vectors"], load(folders["sentences"]).encode(texts), atol=1e-5)


@pytest.mark.parametrize("name", ["cls", "first"])
def test_pooling_is_chosen_by_the_name_of_sentence_transformers_or_its_former_one(client, folders, name):
    fields = client("POST", "/v1/models/sentences/embed", {"inputs": ["a cat sat"], "pooling": name}).json()
    expected = load(folders["sentences"]).encode(["a cat sat"], pooling="cls")
    np.testing.assert_allclose(fields["vectors"], expected, atol=1e-5)


def test_the_reference_lists_each_pooling_once():
    names, null = EmbedBody.model_json_schema()["properties"]["pooling"]["anyOf"]
    assert tuple(names["enum"]) == POOLINGS
    assert null == {"type": "null"}


def test_embeddings_are_compatible_with_openai(client, folders):
    body = {"model": "sentences", "input": ["a cat", "a dog"], "user": "somebody"}
    fields = client("POST", "/v1/embeddings", body).json()
    assert fields["object"] == "list"
    assert fields["model"] == "sentences"
    assert fields["usage"] == {"prompt_tokens": 8, "total_tokens": 8, "unknown_tokens": 0}
    assert [(entry["object"], entry["index"]) for entry in fields["data"]] == [("embedding", 0), ("embedding", 1)]
    expected = load(folders["sentences"]).encode(["a cat", "a dog"])
    np.testing.assert_allclose([entry["embedding"] for entry in fields["data"]], expected, atol=1e-5)


def test_openai_inputs_may_be_token_ids_and_outputs_base64(client, folders):
    model = load(folders["sentences"])
    input_ids = model.tokenizer.tokenize("a cat").input_ids.tolist()
    for value in ("a cat", ["a cat"], input_ids, [input_ids]):
        body = {"model": "sentences", "input": value, "encoding_format": "base64", "dimensions": 24}
        (entry,) = client("POST", "/v1/embeddings", body).json()["data"]
        vector = np.frombuffer(base64.b64decode(entry["embedding"]), dtype="<f4")
        np.testing.assert_allclose(vector, model.encode(["a cat"])[0], atol=1e-5)


def test_openai_dimensions_of_a_matryoshka_model_are_the_first_components(make_client, folders, tmp_path):
    shutil.copytree(folders["sentences"], tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [24, 8]}))
    client = make_client(models=(f"俄罗斯套娃={tmp_path / 'model'}",))
    body = {"model": "俄罗斯套娃", "input": "a cat"}
    (whole,) = client("POST", "/v1/embeddings", body).json()["data"]
    (entry,) = client("POST", "/v1/embeddings", {**body, "dimensions": 8}).json()["data"]
    first = np.array(whole["embedding"][:8])
    np.testing.assert_allclose(entry["embedding"], first / np.linalg.norm(first), atol=1e-6)
    response = client("POST", "/v1/embeddings", {**body, "dimensions": 12})
    assert error_of(response) == (422, "unprocessable")
    assert "choose one of its sizes: 24, 8" in response.json()["error"]["message"]


def test_models_with_chinese_names_are_reached_by_path_and_body(make_client, folders):
    client = make_client(models=(f"情感={folders['classify']}", f"句子.v2={folders['sentences']}"))
    assert [model["id"] for model in client("GET", "/v1/models").json()["data"]] == ["情感", "句子.v2"]
    assert client("GET", "/v1/models/情感").json()["labels"] == ["bad", "good"]
    assert client("GET", "/v1/models/%E6%83%85%E6%84%9F").json()["id"] == "情感"
    assert client("POST", "/v1/models/情感/predict", {"inputs": ["a film"]}).status_code == 200
    assert client("POST", "/v1/embeddings", {"model": "句子.v2", "input": "a"}).json()["model"] == "句子.v2"
    assert client("POST", "/embed?model=情感", {"inputs": "a"}).status_code == 200
    assert 'model="情感"' in client("GET", "/metrics").text
    assert error_of(client("GET", "/v1/models/感情")) == (404, "not_found")


def test_openai_dimensions_other_than_the_vector_size_are_rejected(client):
    body = {"model": "sentences", "input": "a cat", "dimensions": 8}
    assert error_of(client("POST", "/v1/embeddings", body)) == (422, "unprocessable")


def test_texts_are_projected_onto_a_plane(client):
    path = "/v1/embeddings/projection"
    body = {"model": "sentences", "inputs": ["a cat", "a dog", "the film"], "query": "a cat"}
    fields = client("POST", path, body).json()
    assert np.array(fields["points"]).shape == (3, 2)
    assert fields["scores"][0] == pytest.approx(1.0, abs=1e-5)
    assert client("POST", path, {**body, "query": None}).json()["scores"] is None
    assert error_of(client("POST", path, {**body, "inputs": []})) == (422, "unprocessable")


def test_tokenize_returns_tokens_and_embeddings_and_attention_returns_top_k_weights(client):
    fields = client("POST", "/v1/models/classify/tokenize", {"text": "a cats", "embeddings": True}).json()
    assert fields["tokens"] == ["[CLS]", "a", "cat", "##s", "[SEP]"]
    assert fields["offsets"][1] == [0, 1]
    assert {name: len(values) for name, values in fields["embedding_norms"].items()} == dict.fromkeys(
        ("token", "position", "token_type", "sum"), 5
    )
    assert "embedding_norms" not in client("POST", "/v1/models/classify/tokenize", {"text": "a cats"}).json()
    fields = client("POST", "/v1/models/classify/attention", {"text": "a cats", "top_k": 7}).json()
    assert len(fields["attention_weights"]) == 7


def test_a_prediction_is_explained(client):
    body = {"input": "a good film", "target": "good"}
    fields = client("POST", "/v1/models/classify/explain", body).json()
    assert [word["word"] for word in fields["texts"][0]["words"]] == ["a", "good", "film"]
    response = client("POST", "/v1/models/classify/explain", {**body, "target": "green"})
    assert error_of(response) == (422, "unprocessable")


def test_concurrent_requests_to_several_models_get_their_own_responses(client, folders):
    texts = [" ".join(["cat", "dog", "film", "good"][index % 4] for index in range(size)) for size in range(1, 70)]
    requests = [
        ("POST", f"/v1/models/{name}/embed", {"json": {"inputs": [text, text[:5]]}})
        for text in texts
        for name in ("sentences", "pretrained")
    ]
    responses = client.send_concurrently(*requests)
    assert {response.status_code for response in responses} == {200}
    for name, start in (("sentences", 0), ("pretrained", 1)):
        vectors = [response.json()["vectors"] for response in responses[start::2]]
        model = load(folders[name])
        expected = [[model.encode([text])[0], model.encode([text[:5]])[0]] for text in texts]
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "number"),
    [
        ("/v1/models/pretrained/fill-mask", {"text": "a [MASK]"}, "top_k"),
        ("/v1/models/pretrained/next", {"text": "a"}, "top_k"),
        ("/v1/models/classify/attention", {"text": "a", "layer": 1}, "head"),
        ("/v1/embeddings", {"model": "sentences", "input": "a"}, "dimensions"),
    ],
)
def test_an_integral_float_is_an_integer_but_a_string_and_a_boolean_are_not(path, body, number, client):
    value = 24 if number == "dimensions" else 2
    expected = client("POST", path, {**body, number: value})
    assert expected.status_code == 200
    response = client("POST", path, {**body, number: float(value)})
    assert response.status_code == 200
    assert response.json() == expected.json()
    for wrong in (str(value), True, value + 0.5, [float(value)]):
        assert error_of(client("POST", path, {**body, number: wrong})) == (400, "bad_request")


def test_integral_floats_are_token_ids_too_and_their_limits_hold(client):
    body = {"model": "sentences", "input": [5.0, 6, 7.0]}
    expected = client("POST", "/v1/embeddings", {**body, "input": [5, 6, 7]}).json()
    assert client("POST", "/v1/embeddings", body).json() == expected
    response = client("POST", "/v1/models/pretrained/next", {"text": "a", "top_k": 0.0})
    assert response.json()["error"]["message"] == "top_k: Input should be greater than or equal to 1"
    for number in ("1e400", "1e300", "-0.0", "1.0e-1"):
        headers, content = {"Content-Type": "application/json"}, f'{{"text": "a", "top_k": {number}}}'.encode()
        response = client("POST", "/v1/models/pretrained/next", content=content, headers=headers)
        assert error_of(response) == (400, "bad_request")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "GET"])
@pytest.mark.parametrize(
    "options", [{}, {"json": {"inputs": []}}, {"content": b"x", "headers": {"Content-Type": "a/b"}}]
)
def test_a_method_that_a_route_does_not_have_is_405_whatever_its_body(method, options, client):
    response = client(method, "/v1/models/classify/predict", **options)
    assert error_of(response) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert client(method, "/embed", **options).json()["error_type"] == "Validation"
    if method != "GET":
        assert error_of(client(method, "/v1/models", **options)) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "body", "status", "error_type"),
    [
        ("/v1/models/none/predict", {"inputs": []}, 404, "not_found"),
        ("/v1/models/pretrained/predict", {"inputs": ["a"]}, 422, "unprocessable"),
        ("/v1/models/classify/predict", {"inputs": "a"}, 400, "bad_request"),
        ("/v1/models/classify/predict", {"inputs": ["a"], "truncated": True}, 400, "bad_request"),
        ("/v1/models/classify/predict", {"inputs": [{"text": 3}]}, 400, "bad_request"),
        ("/v1/models/classify/predict", {"inputs": [{"text": ["a"]}]}, 422, "unprocessable"),
        ("/v1/models/classify/predict", {"inputs": [{"txt": "a"}]}, 422, "unprocessable"),
        ("/v1/models/classify/predict", {"inputs": ["a"], "by": "word"}, 400, "bad_request"),
        ("/v1/models/classify/predict", [], 400, "bad_request"),
        ("/v1/models/classify/predict", {"inputs": [" "]}, 422, "unprocessable"),
        ("/v1/models/tag/explain", {"input": ""}, 422, "unprocessable"),
        ("/v1/models/pretrained/fill-mask", {"text": "no mask"}, 422, "unprocessable"),
        ("/v1/models/pretrained/fill-mask", {"text": "[MASK]", "top_k": 0}, 400, "bad_request"),
        ("/v1/models/pretrained/fill-mask", {"text": "[MASK]" * 17}, 422, "unprocessable"),
        ("/v1/models/pretrained/fill-mask", {"text": "[MASK] " + "cat " * 40}, 422, "unprocessable"),
        ("/v1/models/sentences/embed", {"inputs": ["a"], "pooling": "median"}, 400, "bad_request"),
        ("/v1/models/classify/attention", {"text": "a", "layer": 9}, 422, "unprocessable"),
        ("/v1/embeddings", {"model": "none", "input": "a"}, 404, "not_found"),
        ("/v1/embeddings", {"model": "sentences", "input": [[1, 99_999]]}, 422, "unprocessable"),
        ("/v1/embeddings", {"model": "sentences", "input": [["a"]]}, 400, "bad_request"),
        ("/v1/search", {"query": "a"}, 404, "not_found"),
        ("/v1/nothing", {}, 404, "not_found"),
        ("/v1/models", {}, 405, "method_not_allowed"),
    ],
)
def test_invalid_requests_get_the_right_status(path, body, status, error_type, client):
    assert error_of(client("POST", path, body)) == (status, error_type)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"inputs": ["\xff"]}', b'{"inputs": ["\\ud800"]}', b"[" * 100_000, b"NaN", b"\x00"]
)
def test_bodies_that_are_not_json_are_rejected(content, client):
    headers = {"Content-Type": "application/json"}
    response = client("POST", "/v1/models/classify/predict", content=content, headers=headers)
    assert error_of(response) == (400, "bad_request")


def test_limits_of_inputs_texts_and_bodies_are_enforced(make_client, folders):
    limits = Limits(inputs=2, characters=10, body_bytes=500)
    client = make_client(models=(f"bert={folders['classify']}",), limits=limits)
    path = "/v1/models/bert/predict"
    assert client("POST", path, {"inputs": ["a" * 10, "b"]}).status_code == 200
    for inputs in (["a"] * 3, ["a" * 11], [{"sentence1": "a", "sentence2": "b" * 11}]):
        assert error_of(client("POST", path, {"inputs": inputs})) == (422, "unprocessable")
    assert error_of(client("POST", "/v1/embeddings", {"model": "bert", "input": [5] * 11})) == (422, "unprocessable")
    assert error_of(client("POST", path, {"inputs": ["a"], "by": "x" * 500})) == (413, "content_too_large")


def test_a_full_queue_answers_429_with_retry_after(make_client, folders, gate):
    client = make_client(models=(f"bert={folders['sentences']}",), queue_limits=QueueLimits(requests=2))
    request = ("POST", "/v1/models/bert/embed", {"json": {"inputs": ["a cat"]}})
    threading.Timer(0.5, gate.open).start()
    responses = client.send_concurrently(*[request] * 6)
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200, 200, 429, 429, 429, 429]
    for response in responses:
        if response.status_code == 429:
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert error_of(response) == (429, "queue_full")


def test_a_server_without_a_worker_thread_is_not_healthy(make_client):
    client = make_client()
    assert client("GET", "/health").json() == {"status": "alive"}
    client.app.service.scheduler.close()
    assert error_of(client("GET", "/health")) == (503, "unavailable")


def test_requests_that_wait_for_the_tokenizer_count_as_queued(make_client, folders):
    client = make_client(models=(f"bert={folders['sentences']}",), queue_limits=QueueLimits(requests=2))
    service = client.app.service
    service._tokenizer_lock.acquire()
    threading.Timer(0.5, service._tokenizer_lock.release).start()
    request = ("POST", "/v1/models/bert/embed", {"json": {"inputs": ["a cat"]}})
    responses = client.send_concurrently(*[request] * 5)
    assert sorted(response.status_code for response in responses) == [200, 200, 429, 429, 429]


def test_tokenize_requests_are_limited_like_all_others(make_client, folders):
    """They need the tokenizer lock, but never the worker."""
    client = make_client(
        models=(f"bert={folders['sentences']}",),
        queue_limits=QueueLimits(requests=2),
        limits=Limits(seconds=0.2, characters=9_000),
    )
    service = client.app.service
    request = ("POST", "/v1/models/bert/tokenize", {"json": {"text": "a cat " * 1_000}})
    service._tokenizer_lock.acquire()
    try:
        responses = client.send_concurrently(*[request] * 4)
    finally:
        service._tokenizer_lock.release()
    assert sorted(response.status_code for response in responses) == [429, 429, 504, 504]
    assert client(*request[:2], request[2]["json"]).status_code == 200


def test_a_request_that_takes_too_long_answers_504_and_leaves_the_queue(make_client, folders, gate):
    client = make_client(models=(f"bert={folders['sentences']}",), limits=Limits(seconds=0.3))
    request = ("POST", "/v1/models/bert/embed", {"json": {"inputs": ["a cat"]}})
    responses = client.send_concurrently(request, request, request)
    assert [error_of(response) for response in responses] == [(504, "timeout")] * 3
    assert client.app.service.scheduler.num_requests == 0
    gate.open()
    assert client(*request[:2], request[2]["json"]).status_code == 200


def test_the_request_of_a_disconnected_client_leaves_the_queue(client, gate):
    body = json.dumps({"inputs": ["a cat"]}).encode()
    sent: list[Any] = []

    async def run() -> None:
        disconnected = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "root_path": ""},
            **{"path": "/v1/models/sentences/embed", "query_string": b"", "headers": headers, "client": None},
        }
        task = asyncio.create_task(client.app.app(scope, receive, send))
        await asyncio.to_thread(gate.entered.wait, 30)
        assert client.app.service.scheduler.num_requests == 1
        disconnected.set()
        await asyncio.wait_for(task, 30)
        assert client.app.service.scheduler.num_requests == 0

    asyncio.run(run())
    assert sent[0]["status"] == 499


def test_internal_errors_reveal_neither_paths_nor_tracebacks_nor_texts(client, monkeypatch):
    def fail(self: EmbedQueue, sequences: Any) -> Any:
        raise RuntimeError("/secret/path: somebody's text")

    monkeypatch.setattr(EmbedQueue, "compute", fail)
    response = client("POST", "/v1/models/sentences/embed", {"inputs": ["a cat"]})
    assert error_of(response) == (500, "internal_error")
    assert not re.search(r"secret|somebody|Traceback|RuntimeError|/", response.json()["error"]["message"])
    monkeypatch.undo()
    assert client("POST", "/v1/models/sentences/embed", {"inputs": ["a cat"]}).status_code == 200


def test_health_and_readiness(make_client, folders):
    client = make_client(models=(f"bert={folders['sentences']}",))
    assert client("GET", "/health").json() == {"status": "alive"}
    assert client("GET", "/ready").json() == {"status": "ready", "models": ["bert"]}
    client.app.service.state.is_draining = True
    assert error_of(client("GET", "/ready")) == (503, "unavailable")
    assert error_of(client("POST", "/v1/models/bert/embed", {"inputs": ["a"]})) == (503, "unavailable")
    assert client("GET", "/health").status_code == 200


def test_metrics_count_requests_and_batches(make_client, folders):
    client = make_client(models=(f"bert={folders['sentences']}",))
    client("POST", "/v1/models/bert/embed", {"inputs": ["a cat", "a dog"]})
    client("POST", "/v1/embeddings", {"model": "bert", "input": "a cat"})
    client("POST", "/v1/models/other/embed", {"inputs": ["a"]})
    client("POST", "/v1/models/bert/predict", {"inputs": ["a"]})
    metrics = client("GET", "/metrics").text
    assert 'bertworks_requests_total{endpoint="embed",model="bert",status="200"} 1.0' in metrics
    assert 'bertworks_requests_total{endpoint="embeddings",model="bert",status="200"} 1.0' in metrics
    assert 'bertworks_requests_total{endpoint="embed",model="none",status="404"} 1.0' in metrics
    assert 'bertworks_requests_total{endpoint="predict",model="bert",status="422"} 1.0' in metrics
    assert 'bertworks_batch_sequences_sum{model="bert"} 3.0' in metrics
    assert "bertworks_queue_requests 0.0" in metrics


def test_cross_origin_requests_need_an_allowed_origin(client, make_client, folders):
    origin = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client("GET", "/v1/models", headers=origin).headers
    cors_client = make_client(models=(f"bert={folders['sentences']}",), origins=("https://example.org",))
    headers = cors_client("GET", "/v1/models", headers=origin).headers
    assert headers["access-control-allow-origin"] == "https://example.org"
    assert headers["access-control-expose-headers"] == "Retry-After, X-Request-ID"
    preflight = cors_client("OPTIONS", "/v1/models", headers=origin)
    assert (preflight.status_code, len(preflight.headers["x-request-id"])) == (200, 32)
    headers = cors_client("GET", "/v1/models", headers={"Origin": "https://other.org"}).headers
    assert "access-control-allow-origin" not in headers


def test_api_keys_are_required_where_they_are_configured(make_client, folders, tmp_path):
    (tmp_path / "keys").write_text("a-key-of-more-than-16-letters\n")
    client = make_client(models=(f"bert={folders['sentences']}",), host="0.0.0.0", key_file=tmp_path / "keys")
    assert error_of(client("GET", "/v1/models")) == (401, "unauthorized")
    assert error_of(client("GET", "/metrics")) == (401, "unauthorized")
    assert client("GET", "/health").status_code == 200
    headers = {"Authorization": "Bearer a-key-of-more-than-16-letters"}
    assert client("GET", "/v1/models", headers=headers).status_code == 200


def body_schema(spec: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return spec["components"]["schemas"][name]


def test_the_reference_has_an_example_of_every_body_and_loads_nothing_from_other_origins(client):
    spec = client("GET", "/openapi.json").json()
    operations = [methods["post"] for methods in spec["paths"].values() if "post" in methods]
    assert len(operations) == 17
    for operation in operations:
        assert body_schema(spec, operation)["examples"]
        assert {"200", "400", "404", "413", "422", "429", "504"} <= set(operation["responses"])
    page = client("GET", "/docs")
    assert "/v1/models/{name}/predict" in page.text
    assert not re.search(r"(src|href)=\"?(https?:)?//", page.text)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_every_example_of_the_reference_is_a_valid_body(client):
    spec = client("GET", "/openapi.json").json()
    for path, methods in spec["paths"].items():
        if "post" not in methods:
            continue
        for example in body_schema(spec, methods["post"])["examples"]:
            # The model is unknown, but the body is valid.
            response = client("POST", path.replace("{name}", "none"), example, params={"model": "none"})
            assert response.status_code == 404, (path, example)


def test_a_bundle_is_served_with_search_over_its_corpus(make_client, make_corpus, tmp_path):
    corpus = make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder
    model = write_finetuned(tmp_path / "sst2", TASKS["classify"])
    folder = bundle(BundleRequest(runs=(str(model),), output=tmp_path / "bundle", corpus=corpus)).folder
    client = make_client(models=(str(folder),))
    assert [model["name"] for model in client("GET", "/v1/models").json()["data"]] == ["sst2"]
    results = client("POST", "/v1/search", {"query": "w3 w4", "top_k": 2}).json()["results"]
    assert len(results) == 2
    assert set(results[0]) == {"text", "score", "document", "sentence_index"}
    assert client("GET", "/v1/search?query=w3%20w4&top_k=2").json()["results"] == results
    assert error_of(client("GET", "/v1/search?query=w3&top_k=0")) == (400, "bad_request")
    assert error_of(client("POST", "/v1/search", {"query": " "})) == (422, "unprocessable")


def test_training_runs_are_listed_and_read(make_client, folders, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"kind": "step", "step": step, "seconds": 1.0}) + "\n" for step in range(5))
    )
    client = make_client(models=(f"bert={folders['sentences']}",), runs={"mini": run})
    assert [run["name"] for run in client("GET", "/v1/runs").json()["runs"]] == ["mini"]
    fields = client("GET", "/v1/runs/mini?after=1").json()
    assert [record["step"] for record in fields["records"]] == [2, 3]
    assert error_of(client("GET", "/v1/runs/other")) == (404, "not_found")
    assert error_of(client("GET", "/v1/runs/mini?after=x")) == (400, "bad_request")


def test_only_the_files_of_the_page_are_served(client):
    assert "<html" in client("GET", "/").text
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/none.js"):
        assert error_of(client("GET", path)) == (404, "not_found")


def test_a_bundle_must_be_the_only_argument(make_client, folders, tmp_path):
    folder = bundle(BundleRequest(runs=(str(folders["classify"]),), output=tmp_path / "bundle")).folder
    with pytest.raises(SettingsError, match="must be the only argument"):
        make_client(models=(str(folder), f"x={folders['tag']}"))


def test_a_long_explanation_does_not_block_other_requests(client, folders):
    raw_input = {"question": "who sat on the mat?", "context": "john sat in paris. " * 40}
    explanation, vectors = client.send_concurrently(
        ("POST", "/v1/models/answer/explain", {"json": {"input": raw_input}}),
        ("POST", "/v1/models/sentences/embed", {"json": {"inputs": ["a cat"]}}),
    )
    assert (explanation.status_code, vectors.status_code) == (200, 200)
    expected = load(folders["sentences"]).encode(["a cat"])
    np.testing.assert_allclose(vectors.json()["vectors"], expected, atol=1e-5)
