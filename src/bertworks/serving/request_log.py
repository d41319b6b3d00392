"""Request ids and the log: headers in, a request id out; a finished request in, a line of JSON out."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

import orjson

from bertworks.choices import LOG_FORMATS
from bertworks.errors import SettingsError

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A finished request. `key` is the digest of its API key; status 499: the client left before the response."""

    request_id: str
    method: str
    path: str
    route: str | None
    model: str | None
    status: int
    start_time: float  # seconds since the epoch
    seconds: float
    client: str | None
    key: bytes | None
    headers: Mapping[bytes, bytes]


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the X-Request-ID of a request if it is well-formed, otherwise a random one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return os.urandom(16).hex()


class RequestLog:
    """Writes a line of JSON for each request."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or sys.stderr.buffer

    def __call__(self, record: RequestRecord) -> None:
        fields = {
            "time": _timestamp(record.start_time),
            "level": "INFO",
            "message": "request",
            "request_id": record.request_id,
            "method": record.method,
            "route": record.route,
            "model": record.model,
            "status": record.status,
            "seconds": round(record.seconds, 6),
            "client": record.client,
            "key": None if record.key is None else record.key[:4].hex(),
        }
        with contextlib.suppress(OSError):  # a log that nobody reads any more must not end requests
            self._stream.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
            self._stream.flush()


class JsonFormatter(logging.Formatter):
    """Formats a log record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname,
            "message": record.getMessage().strip(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


FORMATTERS: dict[str, dict[str, Any]] = {
    "text": {"format": "%(asctime)s %(levelname)s %(message)s"},
    "json": {"()": JsonFormatter},
}


def log_config(log_format: str) -> dict[str, Any]:
    """Return the `logging` configuration of a server: warnings and errors to stderr, as text or JSON."""
    check_log_format(log_format)
    logger = {"handlers": ["stderr"], "level": "WARNING", "propagate": False}
    own_logger = {**logger, "level": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"default": FORMATTERS[log_format]},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "default"}},
        "loggers": {"uvicorn": logger, "uvicorn.error": logger, "bertworks.serving": own_logger},
    }


def check_log_format(log_format: str) -> None:
    if log_format not in LOG_FORMATS:
        raise SettingsError(f"there is no log format '{log_format}'; choose one of: {', '.join(LOG_FORMATS)}")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_time(monotonic_time: float) -> float:
    """Return the seconds since the epoch of a value of `time.monotonic()`."""
    return time.time() - time.monotonic() + monotonic_time
