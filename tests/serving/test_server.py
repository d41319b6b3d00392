"""The server on a port: slow, silent and disconnecting clients, draining, killing, deleted model folders."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import TIMEOUT, RunningServer, run_server, start_serve_process, wait_for

from bertworks.errors import SettingsError
from bertworks.serving import protocol
from bertworks.serving import server as serving_server
from bertworks.serving.queues import EmbedQueue
from bertworks.serving.security import Limits

BODY = json.dumps({"inputs": ["a cat sat"]}).encode()


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], one_thread: None) -> Iterator[RunningServer]:
    """A server of two models with short timeouts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "HEAD_SECONDS", 0.5)
        models = [f"{name}={folders[name]}" for name in ("sentences", "classify")]
        with run_server(*models, limits=Limits(seconds=3.0, body_bytes=2**20)) as running_server:
            yield running_server


class Gate:
    """Blocks the computation of vectors until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, compute = Gate(), EmbedQueue.compute

    def blocking_compute(self: EmbedQueue, sequences: Any) -> Any:
        gate.entered.set()
        assert gate.opened.wait(TIMEOUT)
        return compute(self, sequences)

    monkeypatch.setattr(EmbedQueue, "compute", blocking_compute)
    yield gate
    gate.opened.set()


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)


def request_head(length: int, path: str = "/v1/models/sentences/embed") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def receive_until_closed(sock: socket.socket) -> bytes:
    """Return all bytes until the server closes or resets the connection."""
    received = b""
    try:
        while part := sock.recv(2**16):
            received += part
    except ConnectionResetError:
        pass
    return received


def assert_responsive(server: RunningServer) -> None:
    response = httpx.post(f"{server.address}/v1/models/sentences/embed", json={"inputs": ["a cat"]}, timeout=TIMEOUT)
    assert response.status_code == 200
    assert len(response.json()["vectors"][0]) == 24


def test_two_models_are_served_on_a_port(server):
    assert_responsive(server)
    url = f"{server.address}/v1/models/classify/predict"
    response = httpx.post(url, json={"inputs": ["a good film"]}, timeout=TIMEOUT)
    assert response.json()["predictions"][0]["label"] in ("bad", "good")


def test_silent_connections_are_closed(server):
    silent = [connect(server) for _ in range(20)]
    assert_responsive(server)
    for sock in silent:
        assert receive_until_closed(sock) == b""
        sock.close()


def test_a_head_that_arrives_byte_by_byte_times_out(server):
    with connect(server) as sock:
        sock.settimeout(0.2)
        is_closed = False
        for byte in request_head(len(BODY)):
            try:
                sock.sendall(bytes([byte]))
                is_closed = sock.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                is_closed = True
            if is_closed:
                break
        assert is_closed
    assert_responsive(server)


def test_the_head_of_a_second_request_on_a_connection_times_out_too(server):
    with connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"alive" in sock.recv(2**16)
        sock.sendall(b"GET /heal")
        assert receive_until_closed(sock) == b""


def test_an_incomplete_body_answers_408(server):
    with connect(server) as sock:
        sock.sendall(request_head(len(BODY)) + BODY[:5])
        assert receive_until_closed(sock).startswith(b"HTTP/1.1 408")
    assert_responsive(server)


def test_a_body_that_is_too_large_answers_413_to_a_client_that_is_still_sending(server):
    url = f"{server.address}/v1/models/sentences/embed"
    response = httpx.post(url, json={"inputs": ["a" * 3 * 2**20]}, timeout=TIMEOUT)
    assert response.status_code == 413
    parts = (b"x" * 2**16 for _ in range(48))  # without Content-Length
    response = httpx.post(url, content=parts, headers={"Content-Type": "application/json"}, timeout=TIMEOUT)
    assert response.status_code == 413


@pytest.mark.parametrize("data", [b"\x00" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02", b"POST / HTTP/9.9\r\n\r\n"])
def test_a_connection_that_is_not_http_is_closed(data, server):
    with connect(server) as sock:
        sock.sendall(data)
        assert receive_until_closed(sock)[:12] in (b"", b"HTTP/1.1 400")
    assert_responsive(server)


@pytest.mark.parametrize("disconnect", ["close", "reset", "half-close"])
def test_the_request_of_a_disconnected_client_leaves_the_queue(disconnect, server, gate):
    scheduler = server.app.service.scheduler
    first = connect(server)
    first.sendall(request_head(len(BODY)) + BODY)
    assert gate.entered.wait(TIMEOUT)
    second = connect(server)
    second.sendall(request_head(len(BODY)) + BODY)
    wait_for(lambda: scheduler.num_requests == 2)
    if disconnect == "reset":
        second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if disconnect == "half-close":
        second.shutdown(socket.SHUT_WR)
    else:
        second.close()
    wait_for(lambda: scheduler.num_requests == 1)
    assert scheduler.num_tokens == 0
    gate.opened.set()
    assert first.recv(2**16).startswith(b"HTTP/1.1 200")
    first.close()
    second.close()


def test_a_port_in_use_is_an_error(server):
    with pytest.raises(SettingsError, match="choose another --port"):
        serving_server.listen("127.0.0.1", server.port)


def test_a_process_serves_without_its_model_folder_and_drains_on_sigterm(folders, tmp_path):
    shutil.copytree(folders["sentences"], tmp_path / "model")
    with start_serve_process("bert=model", "--time-limit", "100", folder=tmp_path) as (process, address):
        url = f"{address}/v1/models/bert/embed"
        expected = httpx.post(url, json={"inputs": ["a cat"]}, timeout=TIMEOUT).json()
        shutil.rmtree(tmp_path / "model")
        assert httpx.post(url, json={"inputs": ["a cat"]}, timeout=TIMEOUT).json() == expected
        slow = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=TIMEOUT)
        slow.sendall(request_head(len(BODY), "/v1/models/bert/embed") + BODY[:5])
        # Connections are accepted in order: after this response, the slow one is accepted.
        assert httpx.get(f"{address}/health", timeout=TIMEOUT).status_code == 200
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{address}/ready", timeout=TIMEOUT).status_code == 503)
        assert httpx.post(url, json={"inputs": ["a"]}, timeout=TIMEOUT).status_code == 503
        slow.sendall(BODY[5:])
        assert receive_until_closed(slow).startswith(b"HTTP/1.1 200")
        slow.close()
        assert process.wait(TIMEOUT) == 0


def test_accepted_requests_are_answered_before_the_server_stops(folders, gate, one_thread):
    with run_server(f"bert={folders['sentences']}") as server:
        accepted = connect(server)
        accepted.sendall(request_head(len(BODY), "/v1/models/bert/embed") + BODY)
        assert gate.entered.wait(TIMEOUT)
        server.server.handle_exit(signal.SIGTERM, None)
        assert httpx.get(f"{server.address}/ready", timeout=TIMEOUT).status_code == 503
        assert not server.server.should_exit
        gate.opened.set()
        assert receive_until_closed(accepted).startswith(b"HTTP/1.1 200")
        server.thread.join(TIMEOUT)
        assert not server.thread.is_alive()
        accepted.close()


class DrainClients:
    """Clients that send requests until the server has stopped; what each response or failure was."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_stopping = False
        self.outcomes: collections.Counter[str] = collections.Counter()

    async def run(self, is_keep_alive: bool) -> None:
        """Send one request after another, on one connection while it is open or each on a new one."""
        while True:
            idle_since = time.monotonic()
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self._port), 0.5)
            except (ConnectionRefusedError, TimeoutError):
                if self.is_stopping:  # the server does not listen any more
                    return
                continue  # a busy machine
            try:
                while await self._exchange(reader, writer, idle_since) and is_keep_alive:
                    idle_since = time.monotonic()
                    await asyncio.sleep(random.random() * 0.01)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.outcomes[repr(error)] += 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_since: float) -> bool:
        """Send a request and read its response; return whether the connection stays open."""
        writer.write(request_head(len(BODY), "/v1/models/bert/embed") + BODY)
        num_idle_seconds = time.monotonic() - idle_since
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial or num_idle_seconds < 0.3:
                raise
            return False  # this client was not scheduled for so long that the draining server took it for idle
        length = int(head.partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(length)
        self.outcomes[head[9:12].decode()] += 1
        if b"connection: close" not in head:
            return True
        assert await reader.read() == b""  # the end, and not a reset
        return False


def check_drain_under_load(folder: Path, num_rounds: int) -> None:
    """Stop a server again and again while clients send requests; every request must be answered."""

    async def run_clients(server: RunningServer) -> None:
        clients = DrainClients(server.port)
        tasks = [asyncio.ensure_future(clients.run(number % 2 == 0)) for number in range(24)]
        while clients.outcomes["200"] < 24:
            await asyncio.sleep(0.01)
        clients.is_stopping = True
        server.server.handle_exit(signal.SIGTERM, None)
        await asyncio.gather(*tasks)
        total.update(clients.outcomes)

    total: collections.Counter[str] = collections.Counter()
    for _ in range(num_rounds):
        with run_server(f"bert={folder}") as server:
            asyncio.run(asyncio.wait_for(run_clients(server), TIMEOUT))
            server.thread.join(TIMEOUT)
            assert not server.thread.is_alive()
    assert set(total) == {"200", "503"}, total


def test_no_connection_is_reset_when_the_server_stops_under_load(folders, one_thread):
    check_drain_under_load(folders["sentences"], 4)


@pytest.mark.soak
def test_no_connection_is_reset_in_a_hundred_stops_under_load(folders, one_thread, campaigns):
    campaign = campaigns.start("requests/stops", 100)
    with campaign.recording("without a reset", lambda: campaign.size):
        check_drain_under_load(folders["sentences"], campaign.size)


def test_a_draining_server_answers_503_on_open_connections_and_ends_idle_ones(folders, gate, one_thread):
    with run_server(f"bert={folders['sentences']}") as server:
        accepted, used, idle = connect(server), connect(server), connect(server)
        for sock in (used, idle):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"alive" in sock.recv(2**16)
        accepted.sendall(request_head(len(BODY), "/v1/models/bert/embed") + BODY)
        assert gate.entered.wait(TIMEOUT)
        server.server.handle_exit(signal.SIGTERM, None)
        used.sendall(request_head(len(BODY), "/v1/models/bert/embed") + BODY)
        response = receive_until_closed(used)
        assert response.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in response
        assert idle.recv(100) == b""
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")  # too late, but not reset
        assert idle.recv(100) == b""
        gate.opened.set()
        response = receive_until_closed(accepted)
        assert response.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in response
        for sock in (accepted, used, idle):
            sock.close()
        server.thread.join(TIMEOUT)
        assert not server.thread.is_alive()


def test_requests_and_errors_are_lines_of_json(folders, one_thread, capfd):
    with run_server(f"bert={folders['sentences']}", log_format="json") as server:
        url, headers = f"{server.address}/v1/models/bert/embed", {"X-Request-ID": "my-id"}
        assert httpx.post(url, json={"inputs": ["a"]}, headers=headers, timeout=TIMEOUT).status_code == 200
        with connect(server) as leaving:
            leaving.sendall(request_head(len(BODY), "/v1/models/bert/embed") + BODY[:5])
            wait_for(lambda: server.app.service.state.num_open == 1)
        wait_for(lambda: server.app.service.state.num_open == 0)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["status"] for line in lines] == [200, 499]
    assert (lines[0]["request_id"], lines[0]["route"]) == ("my-id", "/v1/models/{name}/embed")
    assert (lines[0]["model"], lines[0]["client"], lines[0]["key"]) == ("bert", "127.0.0.1", None)


def test_a_second_signal_stops_the_server_at_once(folders, one_thread):
    with run_server(f"bert={folders['sentences']}") as server, connect(server) as incomplete:
        incomplete.sendall(request_head(len(BODY), "/v1/models/bert/embed") + BODY[:5])
        wait_for(lambda: server.app.service.state.num_open == 1)
        server.server.handle_exit(signal.SIGTERM, None)
        server.server.handle_exit(signal.SIGTERM, None)
        server.thread.join(TIMEOUT)
        assert not server.thread.is_alive()


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_killed_server_gives_the_same_responses_after_a_restart(num_kills, folders, tmp_path):
    responses, port = [], 0
    for _ in range(num_kills + 1):
        with start_serve_process(f"bert={folders['sentences']}", folder=tmp_path, port=port) as (process, address):
            port = int(address.rpartition(":")[2])
            response = httpx.post(f"{address}/v1/models/bert/embed", json={"inputs": ["a cat"]}, timeout=TIMEOUT)
            responses.append(response.json())
            process.send_signal(signal.SIGKILL)
            assert process.wait(TIMEOUT) == -signal.SIGKILL
    assert all(response == responses[0] for response in responses)


@pytest.mark.soak
def test_hundreds_of_slow_silent_and_disconnecting_clients_do_not_block_others(server):
    for _ in range(10):
        connections = [connect(server) for _ in range(50)]
        for index, sock in enumerate(connections):
            sock.sendall((request_head(len(BODY)) + BODY)[: index * 4])
            if index % 3 == 0:
                sock.close()
        for _ in range(5):
            assert_responsive(server)
        for sock in connections:
            sock.close()
    wait_for(lambda: server.app.service.state.num_open == 0)
    assert server.app.service.scheduler.num_requests == 0
