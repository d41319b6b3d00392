"""What stands between HTTP and the models: checked bodies in, answers out; limits, time and room in the line kept.

Texts are cut into pieces at the desk, which one at a time may use (tokenizers remember what they have cut): at once if
the texts are short, else on a thread of its own, so that the server goes on answering.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from bertworks.errors import BertworksError, FolderError
from bertworks.serving.answers import Work
from bertworks.serving.batch_scheduler import Gatherer, LineFullError
from bertworks.serving.errors import RefusedError
from bertworks.serving.models import Served
from bertworks.serving.passage_search import Index
from bertworks.serving.run_records import Runs
from bertworks.serving.security import Limits, Standing

T = TypeVar("T")

# Texts of so many characters are cut at once; a thread would cost more.
_SHORT = 4_000
# Outputs of so many rows are put together at once, for the same reason.
_FEW = 40
# A passage that is searched for is embedded as the passages of its corpus were: by the model that made the index.
SEARCH = "search"


@dataclass(frozen=True, slots=True)
class Search:
    """The index of a corpus and the model that made it."""

    index: Index
    served: Served


class Service:
    """The models of a server and the work they are given."""

    def __init__(
        self,
        models: Mapping[str, Served],
        gatherer: Gatherer,
        limits: Limits,
        runs: Runs,
        search: Search | None = None,
    ) -> None:
        self.models = models
        self.gatherer = gatherer
        self.limits = limits
        self.runs = runs
        self.search = search
        self.standing = Standing()
        self._desk = ThreadPoolExecutor(1, thread_name_prefix="bertworks-desk")
        self._at_desk = threading.Lock()
        self._num_at_desk = 0

    def model(self, name: str, able: str) -> Served:
        """Return the model of that name; refused if there is none or it cannot do what is asked."""
        served = self.models.get(name)
        if served is None:
            raise RefusedError(404, "there is no such model; /v1/models lists those that are served")
        if able not in served.can:
            raise RefusedError(422, served.cannot(able))
        return served

    def check(self, num_inputs: int, texts: Iterable[str]) -> int:
        """Refuse more inputs or longer texts than a request may have; return how many characters there are."""
        if num_inputs > self.limits.inputs:
            raise RefusedError(
                422, f"{num_inputs:,} inputs are more than {self.limits.inputs:,}; send several requests"
            )
        total = 0
        for text in texts:
            total += len(text)
            if len(text) > self.limits.characters:
                raise RefusedError(
                    422, f"a text is longer than {self.limits.characters:,} characters; send parts of it"
                )
        return total

    async def answer(self, make: Callable[[], Work], num_characters: int) -> Any:
        """Return the answer of the work that `make` makes of a request, in the time that a request may take."""
        async with self._bounded():
            work = await self._cut(make, num_characters)
            outputs = await asyncio.wrap_future(self.gatherer.submit(work.lane, work.rows))
            if len(outputs) <= _FEW:
                return work.finish(outputs)
            return await asyncio.to_thread(work.finish, outputs)

    async def at_desk(self, make: Callable[[], T], num_characters: int) -> T:
        """Return what `make` returns, which uses tokenizers and nothing else, in the time that a request may take."""
        async with self._bounded():
            return await self._cut(make, num_characters)

    async def _cut(self, make: Callable[[], T], num_characters: int) -> T:
        """Let `make` use the tokenizers. Who waits at the desk stands in line already."""
        self.gatherer.check_room(self._num_at_desk)
        if num_characters <= _SHORT and self._at_desk.acquire(blocking=False):
            try:
                return make()
            finally:
                self._at_desk.release()
        self._num_at_desk += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._desk, self._locked, make)
        finally:
            self._num_at_desk -= 1

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Refuse what the library refuses, and what takes longer than a request may take."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                with _told_plainly():
                    yield
        except TimeoutError:
            message = f"no answer within {self.limits.seconds:g} seconds; send less at a time, or ask again later"
            raise RefusedError(504, message) from None

    def _locked(self, make: Callable[[], T]) -> T:
        with self._at_desk:
            return make()

    def close(self) -> None:
        self._desk.shutdown(cancel_futures=True)
        self.gatherer.close()
        if self.search is not None:
            self.search.index.close()


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Turn what the library says into refusals. What it says of folders names places that are nobody's business."""
    try:
        yield
    except LineFullError as full:
        headers = {"Retry-After": str(full.seconds)}
        raise RefusedError(429, f"too many requests wait; try again in {full.seconds} seconds", headers) from None
    except FolderError:
        raise
    except BertworksError as error:
        raise RefusedError(422, str(error)) from None
