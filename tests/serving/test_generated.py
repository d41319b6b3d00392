"""Generated and malformed requests: every response conforms to the OpenAPI description, and the server keeps running.

A few of each by default; ten thousand in `make soak`.
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
from running import TIMEOUT, RunningServer, run_server
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from valid_requests import MODELS, VALID

from bertworks.serving.errors import ERROR_TYPES, TEI_ERROR_TYPES
from bertworks.serving.security import Limits

OPERATIONS = [
    *(("POST", f"/v1/models/{{name}}/{endpoint}") for endpoint in ("predict", "fill-mask", "embed", "tokenize")),
    *(("POST", f"/v1/models/{{name}}/{endpoint}") for endpoint in ("attention", "explain", "generate", "next")),
    *(("POST", f"/v1/{path}") for path in ("embeddings", "embeddings/projection", "search")),
    *(("GET", f"/v1/{path}") for path in ("models", "models/{name}", "search", "runs", "runs/{name}")),
    *(("POST", f"/{path}") for path in ("embed", "embed_all", "predict", "rerank", "similarity", "tokenize")),
    ("GET", "/info"),
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Number of examples per operation, and of malformed bodies; some operations have only a few distinct requests.
NUM_EXAMPLES, NUM_SOAK_EXAMPLES = 6, 600
NUM_MALFORMED, NUM_SOAK_MALFORMED = 60, 4_000


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], one_thread: None) -> Iterator[RunningServer]:
    models = [f"{name}={folders[name]}" for name in MODELS]
    with run_server(*models, limits=Limits(body_bytes=50_000, inputs=20, characters=5_000)) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def generation_settings(max_examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=max_examples, deadline=None, database=None, suppress_health_check=slow)


def assert_valid_response(response: Any, body: bytes) -> None:
    """Assert that a response is a success or a client error without paths and tracebacks."""
    assert response.status_code == 200 or response.status_code in ERROR_TYPES
    assert response.status_code != 500, body
    if response.status_code != 200:
        error = response.json()["error"]
        if isinstance(error, str):
            message = error
            assert response.json()["error_type"] in TEI_ERROR_TYPES
        else:
            message = error["message"]
            assert error["type"] == ERROR_TYPES[response.status_code]
        assert "Traceback" not in message
        assert "site-packages" not in message


def check_operation(
    server: RunningServer, session: requests.Session, operation: tuple[str, str], max_examples: int
) -> None:
    """Send requests that the OpenAPI description allows, and requests that it does not."""
    method, path = operation
    schema = schemathesis.openapi.from_dict(httpx.get(f"{server.address}/openapi.json", timeout=TIMEOUT).json())
    api_operation = schema[path][method]
    strategy = api_operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if method == "POST":
        strategy |= api_operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @generation_settings(max_examples)
    @given(case=strategy, name=st.sampled_from([*MODELS, *MODELS, "none", "..", "%2e", "a b", "模型"]))
    def check(case: schemathesis.Case, name: str) -> None:
        if "{name}" in path:
            case.path_parameters = {"name": name}
        response = case.call(base_url=server.address, session=session, timeout=TIMEOUT)
        case.validate_response(response, checks=CHECKS)
        assert_valid_response(response, b"")

    check()


@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
def test_responses_to_generated_requests_conform_to_the_openapi_description(operation, server, session):
    check_operation(server, session, operation, NUM_EXAMPLES)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30)
    | st.sampled_from(["[MASK]" * 20, "a " * 3_000, "x" * 6_000, "\u0000", "\ufffe", "‮", "👩‍👩‍👧"]),
    lambda children: st.lists(children, max_size=25) | st.dictionaries(st.text(max_size=8), children, max_size=5),
    max_leaves=20,
)


@st.composite
def malformed_requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """Sample a valid body with one mutation: of a value, a name, or the bytes."""
    path, body = draw(st.sampled_from(VALID))
    body = json.loads(json.dumps(body))
    mutation = draw(st.sampled_from(["value", "element", "name", "truncate", "flip", "insert", "nest", "replace"]))
    name = draw(st.sampled_from(sorted(body)))
    if mutation == "value":
        body[name] = draw(json_values)
    elif mutation == "element" and isinstance(body[name], list):
        body[name][draw(st.integers(0, len(body[name]) - 1))] = draw(json_values)
    elif mutation == "name":
        body[draw(st.text(max_size=12))] = body.pop(name)
    elif mutation == "replace":
        return path, json.dumps(draw(json_values)).encode()
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode()
    index = draw(st.integers(0, len(data) - 1))
    if mutation == "truncate":
        return path, data[:index]
    if mutation == "flip":
        return path, data[:index] + bytes([data[index] ^ draw(st.integers(1, 255))]) + data[index + 1 :]
    if mutation == "insert":
        return path, data[:index] + draw(st.binary(min_size=1, max_size=8)) + data[index:]
    if mutation == "nest":
        depth = draw(st.sampled_from([10, 300, 20_000]))
        return path, data[:index] + b"[" * depth + data[index:]
    return path, data


def check_malformed(server: RunningServer, session: requests.Session, max_examples: int) -> None:
    @generation_settings(max_examples)
    @given(request=malformed_requests())
    def check(request: tuple[str, bytes]) -> None:
        path, data = request
        headers = {"Content-Type": "application/json"}
        response = session.post(server.address + path, data=data, headers=headers, timeout=TIMEOUT)
        assert_valid_response(response, data)

    check()
    path, body = VALID[0]
    assert session.post(server.address + path, json=body, timeout=TIMEOUT).status_code == 200
    assert server.app.service.scheduler.num_requests == 0


def test_malformed_bodies_are_rejected_and_the_server_keeps_running(server, session):
    check_malformed(server, session, NUM_MALFORMED)


@pytest.mark.soak
def test_ten_thousand_generated_and_malformed_requests(server, session, campaigns):
    campaign, before = campaigns.start("requests/generated", 10_000), num_requests(server)
    sizes = (NUM_SOAK_EXAMPLES, NUM_SOAK_MALFORMED)
    num_examples, num_malformed = (round(size * campaigns.scale) or 1 for size in sizes)
    with campaign.recording("answered as described", lambda: num_requests(server) - before):
        for operation in OPERATIONS:
            check_operation(server, session, operation, num_examples)
        check_malformed(server, session, num_malformed)


def num_requests(server: RunningServer) -> int:
    """Return the number of requests in the server's metrics, without those for the metrics."""
    lines = httpx.get(f"{server.address}/metrics", timeout=TIMEOUT).text.splitlines()
    counters = [line for line in lines if line.startswith("bertworks_requests_total")]
    return int(sum(float(line.rpartition(" ")[2]) for line in counters if 'endpoint="metrics' not in line))


def test_valid_bodies_are_answered(server, session):
    for path, body in VALID:
        response = session.post(server.address + path, json=body, timeout=TIMEOUT)
        assert response.status_code == 200, (path, response.text)


def test_all_operations_are_tested(server):
    paths = httpx.get(f"{server.address}/openapi.json", timeout=TIMEOUT).json()["paths"]
    operations = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if path not in ("/health", "/ready", "/metrics")
    }
    assert operations == set(OPERATIONS)
