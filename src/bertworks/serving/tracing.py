"""OpenTelemetry traces: finished requests in, server spans at a collector out. Imported only when asked for."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import bertworks
from bertworks.errors import MissingDependencyError
from bertworks.serving.request_log import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NANOSECONDS = 1_000_000_000

_logger = logging.getLogger("bertworks.serving")


class RequestTracer:
    """Turns each request into a span that ends with it."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self._provider = provider
        self._tracer = provider.get_tracer("bertworks", bertworks.__version__)
        self._extract, self._kind = extract, SpanKind.SERVER
        self._error_status = Status(StatusCode.ERROR)

    def __call__(self, record: RequestRecord) -> None:
        attributes: dict[str, str | int] = {
            "http.request.method": record.method,
            "url.path": record.path,
            "http.response.status_code": record.status,
            "bertworks.request_id": record.request_id,
        }
        optional = {"http.route": record.route, "client.address": record.client, "bertworks.model": record.model}
        attributes |= {name: value for name, value in optional.items() if value is not None}
        parent = {
            name: record.headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in record.headers
        }
        start_nanoseconds = int(record.start_time * _NANOSECONDS)
        span = self._tracer.start_span(
            f"{record.method} {record.route}" if record.route else record.method,
            self._extract(parent),
            self._kind,
            attributes,
            start_time=start_nanoseconds,
        )
        if record.status >= 500:
            span.set_status(self._error_status)
        span.end(start_nanoseconds + int(record.seconds * _NANOSECONDS))

    def close(self) -> None:
        """Send the spans that are still waiting."""
        self._provider.shutdown()


def requested_tracer(endpoint: str | None) -> RequestTracer | None:
    """Return the tracer for an endpoint that is given, or that OpenTelemetry's variables name; None without one."""
    if endpoint is not None:
        return create_tracer(endpoint)
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or os.environ.get("OTEL_TRACES_EXPORTER") == "none" or not any(map(os.environ.get, _VARIABLES)):
        return None
    try:
        return create_tracer(None)
    except MissingDependencyError as error:  # the variables may be meant for other programs
        _logger.warning("the environment asks for OpenTelemetry traces, but %s", error)
        return None


def create_tracer(endpoint: str | None, exporter: SpanExporter | None = None) -> RequestTracer:
    """Return a tracer that sends spans in the background to a collector: its base URL, or what the variables name."""
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(None if endpoint is None else _traces_url(endpoint))
    except ImportError:
        package = "opentelemetry-exporter-otlp-proto-http"
        raise MissingDependencyError(package, "otel", "sending OpenTelemetry traces") from None
    # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over this default name.
    names = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create(None if names else {SERVICE_NAME: "bertworks"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RequestTracer(provider)


def _traces_url(endpoint: str) -> str:
    """Return the URL for traces of a collector, as OpenTelemetry appends it to OTEL_EXPORTER_OTLP_ENDPOINT."""
    return endpoint if endpoint.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
