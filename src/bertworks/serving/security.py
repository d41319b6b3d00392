"""The guard before the app: keys, hosts, sizes and slow bodies in, requests that may pass out.

It is a plain ASGI layer around everything, so that nothing is read, parsed or computed for a request that is refused.
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
# What needs no key: whether the server lives, the page (which asks for the key), and the reference.
_PUBLIC_PATHS = ("/health", "/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
_PUBLIC_PREFIXES = ("/page/",)

# How much of a body that is refused is let pass, and for how long.
_MAX_DISCARDED_BYTES, _DISCARD_SECONDS = 2**26, 5.0

# What every answer says. The page and the reference take nothing from elsewhere.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_CONTENT_SECURITY_POLICY = (b"content-security-policy", b"default-src 'self'")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may have: bytes of its body, inputs, characters of a text; and how long it may take."""

    body_bytes: int = 4 * 2**20
    inputs: int = 512
    characters: int = 100_000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if min(self.body_bytes, self.inputs, self.characters) < 1 or self.seconds <= 0:
            raise SettingsError("the limits of a request must be above 0")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask. Without keys only this machine may, under its own names."""

    keys: tuple[bytes, ...] = ()  # the sha256 of each
    hosts: tuple[str, ...] = LOOPBACK

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request without a key, or one that reached this machine under another name.

        The second is what a web page does that has its own name point to 127.0.0.1, to ask in a visitor's place.
        """
        if not self.keys:
            host = headers.get(b"host", b"").decode("latin-1").rpartition("@")[2]
            if _without_port(host) not in self.hosts:
                raise RequestError(403, "this server answers only under the name of this machine, such as 127.0.0.1")
            return
        if path in _PUBLIC_PATHS or path.startswith(_PUBLIC_PREFIXES):
            return
        if not self._is_known_key(_key_in(headers)):
            message = "a key is needed; send it as the header: Authorization: Bearer KEY"
            raise RequestError(401, message, {"WWW-Authenticate": "Bearer"})

    def _is_known_key(self, key: bytes) -> bool:
        """Compare with all keys, in a time that tells nothing about how far any of them agrees."""
        digest = hashlib.sha256(key).digest()
        found = False
        for known in self.keys:
            found |= hmac.compare_digest(digest, known)
        return found and bool(key)


def access_of(host: str, key_file: Path | None) -> Access:
    """Return who may ask a server at that address; one that others can reach needs keys."""
    if key_file is None:
        if host not in LOOPBACK:
            raise SettingsError(
                f"--host {host} can be reached from other machines, so it needs keys; write one a line into a file "
                f"that only you can read, and name it with --api-key-file"
            )
        return Access()
    try:
        lines = key_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the keys in {key_file} cannot be read ({error}); write one a line") from None
    keys = [line.strip() for line in lines if line.strip()]
    if (
        not keys
        or min(map(len, keys)) < _MIN_KEY_LENGTH
        or not all(key.isascii() and key.isprintable() for key in keys)
    ):
        raise InputError(
            f"{key_file} should hold keys, one a line, each of at least {_MIN_KEY_LENGTH} letters, digits or marks; "
            f"make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return Access(tuple(hashlib.sha256(key.encode()).digest() for key in keys))


@dataclass(slots=True)
class ServerState:
    """Whether the server is ready and takes requests, and how many it is answering."""

    is_ready: bool = False
    is_draining: bool = False
    num_open: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """The app behind the guard. Every answer is counted."""

    app: App
    access: Access
    limits: Limits
    metrics: Metrics
    state: ServerState = field(default_factory=ServerState)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _ResponseSender(send, scope["path"])
        body = _BoundedBody(receive, self.limits)
        started = time.monotonic()
        self.state.num_open += 1
        try:
            headers = dict(scope["headers"])
            self.access.check(scope["path"], headers)
            self._check_headers(scope["method"], headers)
            await self.app(scope, body, answer)
        except RequestError as refusal:
            await body.discard()
            await answer.refuse(refusal)
        finally:
            self.state.num_open -= 1
            model, endpoint = scope.get("model"), getattr(scope.get("route"), "name", NONE)
            self.metrics.record_request(model, endpoint, answer.status, time.monotonic() - started)

    def _check_headers(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        if method not in ("POST", "PUT", "PATCH"):
            return
        if self.state.is_draining:
            raise RequestError(503, "the server is going down; ask another one", {"Connection": "close"})
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limits.body_bytes:
            raise _too_large(self.limits)
        # A page of another origin can send a form or plain text without asking, but not JSON.
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise RequestError(415, "send JSON, with the header: Content-Type: application/json")


@dataclass(slots=True)
class _BoundedBody:
    """What receives a body: refused when it grows too large or comes too slowly."""

    receive: Receive
    limits: Limits
    num_bytes: int = 0
    is_complete: bool = False

    async def __call__(self) -> Message:
        if self.is_complete:  # only a disconnect can follow, and that may take as long as the answer
            return await self.receive()
        try:
            async with asyncio.timeout(self.limits.seconds):
                message = await self.receive()
        except TimeoutError:
            self.is_complete = True  # there is nothing to wait for
            raise RequestError(408, "the body came too slowly; send it at once", {"Connection": "close"}) from None
        if message["type"] == "http.request":
            self.num_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
            if self.num_bytes > self.limits.body_bytes:
                await self.discard()
                raise _too_large(self.limits)
        return message

    async def discard(self) -> None:
        """Let a body that nobody reads pass for a while: who is still sending would never see the answer."""
        num_left = _MAX_DISCARDED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_complete and num_left > 0:
                    message = await self.receive()
                    num_left -= len(message.get("body", b""))
                    self.is_complete = not message.get("more_body", False)


@dataclass(slots=True)
class _ResponseSender:
    """What sends an answer, with the headers that all have; remembers the status."""

    send: Send
    path: str
    status: int = 499  # the client went away before there was one

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

    async def refuse(self, refusal: RequestError) -> None:
        if self.status != 499:  # the answer has begun
            raise refusal
        body = orjson.dumps(refusal.to_dict())
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refusal.headers}
        told = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refusal.status, "headers": told})
        await self.send({"type": "http.response.body", "body": body})


def _too_large(limits: Limits) -> RequestError:
    message = f"the body is larger than {limits.body_bytes:,} bytes; send less at a time"
    return RequestError(413, message, {"Connection": "close"})


def _key_in(headers: Mapping[bytes, bytes]) -> bytes:
    kind, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else b""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
