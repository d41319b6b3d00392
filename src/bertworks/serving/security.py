"""The security middleware: requests in; those with a valid key, host, size and speed go to the app.

It is the outermost ASGI middleware, so that nothing is read, parsed or computed for a rejected request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bertworks.errors import InputError, SettingsError
from bertworks.serving.errors import RequestError
from bertworks.serving.metrics import NONE, Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MIN_KEY_LENGTH = 16
# Paths without authentication: health checks, the page (which asks for the API key), and the reference.
_PUBLIC_PATHS = ("/health", "/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
_PUBLIC_PREFIXES = ("/page/",)

# How much of a rejected body is read and discarded, and for how long.
_MAX_DISCARDED_BYTES, _DISCARD_SECONDS = 2**26, 5.0

# Headers of every response. The page and the reference load nothing from other origins.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_CONTENT_SECURITY_POLICY = (b"content-security-policy", b"default-src 'self'")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request: bytes of the body, number of inputs, characters of a text, seconds until the response."""

    body_bytes: int = 4 * 2**20
    inputs: int = 512
    characters: int = 100_000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if min(self.body_bytes, self.inputs, self.characters) < 1 or self.seconds <= 0:
            raise SettingsError("the limits of a request must be greater than 0")


@dataclass(frozen=True, slots=True)
class Access:
    """Who has access. Without API keys only this machine has, by its loopback names."""

    keys: tuple[bytes, ...] = ()  # sha256 digests
    hosts: tuple[str, ...] = LOOPBACK

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise a RequestError for a missing API key, or for a Host header that is not allowed.

        Checking the host prevents DNS rebinding: a web page whose domain resolves to 127.0.0.1.
        """
        if not self.keys:
            host = headers.get(b"host", b"").decode("latin-1").rpartition("@")[2]
            if _without_port(host) not in self.hosts:
                raise RequestError(403, "this Host is not allowed; use a loopback name such as 127.0.0.1")
            return
        if path in _PUBLIC_PATHS or path.startswith(_PUBLIC_PREFIXES):
            return
        if not self._is_known_key(_key_in(headers)):
            message = "an API key is required; send the header: Authorization: Bearer KEY"
            raise RequestError(401, message, {"WWW-Authenticate": "Bearer"})

    def _is_known_key(self, key: bytes) -> bool:
        """Compare with all keys in constant time."""
        digest = hashlib.sha256(key).digest()
        is_known = False
        for key_digest in self.keys:
            is_known |= hmac.compare_digest(digest, key_digest)
        return is_known and bool(key)


def access_of(host: str, key_file: Path | None) -> Access:
    """Return the access rules of a server; a host that other machines can reach requires API keys."""
    if key_file is None:
        if host not in LOOPBACK:
            raise SettingsError(
                f"--host {host} can be reached from other machines, so it requires API keys; write them to a file, one "
                f"per line, that only you can read, and give it with --api-key-file"
            )
        return Access()
    try:
        lines = key_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the API keys in {key_file} cannot be read ({error}); write one per line") from None
    keys = [line.strip() for line in lines if line.strip()]
    if (
        not keys
        or min(map(len, keys)) < _MIN_KEY_LENGTH
        or not all(key.isascii() and key.isprintable() for key in keys)
    ):
        raise InputError(
            f"{key_file} must hold API keys, one per line, each of at least {_MIN_KEY_LENGTH} printable ASCII "
            f"characters; generate one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return Access(tuple(hashlib.sha256(key.encode()).digest() for key in keys))


@dataclass(slots=True)
class ServerState:
    """Whether the server is ready or draining, and its number of open requests."""

    is_ready: bool = False
    is_draining: bool = False
    num_open: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The middleware around the app. It also records the metrics of every request."""

    app: App
    access: Access
    limits: Limits
    metrics: Metrics
    state: ServerState = field(default_factory=ServerState)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sender = _ResponseSender(send, scope["path"])
        body = _BoundedBody(receive, self.limits)
        start_time = time.monotonic()
        self.state.num_open += 1
        try:
            headers = dict(scope["headers"])
            self.access.check(scope["path"], headers)
            self._check_headers(scope["method"], headers)
            await self.app(scope, body, sender)
        except RequestError as error:
            await body.discard()
            await sender.send_error(error)
        finally:
            self.state.num_open -= 1
            model, endpoint = scope.get("model"), getattr(scope.get("route"), "name", NONE)
            self.metrics.record_request(model, endpoint, sender.status, time.monotonic() - start_time)

    def _check_headers(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        if method not in ("POST", "PUT", "PATCH"):
            return
        if self.state.is_draining:
            raise RequestError(503, "the server is shutting down", {"Connection": "close"})
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limits.body_bytes:
            raise _too_large(self.limits)
        # A page of another origin can send a form or plain text without a CORS preflight, but not JSON.
        content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if content_type != b"application/json":
            raise RequestError(415, "send JSON, with the header: Content-Type: application/json")


@dataclass(slots=True)
class _BoundedBody:
    """Receives a body; raises a RequestError if it is too large or too slow."""

    receive: Receive
    limits: Limits
    num_bytes: int = 0
    is_complete: bool = False

    async def __call__(self) -> Message:
        if self.is_complete:  # only a disconnect can follow, at any time until the response
            return await self.receive()
        try:
            async with asyncio.timeout(self.limits.seconds):
                message = await self.receive()
        except TimeoutError:
            self.is_complete = True  # nothing to discard
            raise RequestError(408, "timeout while reading the body", {"Connection": "close"}) from None
        if message["type"] == "http.request":
            self.num_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
            if self.num_bytes > self.limits.body_bytes:
                await self.discard()
                raise _too_large(self.limits)
        return message

    async def discard(self) -> None:
        """Read and discard the rest of a rejected body: a client that is still sending would not see the response."""
        num_bytes_left = _MAX_DISCARDED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_complete and num_bytes_left > 0:
                    message = await self.receive()
                    num_bytes_left -= len(message.get("body", b""))
                    self.is_complete = not message.get("more_body", False)


@dataclass(slots=True)
class _ResponseSender:
    """Sends a response with the common headers and remembers its status."""

    send: Send
    path: str
    status: int = 499  # the client disconnected before the response

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            names = {name.lower() for name, _ in headers}
            headers += _HEADERS if _CONTENT_SECURITY_POLICY[0] in names else (*_HEADERS, _CONTENT_SECURITY_POLICY)
            if self.path.startswith("/v1/"):
                headers.append((b"cache-control", b"no-store"))
            message["headers"] = headers
        await self.send(message)

    async def send_error(self, error: RequestError) -> None:
        if self.status != 499:  # the response has started
            raise error
        body = orjson.dumps(error.to_dict())
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
        raw_headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": error.status, "headers": raw_headers})
        await self.send({"type": "http.response.body", "body": body})


def _too_large(limits: Limits) -> RequestError:
    message = f"the body is larger than {limits.body_bytes:,} bytes; split it into several requests"
    return RequestError(413, message, {"Connection": "close"})


def _key_in(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
