"""How a request is refused: a status, a kind and a sentence in, one JSON object out; never a path, never a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What each status is called in an answer, so that a program need not read the sentence.
ERROR_TYPES = {
    400: "malformed",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "body_too_large",
    415: "not_json",
    422: "not_possible",
    429: "queue_full",
    500: "internal",
    503: "not_ready",
    504: "time_limit",
}


class RequestError(Exception):
    """A request that is not answered, and what its sender is told."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        return {"error": {"type": ERROR_TYPES.get(self.status, "refused"), "message": self.message}}
