"""What Prometheus is told: requests by model, endpoint and status; the line; batches; latency by model."""

from __future__ import annotations

from bertworks.serving.batch_scheduler import BatchRecord
from bertworks.serving.metrics import Metrics


def lines(metrics: Metrics) -> dict[str, float]:
    told = metrics.as_text().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in told if line[0] != "#")}


def test_requests_are_counted_by_model_endpoint_and_status():
    metrics = Metrics(["one"])
    metrics.record_request("one", "predict", 200, 0.02)
    metrics.record_request("one", "predict", 200, 0.3)
    metrics.record_request("one", "predict", 429, 0.001)
    found = lines(metrics)
    assert found['bertworks_requests_total{endpoint="predict",model="one",status="200"}'] == 2
    assert found['bertworks_requests_total{endpoint="predict",model="one",status="429"}'] == 1
    assert found['bertworks_request_seconds_bucket{le="0.025",model="one"}'] == 2
    assert found['bertworks_request_seconds_count{model="one"}'] == 3


def test_names_that_strangers_make_up_do_not_become_series():
    metrics = Metrics(["one"])
    for number in range(100):
        metrics.record_request(f"made-up-{number}", "none", 404, 0.001)
    found = lines(metrics)
    assert found['bertworks_requests_total{endpoint="none",model="none",status="404"}'] == 100
    assert not any("made-up" in name for name in found)


def test_batches_are_told_by_rows_pieces_and_seconds():
    metrics = Metrics(["one"])
    metrics.record_batch(BatchRecord("one", 2, 3, 100, 0.2))
    found = lines(metrics)
    assert found['bertworks_batch_rows_bucket{le="2.0",model="one"}'] == 0
    assert found['bertworks_batch_rows_bucket{le="4.0",model="one"}'] == 1
    assert found['bertworks_batch_pieces_sum{model="one"}'] == 100
    assert found['bertworks_batch_seconds_bucket{le="0.25",model="one"}'] == 1


def test_the_line_is_looked_at_when_somebody_asks():
    metrics, waiting = Metrics([]), [3]
    metrics.watch_queue(lambda: waiting[0], lambda: 10 * waiting[0])
    assert lines(metrics)["bertworks_queue_requests"] == 3
    waiting[0] = 5
    assert lines(metrics)["bertworks_queue_pieces"] == 50
