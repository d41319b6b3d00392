"""The security middleware: API keys, hosts, body sizes, slow bodies, and the headers of every response."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import InputError, SettingsError
from bertworks.serving.client_limits import RateLimit
from bertworks.serving.errors import RequestError
from bertworks.serving.metrics import Metrics
from bertworks.serving.request_log import RequestRecord
from bertworks.serving.security import REJECTION, Access, Guard, Limits, ServerState, access_of

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
    return send_raw_request(guard, path, method, parts, as_pairs(headers))


def as_pairs(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers with the default ones, as in a scope."""
    all_headers = {"host": "127.0.0.1:8000", "content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return [(name.encode(), value.encode()) for name, value in all_headers.items()]


def send_raw_request(
    guard: Guard, path: str, method: str, parts: tuple[bytes, ...], headers: list[tuple[bytes, bytes]], **fields: Any
) -> Response:
    """Send a request with these headers and further fields of the scope; b"drips" comes again and again, slowly."""
    sent: list[dict[str, Any]] = []
    remaining = list(parts)

    async def receive() -> dict[str, Any]:
        if not remaining:
            await asyncio.Event().wait()
        if remaining[0] == b"drips":
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b"x", "more_body": True}
        part = remaining.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(remaining) or part == b"never ends"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": headers, **fields}
    asyncio.run(guard(scope, receive, send))
    return Response(sent)


def make_guard(access: Access | None = None, limits: Limits | None = None, **options: Any) -> Guard:
    settings = {"app": echo, "access": access or Access(), "limits": limits or Limits(), "metrics": Metrics(["m"])}
    return Guard(**settings, state=ServerState(), **options)


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


MALFORMED_HOSTS = [
    "user@127.0.0.1", "user:password@127.0.0.1:8000", "evil.example@localhost", "127.0.0.1:port", "127.0.0.1:80:80",
    "127.0.0.1:123456", "[::1", "[::1]evil", "::1", "127.0.0.1 evil", "127.0.0.1, evil.example", "127.0.0.1/x",
    "127.0.0.1#", "127.0.0.1\\\\evil", "127.0.0.1\n", "http://127.0.0.1", "%3127.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", MALFORMED_HOSTS)
def test_a_malformed_host_header_is_rejected(host, key_file):
    assert send_request(make_guard(), host=host).status == 403
    guard = make_guard(access_of("0.0.0.0", key_file))
    assert send_request(guard, host=host, authorization=f"Bearer {KEY}").status == 400


@pytest.mark.parametrize("hosts", [["127.0.0.1", "127.0.0.1"], ["evil.example", "127.0.0.1"], ["127.0.0.1", ""]])
def test_a_repeated_host_header_is_rejected(hosts, key_file):
    headers = [(b"host", host.encode()) for host in hosts]
    assert send_raw_request(make_guard(), "/health", "GET", (b"",), headers).status == 403
    headers.append((b"authorization", f"Bearer {KEY}".encode()))
    guard = make_guard(access_of("0.0.0.0", key_file))
    assert send_raw_request(guard, "/v1/models", "GET", (b"",), headers).status == 400


def test_other_headers_may_be_repeated():
    headers = [*as_pairs({}), (b"accept", b"a"), (b"accept", b"b")]
    assert send_raw_request(make_guard(), "/v1/models", "GET", (b"",), headers).status == 200


@pytest.mark.parametrize("host", ["example.org", "bert.internal:8443", "[2001:db8::1]:80", ""])
def test_with_keys_every_well_formed_host_is_allowed(host, key_file):
    guard = make_guard(access_of("0.0.0.0", key_file))
    assert send_request(guard, host=host, authorization=f"Bearer {KEY}").status == 200


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


def test_the_time_limit_of_a_body_is_a_total_one():
    guard = make_guard(limits=Limits(seconds=0.1))
    assert send_request(guard, method="POST", parts=(b"drips",)).status == 408


def test_a_body_that_never_ends_times_out():
    guard = make_guard(limits=Limits(seconds=0.05))
    response = send_request(guard, method="POST", parts=(b"never ends",))
    assert response.status == 408
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_content_types_that_need_no_cors_preflight_are_rejected(content_type):
    assert send_request(make_guard(), method="POST", content_type=content_type).status == 415


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_the_app_answers_methods_that_no_route_has(method):
    guard = make_guard(limits=Limits(body_bytes=10))
    assert send_request(guard, method=method, content_type="text/plain").status == 200  # of the app in this test
    assert send_request(guard, method=method, parts=(b"x" * 11,), content_length="11").status == 413


def test_errors_on_the_routes_of_tei_have_its_shape():
    response = send_request(make_guard(), "/embed", method="POST", content_type="text/plain")
    assert (response.status, response.headers["cache-control"]) == (415, "no-store")
    assert json.loads(response.body) == {
        "error": "send JSON, with the header: Content-Type: application/json",
        "error_type": "Validation",
    }


def test_json_with_a_charset_is_json():
    assert send_request(make_guard(), method="POST", content_type="Application/JSON; charset=utf-8").status == 200


def test_a_draining_server_rejects_new_requests_but_answers_health_checks():
    guard = make_guard()
    guard.state.is_draining = True
    for method in ("POST", "GET"):
        response = send_request(guard, method=method)
        assert (response.status, response.headers["connection"]) == (503, "close")
    assert send_request(guard, "/health").status == 200
    assert send_request(guard, "/metrics").status == 200


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


def test_on_a_connection_above_the_limits_only_health_checks_are_answered():
    rejection = RequestError(429, "too many", {"Connection": "close"}, "too_many_connections")
    for path, status in (("/health", 200), ("/ready", 200), ("/v1/models", 429), ("/", 429)):
        response = send_raw_request(make_guard(), path, "GET", (b"",), as_pairs({}), **{REJECTION: rejection})
        assert response.status == status
    assert json.loads(response.body)["error"]["type"] == "too_many_connections"


def test_requests_are_limited_per_key(key_file):
    guard = make_guard(access_of("0.0.0.0", key_file), rate_limit=RateLimit(2))
    for key, statuses in ((KEY, [200, 200, 429]), ("another-key-0123456789", [200, 200, 429]), ("wrong", [401] * 3)):
        headers = as_pairs({"authorization": f"Bearer {key}"})
        responses = [
            send_raw_request(guard, "/v1/models", "GET", (b"",), headers, client=("192.0.2.7", 5)) for _ in statuses
        ]
        assert [response.status for response in responses] == statuses
    assert send_request(guard, "/health").status == 200


def test_without_keys_requests_are_limited_per_address():
    guard = make_guard(rate_limit=RateLimit(1))
    for address in ("127.0.0.1", "127.0.0.2"):
        for status in (200, 429):
            response = send_raw_request(guard, "/v1/models", "GET", (b"",), as_pairs({}), client=(address, 5))
            assert response.status == status
    assert response.headers["retry-after"] == "60"
    assert json.loads(response.body)["error"]["type"] == "rate_limited"
    assert send_request(guard, "/page/main.js").status == 200


def test_every_response_has_a_request_id():
    response = send_request(make_guard(), x_request_id="my-id")
    assert response.headers["x-request-id"] == "my-id"
    response = send_request(make_guard(), host="evil.example", x_request_id="not well-formed")
    assert len(response.headers["x-request-id"]) == 32
    assert json.loads(response.body)["error"]["request_id"] == response.headers["x-request-id"]


def test_observers_see_each_request_with_the_digest_of_its_key(key_file):
    records: list[RequestRecord] = []
    guard = make_guard(access_of("0.0.0.0", key_file), observers=[records.append])
    headers = as_pairs({"authorization": f"Bearer {KEY}", "x_request_id": "one"})
    send_raw_request(guard, "/v1/models", "GET", (b"",), headers, client=("192.0.2.7", 5))
    send_request(guard, "/v1/models", x_request_id="two")
    first, second = records
    assert (first.request_id, first.status, first.client) == ("one", 200, "192.0.2.7")
    assert first.key == hashlib.sha256(KEY.encode()).digest()
    assert (second.request_id, second.status, second.client, second.key) == ("two", 401, None, None)


def test_an_unexpected_error_answers_500_and_is_logged_once_with_the_request_id(caplog):
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a secret path")

    guard = Guard(app=fail, access=Access(), limits=Limits(), metrics=Metrics([]))
    response = send_request(guard, x_request_id="my-id")
    assert response.status == 500
    assert b"secret" not in response.body
    (record,) = caplog.records
    assert record.getMessage() == "request my-id failed"
    assert record.exc_info is not None


def test_a_rejected_body_that_keeps_coming_closes_the_connection(monkeypatch):
    monkeypatch.setattr("bertworks.serving.security._DISCARD_SECONDS", 0.1)
    response = send_request(make_guard(), method="POST", parts=(b"drips",), content_type="text/plain")
    assert (response.status, response.headers["connection"]) == (415, "close")


@pytest.mark.parametrize(
    "limits",
    [{"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": 0.0}, {"body_bytes": 0}],
)
def test_limits_are_finite_and_above_zero(limits):
    with pytest.raises(SettingsError, match="must be numbers greater than 0"):
        Limits(**limits)
