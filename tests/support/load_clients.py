"""Clients under load: requests with the answers of an idle server in; right, wrong and failed answers out.

Each client sends one request after another on a connection. Some requests are cancelled: the client leaves before the
answer. All clients move to another server between two requests when they are told to.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from small_models import WORDS

CANCEL_PROB = 0.05
TOLERANCE = 1e-4
RIGHT, CANCELLED, WRONG, FAILED = "right", "cancelled", "wrong", "failed"
TIMEOUT = 120.0


def draw_requests(rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Return paths with bodies for the models of `small_models`: all tasks, texts of one to eighty words."""

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=min(80, 1 + int(rng.expovariate(1 / 12)))))

    kinds = {
        "classify/predict": lambda: {"inputs": [text() for _ in range(rng.randint(1, 4))]},
        "regress/predict": lambda: {"inputs": [text()]},
        "choose/predict": lambda: {"inputs": [{"prompt": text(), "choices": [text(), text()]}], "truncate": True},
        "answer/predict": lambda: {"inputs": [{"question": "who?", "context": text()}]},
        "tag/predict": lambda: {"inputs": [text()]},
        "pretrained/fill-mask": lambda: {"text": f"a [MASK] {rng.choice(WORDS)}", "top_k": 3},
        "sentences/embed": lambda: {"inputs": [text() for _ in range(rng.randint(1, 8))]},
        "classify/tokenize": lambda: {"text": text()},
    }
    return [
        (f"/v1/models/{path}", json.dumps(kinds[path]()).encode())
        for path in (rng.choice(list(kinds)) for _ in range(count))
    ]


def is_close(value: Any, expected: Any) -> bool:
    """Return whether two answers are the same, up to the rounding of sums in batches of other sizes."""
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(is_close(value[key], expected[key]) for key in value)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(is_close, value, expected))
    if isinstance(value, float) and isinstance(expected, float | int):
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return value == expected


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, and its answers when it was idle."""

    host: str
    port: int
    answers: tuple[Any, ...]

    @classmethod
    def when_idle(cls, address: str, requests: list[tuple[str, bytes]]) -> Server:
        """Ask a server for all answers, one after another."""
        answers = []
        with httpx.Client(base_url=address, timeout=TIMEOUT, headers={"Content-Type": "application/json"}) as client:
            for path, body in requests:
                response = client.post(path, content=body)
                assert response.status_code == 200, f"{path} {body!r}: {response.text}"
                answers.append(response.json())
        host, _, port = address.removeprefix("http://").partition(":")
        return cls(host, int(port), tuple(answers))


@dataclass(slots=True)
class LoadClients:
    """Clients that run until they are stopped; `server` is where they send their next request."""

    requests: list[tuple[str, bytes]]
    server: Server
    outcomes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    is_stopped: bool = False

    async def run(self, num_clients: int, seed: str) -> None:
        """Run all clients."""
        rngs = [random.Random(f"{seed} {number}") for number in range(num_clients)]
        await asyncio.gather(*(self._run_client(rng) for rng in rngs))

    async def _run_client(self, rng: random.Random) -> None:
        while not self.is_stopped:
            server = self.server
            reader, writer = await asyncio.open_connection(server.host, server.port)
            try:
                while server is self.server and not self.is_stopped:
                    index = rng.randrange(len(self.requests))
                    writer.write(self._encode(index))
                    if rng.random() < CANCEL_PROB:
                        await asyncio.sleep(rng.random() * 0.1)
                        self.outcomes[CANCELLED] += 1
                        break
                    self._judge(index, server, await asyncio.wait_for(read_answer(reader), TIMEOUT))
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._fail(repr(error))
            finally:
                writer.close()

    def _encode(self, index: int) -> bytes:
        path, body = self.requests[index]
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _judge(self, index: int, server: Server, answer: tuple[int, bytes]) -> None:
        status, body = answer
        if status != 200:
            self._fail(f"{status}: {body[:200]!r}")
        elif is_close(json.loads(body), server.answers[index]):
            self.outcomes[RIGHT] += 1
        else:
            self.outcomes[WRONG] += 1
            self.notes.append(f"{self.requests[index]}: {body[:200]!r}, not {json.dumps(server.answers[index])[:200]}")

    def _fail(self, note: str) -> None:
        self.outcomes[FAILED] += 1
        self.notes.append(note)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return int(head[9:12]), await reader.readexactly(length)
