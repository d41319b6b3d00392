"""Generated and malformed requests: whatever is sent, the answer is one of the interface's, and the server goes on.

A few of each in the usual tests; ten thousand in `make soak`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import PATIENCE, Running, running
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from bertworks.serving.errors import ERROR_TYPES
from bertworks.serving.security import Limits

MODELS = ("classify", "regress", "choose", "tag", "answer", "pretrained", "sentences")
OPERATIONS = [
    *(("POST", f"/v1/models/{{name}}/{verb}") for verb in ("predict", "fill", "embed", "tokenize")),
    *(("POST", f"/v1/models/{{name}}/{verb}") for verb in ("attention", "explain", "generate", "next")),
    *(("POST", f"/v1/{path}") for path in ("embeddings", "vectors/map", "search")),
    *(("GET", f"/v1/{path}") for path in ("models", "models/{name}", "search", "runs", "runs/{name}")),
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# For each operation, and of malformed bodies; some operations have only a few requests that differ at all.
FEW, MANY = 6, 600
MALFORMED_FEW, MALFORMED_MANY = 60, 4_000

VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/models/classify/predict", {"inputs": ["a good film", {"sentence1": "a cat", "sentence2": "a dog"}]}),
    ("/v1/models/choose/predict", {"inputs": [{"prompt": "the cat", "choices": ["sat", "was"]}], "truncate": True}),
    ("/v1/models/answer/predict", {"inputs": [{"question": "who?", "context": "john sat in paris"}]}),
    ("/v1/models/tag/predict", {"inputs": ["john sat in paris. it was good."], "by": "sentence"}),
    ("/v1/models/pretrained/fill", {"text": "a [MASK] film", "top": 2}),
    ("/v1/models/pretrained/next", {"text": "a film", "top": 2, "backward": True}),
    ("/v1/models/sentences/embed", {"inputs": ["a cat", "我喜欢看电影"], "pooling": "max"}),
    ("/v1/models/classify/tokenize", {"text": "a cat", "pair": None, "embeddings": True}),
    ("/v1/models/classify/attention", {"text": "a cat", "layer": 1, "head": 2, "strongest": 5}),
    ("/v1/embeddings", {"model": "sentences", "input": ["a cat"], "encoding_format": "base64"}),
    ("/v1/vectors/map", {"model": "sentences", "inputs": ["a", "b", "c"], "query": "d"}),
]


@pytest.fixture(scope="module")
def one(folders: dict[str, Path], one_thread: None) -> Iterator[Running]:
    models = [f"{name}={folders[name]}" for name in MODELS]
    with running(*models, limits=Limits(body_bytes=50_000, inputs=20, characters=5_000)) as found:
        yield found


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as found:
        yield found


def usual(max_examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=max_examples, deadline=None, database=None, suppress_health_check=slow)


def assert_refused_properly(answer: Any, sent: bytes) -> None:
    """An answer is fine, or it is an error of the interface's shape that tells neither places nor traces."""
    assert answer.status_code == 200 or answer.status_code in ERROR_TYPES
    assert answer.status_code != 500, sent
    if answer.status_code != 200:
        told = answer.json()
        assert told["error"]["type"] == ERROR_TYPES[answer.status_code]
        assert "Traceback" not in told["error"]["message"]
        assert "site-packages" not in told["error"]["message"]


def check_operation(one: Running, session: requests.Session, operation: tuple[str, str], max_examples: int) -> None:
    """Send cases that the description allows, and cases that it does not."""
    method, path = operation
    schema = schemathesis.openapi.from_dict(httpx.get(f"{one.address}/openapi.json", timeout=PATIENCE).json())
    found = schema[path][method]
    strategy = found.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if method == "POST":
        strategy |= found.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @usual(max_examples)
    @given(case=strategy, name=st.sampled_from([*MODELS, *MODELS, "none", "..", "%2e", "a b", "模型"]))
    def check(case: schemathesis.Case, name: str) -> None:
        if "{name}" in path:
            case.path_parameters = {"name": name}
        answer = case.call(base_url=one.address, session=session, timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)
        assert_refused_properly(answer, b"")

    check()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: " ".join(one))
def test_requests_made_from_the_description_get_the_answers_that_it_names(operation, one, session):
    check_operation(one, session, operation, FEW)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30)
    | st.sampled_from(["[MASK]" * 20, "a " * 3_000, "x" * 6_000, "\u0000", "\ufffe", "‮", "👩‍👩‍👧"]),
    lambda inner: st.lists(inner, max_size=25) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


@st.composite
def malformed(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid body in which one thing was changed: a value, a name, or the bytes themselves."""
    path, body = draw(st.sampled_from(VALID))
    body = json.loads(json.dumps(body))
    how = draw(st.sampled_from(["value", "inside", "name", "cut", "flip", "insert", "nested", "whole"]))
    name = draw(st.sampled_from(sorted(body)))
    if how == "value":
        body[name] = draw(anything)
    elif how == "inside" and isinstance(body[name], list):
        body[name][draw(st.integers(0, len(body[name]) - 1))] = draw(anything)
    elif how == "name":
        body[draw(st.text(max_size=12))] = body.pop(name)
    elif how == "whole":
        return path, json.dumps(draw(anything)).encode()
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode()
    at = draw(st.integers(0, len(data) - 1))
    if how == "cut":
        return path, data[:at]
    if how == "flip":
        return path, data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
    if how == "insert":
        return path, data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
    if how == "nested":
        depth = draw(st.sampled_from([10, 300, 20_000]))
        return path, data[:at] + b"[" * depth + data[at:]
    return path, data


def check_malformed(one: Running, session: requests.Session, max_examples: int) -> None:
    @usual(max_examples)
    @given(request=malformed())
    def check(request: tuple[str, bytes]) -> None:
        path, data = request
        headers = {"Content-Type": "application/json"}
        answer = session.post(one.address + path, data=data, headers=headers, timeout=PATIENCE)
        assert_refused_properly(answer, data)

    check()
    path, body = VALID[0]
    assert session.post(one.address + path, json=body, timeout=PATIENCE).status_code == 200
    assert one.app.service.scheduler.num_requests == 0


def test_malformed_bodies_are_refused_and_the_server_goes_on(one, session):
    check_malformed(one, session, MALFORMED_FEW)


@pytest.mark.soak
def test_ten_thousand_generated_and_malformed_requests(one, session):
    before = num_answered(one)
    for operation in OPERATIONS:
        check_operation(one, session, operation, MANY)
    check_malformed(one, session, MALFORMED_MANY)
    assert num_answered(one) - before >= 10_000


def num_answered(one: Running) -> int:
    """Return how many requests under /v1 the server has answered, as its own metrics tell."""
    told = httpx.get(f"{one.address}/metrics", timeout=PATIENCE).text.splitlines()
    found = [line for line in told if line.startswith("bertworks_requests_total")]
    return int(sum(float(line.rpartition(" ")[2]) for line in found if 'endpoint="metrics"' not in line))


def test_valid_bodies_are_answered(one, session):
    for path, body in VALID:
        answer = session.post(one.address + path, json=body, timeout=PATIENCE)
        assert answer.status_code == 200, (path, answer.text)


def test_the_operations_tried_are_all_that_there_are(one):
    told = httpx.get(f"{one.address}/openapi.json", timeout=PATIENCE).json()["paths"]
    found = {(method.upper(), path) for path, methods in told.items() for method in methods if path.startswith("/v1/")}
    assert found == set(OPERATIONS)
