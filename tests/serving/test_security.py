"""The security middleware: API keys, hosts, body sizes, slow bodies, and the headers of every response."""

from __future__ import annotations

import asyncio
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import InputError, SettingsError
from bertworks.serving.metrics import Metrics
from bertworks.serving.security import Access, Guard, Limits, ServerState, access_of

KEY = "a-key-of-more-than-16-letters"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"\n{KEY}\n  another-key-0123456789  \n")
    return path


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that responds with the size of the body."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


class Response:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.status = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])


def send_request(
    guard: Guard, path: str = "/v1/models", method: str = "GET", parts: tuple[bytes, ...] = (b"",), **headers: str
) -> Response:
    """Send a request whose body comes in parts; after the part b"never ends" nothing more comes."""
    sent: list[dict[str, Any]] = []
    remaining = list(parts)

    async def receive() -> dict[str, Any]:
        if not remaining:
            await asyncio.Event().wait()
        part = remaining.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(remaining) or part == b"never ends"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    all_headers = {"host": "127.0.0.1:8000", "content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
    }
    asyncio.run(guard(scope, receive, send))
    return Response(sent)


def make_guard(access: Access | None = None, limits: Limits | None = None) -> Guard:
    return Guard(
        app=echo, access=access or Access(), limits=limits or Limits(), metrics=Metrics(["m"]), state=ServerState()
    )


def test_loopback_needs_no_key():
    assert access_of("127.0.0.1", None) == Access()
    assert send_request(make_guard()).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "example.org", "::"])
def test_a_public_host_requires_keys(host):
    with pytest.raises(SettingsError, match="--api-key-file"):
        access_of(host, None)


def test_only_a_valid_key_has_access(key_file):
    guard = make_guard(access_of("0.0.0.0", key_file))
    assert send_request(guard, authorization=f"Bearer {KEY}").status == 200
    assert send_request(guard, authorization="bearer another-key-0123456789").status == 200
    for header in ("", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY):
        response = send_request(guard, authorization=header)
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert json.loads(response.body)["error"]["type"] == "unauthorized"


def test_all_keys_are_compared_in_constant_time(key_file, monkeypatch):
    access = access_of("0.0.0.0", key_file)
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def compare(digest: bytes, known: bytes) -> bool:
        compared.append((digest, known))
        return compare_digest(digest, known)

    monkeypatch.setattr("bertworks.serving.security.hmac.compare_digest", compare)
    assert send_request(make_guard(access), authorization=f"Bearer {KEY}").status == 200
    assert [known for _, known in compared] == list(access.keys)
    assert all(len(digest) == 32 for digest, _ in compared)  # so the length of a key does not matter either


def test_keys_are_not_stored_in_plain_text(key_file):
    assert KEY not in repr(access_of("0.0.0.0", key_file))


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/page/main.js", "/docs", "/openapi.json"])
def test_health_the_page_and_the_reference_need_no_key(path, key_file):
    assert send_request(make_guard(access_of("0.0.0.0", key_file)), path).status == 200


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/models", "/v1/models/m/predict", "/page", "/healthy", "/v1/../health"]
)
def test_all_other_paths_need_a_key(path, key_file):
    assert send_request(make_guard(access_of("0.0.0.0", key_file)), path).status == 401


@pytest.mark.parametrize("text", ["", "\n\n", "short\n", f"{KEY}\nshort", "ключ-который-длиннее-16\n"])
def test_a_file_without_valid_keys_is_rejected(text, tmp_path):
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="one per line"):
        access_of("0.0.0.0", tmp_path / "keys")


def test_a_missing_key_file_is_rejected(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        access_of("0.0.0.0", tmp_path / "none")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a@evil.example", ""])
def test_a_foreign_host_header_is_rejected(host):
    assert send_request(make_guard(), host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_all_loopback_names_are_allowed(host):
    assert send_request(make_guard(), host=host).status == 200


def test_a_content_length_above_the_limit_is_rejected():
    guard = make_guard(limits=Limits(body_bytes=10))
    response = send_request(guard, method="POST", parts=(b"x" * 11,), content_length="11")
    assert response.status == 413
    assert "10 bytes" in json.loads(response.body)["error"]["message"]
    assert send_request(guard, method="POST", parts=(b"x" * 10,), content_length="10").body == b"10"


def test_a_body_without_content_length_is_rejected_when_it_exceeds_the_limit():
    guard = make_guard(limits=Limits(body_bytes=10))
    assert send_request(guard, method="POST", parts=(b"x" * 6, b"x" * 6)).status == 413


def test_a_body_that_never_ends_times_out():
    guard = make_guard(limits=Limits(seconds=0.05))
    response = send_request(guard, method="POST", parts=(b"never ends",))
    assert response.status == 408
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_content_types_that_need_no_cors_preflight_are_rejected(content_type):
    assert send_request(make_guard(), method="POST", content_type=content_type).status == 415


def test_json_with_a_charset_is_json():
    assert send_request(make_guard(), method="POST", content_type="Application/JSON; charset=utf-8").status == 200


def test_a_draining_server_rejects_new_requests_but_answers_health_checks():
    guard = make_guard()
    guard.state.is_draining = True
    assert send_request(guard, method="POST").status == 503
    assert send_request(guard, "/health").status == 200


def test_every_response_has_security_headers():
    for response in (send_request(make_guard()), send_request(make_guard(), host="evil.example")):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"] == "default-src 'self'"
        assert response.headers["cache-control"] == "no-store"
    assert "cache-control" not in send_request(make_guard(), "/page/main.js").headers


@pytest.mark.parametrize("limits", [{"inputs": 0}, {"body_bytes": 0}, {"characters": -1}, {"seconds": 0.0}])
def test_limits_must_be_positive(limits):
    with pytest.raises(SettingsError, match="greater than 0"):
        Limits(**limits)
