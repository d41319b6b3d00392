"""Request ids and the log: which ids are taken over, the fields of a line, and records of `logging` as JSON."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from bertworks.choices import LOG_FORMATS
from bertworks.errors import SettingsError
from bertworks.serving.request_log import (
    FORMATTERS,
    JsonFormatter,
    RequestLog,
    RequestRecord,
    log_config,
    request_id_of,
)

RECORD = RequestRecord(
    request_id="abc-1",
    method="POST",
    path="/v1/models/sst2/predict",
    route="/v1/models/{name}/predict",
    model="sst2",
    status=200,
    start_time=1_700_000_000.1239,
    seconds=0.0123456789,
    client="192.0.2.7",
    key=bytes.fromhex("9f86d081884c7d65"),
    headers={b"authorization": b"Bearer secret-secret-secret"},
)


@pytest.mark.parametrize("given", ["a", "6f0c-11_2.3:4/5+6=7@8", "x" * 128])
def test_a_well_formed_request_id_is_taken_over(given):
    assert request_id_of({b"x-request-id": given.encode()}) == given


@pytest.mark.parametrize(
    "given", [b"", b"x" * 129, b"a b", b'a"b', b"a\nb", b"a\r\nSet-Cookie: x", b"\xc3\xa4", b"a\n"]
)
def test_any_other_request_id_is_replaced_by_a_random_one(given):
    ids = {request_id_of({b"x-request-id": given}) for _ in range(10)}
    assert len(ids) == 10
    assert all(len(request_id) == 32 and set(request_id) <= set("0123456789abcdef") for request_id in ids)


def test_a_request_is_a_line_of_json_without_the_key():
    stream = io.BytesIO()
    RequestLog(stream)(RECORD)
    assert stream.getvalue().endswith(b"\n")
    assert json.loads(stream.getvalue()) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "INFO",
        "message": "request",
        "request_id": "abc-1",
        "method": "POST",
        "route": "/v1/models/{name}/predict",
        "model": "sst2",
        "status": 200,
        "seconds": 0.012346,
        "client": "192.0.2.7",
        "key": "9f86d081",
    }


def test_a_broken_log_does_not_break_requests():
    class Broken(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    RequestLog(Broken())(RECORD)


def test_a_log_record_with_a_traceback_is_one_line_of_json():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "request %s failed", ("abc-1",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["message"]) == ("ERROR", "request abc-1 failed")
    assert fields["traceback"].endswith("ValueError: two\nlines")


def test_every_log_format_has_a_formatter():
    assert tuple(FORMATTERS) == LOG_FORMATS
    assert log_config("json")["formatters"]["default"]["()"] is JsonFormatter
    with pytest.raises(SettingsError, match="choose one of: text, json"):
        log_config("xml")
