"""Replicas on Ray Serve: a ServeRequest in, the app on the nodes of a Ray cluster out.

Each replica is a process with the app and all models. Ray's proxies send a request to the replica with the shorter
queue. If a replica dies, its queued requests go to another one, and Ray starts a new replica. The requests it was
computing fail with status 500. A request whose body the replica had read but which it had not yet accepted is sent
to another replica by Ray without its body, which fails with status 408. A client can safely retry both: requests have
no side effects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, SettingsError
from bertworks.serving.security import LOOPBACK, App, Message, Receive, Scope, Send, access_of
from bertworks.serving.server import ServeRequest, ServingApp, configure_interpreter, folders_of, load_app
from bertworks.serving.tls import TlsFiles, create_tls_context

# The name of the Ray Serve application: running the command again replaces it.
NAME = "bertworks"
# Enough requests to fill batches; more would only queue inside the replica, and be lost if it dies.
_MAX_ONGOING_REQUESTS = 64
# Seconds between health checks.
_HEALTH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """The number of replicas and the resources of each."""

    count: int = 1
    cpus: float = 1
    gpus: float = 0


class Replica:
    """One replica process. Ray creates it on a node and calls it as an ASGI app."""

    def __init__(self, request: ServeRequest) -> None:
        self._serving_app: ServingApp = load_app(request)
        configure_interpreter()

    def __serve_build_asgi_app__(self) -> App:
        return _without_request_id(self._serving_app.app)

    def __del__(self) -> None:
        if hasattr(self, "_serving_app"):
            self._serving_app.close()


@contextlib.contextmanager
def deploy_replicas(request: ServeRequest, replicas: Replicas) -> Iterator[str]:
    """Deploy the app on the connected cluster, yield its address, and delete the deployment at the end.

    A replica answers its accepted requests before it ends.
    """
    from ray import serve
    from ray.exceptions import RayError

    request = _resolve_for_cluster(request)
    proxy_location = "HeadOnly" if request.host in LOOPBACK else "EveryNode"
    http_options = _http_options(request)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="replica",
        num_replicas=replicas.count,
        max_ongoing_requests=min(_MAX_ONGOING_REQUESTS, request.queue_limits.requests),
        max_queued_requests=request.queue_limits.requests,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=request.limits.seconds,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
    )
    try:
        serve.start(proxy_location=proxy_location, http_options=http_options)
        serve.run(deployment.bind(replace(request, tls=None)), name=NAME, route_prefix="/")
    except (RuntimeError, TimeoutError, RayError) as error:
        reason = _reason(serve, error)
        serve.delete(NAME)  # Ray would retry forever
        raise BertworksError(f"the replicas did not start: {reason}") from None
    try:
        host = f"[{request.host}]" if ":" in request.host else request.host
        yield f"{'http' if request.tls is None else 'https'}://{host}:{request.port}"
    finally:
        serve.delete(NAME)


def _without_request_id(app: App) -> App:
    """Leave the X-Request-ID of responses to Ray's proxy, which gives the app its id and would send it twice."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            await send(message)

        await app(scope, receive, send_without_id)

    return call


def _http_options(request: ServeRequest) -> dict[str, Any]:
    """Return the options of Ray's proxies, which answer the clients; with TLS every node needs the two files."""
    options = {"host": request.host, "port": request.port, "request_timeout_s": request.limits.seconds}
    if request.tls is None:
        return options
    return {**options, "ssl_certfile": str(request.tls.cert), "ssl_keyfile": str(request.tls.key)}


def _resolve_for_cluster(request: ServeRequest) -> ServeRequest:
    """Validate the request before anything is started, and make its paths absolute for the other nodes."""
    access_of(request.host, request.key_file)
    if request.tls is not None:
        create_tls_context(request.tls)
    if not request.port:
        raise SettingsError("--port 0: all proxies of a cluster listen on the same port; choose one")
    folders_of(request.models)
    return replace(
        request,
        models=tuple(_absolute(model) for model in request.models),
        key_file=None if request.key_file is None else request.key_file.absolute(),
        tls=None if request.tls is None else TlsFiles(request.tls.cert.absolute(), request.tls.key.absolute()),
        runs={name: path.absolute() for name, path in request.runs.items()},
    )


def _absolute(model: str) -> str:
    """Make the folder of NAME=FOLDER or FOLDER absolute; a hub name stays."""
    name, equals, folder = model.rpartition("=")
    return f"{name}{equals}{Path(folder).absolute()}" if Path(folder).exists() else model


def _reason(serve: Any, error: Exception) -> str:
    """Return the last error message of a replica, without the traceback that Ray adds."""
    application = serve.status().applications.get(NAME)
    messages = [deployment.message for deployment in application.deployments.values()] if application else []
    lines = [line.strip() for text in (*messages, str(error)) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("bertworks.errors.")]
    return errors[-1].partition(": ")[2] if errors else lines[-1]
