"""The connections of a server: a new connection in; whether it is within the limits, and which one it replaces, out.

A connection waits for its client until a request has arrived completely, and again after the response. If an address or
the server has all its connections, a new one replaces the one that has waited longest, so that silent, slow and idle
clients never keep others out. Connections above the limits are accepted too, for health checks, and the oldest of them
are closed when there are too many.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

MAX_CONNECTIONS = 2_048
# Connections above the limits, whose requests are rejected except for health checks.
NUM_RESERVED = 256
# Files of the process that are not connections.
_NUM_OTHER_FILES = 128
# A client has so many seconds before its connection can be replaced.
_MIN_WAIT_SECONDS = 1.0


class Connection(Protocol):
    """What the table needs of a connection."""

    def drop(self) -> None:
        """Close the connection at once; `connection_lost` follows."""


@dataclass(slots=True)
class ClientConnections:
    """The connections of one address; those that wait for their client, with the time since when, longest first."""

    num_open: int = 0
    waiting: dict[Connection, float] = field(default_factory=dict)


class ConnectionTable:
    """All connections of a server, by client address."""

    def __init__(self, max_per_address: int, max_total: int = MAX_CONNECTIONS) -> None:
        self._max_per_address = max_per_address
        self._max_total = max_total
        self._num_open = 0
        self._clients: dict[str, ClientConnections] = {}
        self._open: dict[Connection, str] = {}
        self._reserved: dict[Connection, None] = {}

    def add(self, connection: Connection, address: str) -> ClientConnections | None:
        """Add a connection and return those of its address; None if there are too many and none can be replaced."""
        client = self._clients.get(address) or ClientConnections()
        is_full = (client.num_open >= self._max_per_address and not self._replace([client])) or (
            self._num_open >= self._max_total and not self._replace(self._clients.values())
        )
        if is_full:
            self._reserved[connection] = None
            if len(self._reserved) > NUM_RESERVED:
                oldest = next(iter(self._reserved))
                del self._reserved[oldest]
                oldest.drop()
            return None
        self._clients[address] = client
        self._open[connection] = address
        self._num_open += 1
        client.num_open += 1
        client.waiting[connection] = time.monotonic()
        return client

    def remove(self, connection: Connection) -> None:
        """Remove a connection, if it has not been replaced."""
        self._reserved.pop(connection, None)
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._num_open -= 1
        client = self._clients[address]
        client.waiting.pop(connection, None)
        client.num_open -= 1
        if not client.num_open:
            del self._clients[address]

    def is_server_full(self) -> bool:
        return self._num_open >= self._max_total

    def _replace(self, clients: Iterable[ClientConnections]) -> bool:
        """Drop a connection that has waited for at least a second; return False if there is none.

        It is the one that has waited longest of the address with the most that wait: attacks come from few addresses.
        """
        latest = time.monotonic() - _MIN_WAIT_SECONDS
        slow: list[dict[Connection, float]] = [
            client.waiting for client in clients if next(iter(client.waiting.values()), latest + 1) <= latest
        ]
        if not slow:
            return False
        waiting = max(slow, key=len)
        connection = next(iter(waiting))
        self.remove(connection)
        connection.drop()
        return True


def address_group(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network that an IPv6 client can choose from."""
    if ":" not in address:
        return address
    network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    mapped = ipaddress.IPv6Address(address.partition("%")[0]).ipv4_mapped
    return str(mapped or network)


def max_connections() -> int:
    """Raise the limit of open files as far as allowed; return the number of connections that it leaves room for."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MAX_CONNECTIONS
    needed = MAX_CONNECTIONS + NUM_RESERVED + _NUM_OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - NUM_RESERVED - _NUM_OTHER_FILES))
