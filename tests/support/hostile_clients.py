"""Hostile clients of a server: a random generator in; requests that no honest client sends, and what came back, out."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mutations import SNIPPETS, VALUES

TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """Parts to send with pauses between them, and whether to read the answer or to leave, with a reset or not."""

    kind: str
    parts: tuple[bytes, ...]
    pause: float = 0.0
    leaves: str = ""  # "", "close" or "reset"


@dataclass(frozen=True, slots=True)
class HostileClient:
    """Draws requests on the base of valid ones, each a path and a body."""

    rng: random.Random
    valid: list[tuple[str, dict[str, Any]]]
    kinds: dict[str, Callable[[HostileClient], HostileRequest]] = field(default_factory=lambda: KINDS)

    def draw(self) -> HostileRequest:
        return self.kinds[self.rng.choice(list(self.kinds))](self)

    def draw_valid(self) -> tuple[bytes, bytes]:
        """Return the head and the body of a valid request."""
        path, body = self.rng.choice(self.valid)
        data = json.dumps(body, ensure_ascii=self.rng.random() < 0.5).encode()
        return head_of(path, len(data)), data

    def mutate(self, data: bytes) -> bytes:
        """Change bytes at one to three places."""
        for _ in range(self.rng.randint(1, 3)):
            start, end = sorted(self.rng.randrange(len(data) + 1) for _ in range(2))
            change = self.rng.choice((self.rng.randbytes(1), self.rng.choice(SNIPPETS), b"", data[start:end] * 2))
            data = data[:start] + change + data[self.rng.choice((start, min(start + 1, len(data)), end)) :]
        return data


def head_of(path: str, length: object, *lines: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines)
    return ("\r\n".join((*lines, f"Content-Length: {length}")) + "\r\n\r\n").encode()


def _mutated_body(client: HostileClient) -> HostileRequest:
    path, body = client.rng.choice(client.valid)
    data = client.mutate(json.dumps(body).encode())
    return HostileRequest("mutated body", (head_of(path, len(data)) + data,))


def _replaced_value(client: HostileClient) -> HostileRequest:
    path, body = client.rng.choice(client.valid)
    data = json.dumps({**body, client.rng.choice(list(body)): client.rng.choice(VALUES)}).encode()
    return HostileRequest("replaced value", (head_of(path, len(data)) + data,))


def _mutated_head(client: HostileClient) -> HostileRequest:
    head, body = client.draw_valid()
    return HostileRequest("mutated head", (client.mutate(head) + body,), leaves="close")


def _wrong_length(client: HostileClient) -> HostileRequest:
    _, body = client.draw_valid()
    length = client.rng.choice((-1, 0, 1, len(body) - 1, len(body) + 1, 2**31, 2**63, "x", "1e3", "0x10", "", "1, 2"))
    return HostileRequest("wrong length", (head_of(client.rng.choice(client.valid)[0], length) + body,), leaves="close")


def _strange_lines(client: HostileClient) -> HostileRequest:
    line = client.rng.choice(
        (
            "Host: example.org",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
            "Expect: 100-continue",
            "Upgrade: websocket\r\nConnection: Upgrade",
            "X-Long: " + "x" * client.rng.choice((1_000, 70_000)),
            "\r\n".join(f"X-{number}: y" for number in range(client.rng.choice((50, 2_000)))),
            "X-Null: \0",
            " folded: line",
            "Content-Encoding: gzip",
            "Authorization: Bearer " + "k" * 5_000,
        )
    )
    head, body = client.draw_valid()
    return HostileRequest(
        "strange header", (head.replace(b"Content-Type", f"{line}\r\nContent-Type".encode(), 1) + body,), leaves="close"
    )


def _chunks(client: HostileClient) -> HostileRequest:
    head, body = client.draw_valid()
    head = head[: head.index(b"Content-Length")] + b"Transfer-Encoding: chunked\r\n\r\n"
    length = b"%x" % len(body)
    size = client.rng.choice((length, b"fffffffffffffffff", b"-1", b"zz", b"0", length + b";" + b"a" * 99))
    return HostileRequest("chunked body", (head, size + b"\r\n" + body + b"\r\n0\r\n\r\n"), leaves="close")


def _not_http(client: HostileClient) -> HostileRequest:
    data = client.rng.choice(
        (
            client.rng.randbytes(client.rng.randint(1, 500)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + client.rng.randbytes(64),
            b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
            b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"GET http://user@127.0.0.1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        )
    )
    return HostileRequest("no HTTP", (data,), leaves="close")


def _leaves_early(client: HostileClient) -> HostileRequest:
    data = b"".join(client.draw_valid())
    data = data[: client.rng.randint(0, len(data))]
    return HostileRequest("leaves early", (data,), leaves=client.rng.choice(("close", "reset")))


def _leaves_before_the_answer(client: HostileClient) -> HostileRequest:
    leaves = client.rng.choice(("close", "reset"))
    return HostileRequest("leaves before the answer", (b"".join(client.draw_valid()),), leaves=leaves)


def _slow(client: HostileClient) -> HostileRequest:
    data = b"".join(client.draw_valid())
    cuts = sorted(client.rng.randint(0, len(data)) for _ in range(4))
    parts = tuple(data[start:end] for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True))
    return HostileRequest("slow", parts, pause=0.02)


KINDS: dict[str, Callable[[HostileClient], HostileRequest]] = {
    "mutated body": _mutated_body,
    "replaced value": _replaced_value,
    "mutated head": _mutated_head,
    "wrong length": _wrong_length,
    "strange header": _strange_lines,
    "chunked body": _chunks,
    "no HTTP": _not_http,
    "leaves early": _leaves_early,
    "leaves before the answer": _leaves_before_the_answer,
    "slow": _slow,
}


def send(address: tuple[str, int], request: HostileRequest) -> int:
    """Send a request; return the status of the answer, or 0 if there is none: the connection was closed, or we left."""
    with socket.create_connection(address, timeout=TIMEOUT) as sock:
        try:
            for part in request.parts:
                sock.sendall(part)
                time.sleep(request.pause)
            if request.leaves == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if request.leaves:
                sock.settimeout(0.02)
            answer = sock.recv(2**16)
        except OSError:  # closed by the server, or nothing in time
            return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
