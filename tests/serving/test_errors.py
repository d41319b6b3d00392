"""Bodies of errors: ours, and TEI's on TEI's routes."""

from __future__ import annotations

import pytest

from bertworks.serving.errors import RequestError


def test_an_error_has_our_shape_except_on_the_routes_of_tei():
    error = RequestError(422, "too long")
    assert error.to_dict("7", "/v1/embeddings") == {
        "error": {"type": "unprocessable", "message": "too long", "request_id": "7"}
    }
    assert error.to_dict("7", "/embed") == {"error": "too long", "error_type": "Tokenizer"}


@pytest.mark.parametrize(
    ("status", "own_type", "tei_type"),
    [
        (400, "Empty", "Empty"),
        (400, None, "Validation"),
        (401, None, "Validation"),
        (413, None, "Validation"),
        (422, "Validation", "Validation"),
        (422, None, "Tokenizer"),
        (424, None, "Backend"),
        (429, "rate_limited", "Overloaded"),
        (500, None, "Backend"),
        (503, None, "Unhealthy"),
        (504, None, "Backend"),
    ],
)
def test_the_types_of_tei_follow_from_the_status(status, own_type, tei_type):
    assert RequestError(status, "no", error_type=own_type).tei_type == tei_type


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_the_message_is_in_the_language_that_the_request_asks_for(path):
    error = RequestError(429, "the queue is full; retry in 3 seconds")
    assert "队列已满；请在 3 秒后重试" in str(error.to_dict("7", path, "zh-CN,en;q=0.5"))
    assert "the queue is full; retry in 3 seconds" in str(error.to_dict("7", path, "en-US"))
