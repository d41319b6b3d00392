"""A server on a real port: slow, silent and vanishing clients, draining, killing, folders that are deleted."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import PATIENCE, Running, running, started, wait_for

from bertworks.errors import SettingsError
from bertworks.serving import server
from bertworks.serving.queues import EmbedQueue
from bertworks.serving.security import Limits

BODY = json.dumps({"inputs": ["a cat sat"]}).encode()


@pytest.fixture(scope="module")
def one(folders: dict[str, Path], one_thread: None) -> Iterator[Running]:
    """A server of two models that has little patience."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_HEAD_SECONDS", 0.5)
        models = [f"{name}={folders[name]}" for name in ("sentences", "classify")]
        with running(*models, limits=Limits(seconds=3.0, body_bytes=2**20)) as found:
            yield found


class Gate:
    """Holds vectors back until it is told to go on."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, compute = Gate(), EmbedQueue.compute

    def held(self: EmbedQueue, rows: Any) -> Any:
        found.entered.set()
        assert found.go_on.wait(PATIENCE)
        return compute(self, rows)

    monkeypatch.setattr(EmbedQueue, "compute", held)
    yield found
    found.go_on.set()


def connected(one: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", one.port), timeout=PATIENCE)


def head(length: int, path: str = "/v1/models/sentences/embed") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def until_closed(sock: socket.socket) -> bytes:
    """Return all that comes until the other side ends the connection, gently or not."""
    found = b""
    try:
        while part := sock.recv(2**16):
            found += part
    except ConnectionResetError:
        pass
    return found


def assert_answers(one: Running) -> None:
    told = httpx.post(f"{one.address}/v1/models/sentences/embed", json={"inputs": ["a cat"]}, timeout=PATIENCE)
    assert told.status_code == 200
    assert len(told.json()["vectors"][0]) == 24


def test_two_models_answer_on_a_port(one):
    assert_answers(one)
    told = httpx.post(f"{one.address}/v1/models/classify/predict", json={"inputs": ["a good film"]}, timeout=PATIENCE)
    assert told.json()["predictions"][0]["label"] in ("bad", "good")


def test_connections_that_say_nothing_are_closed(one):
    silent = [connected(one) for _ in range(20)]
    assert_answers(one)
    for sock in silent:
        assert until_closed(sock) == b""
        sock.close()


def test_a_head_that_comes_byte_by_byte_is_given_up(one):
    with connected(one) as sock:
        sock.settimeout(0.2)
        text, closed = head(len(BODY)), False
        for at in range(len(text)):
            try:
                sock.sendall(text[at : at + 1])
                closed = sock.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed:
                break
        assert closed
    assert_answers(one)


def test_a_second_request_on_a_connection_may_not_be_slow_either(one):
    with connected(one) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"alive" in sock.recv(2**16)
        sock.sendall(b"GET /heal")
        assert until_closed(sock) == b""


def test_a_body_that_stops_coming_answers_408(one):
    with connected(one) as sock:
        sock.sendall(head(len(BODY)) + BODY[:5])
        assert until_closed(sock).startswith(b"HTTP/1.1 408")
    assert_answers(one)


def test_a_body_that_is_too_large_answers_413_to_who_is_still_sending(one):
    answer = httpx.post(
        f"{one.address}/v1/models/sentences/embed", json={"inputs": ["a" * 3 * 2**20]}, timeout=PATIENCE
    )
    assert answer.status_code == 413
    parts = (b"x" * 2**16 for _ in range(48))  # nothing says how long it is
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{one.address}/v1/models/sentences/embed", content=parts, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 413


@pytest.mark.parametrize("data", [b"\x00" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02", b"POST / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_closed_and_harms_nobody(data, one):
    with connected(one) as sock:
        sock.sendall(data)
        assert until_closed(sock)[:12] in (b"", b"HTTP/1.1 400")
    assert_answers(one)


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_who_goes_away_leaves_the_line(how, one, gate):
    gatherer = one.app.service.scheduler
    first = connected(one)
    first.sendall(head(len(BODY)) + BODY)
    assert gate.entered.wait(PATIENCE)
    second = connected(one)
    second.sendall(head(len(BODY)) + BODY)
    wait_for(lambda: gatherer.num_requests == 2)
    if how == "reset":
        second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-close":
        second.shutdown(socket.SHUT_WR)
    else:
        second.close()
    wait_for(lambda: gatherer.num_requests == 1)
    assert gatherer.num_tokens == 0
    gate.go_on.set()
    assert first.recv(2**16).startswith(b"HTTP/1.1 200")
    first.close()
    second.close()


def test_an_answer_that_nobody_reads_does_not_keep_its_connection():
    class Transport:
        def __init__(self) -> None:
            self.unread, self.ended = 100, ""

        def get_write_buffer_size(self) -> int:
            return self.unread

        def is_closing(self) -> bool:
            return bool(self.ended)

        def abort(self) -> None:
            self.ended = "aborted"

        def close(self) -> None:
            self.ended = "closed"

    class Loop:
        def call_later(self, seconds: float, act: Any) -> None:
            return None

    connection = server.TimeoutHttpProtocol.__new__(server.TimeoutHttpProtocol)
    transport: Any = Transport()
    connection.transport, connection.loop = transport, Loop()  # type: ignore[assignment]
    connection.timeout_keep_alive_handler()
    assert transport.finish_reason == ""  # it may just be slow
    transport.unread = 60
    connection.timeout_keep_alive_handler()
    assert transport.finish_reason == ""  # it is
    connection.timeout_keep_alive_handler()
    assert transport.finish_reason == "aborted"
    transport.unread, transport.finish_reason = 0, ""
    connection.timeout_keep_alive_handler()
    assert transport.finish_reason == "closed"


def test_a_port_in_use_is_told_in_a_sentence(one):
    with pytest.raises(SettingsError, match="choose another --port"):
        server.listen("127.0.0.1", one.port)


def test_a_process_serves_goes_on_without_its_folder_and_drains_when_it_is_asked_to(folders, tmp_path):
    shutil.copytree(folders["sentences"], tmp_path / "model")
    with started("one=model", "--time-limit", "100", folder=tmp_path) as (process, address):
        path = f"{address}/v1/models/one/embed"
        before = httpx.post(path, json={"inputs": ["a cat"]}, timeout=PATIENCE).json()
        shutil.rmtree(tmp_path / "model")
        assert httpx.post(path, json={"inputs": ["a cat"]}, timeout=PATIENCE).json() == before
        slow = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=PATIENCE)
        slow.sendall(head(len(BODY), "/v1/models/one/embed") + BODY[:5])
        # Connections are taken in their order: when this one is answered, the slow one is known.
        assert httpx.get(f"{address}/health", timeout=PATIENCE).status_code == 200
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{address}/ready", timeout=PATIENCE).status_code == 503)
        assert httpx.post(path, json={"inputs": ["a"]}, timeout=PATIENCE).status_code == 503
        slow.sendall(BODY[5:])
        assert until_closed(slow).startswith(b"HTTP/1.1 200")
        slow.close()
        assert process.wait(PATIENCE) == 0


def test_what_was_taken_is_answered_before_a_server_ends(folders, gate, one_thread):
    with running(f"one={folders['sentences']}") as found:
        taken = connected(found)
        taken.sendall(head(len(BODY), "/v1/models/one/embed") + BODY)
        assert gate.entered.wait(PATIENCE)
        found.server.handle_exit(signal.SIGTERM, None)
        assert httpx.get(f"{found.address}/ready", timeout=PATIENCE).status_code == 503
        assert not found.server.should_exit
        gate.go_on.set()
        assert until_closed(taken).startswith(b"HTTP/1.1 200")
        found.thread.join(PATIENCE)
        assert not found.thread.is_alive()
        taken.close()


def test_being_asked_twice_ends_a_server_at_once(folders, one_thread):
    with running(f"one={folders['sentences']}") as found, connected(found) as silent:
        silent.sendall(head(len(BODY), "/v1/models/one/embed") + BODY[:5])
        wait_for(lambda: found.app.service.state.num_open == 1)
        found.server.handle_exit(signal.SIGTERM, None)
        found.server.handle_exit(signal.SIGTERM, None)
        found.thread.join(PATIENCE)
        assert not found.thread.is_alive()


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_killed_server_answers_the_same_when_it_is_started_again(num_kills, folders, tmp_path):
    found, port = [], 0
    for _ in range(num_kills + 1):
        with started(f"one={folders['sentences']}", folder=tmp_path, port=port) as (process, address):
            port = int(address.rpartition(":")[2])
            told = httpx.post(f"{address}/v1/models/one/embed", json={"inputs": ["a cat"]}, timeout=PATIENCE)
            found.append(told.json())
            process.send_signal(signal.SIGKILL)
            assert process.wait(PATIENCE) == -signal.SIGKILL
    assert all(one == found[0] for one in found)


@pytest.mark.soak
def test_hundreds_of_slow_silent_and_vanishing_clients_do_not_stop_the_others(one):
    for _ in range(10):
        crowd = [connected(one) for _ in range(50)]
        for number, sock in enumerate(crowd):
            sock.sendall((head(len(BODY)) + BODY)[: number * 4])
            if number % 3 == 0:
                sock.close()
        for _ in range(5):
            assert_answers(one)
        for sock in crowd:
            sock.close()
    wait_for(lambda: one.app.service.standing.num_open == 0)
    assert one.app.service.scheduler.num_requests == 0
