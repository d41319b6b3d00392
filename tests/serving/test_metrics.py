"""Prometheus metrics: requests by model, endpoint and status; the queue; batches; latency by model."""

from __future__ import annotations

from bertworks.serving.batch_scheduler import BatchRecord
from bertworks.serving.metrics import Metrics


def parse_metrics(metrics: Metrics) -> dict[str, float]:
    lines = metrics.as_text().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_requests_are_counted_by_model_endpoint_and_status():
    metrics = Metrics(["bert"])
    metrics.record_request("bert", "predict", 200, 0.02)
    metrics.record_request("bert", "predict", 200, 0.3)
    metrics.record_request("bert", "predict", 429, 0.001)
    values = parse_metrics(metrics)
    assert values['bertworks_requests_total{endpoint="predict",model="bert",status="200"}'] == 2
    assert values['bertworks_requests_total{endpoint="predict",model="bert",status="429"}'] == 1
    assert values['bertworks_request_seconds_bucket{le="0.025",model="bert"}'] == 2
    assert values['bertworks_request_seconds_count{model="bert"}'] == 3


def test_unknown_model_names_do_not_become_time_series():
    metrics = Metrics(["bert"])
    for number in range(100):
        metrics.record_request(f"made-up-{number}", "none", 404, 0.001)
    values = parse_metrics(metrics)
    assert values['bertworks_requests_total{endpoint="none",model="none",status="404"}'] == 100
    assert not any("made-up" in name for name in values)


def test_batches_are_recorded_by_sequences_tokens_and_seconds():
    metrics = Metrics(["bert"])
    metrics.record_batch(BatchRecord(model="bert", num_requests=2, num_sequences=3, num_tokens=100, seconds=0.2))
    values = parse_metrics(metrics)
    assert values['bertworks_batch_sequences_bucket{le="2.0",model="bert"}'] == 0
    assert values['bertworks_batch_sequences_bucket{le="4.0",model="bert"}'] == 1
    assert values['bertworks_batch_tokens_sum{model="bert"}'] == 100
    assert values['bertworks_batch_seconds_bucket{le="0.25",model="bert"}'] == 1


def test_the_queue_is_read_at_every_scrape():
    metrics, queue = Metrics([]), [3]
    metrics.watch_queue(lambda: queue[0], lambda: 10 * queue[0])
    assert parse_metrics(metrics)["bertworks_queue_requests"] == 3
    queue[0] = 5
    assert parse_metrics(metrics)["bertworks_queue_tokens"] == 50
