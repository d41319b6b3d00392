"""The table of connections: limits per address and in all, what is replaced, and the reserve for health checks."""

from __future__ import annotations

import resource

import pytest

from bertworks.serving import connections
from bertworks.serving.connections import NUM_RESERVED, ConnectionTable, address_group, max_connections


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class FakeConnection:
    """A connection that notes that it was dropped."""

    def __init__(self) -> None:
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connections, "time", clock)
    return clock


def open_connections(table: ConnectionTable, address: str, count: int, clock: Clock) -> list[FakeConnection]:
    """Open connections a tenth of a second apart."""
    opened = []
    for _ in range(count):
        clock.now += 0.1
        opened.append(FakeConnection())
        table.add(opened[-1], address)
    return opened


def test_a_new_connection_replaces_the_one_of_its_address_that_has_waited_longest(clock):
    table = ConnectionTable(max_per_address=3)
    first = open_connections(table, "a", 3, clock)
    other = open_connections(table, "b", 3, clock)
    clock.now += 1.0
    new = FakeConnection()
    assert table.add(new, "a") is not None
    assert [connection.is_dropped for connection in first] == [True, False, False]
    assert not any(connection.is_dropped for connection in other)
    table.remove(first[0])  # its connection_lost comes later, and changes nothing
    assert table.add(FakeConnection(), "a") is not None
    assert [connection.is_dropped for connection in first] == [True, True, False]


def test_a_connection_whose_request_is_computed_is_never_replaced(clock):
    table = ConnectionTable(max_per_address=2)
    busy, idle = FakeConnection(), FakeConnection()
    client = table.add(busy, "a")
    assert client is not None
    client.waiting.pop(busy)  # its request has arrived
    table.add(idle, "a")
    clock.now += 5.0
    assert table.add(FakeConnection(), "a") is client
    assert (busy.is_dropped, idle.is_dropped) == (False, True)
    for connection in list(client.waiting):
        client.waiting.pop(connection)
    assert table.add(FakeConnection(), "a") is None
    assert not busy.is_dropped


def test_a_connection_is_not_replaced_in_its_first_second(clock):
    table = ConnectionTable(max_per_address=1)
    first = FakeConnection()
    table.add(first, "a")
    clock.now += 0.9
    assert table.add(FakeConnection(), "a") is None
    assert not first.is_dropped


def test_a_full_server_replaces_a_connection_of_the_address_with_most(clock):
    table = ConnectionTable(max_per_address=10, max_total=6)
    few, many = open_connections(table, "few", 2, clock), open_connections(table, "many", 4, clock)
    clock.now += 1.0
    assert table.add(FakeConnection(), "new") is not None
    assert [connection.is_dropped for connection in few + many] == [False, False, True, False, False, False]


def test_connections_above_the_limit_are_reserved_and_the_oldest_of_them_dropped(clock):
    table = ConnectionTable(max_per_address=1)
    open_connections(table, "a", 1, clock)
    clock.now = 0.2
    reserved = [FakeConnection() for _ in range(NUM_RESERVED + 3)]
    assert [table.add(connection, "a") for connection in reserved] == [None] * len(reserved)
    assert [connection.is_dropped for connection in reserved] == [True] * 3 + [False] * NUM_RESERVED


def test_a_removed_connection_makes_room(clock):
    table = ConnectionTable(max_per_address=1, max_total=1)
    first = FakeConnection()
    table.add(first, "a")
    assert table.is_server_full()
    table.remove(first)
    table.remove(first)
    assert not table.is_server_full()
    assert table.add(FakeConnection(), "b") is not None


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_an_ipv6_client_is_its_network(address, group):
    assert address_group(address) == group


def test_the_limit_of_open_files_bounds_the_connections(monkeypatch):
    limits = [(1_024, 4_096), (256, 512), (100, 100), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
    set_limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda name, value: set_limits.append(value))
    counts = []
    for limit in limits:
        monkeypatch.setattr(resource, "getrlimit", lambda name, limit=limit: limit)
        counts.append(max_connections())
    assert counts == [2_048, 128, 1, 2_048]
    assert set_limits == [(2_432, 4_096), (512, 512), (100, 100)]
