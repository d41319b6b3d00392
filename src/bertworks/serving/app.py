"""The HTTP app: a Service in, an ASGI app out. `docs/serving.md` describes the interface; /docs is its reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

import bertworks
from bertworks.serving.client_limits import RateLimit
from bertworks.serving.endpoints import add_endpoints
from bertworks.serving.errors import RequestError
from bertworks.serving.metrics import CONTENT_TYPE, Metrics
from bertworks.serving.reference import reference_page
from bertworks.serving.request_log import request_id_of
from bertworks.serving.routing import JsonRoutes, json_response
from bertworks.serving.security import Access, App, Guard, Observer
from bertworks.serving.service import Service
from bertworks.serving.tei import add_tei_endpoints

PAGE = Path(__file__).parent / "page"

_MESSAGES = {
    404: "no such path; see /docs for the endpoints",
    405: "this path does not support that method; see /docs for the endpoints",
}


def create_app(
    service: Service,
    metrics: Metrics,
    access: Access,
    origins: Sequence[str] = (),
    rate_limit: RateLimit | None = None,
    observers: Sequence[Observer] = (),
) -> App:
    """Return the app. `origins` are the origins that CORS allows; none by default. Observers see finished requests."""
    app = FastAPI(
        title="bertworks",
        version=bertworks.__version__,
        description="BERT over HTTP: predictions, fill-mask, embeddings, tokenization, attention and explanations.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(service),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # /metrics has our own
    )
    add_endpoints(app, service)
    add_tei_endpoints(app, service)
    _add_status_routes(app, service, metrics)
    _add_page(app)
    app.add_exception_handler(RequestError, _handle_request_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    app.add_exception_handler(Exception, _handle_unexpected_error)
    guard: App = Guard(
        app=JsonRoutes(app),
        access=access,
        limits=service.limits,
        metrics=metrics,
        state=service.state,
        rate_limit=rate_limit,
        observers=observers,
    )
    if not origins:
        return guard
    return _Cors(
        guard,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
        expose_headers=["Retry-After", "X-Request-ID"],
    )


class _Cors(CORSMiddleware):
    """CORS whose preflight responses, which never reach the app, have a request id too."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.headers["X-Request-ID"] = request_id_of(dict(request_headers.raw))
        return response


def _lifespan(service: Service) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.state.is_ready = True
        yield
        service.state.is_ready = False

    return lifespan


def _add_status_routes(app: FastAPI, service: Service, metrics: Metrics) -> None:
    async def health(request: Request) -> Response:
        """Liveness: the process and its worker thread are running."""
        if not service.scheduler.is_alive:
            raise RequestError(503, "the worker thread has died; restart the server")
        return json_response({"status": "alive"})

    async def ready(request: Request) -> Response:
        """Readiness: the models are loaded and the server is not shutting down."""
        if service.state.is_draining or not service.state.is_ready:
            raise RequestError(503, "the server is shutting down" if service.state.is_draining else "not yet ready")
        return json_response({"status": "ready", "models": list(service.models)})

    async def metrics_endpoint(request: Request) -> Response:
        """Metrics in Prometheus' text format."""
        return Response(metrics.as_text(), media_type=CONTENT_TYPE)

    async def docs(request: Request) -> Response:
        page, policy = reference_page(app.openapi())
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    for path, endpoint, name in (("/health", health, "health"), ("/ready", ready, "ready")):
        app.router.add_api_route(path, endpoint, methods=["GET"], response_model=None, name=name)
    app.router.add_api_route(
        "/metrics",
        metrics_endpoint,
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


async def _handle_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    accept_language = request.headers.get("accept-language", "")
    body = error.to_dict(request.scope["request_id"], request.scope["path"], accept_language)
    return json_response(body, error.status, error.headers)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = _MESSAGES.get(error.status_code, "the request failed")
    return await _handle_request_error(request, RequestError(error.status_code, message, error.headers))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Answer 400 to an invalid path or query parameter."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return await _handle_request_error(request, RequestError(400, f"{first['loc'][-1]}: {first['msg']}"))


async def _handle_disconnect(request: Request, error: Exception) -> Response:
    """The client has left in the middle of its body: nobody receives this, but the metrics and the log count it."""
    return Response(status_code=499)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer 500 without details, which only the server's log has."""
    return await _handle_request_error(request, RequestError(500, "internal error; see the server's log"))
