"""Connecting to a Ray cluster: a missing one is reported at once."""

import socket
import sys

import pytest

from bertworks.errors import BertworksError, MissingDependencyError, SettingsError
from bertworks.parallel.ray_cluster import ray_connection

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def not_connected(monkeypatch):
    """As if no connection existed."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


def test_an_address_without_server_is_refused(not_connected):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with (
            pytest.raises(SettingsError, match=f"at '{address}' .*refused.*; start one with `ray start"),
            ray_connection(address),
        ):
            pass


def test_an_invalid_address_is_refused(not_connected):
    with pytest.raises(SettingsError, match="at 'nonsense' "), ray_connection("nonsense"):
        pass


def test_a_local_cluster_that_does_not_start_is_one_sentence(not_connected, monkeypatch):
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nA second line.")

    monkeypatch.setattr("ray.init", init)
    message = r"Ray did not start on this node \(The current node timed out during startup\.\); if the node is busy"
    with pytest.raises(BertworksError, match=message), ray_connection("local"):
        pass


def test_missing_ray_is_reported_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"bertworks\[ray\]"), ray_connection("auto"):
        pass
