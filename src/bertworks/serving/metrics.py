"""Prometheus metrics of a server: requests and batches in, the text of /metrics out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bertworks.serving.batch_scheduler import BatchRecord

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SEQUENCE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
# The label of a request that reached no endpoint or named an unknown model: the number of time series stays bounded
# whatever clients send.
NONE = "none"


class Metrics:
    """The metrics of one server."""

    def __init__(self, models: Collection[str]) -> None:
        self._models = frozenset(models)
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "bertworks_requests", "Requests answered.", ("model", "endpoint", "status"), registry=self._registry
        )
        self._latency = Histogram(
            "bertworks_request_seconds",
            "Time from the first byte of a request to the last byte of its response.",
            ("model",),
            registry=self._registry,
            buckets=_SECONDS_BUCKETS,
        )
        self._batch_sequences = Histogram(
            "bertworks_batch_sequences",
            "Sequences per batch.",
            ("model",),
            registry=self._registry,
            buckets=_SEQUENCE_BUCKETS,
        )
        self._batch_tokens = Histogram(
            "bertworks_batch_tokens", "Tokens per batch.", ("model",), registry=self._registry, buckets=_TOKEN_BUCKETS
        )
        self._batch_seconds = Histogram(
            "bertworks_batch_seconds",
            "Time to compute a batch.",
            ("model",),
            registry=self._registry,
            buckets=_SECONDS_BUCKETS,
        )
        self._queue = Gauge("bertworks_queue_requests", "Requests queued or being computed.", registry=self._registry)
        self._queue_tokens = Gauge("bertworks_queue_tokens", "Tokens queued.", registry=self._registry)

    def watch_queue(self, num_requests: Callable[[], float], num_tokens: Callable[[], float]) -> None:
        """Read the queue gauges from these functions at every scrape."""
        self._queue.set_function(num_requests)
        self._queue_tokens.set_function(num_tokens)

    def record_request(self, model: str | None, endpoint: str, status: int, seconds: float) -> None:
        name = model if model in self._models and model is not None else NONE
        self._requests.labels(name, endpoint, str(status)).inc()
        if name != NONE:
            self._latency.labels(name).observe(seconds)

    def record_batch(self, record: BatchRecord) -> None:
        self._batch_sequences.labels(record.model).observe(record.num_sequences)
        self._batch_tokens.labels(record.model).observe(record.num_tokens)
        self._batch_seconds.labels(record.model).observe(record.seconds)

    def as_text(self) -> bytes:
        return generate_latest(self._registry)
