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
from bertworks.serving.batch_scheduler import BatchScheduler, QueueFullError
from bertworks.serving.errors import RequestError
from bertworks.serving.models import ServedModel
from bertworks.serving.passage_search import PassageIndex
from bertworks.serving.run_records import RunRegistry
from bertworks.serving.security import Limits, ServerState

T = TypeVar("T")

# Texts of so many characters are cut at once; a thread would cost more.
_MAX_INLINE_CHARACTERS = 4_000
# Outputs of so many rows are put together at once, for the same reason.
_MAX_INLINE_OUTPUTS = 40
# A passage that is searched for is embedded as the passages of its corpus were: by the model that made the index.
SEARCH = "search"


@dataclass(frozen=True, slots=True)
class PassageSearch:
    """The index of a corpus and the model that made it."""

    index: PassageIndex
    served_model: ServedModel


class Service:
    """The models of a server and the work they are given."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        scheduler: BatchScheduler,
        limits: Limits,
        runs: RunRegistry,
        search: PassageSearch | None = None,
    ) -> None:
        self.models = models
        self.scheduler = scheduler
        self.limits = limits
        self.runs = runs
        self.search = search
        self.state = ServerState()
        self._tokenizer_pool = ThreadPoolExecutor(1, thread_name_prefix="bertworks-desk")
        self._tokenizer_lock = threading.Lock()
        self._num_tokenizing = 0

    def model(self, name: str, capability: str) -> ServedModel:
        """Return the model of that name; refused if there is none or it cannot do what is asked."""
        served = self.models.get(name)
        if served is None:
            raise RequestError(404, "there is no such model; /v1/models lists those that are served")
        if capability not in served.capabilities:
            raise RequestError(422, served.missing_capability_message(capability))
        return served

    def check(self, num_inputs: int, texts: Iterable[str]) -> int:
        """Refuse more inputs or longer texts than a request may have; return how many characters there are."""
        if num_inputs > self.limits.inputs:
            raise RequestError(
                422, f"{num_inputs:,} inputs are more than {self.limits.inputs:,}; send several requests"
            )
        total = 0
        for text in texts:
            total += len(text)
            if len(text) > self.limits.characters:
                raise RequestError(
                    422, f"a text is longer than {self.limits.characters:,} characters; send parts of it"
                )
        return total

    async def answer(self, make: Callable[[], Work], num_characters: int) -> Any:
        """Return the answer of the work that `make` makes of a request, in the time that a request may take."""
        async with self._enforce_limits():
            work = await self._tokenize(make, num_characters)
            outputs = await asyncio.wrap_future(self.scheduler.submit(work.queue, work.items))
            if len(outputs) <= _MAX_INLINE_OUTPUTS:
                return work.finish(outputs)
            return await asyncio.to_thread(work.finish, outputs)

    async def run_tokenization(self, make: Callable[[], T], num_characters: int) -> T:
        """Return what `make` returns, which uses tokenizers and nothing else, in the time that a request may take."""
        async with self._enforce_limits():
            return await self._tokenize(make, num_characters)

    async def _tokenize(self, make: Callable[[], T], num_characters: int) -> T:
        """Let `make` use the tokenizers. Who waits at the desk stands in line already."""
        self.scheduler.check_capacity(self._num_tokenizing)
        if num_characters <= _MAX_INLINE_CHARACTERS and self._tokenizer_lock.acquire(blocking=False):
            try:
                return make()
            finally:
                self._tokenizer_lock.release()
        self._num_tokenizing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenizer_pool, self._run_locked, make)
        finally:
            self._num_tokenizing -= 1

    @asynccontextmanager
    async def _enforce_limits(self) -> AsyncIterator[None]:
        """Refuse what the library refuses, and what takes longer than a request may take."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                with _translate_errors():
                    yield
        except TimeoutError:
            message = f"no answer within {self.limits.seconds:g} seconds; send less at a time, or ask again later"
            raise RequestError(504, message) from None

    def _run_locked(self, make: Callable[[], T]) -> T:
        with self._tokenizer_lock:
            return make()

    def close(self) -> None:
        self._tokenizer_pool.shutdown(cancel_futures=True)
        self.scheduler.close()
        if self.search is not None:
            self.search.index.close()


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn what the library says into refusals. What it says of folders names places that are nobody's business."""
    try:
        yield
    except QueueFullError as full:
        headers = {"Retry-After": str(full.seconds)}
        raise RequestError(429, f"too many requests wait; try again in {full.seconds} seconds", headers) from None
    except FolderError:
        raise
    except BertworksError as error:
        raise RequestError(422, str(error)) from None
