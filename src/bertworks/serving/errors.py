"""HTTP errors: a status and a message in, a JSON object out, without paths or tracebacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The machine-readable type of each status.
ERROR_TYPES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "content_too_large",
    415: "unsupported_media_type",
    422: "unprocessable",
    429: "queue_full",
    431: "headers_too_large",
    500: "internal_error",
    503: "unavailable",
    504: "timeout",
}


class RequestError(Exception):
    """A request that is rejected, with the status, message, headers and type of the response."""

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None, error_type: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        self.type = error_type or ERROR_TYPES.get(status, "error")

    def to_dict(self, request_id: str) -> dict[str, Any]:
        return {"error": {"type": self.type, "message": self.message, "request_id": request_id}}
