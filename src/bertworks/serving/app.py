"""The HTTP app: a Service in, an ASGI app out. `docs/serving.md` tells the interface; /docs is its reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

import bertworks
from bertworks.serving.endpoints import add_endpoints
from bertworks.serving.errors import RefusedError
from bertworks.serving.metrics import CONTENT_TYPE, Metrics
from bertworks.serving.reference import reference_page
from bertworks.serving.routing import json_answer
from bertworks.serving.security import Access, App, Guard
from bertworks.serving.service import Service

PAGE = Path(__file__).parent / "page"

_MESSAGES = {
    404: "there is nothing at this address; /docs lists what there is",
    405: "this address does not take that method; /docs lists what it takes",
}


def app_of(service: Service, metrics: Metrics, access: Access, origins: Sequence[str] = ()) -> App:
    """Return the app. `origins` are the web pages of other servers that may ask; by default none may."""
    app = FastAPI(
        title="bertworks",
        version=bertworks.__version__,
        description="BERT behind an HTTP port: predictions, blanks, vectors, and what the model sees.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(service),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # /metrics tells what there is to tell
    )
    add_endpoints(app, service)
    _add_plain(app, service, metrics)
    _add_page(app)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(Exception, _failed)
    guard: App = Guard(app, access, service.limits, metrics, service.standing)
    if not origins:
        return guard
    return CORSMiddleware(
        guard,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        expose_headers=["Retry-After"],
    )


def _lifespan(service: Service) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.standing.is_ready = True
        yield
        service.standing.is_ready = False

    return lifespan


def _add_plain(app: FastAPI, service: Service, metrics: Metrics) -> None:
    async def health(request: Request) -> Response:
        """Tell that the process lives, and in it the thread that computes."""
        if not service.gatherer.is_alive:
            raise RefusedError(503, "nothing is computed any more; start the server anew")
        return json_answer({"status": "alive"})

    async def ready(request: Request) -> Response:
        """Tell whether requests are taken: the models are loaded, and the server is not going down."""
        if service.standing.is_draining or not service.standing.is_ready:
            raise RefusedError(503, "the server is going down" if service.standing.is_draining else "not yet ready")
        return json_answer({"status": "ready", "models": list(service.models)})

    async def figures(request: Request) -> Response:
        """Tell Prometheus what happened so far."""
        return Response(metrics.as_text(), media_type=CONTENT_TYPE)

    async def docs(request: Request) -> Response:
        page, policy = reference_page(app.openapi())
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    for path, endpoint, name in (("/health", health, "health"), ("/ready", ready, "ready")):
        app.router.add_api_route(path, endpoint, methods=["GET"], response_model=None, name=name)
    app.router.add_api_route(
        "/metrics",
        figures,
        methods=["GET"],
        response_class=Response,
        response_model=None,
        responses={200: {"content": {"text/plain": {}}}},
        name="metrics",
    )
    app.router.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)


def _add_page(app: FastAPI) -> None:
    async def page(request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    app.router.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE, check_dir=False), name="page")


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, RefusedError)
    return json_answer(refusal.as_json(), refusal.status, refusal.headers)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = RefusedError(error.status_code, _MESSAGES.get(error.status_code, "this cannot be done"), error.headers)
    return await _refused(request, refusal)


async def _malformed(request: Request, error: Exception) -> Response:
    """A parameter of an address that is not what it should be."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return await _refused(request, RefusedError(400, f"{first['loc'][-1]}: {first['msg']}"))


async def _failed(request: Request, error: Exception) -> Response:
    """What nobody foresaw: the server's log has all of it, the client is only told that it happened."""
    return await _refused(request, RefusedError(500, "the server failed to answer this; its log tells why"))
