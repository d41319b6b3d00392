"""OpenTelemetry traces: the span of a request, its parent, when they are asked for, and a missing package."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from bertworks.errors import MissingDependencyError
from bertworks.serving import tracing
from bertworks.serving.request_log import RequestRecord
from bertworks.serving.tracing import create_tracer, requested_tracer

RECORD = RequestRecord(
    request_id="abc-1",
    method="POST",
    path="/v1/models/sst2/predict",
    route="/v1/models/{name}/predict",
    model="sst2",
    status=200,
    start_time=1_700_000_000.0,
    seconds=0.25,
    client="192.0.2.7",
    key=None,
    headers={},
)


def span_of(record: RequestRecord) -> ReadableSpan:
    exporter = InMemorySpanExporter()
    tracer = create_tracer(None, exporter)
    tracer(record)
    tracer.close()
    (span,) = exporter.get_finished_spans()
    return span


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_a_request_is_a_server_span():
    span = span_of(RECORD)
    assert (span.name, span.kind) == ("POST /v1/models/{name}/predict", SpanKind.SERVER)
    assert (span.start_time, span.end_time) == (1_700_000_000_000_000_000, 1_700_000_000_250_000_000)
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/v1/models/sst2/predict",
        "http.route": "/v1/models/{name}/predict",
        "http.response.status_code": 200,
        "client.address": "192.0.2.7",
        "bertworks.model": "sst2",
        "bertworks.request_id": "abc-1",
    }
    assert span.status.status_code == StatusCode.UNSET
    assert span.resource.attributes["service.name"] == "bertworks"


def test_the_parent_is_that_of_the_traceparent_header():
    header = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    span = span_of(dataclasses.replace(RECORD, headers={b"traceparent": header}))
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert span_of(dataclasses.replace(RECORD, headers={b"traceparent": b"\xff nonsense"})).parent is None


def test_only_a_failure_of_the_server_is_an_error():
    assert span_of(dataclasses.replace(RECORD, status=404)).status.status_code == StatusCode.UNSET
    assert span_of(dataclasses.replace(RECORD, status=503, route=None)).status.status_code == StatusCode.ERROR


def test_a_service_name_of_the_environment_wins(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "reviews")
    assert span_of(RECORD).resource.attributes["service.name"] == "reviews"


def test_traces_are_sent_only_if_an_endpoint_is_given(monkeypatch):
    asked: list[str | None] = []
    monkeypatch.setattr(tracing, "create_tracer", asked.append)
    assert requested_tracer(None) is None
    assert asked == []
    requested_tracer("http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    requested_tracer(None)
    assert asked == ["http://127.0.0.1:4318", None]
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert requested_tracer(None) is None
    assert len(asked) == 2


def test_a_missing_package_is_an_error_if_asked_for_and_a_warning_if_the_environment_asks(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertworks\[otel\]'"):
        requested_tracer("http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces")
    assert requested_tracer(None) is None
    assert "pip install 'bertworks[otel]'" in caplog.text


@pytest.mark.parametrize("endpoint", ["http://host:4318", "http://host:4318/", "http://host:4318/v1/traces"])
def test_the_path_for_traces_is_appended(endpoint):
    assert tracing._traces_url(endpoint) == "http://host:4318/v1/traces"
