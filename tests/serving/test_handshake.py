"""TLS handshakes: clients that never complete one are counted and replaced; what follows a handshake is not lost."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from certificates import write_certificate
from running import TIMEOUT, RunningServer, run_server, wait_for

from bertworks.serving import connections
from bertworks.serving.client_limits import ClientLimits

HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def server(
    folders: dict[str, Path], tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    """A server with TLS, with four connections per address and eight above that."""
    monkeypatch.setattr(connections, "NUM_RESERVED", 8)
    files, limits = write_certificate(tmp_path), ClientLimits(connections=4)
    with run_server(f"bert={folders['sentences']}", tls=files, client_limits=limits) as running_server:
        yield running_server


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_clients_that_never_complete_a_handshake_are_counted_and_replaced(server):
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(100)]
        for sock in silent[::2]:
            with contextlib.suppress(OSError):
                sock.sendall(b"\x16\x03\x01")  # the beginning of one
        wait_for(lambda: sum(map(is_closed, silent)) >= 100 - 4 - 8, 8)
        with connect(server) as sock, client_context().wrap_socket(sock) as tls_sock:
            tls_sock.sendall(HEALTH)
            assert tls_sock.recv(2**16).startswith(b"HTTP/1.1 200")


def test_a_request_that_arrives_with_the_end_of_the_handshake_is_answered(server):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing)
    with connect(server) as sock:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(2**16))
        client.write(HEALTH)
        sock.sendall(outgoing.read())  # the last message of the handshake and the request
        received = b""
        while b"alive" not in received:
            incoming.write(sock.recv(2**16))
            with contextlib.suppress(ssl.SSLWantReadError):
                received += client.read(2**16)
    assert received.startswith(b"HTTP/1.1 200")


def test_what_is_not_tls_is_closed(server):
    with connect(server) as sock:
        sock.sendall(HEALTH)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(2**16):
                pass
