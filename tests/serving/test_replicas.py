"""The app as a deployment of Ray Serve: the answers of one process, and a killed replica costs a retry at most."""

import socket
import threading
import time

import httpx
import pytest
import ray

from bertworks.errors import SettingsError
from bertworks.serving.replicas import Replicas, deploy_replicas
from bertworks.serving.server import ServeRequest

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),  # in Ray itself
]
PATIENCE = 120.0
BODY = {"inputs": ["the film was good", "it was a very dull film", "我很喜欢看电影。"]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def address(ray_cluster, folders):
    """Where two replicas answer for two models; they take little of the cluster."""
    models = tuple(f"{name}={folders[name]}" for name in ("classify", "sentences"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.serve._private.api.HTTP_PROXY_TIMEOUT", 300)  # see `ray_cluster`
        with deploy_replicas(ServeRequest(models, port=free_port()), Replicas(2, cpus=0.1)) as found:
            yield found


def replicas() -> set[str]:
    """The names of the replicas that live."""
    found = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"] for one in found if one["name"].startswith("SERVE_REPLICA::bertworks")}


def test_replicas_answer_as_the_app_does(address, ask):
    for path in ("/v1/models/classify/predict", "/v1/models/sentences/embed"):
        wanted = ask("POST", path, BODY)
        found = httpx.post(address + path, json=BODY, timeout=PATIENCE)
        assert (found.status_code, found.json()) == (wanted.status_code, wanted.json())
        assert found.headers["cache-control"] == "no-store"
    refused = httpx.post(address + "/v1/models/nobody/predict", json=BODY, timeout=PATIENCE)
    assert refused.status_code == 404
    assert refused.json() == ask("POST", "/v1/models/nobody/predict", BODY).json()


class Load:
    """Eight clients that ask all the time, each a second time after a 500; how often that was so is remembered."""

    def __init__(self, address: str) -> None:
        self._url = address + "/v1/models/classify/predict"
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._clients = [threading.Thread(target=self._ask_on) for _ in range(8)]
        self.statuses: list[int] = []
        self.num_retries = 0
        for client in self._clients:
            client.start()

    def _ask_on(self) -> None:
        with httpx.Client(timeout=PATIENCE) as client:
            while not self._is_over.is_set():
                found = client.post(self._url, json=BODY)
                again = found.status_code == 500
                if again:
                    found = client.post(self._url, json=BODY)
                with self._lock:
                    self.statuses.append(found.status_code)
                    self.num_retries += again

    def go_on(self, count: int) -> None:
        """Wait for so many more answers."""
        before = len(self.statuses)
        wait_for(lambda: len(self.statuses) >= before + count)

    def end(self) -> None:
        self._is_over.set()
        for client in self._clients:
            client.join(PATIENCE)


def kill_one() -> None:
    """Kill one of two replicas under load, and wait until there is another in its place."""
    before = replicas()
    assert len(before) == 2
    ray.kill(ray.get_actor(min(before), namespace="serve"))  # its process ends at once
    wait_for(lambda: len(replicas() - before) == 1)


def test_a_killed_replica_costs_one_retry_at_most(address):
    load = Load(address)
    load.go_on(40)
    kill_one()
    load.go_on(100)
    load.end()
    assert set(load.statuses) == {200}
    assert load.num_retries <= 8  # what the killed replica was computing, and nothing else


@pytest.mark.soak
def test_replicas_that_are_killed_again_and_again_lose_nothing(address):
    load = Load(address)
    for _ in range(6):
        load.go_on(200)
        wait_for(lambda: len(replicas()) == 2)
        kill_one()
    load.go_on(200)
    load.end()
    assert set(load.statuses) == {200}
    assert load.num_retries <= 6 * 8


def wait_for(is_so) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_what_cannot_be_served_is_told_before_anything_starts(ray_cluster, folders, tmp_path):
    with (
        pytest.raises(SettingsError, match="--port 0"),
        deploy_replicas(ServeRequest((str(folders["tag"]),), port=0), Replicas()),
    ):
        pass
    other = ServeRequest((str(folders["tag"]),), host="0.0.0.0")
    with pytest.raises(SettingsError, match="needs keys"), deploy_replicas(other, Replicas()):
        pass
