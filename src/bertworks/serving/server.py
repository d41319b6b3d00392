"""The server: a ServeRequest in, a process that answers on a port until it is stopped.

SIGTERM or Ctrl-C drains it: new requests get status 503, as /ready does; accepted requests are answered; connections
are closed without a reset; then the process exits. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn

from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.errors import FolderError, SettingsError
from bertworks.parallel.threads import get_num_threads
from bertworks.serving.app import create_app
from bertworks.serving.batch_scheduler import BatchScheduler, QueueLimits
from bertworks.serving.bundle import is_bundle, read_bundle
from bertworks.serving.client_limits import ClientLimits, RateLimit
from bertworks.serving.connections import MAX_CONNECTIONS, ConnectionTable, max_connections
from bertworks.serving.handshake import TlsListener
from bertworks.serving.metrics import Metrics
from bertworks.serving.models import load_served_model, named_folders
from bertworks.serving.passage_search import PassageIndex
from bertworks.serving.protocol import IDLE_SECONDS, HttpConnection
from bertworks.serving.request_log import RequestLog, check_log_format, log_config
from bertworks.serving.run_records import RunRegistry
from bertworks.serving.security import App, Limits, Observer, access_of
from bertworks.serving.service import PassageSearch, Service
from bertworks.serving.syn_filter import refuse_new_handshakes
from bertworks.serving.tls import TlsFiles, create_tls_context
from bertworks.serving.tracing import RequestTracer, requested_tracer

# Python's thread switch interval. The worker thread mostly dispatches to torch and should not wait the default 5 ms for
# the GIL.
_SWITCH_SECONDS = 0.001
# Time for handshakes that are under way when the server stops listening.
_HANDSHAKE_SECONDS = 0.1
_TICK_SECONDS = 0.05


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
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    tls: TlsFiles | None = None
    log_format: str = "text"
    otel_endpoint: str | None = None
    budget: int = TOKEN_BUDGET
    engine: str | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingApp:
    """The ASGI app, its service, what it was loaded for, its TLS context and its tracer."""

    app: App
    service: Service
    request: ServeRequest
    tls: ssl.SSLContext | None = None
    tracer: RequestTracer | None = None

    def close(self) -> None:
        self.service.close()
        if self.tracer is not None:
            self.tracer.close()


def load_app(request: ServeRequest) -> ServingApp:
    """Load all models and return the app."""
    access = access_of(request.host, request.key_file)
    check_log_format(request.log_format)
    tls = None if request.tls is None else create_tls_context(request.tls)
    tracer = requested_tracer(request.otel_endpoint)
    folders, index = folders_of(request.models)
    metrics = Metrics(folders)
    scheduler = BatchScheduler(request.queue_limits, metrics.record_batch, get_num_threads())
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
    observers: list[Observer] = [] if request.log_format == "text" else [RequestLog()]
    if tracer is not None:
        observers.append(tracer)
    requests_per_minute = request.client_limits.requests_per_minute
    rate_limit = None if requests_per_minute is None else RateLimit(requests_per_minute)
    app = create_app(service, metrics, access, request.origins, rate_limit, observers)
    return ServingApp(app=app, service=service, request=request, tls=tls, tracer=tracer)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
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
        serving_app.close()
    return server.is_interrupted


def configure_interpreter() -> None:
    """Configure Python for a process that serves models, after they are loaded."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what is loaded stays; searching it for garbage would stop all threads for a tenth of a second


def create_server(serving_app: ServingApp) -> DrainingServer:
    """Return the uvicorn server of an app."""
    request = serving_app.request
    table = ConnectionTable(request.client_limits.connections, max_connections())
    config = uvicorn.Config(
        serving_app.app,
        http=HttpConnection,
        ws="none",
        log_config=log_config(request.log_format),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,  # after our own
        backlog=MAX_CONNECTIONS,
    )
    return DrainingServer(config, serving_app.service, table, serving_app.tls)


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


class DrainingServer(uvicorn.Server):
    """A server that answers all accepted requests and resets no connection before it stops."""

    def __init__(
        self, config: uvicorn.Config, service: Service, table: ConnectionTable, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._service = service
        self._table = table
        self._tls = tls
        self._drain_deadline = 0.0
        self._accepted: set[asyncio.Task[None]] | None = None
        self.is_interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then listen on the sockets; unlike uvicorn, with limits for TLS handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        create_connection = functools.partial(
            HttpConnection,
            self.config,
            self.server_state,
            self.lifespan.state,
            loop,
            table=self._table,
            state=self._service.state,
        )
        self.servers = []
        for sock in sockets or []:
            if self._tls is None:
                server = await loop.create_server(create_connection, sock=sock, backlog=self.config.backlog)
            else:
                server = cast(asyncio.Server, TlsListener(sock, self._tls, create_connection))
            self.servers.append(server)
        self.started = True

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
        """Return whether to stop listening: all requests that were accepted before the signal are answered."""
        if self._service.state.is_draining:
            self._drain_connections()
            tasks = self.server_state.tasks if self._accepted is None else self._accepted
            self._accepted = {task for task in tasks if not task.done()}
            if not self._accepted or time.monotonic() > self._drain_deadline:
                return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets and all connections without a reset; at once after a second signal."""
        self._service.state.is_draining = True
        if not self.force_exit:
            for sock in sockets or []:
                refuse_new_handshakes(sock)
            await asyncio.sleep(_HANDSHAKE_SECONDS)  # meanwhile the event loop accepts what waits in the kernel's queue
            for server in self.servers:
                server.close()
            deadline = time.monotonic() + IDLE_SECONDS
            while self.server_state.connections and not self.force_exit and time.monotonic() < deadline:
                self._drain_connections()
                await asyncio.sleep(_TICK_SECONDS)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # after a second signal, or the time limit
            cast(HttpConnection, connection).drop()
        await asyncio.sleep(0)  # they are closed in the next round of the event loop

    def _drain_connections(self) -> None:
        for connection in list(self.server_state.connections):
            cast(HttpConnection, connection).drain()
