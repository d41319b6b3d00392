"""The server: a ServeRequest in, a process that answers on a port until it is stopped.

SIGTERM or Ctrl-C drains it: new requests get status 503, as /ready does; accepted requests are answered; then the
process exits. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.errors import FolderError, SettingsError
from bertworks.serving.app import create_app
from bertworks.serving.batch_scheduler import BatchScheduler, QueueLimits
from bertworks.serving.bundle import is_bundle, read_bundle
from bertworks.serving.metrics import Metrics
from bertworks.serving.models import load_served_model, named_folders
from bertworks.serving.passage_search import PassageIndex
from bertworks.serving.run_records import RunRegistry
from bertworks.serving.security import App, Limits, access_of
from bertworks.serving.service import PassageSearch, Service

# Timeouts for the head of a request, and for a response that the client does not read.
_HEAD_SECONDS = 10.0
_IDLE_SECONDS = 15
# Python's thread switch interval. The worker thread mostly dispatches to torch and should not wait the default 5 ms for
# the GIL.
_SWITCH_SECONDS = 0.001
_MAX_CONNECTIONS = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """What to serve: models as NAME=FOLDER or FOLDER, or a bundle; the address, access rules and limits."""

    models: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    key_file: Path | None = None
    origins: tuple[str, ...] = ()
    runs: Mapping[str, Path] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    queue_limits: QueueLimits = field(default_factory=QueueLimits)
    budget: int = TOKEN_BUDGET
    engine: str | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class ServingApp:
    """The ASGI app and its service."""

    app: App
    service: Service


def load_app(request: ServeRequest) -> ServingApp:
    """Load all models and return the app."""
    access = access_of(request.host, request.key_file)
    folders, index = folders_of(request.models)
    metrics = Metrics(folders)
    scheduler = BatchScheduler(request.queue_limits, metrics.record_batch, torch.get_num_threads())
    try:
        models = {
            name: load_served_model(name, folder, scheduler.pause, request.budget, request.engine, request.precision)
            for name, folder in folders.items()
        }
        search = None if index is None else PassageSearch(PassageIndex(index[0]), models[index[1]])
    except BaseException:
        scheduler.close()
        raise
    metrics.watch_queue(lambda: scheduler.num_requests, lambda: scheduler.num_tokens)
    service = Service(models, scheduler, request.limits, RunRegistry(request.runs), search)
    return ServingApp(create_app(service, metrics, access, request.origins), service)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_MAX_CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"cannot listen on {host}, port {port} ({reason}); choose another --port or --host"
        ) from None


def serve(serving_app: ServingApp, sock: socket.socket) -> bool:
    """Serve on a socket until the process is stopped; return whether Ctrl-C stopped it, and not SIGTERM."""
    configure_interpreter()
    server = create_server(serving_app)
    try:
        server.run([sock])
    finally:
        serving_app.service.close()
    return server.is_interrupted


def configure_interpreter() -> None:
    """Configure Python for a process that serves models, after they are loaded."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what is loaded stays; searching it for garbage would stop all threads for a tenth of a second


def create_server(serving_app: ServingApp) -> DrainingServer:
    """Return the uvicorn server of an app."""
    config = uvicorn.Config(
        serving_app.app,
        http=TimeoutHttpProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_IDLE_SECONDS,
        limit_concurrency=_MAX_CONNECTIONS,
    )
    return DrainingServer(config, serving_app.service)


def folders_of(arguments: Sequence[str]) -> tuple[dict[str, str], tuple[Path, str] | None]:
    """Return the model folders by name, and the folder of the search index with the name of its model."""
    bundles = [argument for argument in arguments if is_bundle(Path(argument))]
    if not bundles:
        return named_folders(arguments), None
    if len(arguments) > 1:
        raise SettingsError(f"{bundles[0]} is a bundle and must be the only argument; bundle all models together")
    bundle = read_bundle(Path(bundles[0]))
    if bundle.index is not None and bundle.index_model not in bundle.models:
        raise FolderError(f"{bundle.folder}: the model of the search index is missing; build the bundle again")
    index = None if bundle.index is None else (bundle.index, bundle.index_model)
    return {name: str(path) for name, path in bundle.models.items()}, index


class TimeoutHttpProtocol(HttpToolsProtocol):
    """A connection with timeouts for the head of a request and for an unread response."""

    _head_timer: asyncio.TimerHandle | None = None
    _num_unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._cancel_head_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless its client is still reading the response, however slowly."""
        num_unread_bytes = self.transport.get_write_buffer_size()
        if num_unread_bytes and num_unread_bytes != self._num_unread_bytes:
            self._num_unread_bytes = num_unread_bytes
            self.timeout_keep_alive_task = self.loop.call_later(_IDLE_SECONDS, self.timeout_keep_alive_handler)
        elif num_unread_bytes:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        self.transport.abort()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class DrainingServer(uvicorn.Server):
    """A server that answers all accepted requests before it stops."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._drain_deadline = 0.0
        self.is_interrupted = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs; unlike uvicorn, do not raise them again."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.state.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._service.state.is_draining = True
        self.is_interrupted = sig == signal.SIGINT
        self._drain_deadline = time.monotonic() + self._service.limits.seconds

    async def on_tick(self, counter: int) -> bool:
        state = self._service.state
        is_drained = state.num_open == 0 or time.monotonic() > self._drain_deadline
        if state.is_draining and is_drained:
            return True
        return await super().on_tick(counter)
