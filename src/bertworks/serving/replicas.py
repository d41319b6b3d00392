"""Replicas on Ray Serve: what to serve in, an app on the nodes of a cluster out, at a port of theirs.

Each replica is a process with all models and the whole app; Ray's proxies take requests and hand each to the replica
with the shorter queue. If a replica dies, those that wait go to another, and a new one is started. What it was
computing is lost: the proxy answers it with status 500, and the client asks again. That is safe, since an answer
depends on nothing but its request.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, SettingsError
from bertworks.serving.security import LOOPBACK, App, access_of
from bertworks.serving.server import SWITCH_SECONDS, ServeRequest, ServingApp, folders_of, load_app

# Under this name Ray Serve knows us: the same command with other models takes the place of the last.
NAME = "bertworks"
# A replica computes several requests together; more at once would only wait inside it, and be lost with it.
_MAX_ONGOING_REQUESTS = 64
# How often Ray asks whether a replica lives, in seconds.
_HEALTH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many there are, and what each takes of a machine."""

    count: int = 1
    cpus: float = 1
    gpus: float = 0


class Replica:
    """One process that answers. Ray builds it on a node, and hands it requests as an ASGI server does."""

    def __init__(self, request: ServeRequest) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._serving_app: ServingApp = load_app(request)

    def __serve_build_asgi_app__(self) -> App:
        return self._serving_app.app

    def __del__(self) -> None:
        if hasattr(self, "_opened"):
            self._serving_app.service.close()


@contextlib.contextmanager
def deploy_replicas(request: ServeRequest, replicas: Replicas) -> Iterator[str]:
    """Put the app on the cluster this process is connected to, yield its address, and take it down at the end.

    What was taken is answered before a replica ends.
    """
    from ray import serve
    from ray.exceptions import RayError

    request = _resolve_for_cluster(request)
    where = "HeadOnly" if request.host in LOOPBACK else "EveryNode"
    listens = {"host": request.host, "port": request.port, "request_timeout_s": request.limits.seconds}
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
        serve.start(proxy_location=where, http_options=listens)
        serve.run(deployment.bind(request), name=NAME, route_prefix="/")
    except (RuntimeError, TimeoutError, RayError) as error:
        reason = _reason(serve, error)
        serve.delete(NAME)  # Ray would try again and again
        raise BertworksError(f"the replicas did not start: {reason}") from None
    try:
        shown = f"[{request.host}]" if ":" in request.host else request.host
        yield f"http://{shown}:{request.port}"
    finally:
        serve.delete(NAME)


def _resolve_for_cluster(request: ServeRequest) -> ServeRequest:
    """Check what can be checked before anything is started, and name files so that any node finds them."""
    access_of(request.host, request.key_file)
    if not request.port:
        raise SettingsError("--port 0: the proxies of a cluster share one port; choose it")
    folders_of(request.models)
    return replace(
        request,
        models=tuple(_absolute(model) for model in request.models),
        key_file=None if request.key_file is None else request.key_file.absolute(),
        runs={name: path.absolute() for name, path in request.runs.items()},
    )


def _absolute(model: str) -> str:
    """Return NAME=FOLDER or FOLDER with the whole path of its folder; a name on the hub stays."""
    name, equals, place = model.rpartition("=")
    return f"{name}{equals}{Path(place).absolute()}" if Path(place).exists() else model


def _reason(serve: Any, error: Exception) -> str:
    """Return what a replica said last, which Ray tells with all its trace."""
    found = serve.status().applications.get(NAME)
    told = [one.message for one in found.deployments.values()] if found else []
    lines = [line.strip() for text in (*told, str(error)) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("bertworks.errors.")]
    return errors[-1].partition(": ")[2] if errors else lines[-1]
