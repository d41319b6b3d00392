"""How a request with a JSON body reaches its endpoint: bytes in, a checked body to the endpoint, an answer out.

FastAPI describes the routes; the bytes go straight to pydantic, which is several times as fast as reading JSON, walking
through dependencies and then checking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, get_type_hints

import orjson
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from bertworks.serving.errors import RequestError


class JsonRoute(APIRoute):
    """A route whose endpoint takes the request, the names in its path, and its body as `body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Coroutine[Any, Any, Response]] = self.endpoint
        kind: type[BaseModel] = get_type_hints(endpoint)["body"]

        async def handle(request: Request) -> Response:
            body = parse_body(kind, await request.body())
            return await cancel_on_disconnect(request, endpoint(request, **request.path_params, body=body))

        return handle


def parse_body(body_class: type[BaseModel], data: bytes) -> BaseModel:
    """Return a body; one that is no JSON, or not of this shape, is refused with the first thing that is wrong."""
    try:
        return body_class.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(400, f"{place}: {first['msg']}" if place else str(first["msg"])) from None


async def cancel_on_disconnect(request: Request, response: Coroutine[Any, Any, Response]) -> Response:
    """Return the answer, unless the client goes away before: then what computes it is cancelled."""
    task = asyncio.current_task()
    assert task is not None
    gone: list[bool] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.append(True)
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        return await response
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        return Response(status_code=499)  # nobody reads it, but it is counted
    finally:
        watcher.cancel()


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as JSON; arrays of numpy are written as they are, numbers that are not finite as null."""
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, status, dict(headers or {}), "application/json")
