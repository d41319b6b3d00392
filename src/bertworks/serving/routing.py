"""Routes with a JSON body: bytes in, a validated body to the endpoint, a response out.

FastAPI only describes the routes. A request goes from its path directly to its endpoint, and its bytes directly to
pydantic: without FastAPI's layers a short request takes two thirds of the time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, get_type_hints

import orjson
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertworks.serving.errors import RequestError


class JsonRoute(APIRoute):
    """A route whose endpoint takes the request, the path parameters and `body`; `respond` calls it."""

    respond: Callable[[Request], Coroutine[Any, Any, Response]]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Coroutine[Any, Any, Response]] = self.endpoint
        body_class: type[BaseModel] = get_type_hints(endpoint)["body"]

        async def handle(request: Request) -> Response:
            body = parse_body(body_class, await request.body())
            return await cancel_on_disconnect(request, endpoint(request, **request.path_params, body=body))

        self.respond = handle
        return handle


class JsonRoutes:
    """Answers requests of JSON routes; every other request goes to the app. RequestErrors go to the caller."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        routes = {route.path: route for route in app.routes if isinstance(route, JsonRoute)}
        self._routes = {path: route for path, route in routes.items() if "{" not in path}
        self._named_routes = {tuple(path.split("/{name}/")): route for path, route in routes.items() if "{" in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            response = await route.respond(Request(scope, receive))
        except ClientDisconnect:  # in the middle of its body
            return
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> JsonRoute | None:
        """Return the route of a path, and set its parameters; None if it has no JSON route."""
        path = scope["path"]
        route, parameters = self._routes.get(path), {}
        if route is None:
            prefix, _, action = path.rpartition("/")
            prefix, _, name = prefix.rpartition("/")
            route, parameters = self._named_routes.get((prefix, action)), {"name": name}
            if route is None or not name:
                return None
        scope["path_params"] = parameters
        return route


def parse_body(body_class: type[BaseModel], data: bytes) -> BaseModel:
    """Parse and validate a body; raise a RequestError with the first problem.

    JSON has one type of numbers, so 1.0 is accepted where an integer is asked; "1" and true are not.
    """
    try:
        return body_class.model_validate_json(data)
    except ValidationError as error:
        problems = error
    if any(_is_integral_float(problem) for problem in problems.errors(include_url=False, include_context=False)):
        try:
            return body_class.model_validate_json(_with_integers(data))
        except ValidationError as error:
            problems = error
        except (ValueError, RecursionError):  # what pydantic reads as JSON, but json does not
            pass
    first = problems.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(str(part) for part in first["loc"])
    raise RequestError(400, f"{location}: {first['msg']}" if location else str(first["msg"]))


def _is_integral_float(problem: Mapping[str, object]) -> bool:
    value = problem["input"]
    return problem["type"] == "int_type" and isinstance(value, float) and value.is_integer()


def _with_integers(data: bytes) -> str:
    """Return JSON in which integral floats are integers, which float fields take, too."""

    def parse_float(digits: str) -> int | float:
        value = float(digits)
        return int(value) if value.is_integer() else value

    return json.dumps(json.loads(data, parse_float=parse_float))


async def cancel_on_disconnect(request: Request, response: Coroutine[Any, Any, Response]) -> Response:
    """Await the response; if the client disconnects first, cancel its computation."""
    task = asyncio.current_task()
    assert task is not None
    disconnected = asyncio.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        disconnected.set()
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        return await response
    except asyncio.CancelledError:
        if not disconnected.is_set():
            raise
        task.uncancel()
        return Response(status_code=499)  # nobody receives it, but the metrics count it
    finally:
        watcher.cancel()


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Serialize a value, including numpy arrays; non-finite numbers become null."""
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, status, dict(headers or {}), "application/json")
