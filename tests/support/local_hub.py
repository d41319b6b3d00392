"""A local server with the protocol of the Hugging Face hub: downloads of a model, and uploads into memory."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import close_session, constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 40
MODEL = {
    "README.md": b"# a model",
    "config.json": b'{"model_type": "bert"}',
    "vocab.txt": b"[PAD]\n[UNK]\n",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"older weights",
    "tf_model.h5": b"foreign weights",
    "bert_model.ckpt.index": b"oldest weights",
    "bert_model.ckpt.data-00000-of-00001": b"oldest weights",
    "onnx/model.onnx": b"exported weights",
    "onnx/model.safetensors": b"exported weights",
    "modules.json": b"[]",
    "1_Pooling/config.json": b"{}",
}


class Hub(ThreadingHTTPServer):
    """The models of the server, its log of requests, and injected faults."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []  # "GET /tiny/resolve/<commit>/config.json", with "bytes=…" for a range
        self.refusal: tuple[int, dict[str, str]] | None = None  # the response to all requests: status and headers
        self.break_off_at: int | None = None  # the next download of weights ends after this many bytes
        self.token: str | None = None  # the required token

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def downloads(self) -> list[str]:
        return [
            line.partition(COMMIT + "/")[2] for line in self.requests if line.startswith("GET") and "/resolve/" in line
        ]


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each response waits 40 ms for an acknowledgement
    server: Hub

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(" ".join([self.command, path, *self.headers.get_all("Range", [])]))
        if self.server.refusal:
            self.reply(*self.server.refusal)
        elif self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self.reply(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path.startswith("/api/models/"):
            self.describe(path.removeprefix("/api/models/"))
        else:
            name, _, file = path[1:].partition(f"/resolve/{COMMIT}/")
            self.send_file(self.server.models.get(name, {}).get(file))

    def do_POST(self) -> None:
        """Answer the requests of an upload: every file is part of the commit itself."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"POST {path}")
        if self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self.reply(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path == "/api/repos/create":
            name = json.loads(body)["name"]
            owner = json.loads(body).get("organization") or "me"
            self.server.models.setdefault(f"{owner}/{name}", {})
            self.reply(200, {}, json.dumps({"url": f"{self.server.address}/{owner}/{name}"}).encode())
        elif "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.reply(200, {}, json.dumps({"files": files}).encode())
        elif "/commit/" in path:
            self.commit(path, body)
        else:  # a branch, or the check of the front matter of README.md
            self.reply(200, {}, b'{"warnings": [], "errors": []}')

    def commit(self, path: str, body: bytes) -> None:
        """Keep the files of a commit."""
        name = path.removeprefix("/api/models/").partition("/commit/")[0]
        for operation in map(json.loads, body.splitlines()):
            if operation["key"] == "file":
                content = base64.b64decode(operation["value"]["content"])
                self.server.models[name][operation["value"]["path"]] = content
        answer = {"commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT}
        self.reply(200, {}, json.dumps(answer).encode())

    def describe(self, path: str) -> None:
        """Answer the two requests about a model: the commit of a revision, and the files of a commit."""
        name, endpoint, revision = path.rsplit("/", 2)
        files = self.server.models.get(name)
        if files is None:
            self.reply(404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        elif endpoint == "revision":
            self.reply(200, {}, json.dumps({"id": name, "sha": COMMIT}).encode())
        else:
            listing = [
                {"type": "file", "path": path, "size": len(data), "oid": f"{number:040x}"}
                for number, (path, data) in enumerate(files.items())
            ]
            self.reply(200, {}, json.dumps(listing).encode())

    def send_file(self, data: bytes | None) -> None:
        if data is None:
            self.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{len(data)}-{sum(data)}"', "X-Repo-Commit": COMMIT}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.reply(206 if start else 200, headers, data[start:])

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        size = self.server.break_off_at
        if size is not None and len(body) > size and body == WEIGHTS:
            self.server.break_off_at = None
            body = body[:size]
            self.close_connection = True
        self.wfile.write(body)


@contextlib.contextmanager
def local_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub with one model, tiny/bert; the client uses it, with an empty cache in `folder` and without token."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("HF_", "HUGGING")):
            monkeypatch.delenv(name)
    hub_server = Hub()
    hub_server.models["tiny/bert"] = dict(MODEL)
    thread = threading.Thread(target=hub_server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    # The client reads its environment when it is imported, and stores it in these constants.
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub_server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()
    try:
        yield hub_server
    finally:
        close_session()
        hub_server.shutdown()
        thread.join()
        hub_server.server_close()
