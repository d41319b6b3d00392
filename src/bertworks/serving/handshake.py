"""TLS handshakes: a TCP connection in, an HTTP connection over TLS out, counted in the table from its first packet.

asyncio tells nobody of a connection before its handshake is complete. Thousands of clients that never complete one
would be counted by nobody and take all files that the process may open.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from bertworks.serving.connections import ConnectionTable, address_group

# Timeout for a handshake.
HANDSHAKE_SECONDS = 10.0


class TlsHandshake(asyncio.Protocol):
    """A connection whose TLS handshake is not complete; then the protocol of `create_connection` takes its place."""

    _transport: asyncio.Transport
    _task: asyncio.Task[None]
    _received = b""
    _is_lost = False

    def __init__(
        self, context: ssl.SSLContext, create_connection: Callable[[], asyncio.Protocol], table: ConnectionTable
    ) -> None:
        self._context = context
        self._create_connection = create_connection
        self._table = table

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.pause_reading()  # the handshake reads
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._table.add(self, address_group(peer[0]) if peer else "")
        self._task = asyncio.get_running_loop().create_task(self._complete())

    def data_received(self, data: bytes) -> None:
        """Keep what arrives with the end of the handshake."""
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def drop(self) -> None:
        """Close the connection at once; the table has forgotten it."""
        self._transport.abort()

    async def _complete(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # no TLS, a timeout, or the client has left
            self._transport.abort()
            return
        finally:
            self._table.remove(self)
        if transport is None or self._is_lost:
            return
        connection = self._create_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self._received:
            connection.data_received(self._received)
