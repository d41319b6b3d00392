"""Connections on real sockets: clients that leave, drip and flood; limits of connections; closing without a reset."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import TIMEOUT, RunningServer, run_server, wait_for

from bertworks.serving import protocol
from bertworks.serving import server as serving_server
from bertworks.serving.client_limits import ClientLimits
from bertworks.serving.security import Limits

BODY = json.dumps({"inputs": ["a cat sat"]}).encode()


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], one_thread: None) -> Iterator[RunningServer]:
    """A server whose bodies must arrive within a second, with four connections per address."""
    limits = Limits(seconds=1.5, body_bytes=2**20)
    models = (f"bert={folders['sentences']}",)
    with run_server(*models, limits=limits, client_limits=ClientLimits(connections=4)) as running_server:
        yield running_server


@pytest.fixture
def small_server(
    folders: dict[str, Path], one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    """A server with three connections in all."""
    monkeypatch.setattr(serving_server, "max_connections", lambda: 3)
    with run_server(f"bert={folders['sentences']}") as running_server:
        yield running_server


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)


def request_bytes(length: int = len(BODY), method: str = "POST", path: str = "/v1/models/bert/embed") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


def receive_until_end(sock: socket.socket) -> bytes:
    """Return all bytes until the server ends its side; a reset is an error."""
    received = b""
    while part := sock.recv(2**16):
        received += part
    return received


def exchange(server: RunningServer, data: bytes) -> bytes:
    """Send bytes on a new connection and return what comes until it ends or pauses."""
    with connect(server) as sock:
        sock.sendall(data)
        return sock.recv(2**16)


def statuses(server: RunningServer) -> dict[str, float]:
    """Return the number of requests by status."""
    text = server.app.app.metrics.as_text().decode()  # type: ignore[attr-defined]
    counts: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("bertworks_requests_total"):
            status = line.partition('status="')[2].partition('"')[0]
            counts[status] = counts.get(status, 0.0) + float(line.rpartition(" ")[2])
    return counts


@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
def test_a_client_that_leaves_in_the_middle_of_its_body_is_a_499_and_logs_nothing(leave, server, caplog):
    before = statuses(server).get("499", 0)
    with caplog.at_level(logging.DEBUG), connect(server) as sock:
        sock.sendall(request_bytes() + BODY[:5])
        wait_for(lambda: server.app.service.state.num_open == 1)
        if leave == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if leave == "half-close":
            sock.shutdown(socket.SHUT_WR)
        else:
            sock.close()
        wait_for(lambda: statuses(server).get("499", 0) == before + 1)
        wait_for(lambda: server.app.service.state.num_open == 0)
    assert "500" not in statuses(server)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_that_drips_is_ended_by_the_total_time_limit(server):
    with connect(server) as sock:
        sock.sendall(request_bytes(1_000))
        sock.settimeout(0.1)
        start_time, received = time.monotonic(), b""
        while not received:
            assert time.monotonic() < start_time + 30, "the time limit starts again with every byte"
            sock.sendall(b" ")
            try:
                received = sock.recv(2**16)
            except TimeoutError:
                continue
        assert received.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in received


def test_an_address_with_all_its_connections_gets_429_but_health_checks_are_answered(server):
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(4)]
        for sock in slow:
            sock.sendall(request_bytes() + BODY[:5])
        response = exchange(server, request_bytes() + BODY)
        assert response.startswith(b"HTTP/1.1 429")
        assert b"too_many_connections" in response
        assert b"retry-after: 1" in response
        assert b"connection: close" in response
        for path in ("/health", "/ready"):
            assert exchange(server, request_bytes(0, "GET", path)).startswith(b"HTTP/1.1 200")


def test_slow_senders_are_replaced_by_new_connections(server):
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(4)]
        for sock in slow:
            sock.sendall(request_bytes() + BODY[:5])
        time.sleep(1.1)
        for _ in range(3):
            assert exchange(server, request_bytes() + BODY).startswith(b"HTTP/1.1 200")


def test_a_full_server_answers_503_and_health_checks(small_server):
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(small_server)) for _ in range(3)]
        response = exchange(small_server, request_bytes() + BODY)
        assert response.startswith(b"HTTP/1.1 503")
        assert b"no connection left" in response
        assert exchange(small_server, request_bytes(0, "GET", "/health")).startswith(b"HTTP/1.1 200")
        time.sleep(1.1)
        assert exchange(small_server, request_bytes() + BODY).startswith(b"HTTP/1.1 200")
        for sock in silent[1:]:
            sock.sendall(request_bytes() + BODY)
            assert sock.recv(2**16).startswith(b"HTTP/1.1 200")


def test_hundreds_of_silent_connections_do_not_keep_a_health_check_out(server):
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(connect(server))
        assert exchange(server, request_bytes(0, "GET", "/health")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("lines", ["Host: user@127.0.0.1", "Host: 127.0.0.1\r\nHost: 127.0.0.1", "Host: evil.example"])
def test_hosts_that_are_not_allowed_are_refused_on_the_wire(lines, server):
    assert exchange(server, f"GET /health HTTP/1.1\r\n{lines}\r\n\r\n".encode()).startswith(b"HTTP/1.1 403")


def test_a_response_reaches_a_client_that_is_still_sending(server):
    for _ in range(10):
        with connect(server) as sock:
            sock.sendall(b"\x00" * 2**18)  # not HTTP: answered and closed at the first byte
            time.sleep(0.01)
            sock.sendall(b"\x00" * 2**10)
            received = receive_until_end(sock)
            assert received.startswith(b"HTTP/1.1 400")
            assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["request_id"]


def test_a_request_whose_body_is_not_read_ends_its_connection(server):
    with connect(server) as sock:
        sock.sendall(request_bytes(1_000, "GET", "/health") + b"x")
        received = receive_until_end(sock)
        assert received.startswith(b"HTTP/1.1 200")
        sock.sendall(b"x")  # is discarded


def test_a_client_that_does_not_close_is_closed_after_a_while(server, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)
    with connect(server) as sock:
        sock.sendall(request_bytes(0, "GET", "/health").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert receive_until_end(sock).startswith(b"HTTP/1.1 200")
        wait_for(lambda: not server.server.server_state.connections)


def test_pipelined_requests_are_answered_in_order(server):
    with connect(server) as sock:
        paths = ["/health", "/v1/models", "/ready"]
        heads = [f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-ID: id{path}\r\n\r\n" for path in paths]
        sock.sendall("".join(heads).encode())
        received = b""
        while b"x-request-id: id/ready" not in received:
            received += sock.recv(2**16)
        positions = [received.index(f"x-request-id: id{path}".encode()) for path in paths]
        assert positions == sorted(positions)


def connect_without_reading(server: RunningServer) -> socket.socket:
    """Request a large page many times on one connection, and read none of the responses."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(request_bytes(0, "GET", "/openapi.json") * 100)
    return sock


def test_clients_that_do_not_read_are_replaced_by_new_connections(server):
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect_without_reading(server))
        time.sleep(2.0)
        for _ in range(3):
            assert exchange(server, request_bytes() + BODY).startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_the_first_of_its_responses_is_aborted(server, monkeypatch):
    monkeypatch.setattr(protocol, "IDLE_SECONDS", 0.3)
    with connect_without_reading(server):
        wait_for(lambda: bool(server.server.server_state.connections), seconds=10)
        wait_for(lambda: not server.server.server_state.connections, seconds=10)


def test_a_client_that_leaves_before_its_pipelined_responses_logs_nothing(server, caplog):
    with caplog.at_level(logging.DEBUG), connect_without_reading(server) as sock:
        wait_for(lambda: any(connection.flow.write_paused for connection in server.server.server_state.connections))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_for(lambda: not server.server.server_state.connections)
        wait_for(lambda: server.app.service.state.num_open == 0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_thousand_pipelined_requests_are_answered_while_few_of_them_wait_in_memory(server):
    request, num_pipelined, received = request_bytes(0, "GET", "/health"), [], b""
    last_request = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connect(server) as sock:
        sender = threading.Thread(target=sock.sendall, args=(request * 999 + last_request,))
        sender.start()
        while part := sock.recv(2**12):
            received += part
            num_pipelined += [len(connection.pipeline) for connection in list(server.server.server_state.connections)]
        sender.join()
    assert received.count(b"HTTP/1.1 200") == 1_000
    assert max(num_pipelined) < 100


def test_hundreds_of_requests_on_one_connection_leave_nothing_behind(server):
    with httpx.Client(base_url=server.address, timeout=TIMEOUT) as client:
        for _ in range(200):
            assert client.get("/health").status_code == 200
    wait_for(lambda: not server.server.server_state.connections)


def test_a_connection_whose_response_is_not_read_is_aborted():
    class Transport:
        def __init__(self) -> None:
            self.num_unread_bytes, self.state = 100, ""

        def get_write_buffer_size(self) -> int:
            return self.num_unread_bytes

        def is_closing(self) -> bool:
            return bool(self.state)

        def abort(self) -> None:
            self.state = "aborted"

        def close(self) -> None:
            self.state = "closed"

    class Loop:
        def call_later(self, seconds: float, callback: Any) -> None:
            return None

    connection = protocol.HttpConnection.__new__(protocol.HttpConnection)
    transport: Any = Transport()
    connection.transport, connection.loop = transport, Loop()  # type: ignore[assignment]
    connection.timeout_keep_alive_handler()
    assert transport.state == ""  # the client may be slow
    transport.num_unread_bytes = 60
    connection.timeout_keep_alive_handler()
    assert transport.state == ""  # it has read some bytes
    connection.timeout_keep_alive_handler()
    assert transport.state == "aborted"
    transport.num_unread_bytes, transport.state = 0, ""
    connection.timeout_keep_alive_handler()
    assert transport.state == "closed"


def test_a_head_of_megabytes_is_refused_while_it_arrives(server):
    with connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
        with contextlib.suppress(OSError):  # the server has ended its side
            for _ in range(2**8):
                sock.sendall(b"x" * 2**16)
        received = receive_until_end(sock)
    assert received.startswith(b"HTTP/1.1 431")
    error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["message"].partition(";")[0]) == (
        "headers_too_large",
        "the head of the request has more than 65,536 bytes",
    )


def test_trailers_of_megabytes_are_refused_while_they_arrive(server):
    head = request_bytes().replace(f"Content-Length: {len(BODY)}".encode(), b"Transfer-Encoding: chunked")
    with connect(server) as sock:
        sock.sendall(head + b"1\r\n{\r\n0\r\nX-Long: ")
        with contextlib.suppress(OSError):
            for _ in range(2**8):
                sock.sendall(b"x" * 2**16)
        assert receive_until_end(sock).startswith(b"HTTP/1.1 431")


def test_a_body_in_chunks_of_one_byte_is_read(server):
    body = json.dumps({"inputs": ["a cat sat"], "truncate": False}).ljust(20_000).encode()
    head = request_bytes().replace(f"Content-Length: {len(BODY)}".encode(), b"Transfer-Encoding: chunked")
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body)
    with connect(server) as sock:
        sock.sendall(head + chunks + b"0\r\n\r\n")
        assert sock.recv(2**16).startswith(b"HTTP/1.1 200")


def test_empty_lines_do_not_keep_an_idle_connection_open(server, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with connect(server) as sock:
        sock.sendall(request_bytes(0, "GET", "/health"))
        assert b"alive" in sock.recv(2**16)
        sock.sendall(b"\r\n")
        sock.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0"])
def test_a_request_for_another_protocol_is_answered_in_http_and_logs_nothing(upgrade, server, caplog):
    head = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n".encode()
    with connect(server) as sock:
        for _ in range(2):
            sock.sendall(head)
            assert sock.recv(2**16).startswith(b"HTTP/1.1 200")
    assert caplog.records == []


@pytest.mark.parametrize(
    "line", ["CONNECT evil.example:443", "OPTIONS *", "GET http://evil.example", "GET //evil.example/health", "GET *"]
)
def test_unusual_request_targets_are_answered_without_a_traceback(line, server, caplog):
    response = exchange(server, f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert response[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405")
    assert [record for record in caplog.records if record.exc_info] == []
