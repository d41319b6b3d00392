"""A server on a port: what to serve in, a process that answers until it is asked to stop out.

SIGTERM or Ctrl-C drains it: nothing new is taken (503, and /ready says so), what was taken is answered, then the
process ends. A second one ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

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

# How long a client may take to send the head of a request, and how long an answer may lie unread.
_HEAD_SECONDS = 10.0
_IDLE_SECONDS = 15
# How long Python lets a thread go on while others wait. The worker only hands work to torch, and must not be kept from
# that for its usual 5 ms.
SWITCH_SECONDS = 0.001
_MAX_CONNECTIONS = 2_048


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What to serve: models as NAME=FOLDER or FOLDER, or a bundle; where, to whom, and within which limits."""

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


@dataclass(frozen=True, slots=True)
class ServingApp:
    """What is served: the app, and the service behind it."""

    app: App
    service: Service


def load_app(request: ServeRequest) -> ServingApp:
    """Load all models, check what is to be checked, and return the app."""
    access = access_of(request.host, request.key_file)
    folders, index = folders_of(request.models)
    metrics = Metrics(folders)
    gatherer = BatchScheduler(request.queue_limits, metrics.record_batch)
    try:
        models = {
            name: load_served_model(name, folder, gatherer.pause, request.budget, request.engine)
            for name, folder in folders.items()
        }
        search = None if index is None else PassageSearch(PassageIndex(index[0]), models[index[1]])
    except BaseException:
        gatherer.close()
        raise
    metrics.watch_queue(lambda: gatherer.num_requests, lambda: gatherer.num_tokens)
    service = Service(models, gatherer, request.limits, RunRegistry(request.runs), search)
    return ServingApp(create_app(service, metrics, access, request.origins), service)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0 is any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_MAX_CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"cannot listen at {host}, port {port} ({reason}); choose another --port or --host"
        ) from None


def serve(serving_app: ServingApp, sock: socket.socket) -> None:
    """Answer at a socket until the process is asked to stop."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        create_server(serving_app).run([sock])
    finally:
        serving_app.service.close()


def create_server(serving_app: ServingApp) -> DrainingServer:
    """Return the server of an app, to be run."""
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
    """Return the folders of models by name, and where the index of a corpus lies and which model made it."""
    bundles = [argument for argument in arguments if is_bundle(Path(argument))]
    if not bundles:
        return named_folders(arguments), None
    if len(arguments) > 1:
        raise SettingsError(f"{bundles[0]} is a bundle and is served alone; bundle everything together instead")
    found = read_bundle(Path(bundles[0]))
    if found.index is not None and found.index_model not in found.models:
        raise FolderError(f"{found.folder}: the model of the index is not in the bundle; make it anew")
    index = None if found.index is None else (found.index, found.index_model)
    return {name: str(path) for name, path in found.models.items()}, index


class TimeoutHttpProtocol(HttpToolsProtocol):
    """A connection that does not wait forever: for the head of a request, or for an unread answer to be read."""

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
        """Close a connection that is not used; one whose answer is being read, however slowly, may go on."""
        unread = self.transport.get_write_buffer_size()
        if unread and unread != self._num_unread_bytes:
            self._num_unread_bytes = unread
            self.timeout_keep_alive_task = self.loop.call_later(_IDLE_SECONDS, self.timeout_keep_alive_handler)
        elif unread:
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
    """A server that answers what it has taken before it ends."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._drain_deadline = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to signals for as long as the server runs. Being asked to stop is no failure, so it ends with 0."""
        if threading.current_thread() is not threading.main_thread():  # only that one is told of signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.state.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._service.state.is_draining = True
        self._drain_deadline = time.monotonic() + self._service.limits.seconds

    async def on_tick(self, counter: int) -> bool:
        standing = self._service.state
        is_over = standing.num_open == 0 or time.monotonic() > self._drain_deadline
        if standing.is_draining and is_over:
            return True
        return await super().on_tick(counter)
