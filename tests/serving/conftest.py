"""Fixtures of the server's tests: tiny models on disk, an app in this process and a client that asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_models import write_all

from bertworks.serving.server import ServeRequest, ServingApp, load_app


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a model for each task, a pretrained one and one of sentence vectors."""
    return write_all(tmp_path_factory.mktemp("served"))


class Asker:
    """Asks an app in this process: each request by itself, or many at once."""

    def __init__(self, app: ServingApp) -> None:
        self.app = app
        app.service.state.is_ready = True

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        (answer,) = self.at_once((method, path, options))
        return answer

    def at_once(self, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
        async def go() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                return await asyncio.gather(*(client.request(how, path, **told) for how, path, told in requests))

        return asyncio.run(go())


@pytest.fixture(scope="module")
def ask_app(folders: dict[str, Path], one_thread: None) -> Iterator[Callable[..., Asker]]:
    """Return a function that opens an app, of all tiny models unless told otherwise; all are closed at the end."""
    found: list[Asker] = []

    def make(**options: Any) -> Asker:
        models = options.pop("models", tuple(f"{name}={folder}" for name, folder in folders.items()))
        found.append(Asker(load_app(ServeRequest(models, **options))))
        return found[-1]

    yield make
    for one in found:
        one.app.service.close()


@pytest.fixture(scope="module")
def ask(ask_app: Callable[..., Asker]) -> Asker:
    """An app with all the tiny models and the usual limits."""
    return ask_app()
