"""TLS handshakes: a listening socket in, HTTP connections over TLS out, counted in the table from their first packet.

asyncio's servers tell nobody of a connection before its handshake is complete. Thousands of clients that never complete
one would be counted by nobody, and take all files that the process may open.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from bertworks.serving.connections import address_group
from bertworks.serving.protocol import HttpConnection

HANDSHAKE_SECONDS = 10.0
# Time to wait if a connection cannot be accepted, and for handshakes that are under way when the server stops.
_RETRY_SECONDS, _CLOSE_SECONDS = 0.05, 0.5


class TlsListener:
    """Accepts the connections of a socket; has the methods of asyncio's server that uvicorn calls."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, create_connection: Callable[[], HttpConnection]
    ) -> None:
        sock.setblocking(False)
        self._sock, self._context, self._create_connection = sock, context, create_connection
        self._handshakes: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections; handshakes that are under way have half a second."""
        self._task.cancel()
        for task in self._handshakes:
            task.get_loop().call_later(_CLOSE_SECONDS, task.cancel)

    async def wait_closed(self) -> None:
        """Return at once: connections are closed by the server."""

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._sock)
            except OSError:  # the client has left, or no file can be opened now
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            connection = self._create_connection()
            task = loop.create_task(self._complete(client, connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            connection.register(address_group(address[0]), task.cancel)

    async def _complete(self, client: socket.socket, connection: HttpConnection) -> None:
        """Complete a handshake; asyncio then calls `connection_made` of the connection."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, asyncio.CancelledError):  # no TLS, a timeout, the client has left, or it was replaced
            client.close()
            connection.unregister()
