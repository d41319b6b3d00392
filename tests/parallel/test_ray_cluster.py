"""Connecting to a Ray cluster: a missing one is reported at once, a local one that starts slowly is started again."""

import socket
import subprocess
import sys

import pytest

from bertworks.errors import BertworksError, MissingDependencyError, SettingsError
from bertworks.parallel.ray_cluster import ray_connection

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def not_connected(monkeypatch):
    """As if no connection existed. That of other tests is not shut down."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)


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


TIMED_OUT = "The current node timed out during startup.\nA second line."


class SlowNode:
    """`ray.init` on a busy node: fails so many times, each time with a process that it has started."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.processes: list[subprocess.Popen[bytes]] = []

    def init(self, **_: object) -> None:
        assert all(process.poll() is not None for process in self.processes)
        if len(self.processes) < self.num_failures:
            self.processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
            raise Exception(TIMED_OUT)


@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_local_cluster_that_starts_too_slowly_is_started_again(not_connected, monkeypatch, num_failures):
    node = SlowNode(num_failures)
    monkeypatch.setattr("ray.init", node.init)
    with ray_connection("local"):
        assert len(node.processes) == num_failures


def test_a_local_cluster_that_never_starts_is_one_sentence_and_leaves_nothing(not_connected, monkeypatch):
    node = SlowNode(10)
    monkeypatch.setattr("ray.init", node.init)
    message = (
        r"Ray did not start on this node in 3 attempts \(The current node timed out during startup\.\); if the node"
    )
    with pytest.raises(BertworksError, match=message), ray_connection("local"):
        pass
    assert [process.wait() for process in node.processes] == [0, 0, 0]  # reaped already


def test_what_else_this_process_has_started_is_left_alone(not_connected, monkeypatch):
    monkeypatch.setattr("ray.init", SlowNode(1).init)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        try:
            with ray_connection("local"):
                assert other.poll() is None
        finally:
            other.kill()


def test_missing_ray_is_reported_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"bertworks\[ray\]"), ray_connection("auto"):
        pass
