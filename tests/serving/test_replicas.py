"""Replicas on Ray Serve: responses are those of a single process, and a killed replica costs at most a retry."""

import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
import ray

from bertworks.errors import SettingsError
from bertworks.serving.replicas import Replicas, _http_options, deploy_replicas
from bertworks.serving.server import ServeRequest
from bertworks.serving.tls import TlsFiles

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),  # in Ray itself
]
TIMEOUT = 120.0
BODY = {"inputs": ["the film was good", "it was a very dull film", "我很喜欢看电影。"]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def address(ray_cluster, folders):
    """The address of two replicas with two models, which need few CPUs."""
    models = tuple(f"{name}={folders[name]}" for name in ("classify", "sentences"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.serve._private.api.HTTP_PROXY_TIMEOUT", 300)  # see `ray_cluster`
        with deploy_replicas(
            ServeRequest(models=models, port=free_port(), precision="fp32"), Replicas(2, cpus=0.1)
        ) as address:
            yield address


def replica_names() -> set[str]:
    """Return the names of the running replicas."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in actors if actor["name"].startswith("SERVE_REPLICA::bertworks")}


def test_responses_of_replicas_are_those_of_the_app(address, client):
    for path in ("/v1/models/classify/predict", "/v1/models/sentences/embed"):
        expected = client("POST", path, BODY)
        response = httpx.post(address + path, json=BODY, timeout=TIMEOUT)
        assert (response.status_code, response.json()) == (expected.status_code, expected.json())
        assert response.headers["cache-control"] == "no-store"
    headers = {"X-Request-ID": "the-same"}
    response = httpx.post(address + "/v1/models/unknown/predict", json=BODY, headers=headers, timeout=TIMEOUT)
    assert response.status_code == 404
    assert response.headers.get_list("x-request-id") == ["the-same"]
    assert response.json() == client("POST", "/v1/models/unknown/predict", BODY, headers=headers).json()


class LoadGenerator:
    """Eight clients that send requests continuously and retry once after status 408 or 500; retries are counted."""

    def __init__(self, address: str) -> None:
        self._url = address + "/v1/models/classify/predict"
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._clients = [threading.Thread(target=self._send_requests) for _ in range(8)]
        self.statuses: list[int] = []
        self.num_retries = 0
        for client in self._clients:
            client.start()

    def _send_requests(self) -> None:
        with httpx.Client(timeout=TIMEOUT) as client:
            while not self._stop.is_set():
                response = client.post(self._url, json=BODY)
                is_retry = response.status_code in (408, 500)
                if is_retry:
                    response = client.post(self._url, json=BODY)
                with self._lock:
                    self.statuses.append(response.status_code)
                    self.num_retries += is_retry

    def wait_for_responses(self, count: int) -> None:
        """Wait for so many more responses."""
        target = len(self.statuses) + count
        wait_for(lambda: len(self.statuses) >= target)

    def stop(self) -> None:
        self._stop.set()
        for client in self._clients:
            client.join(TIMEOUT)


def kill_replica() -> None:
    """Kill one of two replicas under load, and wait for its replacement."""
    before = replica_names()
    assert len(before) == 2
    ray.kill(ray.get_actor(min(before), namespace="serve"))  # its process ends at once
    wait_for(lambda: len(replica_names() - before) == 1)


def test_a_killed_replica_costs_at_most_one_retry(address):
    load = LoadGenerator(address)
    load.wait_for_responses(40)
    kill_replica()
    load.wait_for_responses(100)
    load.stop()
    assert set(load.statuses) == {200}
    assert load.num_retries <= 8  # only the requests that the killed replica was computing


@pytest.mark.soak
def test_no_request_is_lost_when_replicas_are_killed_repeatedly(address):
    load = LoadGenerator(address)
    for _ in range(6):
        load.wait_for_responses(200)
        wait_for(lambda: len(replica_names()) == 2)
        kill_replica()
    load.wait_for_responses(200)
    load.stop()
    assert set(load.statuses) == {200}
    assert load.num_retries <= 6 * 8


def wait_for(condition) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.1)


def test_invalid_requests_are_rejected_before_anything_starts(ray_cluster, folders, tmp_path):
    with (
        pytest.raises(SettingsError, match="--port 0"),
        deploy_replicas(ServeRequest(models=(str(folders["tag"]),), port=0), Replicas()),
    ):
        pass
    public_request = ServeRequest(models=(str(folders["tag"]),), host="0.0.0.0")
    with pytest.raises(SettingsError, match="requires API keys"), deploy_replicas(public_request, Replicas()):
        pass


def test_the_proxies_get_the_tls_files(tmp_path):
    request = ServeRequest(models=("x",), tls=TlsFiles(Path("/cert.pem"), Path("/key.pem")))
    assert _http_options(request)["ssl_certfile"] == "/cert.pem"
    assert _http_options(request)["ssl_keyfile"] == "/key.pem"
    assert "ssl_certfile" not in _http_options(ServeRequest(models=("x",)))
