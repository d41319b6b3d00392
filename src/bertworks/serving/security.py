"""The security middleware: requests in; those with a valid key, host, size, speed and rate go to the app.

It is the outermost ASGI middleware, so that nothing is read, parsed or computed for a rejected request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bertworks.errors import SettingsError
from bertworks.serving.api_keys import KeyFile
from bertworks.serving.client_limits import RateLimit
from bertworks.serving.errors import TEI_PATHS, RequestError
from bertworks.serving.metrics import NONE, Metrics
from bertworks.serving.request_log import RequestRecord, epoch_time, request_id_of

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Observer = Callable[[RequestRecord], None]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The key of a scope under which a connection above the limits has the RequestError for its requests.
REJECTION = "bertworks.rejection"

# Paths that are answered on connections above the limits too, and those that a draining server answers.
_HEALTH_PATHS = ("/health", "/ready")
_DRAINING_PATHS = (*_HEALTH_PATHS, "/metrics")
# Paths without authentication: health checks, the page (which asks for the API key), and the reference.
_PUBLIC_PATHS = (*_HEALTH_PATHS, "/", "/docs", "/openapi.json", "/favicon.ico")
_PUBLIC_PREFIXES = ("/page/",)
# A Host header: a name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+))(?::[0-9]{0,5})?")

# How much of a rejected body is read and discarded, and for how long.
_MAX_DISCARDED_BYTES, _DISCARD_SECONDS = 2**26, 5.0

# Headers of every response. The page and the reference load nothing from other origins.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_CONTENT_SECURITY_POLICY = (b"content-security-policy", b"default-src 'self'")

_logger = logging.getLogger("bertworks.serving")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request: bytes of the body, number of inputs, characters of a text, seconds until the response."""

    body_bytes: int = 4 * 2**20
    inputs: int = 512
    characters: int = 100_000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if min(self.body_bytes, self.inputs, self.characters) < 1 or not 0 < self.seconds < math.inf:
            raise SettingsError("the limits of a request must be numbers greater than 0")


@dataclass(frozen=True, slots=True)
class Access:
    """Who has access. Without API keys only this machine has, by its loopback names."""

    key_file: KeyFile | None = None
    hosts: tuple[str, ...] = LOOPBACK

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The SHA-256 digests of the current API keys."""
        return () if self.key_file is None else self.key_file.digests()

    def check(self, path: str, headers: Mapping[bytes, bytes], has_repeated_host: bool = False) -> bytes | None:
        """Return the digest of the API key; raise a RequestError for a missing key or a Host that is not allowed.

        Checking the host prevents DNS rebinding: a web page whose domain resolves to 127.0.0.1.
        """
        host = None if has_repeated_host else _host_name(headers.get(b"host", b""))
        if self.key_file is None:
            if host not in self.hosts:
                raise RequestError(403, "this Host is not allowed; use a loopback name such as 127.0.0.1")
            return None
        if host is None:
            raise RequestError(400, "the Host header is malformed or repeated; send one with a name and a port")
        if is_public(path):
            return None
        digest = self._known_key(_key_in(headers))
        if digest is None:
            message = "an API key is required; send the header: Authorization: Bearer KEY"
            raise RequestError(401, message, {"WWW-Authenticate": "Bearer"})
        return digest

    def _known_key(self, key: bytes) -> bytes | None:
        """Return the digest of a key if it is known; compare with all keys in constant time."""
        digest = hashlib.sha256(key).digest()
        is_known = False
        for key_digest in self.keys:
            is_known |= hmac.compare_digest(digest, key_digest)
        return digest if is_known and key else None


def access_of(host: str, key_file: Path | None) -> Access:
    """Return the access rules of a server; a host that other machines can reach requires API keys."""
    if key_file is not None:
        return Access(KeyFile(key_file))
    if host not in LOOPBACK:
        raise SettingsError(
            f"--host {host} can be reached from other machines, so it requires API keys; write them to a file, one "
            f"per line, that only you can read, and give it with --api-key-file"
        )
    return Access()


def is_public(path: str) -> bool:
    """Return whether a path needs no API key and does not count for the rate limit."""
    return path in _PUBLIC_PATHS or path.startswith(_PUBLIC_PREFIXES)


@dataclass(slots=True)
class ServerState:
    """Whether the server is ready or draining, and its number of open requests."""

    is_ready: bool = False
    is_draining: bool = False
    num_open: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The middleware around the app. It also records the metrics of every request, and calls the observers."""

    app: App
    access: Access
    limits: Limits
    metrics: Metrics
    state: ServerState = field(default_factory=ServerState)
    rate_limit: RateLimit | None = None
    observers: Sequence[Observer] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start_time = time.monotonic()
        headers = dict(scope["headers"])
        request_id = scope["request_id"] = request_id_of(headers)
        accept_language = headers.get(b"accept-language", b"").decode("latin-1")
        sender = _ResponseSender(send, scope["path"], request_id, accept_language)
        body = _BoundedBody(receive, self.limits, asyncio.get_running_loop().time() + self.limits.seconds)
        self.state.num_open += 1
        try:
            self._check(scope, headers)
            await self.app(scope, body, sender)
        except RequestError as error:
            await body.discard()
            await sender.send_error(error, must_close=not body.is_complete)
        except Exception:
            # The app has answered with 500, unless the response had started; then the server closes the connection.
            _logger.exception("request %s failed", request_id)
            if sender.status == 499:
                await sender.send_error(RequestError(500, "internal error; see the server's log"), must_close=True)
        finally:
            self.state.num_open -= 1
            self._record(scope, headers, sender.status, start_time)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Raise a RequestError for a request that the app must not see."""
        path = scope["path"]
        if REJECTION in scope and path not in _HEALTH_PATHS:
            raise scope[REJECTION]
        has_repeated_host = len(headers) != len(scope["headers"]) and _has_repeated_host(scope)
        key = scope["api_key"] = self.access.check(path, headers, has_repeated_host)
        if self.state.is_draining and path not in _DRAINING_PATHS:
            raise RequestError(503, "the server is shutting down", {"Connection": "close"})
        if self.rate_limit is not None and not is_public(path):
            self.rate_limit.check(key or _client_address(scope) or "")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limits.body_bytes:
            raise _too_large(self.limits)
        if scope["method"] == "POST":  # no route has another method with a body: the app answers 404 or 405
            self._check_content_type(headers)

    def _check_content_type(self, headers: Mapping[bytes, bytes]) -> None:
        # A page of another origin can send a form or plain text without a CORS preflight, but not JSON.
        content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if content_type != b"application/json":
            raise RequestError(415, "send JSON, with the header: Content-Type: application/json")

    def _record(self, scope: Scope, headers: Mapping[bytes, bytes], status: int, start_time: float) -> None:
        model, route = scope.get("model"), scope.get("route")
        seconds = time.monotonic() - start_time
        self.metrics.record_request(model, getattr(route, "name", NONE), status, seconds)
        if not self.observers:
            return
        record = RequestRecord(
            request_id=scope["request_id"],
            method=scope["method"],
            path=scope["path"],
            route=getattr(route, "path", None),
            model=model,
            status=status,
            start_time=epoch_time(start_time),
            seconds=seconds,
            client=_client_address(scope),
            key=scope.get("api_key"),
            headers=headers,
        )
        for observer in self.observers:
            observer(record)


@dataclass(slots=True)
class _BoundedBody:
    """Receives a body; raises a RequestError if it is too large or not complete at the deadline."""

    receive: Receive
    limits: Limits
    deadline: float  # of the event loop's clock
    num_bytes: int = 0
    is_complete: bool = field(default=False, kw_only=True)

    async def __call__(self) -> Message:
        if self.is_complete:  # only a disconnect can follow, at any time until the response
            return await self.receive()
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.receive()
        except TimeoutError:
            self.is_complete = True  # nothing to discard
            raise RequestError(408, "timeout while reading the body", {"Connection": "close"}) from None
        self.is_complete = not message.get("more_body", False)
        self.num_bytes += len(message.get("body", b""))
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
    request_id: str
    accept_language: str
    status: int = field(default=499, kw_only=True)  # the client disconnected before the response

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            names = {name.lower() for name, _ in headers}
            headers += _HEADERS if _CONTENT_SECURITY_POLICY[0] in names else (*_HEADERS, _CONTENT_SECURITY_POLICY)
            headers.append((b"x-request-id", self.request_id.encode()))
            if self.path.startswith("/v1/") or self.path in TEI_PATHS:
                headers.append((b"cache-control", b"no-store"))
            message["headers"] = headers
        await self.send(message)

    async def send_error(self, error: RequestError, must_close: bool) -> None:
        if self.status != 499:  # the response has started
            raise error
        body = orjson.dumps(error.to_dict(self.request_id, self.path, self.accept_language))
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
        if must_close:
            headers["Connection"] = "close"
        raw_headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": error.status, "headers": raw_headers})
        await self.send({"type": "http.response.body", "body": body})


def _too_large(limits: Limits) -> RequestError:
    message = f"the body is larger than {limits.body_bytes:,} bytes; split it into several requests"
    return RequestError(413, message, {"Connection": "close"})


def _key_in(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _client_address(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def _has_repeated_host(scope: Scope) -> bool:
    return sum(name == b"host" for name, _ in scope["headers"]) > 1


def _host_name(header: bytes) -> str | None:
    """Return the name or address of a Host header; None if it is malformed, "" if it is empty or absent."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None if header else ""
    return (match[1] or match[2]).decode("ascii").lower()
