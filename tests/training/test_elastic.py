"""Two nodes of one run, as two torchrun agents: killed processes are replaced, and the run completes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch
from many_processes import free_port
from small_run import RECIPE, curve, prepare_corpus

from bertworks.settings import to_toml
from bertworks.training.checkpoint import checkpoints_in, load_checkpoint

# Long enough to be killed in the middle.
LONG_RECIPE = replace(
    RECIPE,
    phases=(replace(RECIPE.phases[0], steps=50),),
    micro_batch_size=0,
    save_steps=4,
    eval_steps=50,
    warmup_steps=5,
)
TIMEOUT = 300.0  # seconds, on a busy machine


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("elastic"))


@dataclass
class Agents:
    """Starts torchrun agents of one run, each as if it were a node, with one process."""

    folder: Path
    corpus: Path
    nodes: str = "2"

    def __post_init__(self) -> None:
        self.recipe = self.folder / "long.toml"
        self.recipe.write_text(to_toml(LONG_RECIPE), encoding="utf-8")
        self.port = free_port()
        self.running: list[subprocess.Popen[str]] = []

    @property
    def output(self) -> Path:
        return self.folder / "run"

    def start(self, number: int, *options: str) -> subprocess.Popen[str]:
        rendezvous = f"--rdzv-backend=c10d --rdzv-endpoint=localhost:{self.port} --rdzv-id=run"
        torchrun = f"-m torch.distributed.run --nnodes={self.nodes} --nproc-per-node=1 --max-restarts=3 {rendezvous}"
        # Agents on one machine would all consider themselves the host of the rendezvous.
        timeouts = "last_call_timeout=10,read_timeout=600,keep_alive_max_attempt=6"
        torchrun += f" --local-addr=127.0.0.1 --rdzv-conf=is_host={int(number == 0)},{timeouts}"
        module = [
            "-m",
            "bertworks",
            "pretrain",
            str(self.recipe),
            "--data",
            str(self.corpus),
            "--output",
            str(self.output),
        ]
        command = [sys.executable, *torchrun.split(), *module, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        with (self.folder / f"agent-{len(self.running)}.log").open("w") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment)
        self.running.append(agent)
        return agent

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("agent-*.log")))

    def wait_for(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not happened():
            assert time.monotonic() < deadline, self.logs()
            assert any(agent.poll() is None for agent in self.running) or happened(), self.logs()
            time.sleep(0.02)

    def wait_for_step(self, number: int) -> None:
        file = self.output / "metrics.jsonl"
        self.wait_for(lambda: file.exists() and f'"kind": "step", "step": {number},' in file.read_text())

    def all_succeed(self, *agents: subprocess.Popen[str]) -> bool:
        """Wait until the agents exit; return whether all succeeded."""
        self.wait_for(lambda: all(agent.poll() is not None for agent in agents))
        return all(agent.returncode == 0 for agent in agents)

    def close(self) -> None:
        for agent in self.running:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(agent.pid).children(True), agent]:
                    process.kill()
            agent.wait()


@pytest.fixture
def agents(tmp_path, corpus):
    running = Agents(tmp_path, corpus)
    yield running
    running.close()


def worker_of(agent: subprocess.Popen[str]) -> psutil.Process:
    (worker,) = psutil.Process(agent.pid).children()
    return worker


def assert_finished(agents: Agents) -> None:
    steps = [line["step"] for line in curve(agents.output) if line["kind"] == "step"]
    assert steps == list(range(1, 51)), agents.logs()  # each once, none missing
    assert (agents.output / "model" / "model.safetensors").exists()
    last = load_checkpoint(checkpoints_in(agents.output / "checkpoints")[-1])
    assert last.train_state.step == 50
    assert all(bool(torch.isfinite(values).all()) for values in last.model.values())


def test_two_nodes_resume_from_the_last_checkpoint_when_a_process_is_killed(agents):
    first, second = agents.start(0, "--shard"), agents.start(1, "--shard")
    agents.wait_for_step(8)
    worker_of(second).send_signal(signal.SIGKILL)
    assert agents.all_succeed(first, second), agents.logs()
    assert "continuing after step" in agents.logs()
    assert_finished(agents)


@pytest.mark.soak
def test_when_an_agent_is_killed_its_processes_exit_and_the_other_node_continues_alone(agents):
    agents.nodes = "1:2"
    first, second = agents.start(0), agents.start(1)
    agents.wait_for_step(8)
    orphan = worker_of(second)
    second.kill()
    agents.wait_for(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)
    assert agents.all_succeed(first), agents.logs()
    assert "world_size 2 → 1" in agents.logs()
    assert_finished(agents)


@pytest.mark.soak
def test_a_new_agent_replaces_a_killed_one(agents, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    first, second = agents.start(0), agents.start(1)
    agents.wait_for_step(8)
    second.kill()
    assert agents.all_succeed(first, agents.start(1)), agents.logs()
    assert "continuing after step" in agents.logs()
    assert_finished(agents)
