"""A server for tests of the page: it serves the page's own files and canned answers, and can be told to refuse.

It sends the content policy of the real server, so that what that would forbid fails here too.
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
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "default-src 'self'"


@dataclass
class Plan:
    """How the server behaves: which models and runs it has, the key it asks for, what it refuses."""

    models: dict[str, Any] = field(default_factory=canned.models)
    runs: list[dict[str, Any]] = field(default_factory=list)
    has_search: bool = False
    key: str | None = None
    refusals: dict[str, tuple[int, str, dict[str, str]]] = field(default_factory=dict)  # by the end of the path
    afters: dict[str, list[int]] = field(default_factory=dict)  # by run, after which steps records were asked for
    asked: list[tuple[str, Any]] = field(default_factory=list)  # (path, body) of all that was asked under /v1/


class CannedServer:
    """Serves on a free port of this machine until it is closed."""

    def __init__(self) -> None:
        self.plan = Plan()
        handler = type("Handler", (_Handler,), {"owner": self})
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
        """A browser that is closed drops its connections: that is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    owner: CannedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/v1/"):
            self._answer(path, None)
        else:
            self._file(PAGE / ("index.html" if path == "/" else path.removeprefix("/page/")))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(unquote(urlsplit(self.path).path), body)

    def _file(self, path: Path) -> None:
        if not path.is_file() or path.parent != PAGE:
            self._send(404, b"", "text/plain", {})
            return
        self._send(200, path.read_bytes(), TYPES[path.suffix], {"Content-Security-Policy": POLICY})

    def _answer(self, path: str, body: Any) -> None:
        plan = self.owner.plan
        plan.asked.append((path, body))
        if plan.key is not None and self.headers.get("Authorization") != f"Bearer {plan.key}":
            self._refuse(401, "a key is needed; send it as the header: Authorization: Bearer KEY")
            return
        for end, (status, message, headers) in plan.refusals.items():
            if path.endswith(end):
                self._refuse(status, message, headers)
                return
        found = self._found(path, body)
        if found is None:
            self._refuse(404, "there is nothing at this address")
        else:
            self._send(200, json.dumps(found, ensure_ascii=False).encode(), "application/json", {})

    def _found(self, path: str, body: Any) -> Any:
        plan, parts = self.owner.plan, path.split("/")
        if path == "/v1/models":
            return plan.models
        if path == "/v1/runs":
            return {"runs": plan.runs}
        if path.startswith("/v1/runs/"):
            after = int(parse_qs(urlsplit(self.path).query)["after"][0])
            plan.afters.setdefault(parts[3], []).append(after)
            return next((canned_runs.told(run, after) for run in plan.runs if run["name"] == parts[3]), None)
        if path == "/v1/vectors/map":
            return canned.vector_map(body)
        if path == "/v1/search" and plan.has_search:
            return canned.search(body or {"top": 1})
        verbs: dict[str, Callable[..., Any]] = {
            "fill": canned.fill,
            "tokenize": canned.tokenize,
            "attention": lambda asked: canned.attention({"layer": None, "head": None, **asked}),
            "explain": canned.explain,
            "predict": lambda asked: canned.predict(parts[3], asked),
        }
        return verbs[parts[-1]](body) if parts[-1] in verbs else None

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        told = {"error": {"type": "refused", "message": message}}
        self._send(status, json.dumps(told).encode(), "application/json", headers or {})

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
