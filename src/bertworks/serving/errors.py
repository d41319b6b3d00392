"""HTTP errors: a status and a message in, a JSON object out, without paths or tracebacks.

On the routes of Text Embeddings Inference (TEI) the object has TEI's shape, which its clients parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertworks.messages import localize, requested_language

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
    424: "failed_dependency",
    429: "queue_full",
    431: "headers_too_large",
    500: "internal_error",
    503: "unavailable",
    504: "timeout",
}


TEI_PATHS = frozenset(("/embed", "/embed_all", "/predict", "/rerank", "/similarity", "/tokenize", "/info"))
TEI_ERROR_TYPES = ("Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty")
_TEI_TYPES_BY_STATUS = {422: "Tokenizer", 429: "Overloaded", 503: "Unhealthy"}


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

    def to_dict(self, request_id: str, path: str = "", accept_language: str = "") -> dict[str, Any]:
        """Return the body of the response to a request for that path, in the language that the request asks for."""
        message = localize(self.message, requested_language(accept_language))
        if path in TEI_PATHS:
            return {"error": message, "error_type": self.tei_type}
        return {"error": {"type": self.type, "message": message, "request_id": request_id}}

    @property
    def tei_type(self) -> str:
        """TEI's type of the error: its own, else by the status; TEI names no types of further statuses."""
        if self.type in TEI_ERROR_TYPES:
            return self.type
        is_client_error = self.status < 500 and self.status != 424
        return _TEI_TYPES_BY_STATUS.get(self.status, "Validation" if is_client_error else "Backend")
