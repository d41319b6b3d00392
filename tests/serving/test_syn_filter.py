"""Sockets that refuse new handshakes: connections in the queue survive, and new ones do not enter it."""

from __future__ import annotations

import socket

import pytest

from bertworks.serving.syn_filter import refuse_new_handshakes


def test_connections_in_the_queue_are_kept_and_new_ones_are_not_added():
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as early:
            refuse_new_handshakes(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.3)
            listener.settimeout(5)
            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b"request")
                assert accepted.recv(100) == b"request"
                accepted.sendall(b"response")
                assert early.recv(100) == b"response"
            listener.settimeout(0.1)
            with pytest.raises(TimeoutError):
                listener.accept()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
