"""The service between HTTP and the models: work in, responses out, within the limits of size, time and queue.

Tokenizers have caches that are not thread-safe, so one request tokenizes at a time: short texts directly in the event
loop, longer ones on a thread, so that the server stays responsive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from bertworks.embeddings.sentence_settings import truncate_vectors
from bertworks.errors import BertworksError, FolderError
from bertworks.serving.answers import Floats, Work
from bertworks.serving.batch_scheduler import BatchScheduler, QueueFullError
from bertworks.serving.errors import RequestError
from bertworks.serving.models import ServedModel
from bertworks.serving.passage_search import PassageIndex
from bertworks.serving.run_records import RunRegistry
from bertworks.serving.security import Limits, ServerState

T = TypeVar("T")

# Up to so many characters are tokenized in the event loop; a thread would cost more.
_MAX_INLINE_CHARACTERS = 4_000
# Up to so many outputs are decoded in the event loop, for the same reason.
_MAX_INLINE_OUTPUTS = 40


@dataclass(frozen=True, slots=True)
class PassageSearch:
    """The search index of a corpus and the model that embedded it, which embeds the queries too."""

    index: PassageIndex
    served_model: ServedModel


@dataclass(slots=True)
class Timing:
    """What a request cost: the number of tokens, and the seconds of its parts."""

    num_tokens: int = 0
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0


class Service:
    """The models of a server and its scheduler."""

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
        self._tokenizer_pool = ThreadPoolExecutor(1, thread_name_prefix="bertworks-tokenizer")
        self._tokenizer_lock = threading.Lock()
        self._num_tokenizing = 0

    def model(self, name: str, capability: str) -> ServedModel:
        """Return the model of that name; raise a RequestError if there is none or it lacks the capability."""
        served = self.models.get(name)
        if served is None:
            raise RequestError(404, "no such model; see /v1/models")
        if capability not in served.capabilities:
            raise RequestError(422, served.missing_capability_message(capability))
        return served

    def check(self, num_inputs: int, texts: Iterable[str]) -> int:
        """Check the number of inputs and the lengths of the texts; return the total number of characters."""
        if num_inputs > self.limits.inputs:
            raise RequestError(
                422, f"{num_inputs:,} inputs are more than {self.limits.inputs:,}; split them into several requests"
            )
        num_characters = 0
        for text in texts:
            num_characters += len(text)
            if len(text) > self.limits.characters:
                raise RequestError(
                    422, f"a text is longer than {self.limits.characters:,} characters; split it into parts"
                )
        return num_characters

    def truncate(self, served_model: ServedModel, vectors: Floats, size: int | None) -> Floats:
        """Return vectors of the size that a client asks for; raise a RequestError if the model does not offer it."""
        with _translate_errors():
            return truncate_vectors(vectors, size, served_model.dimensions, served_model.pooling.normalize)

    async def answer(self, make_work: Callable[[], Work], num_characters: int, timing: Timing | None = None) -> Any:
        """Create the work of a request with the tokenizers, compute it and return its response, within the limits.

        What it cost is written to `timing`.
        """
        async with self._enforce_limits():
            arrival_time = time.monotonic()
            work = await self._tokenize(make_work, num_characters)
            submit_time = time.monotonic()
            future = self.scheduler.submit(work.queue, work.items)
            outputs = await asyncio.wrap_future(future)
            if timing is not None:
                start_time = submit_time if future.start_time is None else future.start_time
                timing.num_tokens = sum(map(work.queue.length_of, work.items))
                timing.tokenization = submit_time - arrival_time
                timing.queue = max(0.0, start_time - submit_time)
                timing.inference = time.monotonic() - start_time
            if len(outputs) <= _MAX_INLINE_OUTPUTS:
                return work.finish(outputs)
            return await asyncio.to_thread(work.finish, outputs)

    async def run_tokenization(self, call: Callable[[], T], num_characters: int) -> T:
        """Return the result of a call that needs only the tokenizers, within the limits."""
        async with self._enforce_limits():
            return await self._tokenize(call, num_characters)

    async def _tokenize(self, call: Callable[[], T], num_characters: int) -> T:
        """Run a call that uses tokenizers. Requests that wait for the tokenizer lock count as queued."""
        self.scheduler.check_capacity(self._num_tokenizing)
        if num_characters <= _MAX_INLINE_CHARACTERS and self._tokenizer_lock.acquire(blocking=False):
            try:
                return call()
            finally:
                self._tokenizer_lock.release()
        self._num_tokenizing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenizer_pool, self._run_locked, call)
        finally:
            self._num_tokenizing -= 1

    @asynccontextmanager
    async def _enforce_limits(self) -> AsyncIterator[None]:
        """Turn library errors and timeouts into RequestErrors."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                with _translate_errors():
                    yield
        except TimeoutError:
            message = f"timeout after {self.limits.seconds:g} seconds; split the request, or retry later"
            raise RequestError(504, message) from None

    def _run_locked(self, call: Callable[[], T]) -> T:
        with self._tokenizer_lock:
            return call()

    def close(self) -> None:
        self._tokenizer_pool.shutdown(cancel_futures=True)
        self.scheduler.close()
        if self.search is not None:
            self.search.index.close()


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn library errors into RequestErrors, except FolderErrors, whose messages contain paths (status 500)."""
    try:
        yield
    except QueueFullError as error:
        headers = {"Retry-After": str(error.seconds)}
        raise RequestError(429, f"the queue is full; retry in {error.seconds} seconds", headers) from None
    except FolderError:
        raise
    except BertworksError as error:
        raise RequestError(422, str(error)) from None
