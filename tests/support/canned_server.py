"""A server for tests of the page: the page's files and canned responses, and configurable errors.

It sends the Content-Security-Policy of the real server, so that violations fail here too.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import canned_answers as canned
import canned_runs

import bertworks

PAGE = Path(bertworks.__file__).parent / "serving" / "page"
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CONTENT_SECURITY_POLICY = "default-src 'self'"


@dataclass(kw_only=True)
class Behavior:
    """How the server behaves, and what it was requested."""

    models: dict[str, Any] = field(default_factory=canned.models)
    runs: list[dict[str, Any]] = field(default_factory=list)
    has_search: bool = False
    key: str | None = None
    errors: dict[str, tuple[int, str, dict[str, str]]] = field(default_factory=dict)  # by the end of the path
    run_queries: dict[str, list[int]] = field(default_factory=dict)  # the values of `after`, by run
    requests: list[tuple[str, Any]] = field(default_factory=list)  # (path, body) of all requests under /v1/


class CannedServer:
    """Serves on a free port of this machine until it is closed."""

    def __init__(self) -> None:
        self.behavior = Behavior()
        handler = type("Handler", (_Handler,), {"canned_server": self})
        self._http = _QuietServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a closing browser drops."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    canned_server: CannedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/v1/"):
            self._send_response(path, None)
        else:
            self._send_file(PAGE / ("index.html" if path == "/" else path.removeprefix("/page/")))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send_response(unquote(urlsplit(self.path).path), body)

    def _send_file(self, path: Path) -> None:
        if not path.is_file() or path.parent != PAGE:
            self._send(404, b"", "text/plain", {})
            return
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
        self._send(200, path.read_bytes(), CONTENT_TYPES[path.suffix], headers)

    def _send_response(self, path: str, body: Any) -> None:
        behavior = self.canned_server.behavior
        behavior.requests.append((path, body))
        if behavior.key is not None and self.headers.get("Authorization") != f"Bearer {behavior.key}":
            self._send_error(401, "an API key is required; send the header: Authorization: Bearer KEY")
            return
        for path_end, (status, message, headers) in behavior.errors.items():
            if path.endswith(path_end):
                self._send_error(status, message, headers)
                return
        response = self._response(path, body)
        if response is None:
            self._send_error(404, "no such path")
        else:
            self._send(200, json.dumps(response, ensure_ascii=False).encode(), "application/json", {})

    def _response(self, path: str, body: Any) -> Any:
        behavior, parts = self.canned_server.behavior, path.split("/")
        if path == "/v1/models":
            return behavior.models
        if path == "/v1/runs":
            return {"runs": behavior.runs}
        if path.startswith("/v1/runs/"):
            after = int(parse_qs(urlsplit(self.path).query)["after"][0])
            behavior.run_queries.setdefault(parts[3], []).append(after)
            return next(
                (canned_runs.run_response(run, after) for run in behavior.runs if run["name"] == parts[3]), None
            )
        if path == "/v1/embeddings/projection":
            return canned.projection(body)
        if path == "/v1/search" and behavior.has_search:
            return canned.search(body or {"top_k": 1})
        endpoints: dict[str, Callable[..., Any]] = {
            "fill-mask": canned.fill_mask,
            "tokenize": canned.tokenize,
            "attention": lambda body: canned.attention({"layer": None, "head": None, **body}),
            "explain": canned.explain,
            "predict": lambda body: canned.predict(parts[3], body),
        }
        return endpoints[parts[-1]](body) if parts[-1] in endpoints else None

    def _send_error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        error = {"error": {"type": "error", "message": message}}
        self._send(status, json.dumps(error).encode(), "application/json", headers or {})

    def _send(self, status: int, body: bytes, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
