"""The way to a Ray cluster: where none is, that is told in one sentence, and at once."""

import socket
import sys

import pytest

from bertworks.errors import MissingDependencyError, SettingsError
from bertworks.parallel.ray_cluster import ray_connection

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def alone(monkeypatch):
    """As if no cluster had been joined before."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


def test_an_address_where_nobody_listens_is_told(alone):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with (
            pytest.raises(SettingsError, match=f"at '{address}' .*refused.*; start one with `ray start"),
            ray_connection(address),
        ):
            pass


def test_an_address_that_is_none_is_told(alone):
    with pytest.raises(SettingsError, match="at 'nonsense' "), ray_connection("nonsense"):
        pass


def test_ray_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"bertworks\[ray\]"), ray_connection("auto"):
        pass
