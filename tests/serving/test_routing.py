"""JSON routes: the path selects the endpoint directly; other requests go to the app; disconnects end a request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from bertworks.serving.errors import RequestError
from bertworks.serving.routing import JsonRoute, JsonRoutes, json_response


class Body(BaseModel):
    number: int


async def double(request: Request, name: str, body: Body) -> Response:
    return json_response({"name": name, "result": 2 * body.number})


async def negate(request: Request, body: Body) -> Response:
    return json_response({"result": -body.number})


async def wait(request: Request, name: str, body: Body) -> Response:
    await asyncio.sleep(60)
    raise AssertionError


@pytest.fixture
def routes() -> JsonRoutes:
    app = FastAPI(openapi_url=None)
    for path, endpoint in (("/v1/{name}/double", double), ("/v1/negate", negate), ("/v1/{name}/wait", wait)):
        app.router.add_api_route(path, endpoint, methods=["POST"], response_model=None, route_class_override=JsonRoute)
    return JsonRoutes(app)


def post(routes: JsonRoutes, path: str, *parts: bytes, method: str = "POST") -> tuple[list[Any], dict[str, Any]]:
    """Send a body in parts, then disconnect; return the sent messages and the scope."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages:
        messages[-1]["more_body"] = False
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    asyncio.run(routes(scope, receive, send))
    return sent, scope


@pytest.mark.parametrize(
    ("path", "route", "expected"),
    [
        ("/v1/bert/double", "/v1/{name}/double", {"name": "bert", "result": 6}),
        ("/v1/a b+%/double", "/v1/{name}/double", {"name": "a b+%", "result": 6}),
        ("/v1/{name}/double", "/v1/{name}/double", {"name": "{name}", "result": 6}),
        ("/v1/negate", "/v1/negate", {"result": -3}),
    ],
)
def test_the_path_selects_the_endpoint_and_its_name(routes, path, route, expected):
    (start, body), scope = post(routes, path, b'{"num', b'ber": 3}')
    assert start["status"] == 200
    assert json.loads(body["body"]) == expected
    assert scope["route"].path == route


@pytest.mark.parametrize("path", ["/v1//double", "/v1/a/b/double", "/double", "double", "/", "", "/v1/bert/double/"])
def test_other_paths_go_to_the_app(routes, path):
    (start, _), scope = post(routes, path, b'{"number": 3}')
    assert start["status"] in (307, 404)
    assert "route" not in scope


def test_other_methods_go_to_the_app(routes):
    (start, _), _ = post(routes, "/v1/negate", method="GET")
    assert start["status"] == 405


def test_an_invalid_body_is_an_error_for_the_caller(routes):
    with pytest.raises(RequestError) as caught:
        post(routes, "/v1/negate", b'{"number": "three"}')
    assert (caught.value.status, caught.value.message.partition(":")[0]) == (400, "number")


def test_a_client_that_leaves_in_the_middle_of_its_body_gets_no_response(routes):
    assert post(routes, "/v1/negate")[0] == []


def test_a_client_that_leaves_before_the_response_ends_its_request(routes):
    (start, _), _ = post(routes, "/v1/bert/wait", b'{"number": 3}')
    assert start["status"] == 499
