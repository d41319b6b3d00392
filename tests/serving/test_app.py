"""The interface over HTTP: what is answered, what is refused, and that requests do not disturb each other."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_models import TASKS, write_tuned

from bertworks.inference.model import load
from bertworks.serving.batch_scheduler import QueueLimits
from bertworks.serving.bundle import BundleRequest, bundle
from bertworks.serving.queues import EmbedQueue
from bertworks.serving.security import Limits

INPUTS: dict[str, Any] = {
    "classify": "a charming film",
    "regress": {"sentence1": "a cat sat", "sentence2": "a dog sat"},
    "choose": {"prompt": "the cat", "choices": ["sat on the mat", "was a film"]},
    "tag": "john sat in paris.",
    "answer": {"question": "who sat?", "context": "john sat in paris."},
}


class Gate:
    """Holds vectors back until it is opened."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.num_computed = 0

    def open(self) -> None:
        self.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, compute = Gate(), EmbedQueue.compute

    def held(self: EmbedQueue, rows: Any) -> Any:
        found.entered.set()
        assert found.opened.wait(30)
        found.num_computed += 1
        return compute(self, rows)

    monkeypatch.setattr(EmbedQueue, "compute", held)
    yield found
    found.open()


def error_of(answer: Any) -> tuple[int, str]:
    told = answer.json()
    assert list(told) == ["error"]
    assert set(told["error"]) == {"type", "message"}
    return answer.status_code, told["error"]["type"]


def test_models_are_listed_with_what_they_can(ask):
    told = {one["name"]: one for one in ask("GET", "/v1/models").json()["models"]}
    assert set(told) == {*TASKS, "pretrained", "sentences"}
    assert ask("GET", "/v1/models/tag").json() == told["tag"]
    assert told["tag"]["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.mark.parametrize("task", list(TASKS))
def test_every_task_is_predicted(task, ask, folders):
    answer = ask("POST", f"/v1/models/{task}/predict", {"inputs": [INPUTS[task]]})
    assert answer.status_code == 200
    (found,) = answer.json()["predictions"]
    wanted = json.loads(json.dumps(load(folders[task]).predict([INPUTS[task]])[0].to_dict()))
    assert set(found) == set(wanted)
    for name in ("label", "tags", "text", "choice", "words"):
        assert found.get(name) == wanted.get(name)
    assert found.get("value") == pytest.approx(wanted.get("value"))


def test_blanks_are_filled(ask):
    told = ask("POST", "/v1/models/pretrained/fill", {"text": "a [MASK] film", "top": 3}).json()
    assert [len(blank) for blank in told["blanks"]] == [3]
    assert len(told["fillings"]) == 3


def test_vectors_are_those_of_embed(ask, folders):
    texts = ["a cat sat", "我喜欢看电影", ""]
    told = ask("POST", "/v1/models/sentences/embed", {"inputs": texts}).json()
    assert told["width"] == 24
    np.testing.assert_allclose(told["vectors"], load(folders["sentences"]).encode(texts), atol=1e-5)


def test_openai_programs_get_what_they_expect(ask, folders):
    body = {"model": "sentences", "input": ["a cat", "a dog"], "user": "somebody"}
    told = ask("POST", "/v1/embeddings", body).json()
    assert told["object"] == "list"
    assert told["model"] == "sentences"
    assert told["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [(one["object"], one["index"]) for one in told["data"]] == [("embedding", 0), ("embedding", 1)]
    wanted = load(folders["sentences"]).encode(["a cat", "a dog"])
    np.testing.assert_allclose([one["embedding"] for one in told["data"]], wanted, atol=1e-5)


def test_openai_vectors_may_be_asked_in_base64_of_one_text_or_of_pieces(ask, folders):
    model = load(folders["sentences"])
    ids = model.tokenizer.tokenize("a cat").input_ids.tolist()
    for given in ("a cat", ["a cat"], ids, [ids]):
        body = {"model": "sentences", "input": given, "encoding_format": "base64", "dimensions": 24}
        (one,) = ask("POST", "/v1/embeddings", body).json()["data"]
        found = np.frombuffer(base64.b64decode(one["embedding"]), dtype="<f4")
        np.testing.assert_allclose(found, model.encode(["a cat"])[0], atol=1e-5)


def test_openai_dimensions_other_than_the_models_are_refused(ask):
    body = {"model": "sentences", "input": "a cat", "dimensions": 8}
    assert error_of(ask("POST", "/v1/embeddings", body)) == (422, "not_possible")


def test_texts_are_laid_on_a_plane(ask):
    body = {"model": "sentences", "inputs": ["a cat", "a dog", "the film"], "query": "a cat"}
    told = ask("POST", "/v1/vectors/map", body).json()
    assert np.array(told["points"]).shape == (3, 2)
    assert told["scores"][0] == pytest.approx(1.0, abs=1e-5)
    assert ask("POST", "/v1/vectors/map", {**body, "query": None}).json()["scores"] is None
    assert error_of(ask("POST", "/v1/vectors/map", {**body, "inputs": []})) == (422, "not_possible")


def test_a_text_is_shown_as_the_model_sees_it(ask):
    told = ask("POST", "/v1/models/classify/tokenize", {"text": "a cats", "embeddings": True}).json()
    assert told["pieces"] == ["[CLS]", "a", "cat", "##s", "[SEP]"]
    assert told["offsets"][1] == [0, 1]
    assert {name: len(values) for name, values in told["norms"].items()} == dict.fromkeys(
        ("piece", "position", "segment", "sum"), 5
    )
    assert "norms" not in ask("POST", "/v1/models/classify/tokenize", {"text": "a cats"}).json()
    links = ask("POST", "/v1/models/classify/attention", {"text": "a cats", "strongest": 7}).json()["links"]
    assert len(links) == 7


def test_a_prediction_is_explained(ask):
    told = ask("POST", "/v1/models/classify/explain", {"input": "a good film", "target": "good"}).json()
    assert [word["word"] for word in told["texts"][0]["words"]] == ["a", "good", "film"]
    refused = ask("POST", "/v1/models/classify/explain", {"input": "a good film", "target": "green"})
    assert error_of(refused) == (422, "not_possible")


def test_many_requests_at_once_to_several_models_each_get_their_own_answer(ask, folders):
    texts = [" ".join(["cat", "dog", "film", "good"][number % 4] for number in range(size)) for size in range(1, 70)]
    requests = [
        ("POST", f"/v1/models/{name}/embed", {"json": {"inputs": [text, text[:5]]}})
        for text in texts
        for name in ("sentences", "pretrained")
    ]
    answers = ask.at_once(*requests)
    assert {answer.status_code for answer in answers} == {200}
    for name, start in (("sentences", 0), ("pretrained", 1)):
        found = [answer.json()["vectors"] for answer in answers[start::2]]
        model = load(folders[name])
        wanted = [[model.encode([text])[0], model.encode([text[:5]])[0]] for text in texts]
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/models/none/predict", {"inputs": []}, 404, "not_found"),
        ("/v1/models/pretrained/predict", {"inputs": ["a"]}, 422, "not_possible"),
        ("/v1/models/classify/predict", {"inputs": "a"}, 400, "malformed"),
        ("/v1/models/classify/predict", {"inputs": ["a"], "truncated": True}, 400, "malformed"),
        ("/v1/models/classify/predict", {"inputs": [{"text": 3}]}, 400, "malformed"),
        ("/v1/models/classify/predict", {"inputs": ["a"], "by": "word"}, 400, "malformed"),
        ("/v1/models/classify/predict", [], 400, "malformed"),
        ("/v1/models/classify/predict", {"inputs": [" "]}, 422, "not_possible"),
        ("/v1/models/tag/explain", {"input": ""}, 422, "not_possible"),
        ("/v1/models/pretrained/fill", {"text": "no blank"}, 422, "not_possible"),
        ("/v1/models/pretrained/fill", {"text": "[MASK]", "top": 0}, 400, "malformed"),
        ("/v1/models/pretrained/fill", {"text": "[MASK]" * 17}, 422, "not_possible"),
        ("/v1/models/pretrained/fill", {"text": "[MASK] " + "cat " * 40}, 422, "not_possible"),
        ("/v1/models/sentences/embed", {"inputs": ["a"], "pooling": "median"}, 400, "malformed"),
        ("/v1/models/classify/attention", {"text": "a", "layer": 9}, 422, "not_possible"),
        ("/v1/embeddings", {"model": "none", "input": "a"}, 404, "not_found"),
        ("/v1/embeddings", {"model": "sentences", "input": [[1, 99_999]]}, 422, "not_possible"),
        ("/v1/embeddings", {"model": "sentences", "input": [["a"]]}, 400, "malformed"),
        ("/v1/search", {"query": "a"}, 404, "not_found"),
        ("/v1/nothing", {}, 404, "not_found"),
        ("/v1/models", {}, 405, "method_not_allowed"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_right_status(path, body, status, kind, ask):
    assert error_of(ask("POST", path, body)) == (status, kind)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"inputs": ["\xff"]}', b'{"inputs": ["\\ud800"]}', b"[" * 100_000, b"NaN", b"\x00"]
)
def test_bodies_that_are_no_json_are_refused(content, ask):
    headers = {"Content-Type": "application/json"}
    answer = ask("POST", "/v1/models/classify/predict", content=content, headers=headers)
    assert error_of(answer) == (400, "malformed")


def test_limits_of_inputs_and_texts_hold(ask_app, folders):
    ask = ask_app(models=(f"one={folders['classify']}",), limits=Limits(inputs=2, characters=10, body_bytes=500))
    path = "/v1/models/one/predict"
    assert ask("POST", path, {"inputs": ["a" * 10, "b"]}).status_code == 200
    assert error_of(ask("POST", path, {"inputs": ["a"] * 3})) == (422, "not_possible")
    assert error_of(ask("POST", path, {"inputs": ["a" * 11]})) == (422, "not_possible")
    assert error_of(ask("POST", path, {"inputs": [{"sentence1": "a", "sentence2": "b" * 11}]})) == (422, "not_possible")
    assert error_of(ask("POST", "/v1/embeddings", {"model": "one", "input": [5] * 11})) == (422, "not_possible")
    assert error_of(ask("POST", path, {"inputs": ["a"], "by": "x" * 500})) == (413, "body_too_large")


def test_a_full_line_answers_429_and_says_when_to_come_back(ask_app, folders, gate):
    ask = ask_app(models=(f"one={folders['sentences']}",), bounds=QueueLimits(requests=2))
    request = ("POST", "/v1/models/one/embed", {"json": {"inputs": ["a cat"]}})
    threading.Timer(0.5, gate.open).start()
    answers = ask.at_once(*[request] * 6)
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200, 200, 429, 429, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert error_of(answer) == (429, "queue_full")


def test_a_server_that_cannot_compute_any_more_says_that_it_is_not_healthy(ask_app):
    ask = ask_app()
    assert ask("GET", "/health").json() == {"status": "alive"}
    ask.app.service.scheduler.close()
    assert error_of(ask("GET", "/health")) == (503, "not_ready")


def test_who_waits_for_a_long_text_to_be_cut_stands_in_line_too(ask_app, folders):
    ask = ask_app(models=(f"one={folders['sentences']}",), bounds=QueueLimits(requests=2))
    service = ask.app.service
    service._tokenizer_lock.acquire()
    threading.Timer(0.5, service._tokenizer_lock.release).start()
    answers = ask.at_once(*[("POST", "/v1/models/one/embed", {"json": {"inputs": ["a cat"]}})] * 5)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]


def test_pieces_alone_are_refused_and_limited_like_all_else(ask_app, folders):
    """They need the desk and never the worker."""
    ask = ask_app(
        models=(f"one={folders['sentences']}",),
        bounds=QueueLimits(requests=2),
        limits=Limits(seconds=0.2, characters=9_000),
    )
    service = ask.app.service
    request = ("POST", "/v1/models/one/tokenize", {"json": {"text": "a cat " * 1_000}})
    service._tokenizer_lock.acquire()
    try:
        answers = ask.at_once(*[request] * 4)
    finally:
        service._tokenizer_lock.release()
    assert sorted(answer.status_code for answer in answers) == [429, 429, 504, 504]
    assert ask(*request[:2], request[2]["json"]).status_code == 200


def test_a_request_that_takes_too_long_answers_504_and_leaves_the_line(ask_app, folders, gate):
    ask = ask_app(models=(f"one={folders['sentences']}",), limits=Limits(seconds=0.3))
    request = ("POST", "/v1/models/one/embed", {"json": {"inputs": ["a cat"]}})
    answers = ask.at_once(request, request, request)
    assert [error_of(answer) for answer in answers] == [(504, "time_limit")] * 3
    assert ask.app.service.scheduler.num_requests == 0
    gate.open()
    assert ask(*request[:2], request[2]["json"]).status_code == 200


def test_a_client_that_goes_away_leaves_the_line(ask, gate):
    body = json.dumps({"inputs": ["a cat"]}).encode()
    sent: list[Any] = []

    async def go() -> None:
        gone = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "root_path": ""},
            **{"path": "/v1/models/sentences/embed", "query_string": b"", "headers": headers, "client": None},
        }
        task = asyncio.create_task(ask.app.app(scope, receive, send))
        await asyncio.to_thread(gate.entered.wait, 30)
        assert ask.app.service.scheduler.num_requests == 1
        gone.set()
        await asyncio.wait_for(task, 30)
        assert ask.app.service.scheduler.num_requests == 0

    asyncio.run(go())
    assert sent[0]["status"] == 499


def test_errors_tell_neither_paths_nor_traces_nor_what_others_sent(ask, monkeypatch, folders):
    def fail(self: EmbedQueue, rows: Any) -> Any:
        raise RuntimeError("/secret/place: somebody's text")

    monkeypatch.setattr(EmbedQueue, "compute", fail)
    answer = ask("POST", "/v1/models/sentences/embed", {"inputs": ["a cat"]})
    assert error_of(answer) == (500, "internal")
    assert not re.search(r"secret|somebody|Traceback|RuntimeError|/", answer.json()["error"]["message"])
    monkeypatch.undo()
    assert ask("POST", "/v1/models/sentences/embed", {"inputs": ["a cat"]}).status_code == 200


def test_health_and_readiness(ask_app, folders):
    ask = ask_app(models=(f"one={folders['sentences']}",))
    assert ask("GET", "/health").json() == {"status": "alive"}
    assert ask("GET", "/ready").json() == {"status": "ready", "models": ["one"]}
    ask.app.service.standing.is_draining = True
    assert error_of(ask("GET", "/ready")) == (503, "not_ready")
    assert error_of(ask("POST", "/v1/models/one/embed", {"inputs": ["a"]})) == (503, "not_ready")
    assert ask("GET", "/health").status_code == 200


def test_metrics_count_what_was_asked(ask_app, folders):
    ask = ask_app(models=(f"one={folders['sentences']}",))
    ask("POST", "/v1/models/one/embed", {"inputs": ["a cat", "a dog"]})
    ask("POST", "/v1/embeddings", {"model": "one", "input": "a cat"})
    ask("POST", "/v1/models/other/embed", {"inputs": ["a"]})
    ask("POST", "/v1/models/one/predict", {"inputs": ["a"]})
    told = ask("GET", "/metrics").text
    assert 'bertworks_requests_total{endpoint="embed",model="one",status="200"} 1.0' in told
    assert 'bertworks_requests_total{endpoint="embeddings",model="one",status="200"} 1.0' in told
    assert 'bertworks_requests_total{endpoint="embed",model="none",status="404"} 1.0' in told
    assert 'bertworks_requests_total{endpoint="predict",model="one",status="422"} 1.0' in told
    assert 'bertworks_batch_rows_sum{model="one"} 3.0' in told
    assert "bertworks_queue_requests 0.0" in told


def test_other_origins_may_not_ask_unless_they_are_named(ask, ask_app, folders):
    origin = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in ask("GET", "/v1/models", headers=origin).headers
    open_to = ask_app(models=(f"one={folders['sentences']}",), origins=("https://example.org",))
    allowed = open_to("GET", "/v1/models", headers=origin).headers
    assert allowed["access-control-allow-origin"] == "https://example.org"
    assert allowed["access-control-expose-headers"] == "Retry-After"
    assert open_to("OPTIONS", "/v1/models", headers=origin).status_code == 200
    other = open_to("GET", "/v1/models", headers={"Origin": "https://other.org"}).headers
    assert "access-control-allow-origin" not in other


def test_keys_are_asked_for_where_there_are_some(ask_app, folders, tmp_path):
    (tmp_path / "keys").write_text("a-key-of-more-than-16-letters\n")
    ask = ask_app(models=(f"one={folders['sentences']}",), host="0.0.0.0", key_file=tmp_path / "keys")
    assert error_of(ask("GET", "/v1/models")) == (401, "unauthorized")
    assert error_of(ask("GET", "/metrics")) == (401, "unauthorized")
    assert ask("GET", "/health").status_code == 200
    headers = {"Authorization": "Bearer a-key-of-more-than-16-letters"}
    assert ask("GET", "/v1/models", headers=headers).status_code == 200


def test_the_reference_has_an_example_of_every_body_and_takes_nothing_from_elsewhere(ask):
    told = ask("GET", "/openapi.json").json()
    posted = [one["post"] for one in told["paths"].values() if "post" in one]
    assert len(posted) == 11
    for operation in posted:
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert told["components"]["schemas"][name]["examples"]
        assert {"200", "400", "404", "413", "422", "429", "504"} <= set(operation["responses"])
    page = ask("GET", "/docs")
    assert "/v1/models/{name}/predict" in page.text
    assert not re.search(r"(src|href)=\"?(https?:)?//", page.text)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_every_example_of_the_reference_is_understood(ask):
    told = ask("GET", "/openapi.json").json()
    for path, methods in told["paths"].items():
        if "post" not in methods:
            continue
        name = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for example in told["components"]["schemas"][name]["examples"]:
            answer = ask("POST", path.replace("{name}", "none"), example)
            assert error_of(answer)[0] == 404, (path, example)  # no such model, but nothing wrong with the body


def test_a_bundle_is_served_with_search_over_its_corpus(ask_app, make_corpus, tmp_path):
    corpus = make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder
    tuned = write_tuned(tmp_path / "sst2", TASKS["classify"])
    made = bundle(BundleRequest((str(tuned),), tmp_path / "bundle", corpus=corpus))
    ask = ask_app(models=(str(made.folder),))
    assert [one["name"] for one in ask("GET", "/v1/models").json()["models"]] == ["sst2"]
    told = ask("POST", "/v1/search", {"query": "w3 w4", "top": 2}).json()["results"]
    assert len(told) == 2
    assert set(told[0]) == {"text", "score", "document", "place"}
    assert ask("GET", "/v1/search?query=w3%20w4&top=2").json()["results"] == told
    assert error_of(ask("GET", "/v1/search?query=w3&top=0")) == (400, "malformed")
    assert error_of(ask("POST", "/v1/search", {"query": " "})) == (422, "not_possible")


def test_runs_are_followed(ask_app, folders, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"kind": "step", "step": number, "seconds": 1.0}) + "\n" for number in range(5))
    )
    ask = ask_app(models=(f"one={folders['sentences']}",), runs={"one": run})
    assert [one["name"] for one in ask("GET", "/v1/runs").json()["runs"]] == ["one"]
    told = ask("GET", "/v1/runs/one?after=1").json()
    assert [record["step"] for record in told["records"]] == [2, 3]
    assert error_of(ask("GET", "/v1/runs/other")) == (404, "not_found")
    assert error_of(ask("GET", "/v1/runs/one?after=x")) == (400, "malformed")


def test_the_page_is_served_and_nothing_beside_it(ask):
    assert "<html" in ask("GET", "/").text
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/none.js"):
        assert error_of(ask("GET", path)) == (404, "not_found")


def test_a_bundle_is_served_alone(ask_app, folders, tmp_path):
    from bertworks.errors import SettingsError

    made = bundle(BundleRequest((str(folders["classify"]),), tmp_path / "bundle"))
    with pytest.raises(SettingsError, match="served alone"):
        ask_app(models=(str(made.folder), f"x={folders['tag']}"))


def test_a_long_explanation_does_not_keep_others_waiting(ask, folders):
    long = {"question": "who sat on the mat?", "context": "john sat in paris. " * 40}
    body = {"json": {"input": long}}
    why, vectors = ask.at_once(
        ("POST", "/v1/models/answer/explain", body),
        ("POST", "/v1/models/sentences/embed", {"json": {"inputs": ["a cat"]}}),
    )
    assert (why.status_code, vectors.status_code) == (200, 200)
    wanted = load(folders["sentences"]).encode(["a cat"])
    np.testing.assert_allclose(vectors.json()["vectors"], wanted, atol=1e-5)
