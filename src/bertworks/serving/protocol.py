"""An HTTP connection: bytes of a client in, requests to the app and responses out, within limits of time and number.

A connection is closed without losing its last response: the server ends its side, then reads and discards what still
arrives. Closing a socket with unread bytes would reset it, and the client might lose the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState as UvicornState

from bertworks.serving.connections import ClientConnections, ConnectionTable, address_group
from bertworks.serving.errors import RequestError
from bertworks.serving.request_log import request_id_of
from bertworks.serving.security import REJECTION, ServerState

# Timeouts for the head of a request; for the next request, and for a response that the client does not read; and for
# the client to end its side after the server has.
HEAD_SECONDS = 10.0
IDLE_SECONDS = 15
LINGER_SECONDS = 2.0
# Bytes of a head: the request line and headers, or the trailers of a chunked body.
MAX_HEAD_BYTES = 2**16
# Each byte of a chunked body may come with so many of chunk headers.
_CHUNK_OVERHEAD = 8
# When so many requests of a connection wait for those before them, nothing more of it is parsed, or received, until all
# of these are answered. Bytes are parsed in parts of this size: some hundred requests.
_MAX_PIPELINED, _PART_BYTES = 16, 2**12
# While the server drains, a connection is closed after so many rounds of draining without a request. Rounds and not
# seconds: between two of them the event loop reads what has arrived, however long the process was not scheduled.
_QUIET_ROUNDS = 8


class HttpConnection(HttpToolsProtocol):
    """A connection with timeouts, counted in the table of connections."""

    _head_timer: asyncio.TimerHandle | None = None
    _abort: Callable[[], object] | None = None
    _linger_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _num_unread_bytes = 0
    _client_connections: ClientConnections | None = None
    _is_in_head = False
    _num_head_bytes = 0
    _num_quiet_rounds = 0

    def __init__(
        self,
        config: Config,
        server_state: UvicornState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        table: ConnectionTable,
        state: ServerState,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._table = table
        self._state = state
        self._unparsed = bytearray()
        self._cycles: deque[RequestResponseCycle] = deque()  # of requests that are not answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._raw_transport = transport
        self.transport = cast(asyncio.Transport, LingeringTransport(transport, self))
        self.flow = PipelineFlow(transport, self.pipeline)
        if self._abort is None:
            self.register(address_group(self.client[0]) if self.client else "", transport.abort)
        self._abort = transport.abort
        self._start_head_timer()

    def register(self, address: str, abort: Callable[[], object]) -> None:
        """Count the connection; `abort` closes it as long as it is not made, as in a TLS handshake."""
        self._abort = abort
        self._client_connections = self._table.add(self, address)

    def unregister(self) -> None:
        """Forget a connection that was never made."""
        self._table.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        for timer in filter(None, (self._linger_timer, self._unread_timer)):
            timer.cancel()
        self._unset_keepalive_if_required()  # uvicorn leaves the timer, and so the connection, after an error
        self._table.remove(self)
        self._client_connections = None
        for cycle in self._cycles:  # uvicorn tells only the last of several pipelined requests
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse what was received, until too many requests wait."""
        while self._unparsed and len(self.pipeline) < _MAX_PIPELINED and not self.transport.is_closing():
            data = bytes(self._unparsed[:_PART_BYTES])
            del self._unparsed[:_PART_BYTES]
            self._parse_part(data)
        if self.transport.is_closing():
            self._unparsed.clear()

    def _parse_part(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            message = f"the head of the request has more than {MAX_HEAD_BYTES:,} bytes; send fewer or shorter headers"
            self._send_error(RequestError(431, message))
        elif (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self._start_head_timer()  # empty lines before a request have stopped the timer of an idle connection

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._start_head_timer()
        if self._client_connections is None:
            cast(dict[str, Any], self.scope)[REJECTION] = self._rejection()
        else:
            self._wait_for_client(self._client_connections)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._cancel_head_timer()
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        if self._state.is_draining:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = max(0, self._num_head_bytes - (1 + _CHUNK_OVERHEAD) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_head_bytes = 0
        super().on_message_complete()
        self._wait_no_longer()

    def on_response_complete(self) -> None:
        self._cycles.popleft()
        super().on_response_complete()
        if not self.pipeline:
            self._parse()
        if not self.cycle.response_complete:  # the next of several pipelined requests
            return
        self._num_quiet_rounds = 0
        if self._client_connections is not None:
            self._wait_for_client(self._client_connections)
        if self.cycle.more_body:  # the rest of a body that nobody reads could take forever
            self.transport.close()

    def pause_writing(self) -> None:
        """Wait for a client that does not read its responses as for one that does not send its request."""
        super().pause_writing()
        if self._client_connections is not None:
            self._wait_for_client(self._client_connections)
        self._start_unread_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._wait_no_longer()

    def drain(self) -> None:
        """End the connection after its current response, or if no request has come for a while."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not self._is_in_head:
            self._num_quiet_rounds += 1
            if self._num_quiet_rounds > _QUIET_ROUNDS:
                self.transport.close()

    def drop(self) -> None:
        """Close the connection at once; the table has forgotten it."""
        self._client_connections = None
        assert self._abort is not None
        self._abort()

    def linger(self) -> None:
        """End the server's side; close the connection when the client has ended its side, or after a while."""
        self.pipeline.clear()
        self.flow.resume_reading()
        with contextlib.suppress(OSError):  # the client has closed it
            if self._raw_transport.can_write_eof():
                self._raw_transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self._on_linger_timeout)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless its client is still reading the response, however slowly."""
        if self._is_being_read():
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP."""
        self._send_error(RequestError(400, "this is not a valid HTTP request"))

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore a request for another protocol; uvicorn would log advice to install one."""

    def _send_error(self, error: RequestError) -> None:
        """Answer what cannot become a request, as JSON like every other error, and close the connection."""
        request_id = request_id_of({})
        body = orjson.dumps(error.to_dict(request_id))
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
            f"connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        self.transport.close()

    def _rejection(self) -> RequestError:
        """Return the answer to a request on a connection above the limits."""
        headers = {"Retry-After": "1", "Connection": "close"}
        if self._table.is_server_full():
            return RequestError(503, "the server has no connection left; retry later", headers)
        message = "too many open connections from this address; close some, or reuse them"
        return RequestError(429, message, headers, "too_many_connections")

    def _wait_for_client(self, connections: ClientConnections) -> None:
        """Move this connection to the end of those that wait for their client."""
        connections.waiting.pop(self, None)
        connections.waiting[self] = time.monotonic()

    def _wait_no_longer(self) -> None:
        """Count the connection as one that waits for the server, if a request is complete and its response is read."""
        is_computed = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if self._client_connections is not None and is_computed and not self.flow.write_paused:
            self._client_connections.waiting.pop(self, None)

    def _is_being_read(self) -> bool:
        """Return whether the client has read a part of the response since the last call, but not all of it."""
        num_bytes_before, self._num_unread_bytes = self._num_unread_bytes, self.transport.get_write_buffer_size()
        return 0 < self._num_unread_bytes != num_bytes_before

    def _on_linger_timeout(self) -> None:
        if self._is_being_read():
            self._linger_timer = self.loop.call_later(IDLE_SECONDS, self._on_linger_timeout)
        elif self.transport.get_write_buffer_size():
            self._raw_transport.abort()
        else:
            self._raw_transport.close()

    def _start_unread_timer(self) -> None:
        self._unread_timer = self.loop.call_later(IDLE_SECONDS, self._on_unread_timeout)

    def _on_unread_timeout(self) -> None:
        # After the last response, and while the connection is closed, another timer looks at this.
        is_responding = not self.transport.is_closing() and self.cycle is not None and not self.cycle.response_complete
        if is_responding and not self._is_being_read():
            self.transport.abort()
        else:
            self._start_unread_timer()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.flow.read_paused:  # the rest of the head may have arrived
            self._start_head_timer()
        else:
            self.transport.abort()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class PipelineFlow(FlowControl):
    """Receives nothing more while requests wait for those before them: one connection could fill the memory."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class LingeringTransport:
    """The part of a transport that an HTTP connection uses; closing it begins with the end of the server's side."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        self._transport = transport
        self._connection = connection
        self._is_lingering = False
        self.abort = transport.abort
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        if not self.is_closing():  # a client may leave at any time
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._is_lingering or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self._is_lingering = True
            self._connection.linger()
