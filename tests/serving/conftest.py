"""Fixtures of the serving tests: tiny model folders, an app in this process and a client for it."""

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
    """The folders of a model for each task, a pretrained model and a sentence embedding model."""
    return write_all(tmp_path_factory.mktemp("served"))


class AppClient:
    """A client of an app in this process, for single or concurrent requests."""

    def __init__(self, app: ServingApp) -> None:
        self.app = app
        app.service.state.is_ready = True

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        (response,) = self.send_concurrently((method, path, options))
        return response

    def send_concurrently(self, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
        async def send_all() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                return await asyncio.gather(
                    *(client.request(method, path, **options) for method, path, options in requests)
                )

        return asyncio.run(send_all())


@pytest.fixture(scope="module")
def make_client(folders: dict[str, Path], one_thread: None) -> Iterator[Callable[..., AppClient]]:
    """Return a function that loads an app, by default with all tiny models, and returns a client for it."""
    clients: list[AppClient] = []

    def make(**options: Any) -> AppClient:
        models = options.pop("models", tuple(f"{name}={folder}" for name, folder in folders.items()))
        clients.append(AppClient(load_app(ServeRequest(models=models, **options))))
        return clients[-1]

    yield make
    for client in clients:
        client.app.service.close()


@pytest.fixture(scope="module")
def client(make_client: Callable[..., AppClient]) -> AppClient:
    """A client of an app with all tiny models and the default limits."""
    return make_client()
