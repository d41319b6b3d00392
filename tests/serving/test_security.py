"""The guard: keys, hosts, sizes, slow bodies, and headers that every answer has."""

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
    """An app that answers with the size of the body."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


class Answer:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.status = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])


def asked(guard: Guard, path: str = "/v1/models", method: str = "GET", parts: tuple[Any, ...] = (b"",), **headers: str):
    """Send a request whose body comes in parts; a part may be an awaitable that never gives one."""
    sent: list[dict[str, Any]] = []
    waiting = list(parts)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting) or part == b"never ends"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    told = {"host": "127.0.0.1:8000", "content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
    }
    asyncio.run(guard(scope, receive, send))
    return Answer(sent)


def guarded(access: Access | None = None, limits: Limits | None = None) -> Guard:
    return Guard(echo, access or Access(), limits or Limits(), Metrics(["m"]), ServerState())


def test_on_this_machine_nobody_needs_a_key():
    assert access_of("127.0.0.1", None) == Access()
    assert asked(guarded()).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "example.org", "::"])
def test_an_address_that_others_can_reach_needs_keys(host):
    with pytest.raises(SettingsError, match="--api-key-file"):
        access_of(host, None)


def test_a_key_opens_and_all_else_does_not(key_file):
    guard = guarded(access_of("0.0.0.0", key_file))
    assert asked(guard, authorization=f"Bearer {KEY}").status == 200
    assert asked(guard, authorization="bearer another-key-0123456789").status == 200
    for wrong in ("", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY):
        answer = asked(guard, authorization=wrong)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert json.loads(answer.body)["error"]["type"] == "unauthorized"


def test_keys_are_compared_in_constant_time_and_all_of_them(key_file, monkeypatch):
    access = access_of("0.0.0.0", key_file)
    compared: list[tuple[bytes, bytes]] = []
    whole = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return whole(one, other)

    monkeypatch.setattr("bertworks.serving.security.hmac.compare_digest", compare)
    assert asked(guarded(access), authorization=f"Bearer {KEY}").status == 200
    assert [other for _, other in compared] == list(access.keys)
    assert all(len(one) == 32 for one, _ in compared)  # digests, so lengths tell nothing either


def test_keys_are_not_kept_as_they_are(key_file):
    assert KEY not in repr(access_of("0.0.0.0", key_file))


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/page/main.js", "/docs", "/openapi.json"])
def test_health_the_page_and_the_reference_need_no_key(path, key_file):
    assert asked(guarded(access_of("0.0.0.0", key_file)), path).status == 200


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/models", "/v1/models/m/predict", "/page", "/healthy", "/v1/../health"]
)
def test_everything_else_needs_one(path, key_file):
    assert asked(guarded(access_of("0.0.0.0", key_file)), path).status == 401


@pytest.mark.parametrize("text", ["", "\n\n", "short\n", f"{KEY}\nshort", "ключ-который-длиннее-16\n"])
def test_a_file_without_proper_keys_is_refused(text, tmp_path):
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="one a line"):
        access_of("0.0.0.0", tmp_path / "keys")


def test_a_file_of_keys_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        access_of("0.0.0.0", tmp_path / "none")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a@evil.example", ""])
def test_a_page_whose_own_name_points_here_is_refused(host):
    assert asked(guarded(), host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_this_machine_has_several_names(host):
    assert asked(guarded(), host=host).status == 200


def test_a_body_that_says_it_is_too_large_is_refused():
    guard = guarded(limits=Limits(body_bytes=10))
    answer = asked(guard, method="POST", parts=(b"x" * 11,), content_length="11")
    assert answer.status == 413
    assert "10 bytes" in json.loads(answer.body)["error"]["message"]
    assert asked(guard, method="POST", parts=(b"x" * 10,), content_length="10").body == b"10"


def test_a_body_that_does_not_say_how_large_it_is_is_refused_when_it_has_grown_too_large():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)

    guard = Guard(app, Access(), Limits(body_bytes=10), Metrics([]), ServerState())
    assert asked(guard, method="POST", parts=(b"x" * 6, b"x" * 6)).status == 413


def test_a_body_that_does_not_come_is_given_up():
    guard = guarded(limits=Limits(seconds=0.05))
    answer = asked(guard, method="POST", parts=(b"never ends",))
    assert answer.status == 408
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_foreign_page_can_send_without_asking_is_refused(kind):
    assert asked(guarded(), method="POST", content_type=kind).status == 415


def test_json_with_a_charset_is_json():
    assert asked(guarded(), method="POST", content_type="Application/JSON; charset=utf-8").status == 200


def test_a_server_that_goes_down_takes_nothing_new_but_tells_how_it_is():
    guard = guarded()
    guard.state.is_draining = True
    assert asked(guard, method="POST").status == 503
    assert asked(guard, "/health").status == 200


def test_every_answer_forbids_what_no_answer_needs():
    for answer in (asked(guarded()), asked(guarded(), host="evil.example")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'self'"
        assert answer.headers["cache-control"] == "no-store"
    assert "cache-control" not in asked(guarded(), "/page/main.js").headers


@pytest.mark.parametrize("limits", [{"inputs": 0}, {"body_bytes": 0}, {"characters": -1}, {"seconds": 0.0}])
def test_limits_of_nothing_are_refused(limits):
    with pytest.raises(SettingsError, match="above 0"):
        Limits(**limits)
