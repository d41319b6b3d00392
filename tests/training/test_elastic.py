"""Two machines of one run, as two torchrun agents: what is killed is replaced, and the run ends as it would have."""

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
LONG = replace(
    RECIPE,
    phases=(replace(RECIPE.phases[0], steps=50),),
    micro_batch_size=0,
    save_steps=4,
    eval_steps=50,
    warmup_steps=5,
)
PATIENCE = 300.0  # of a machine that many share


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("elastic"))


@dataclass
class Agents:
    """Starts torchrun agents of one run, each as if it were a machine, with one process."""

    folder: Path
    corpus: Path
    nodes: str = "2"

    def __post_init__(self) -> None:
        self.recipe = self.folder / "long.toml"
        self.recipe.write_text(to_toml(LONG), encoding="utf-8")
        self.port = free_port()
        self.running: list[subprocess.Popen[str]] = []

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def start(self, number: int, *options: str) -> subprocess.Popen[str]:
        rendezvous = f"--rdzv-backend=c10d --rdzv-endpoint=localhost:{self.port} --rdzv-id=run"
        torchrun = f"-m torch.distributed.run --nnodes={self.nodes} --nproc-per-node=1 --max-restarts=3 {rendezvous}"
        # Agents on one machine would all take themselves for the host of the rendezvous.
        patient = "last_call_timeout=10,read_timeout=600,keep_alive_max_attempt=6"
        torchrun += f" --local-addr=127.0.0.1 --rdzv-conf=is_host={int(number == 0)},{patient}"
        work = ["-m", "bertworks", "pretrain", str(self.recipe), "--data", str(self.corpus), "--out", str(self.out)]
        command = [sys.executable, *torchrun.split(), *work, *options]
        quiet = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        with (self.folder / f"agent-{len(self.running)}.log").open("w") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=quiet)
        self.running.append(agent)
        return agent

    def told(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("agent-*.log")))

    def wait_for(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, self.told()
            assert any(agent.poll() is None for agent in self.running) or happened(), self.told()
            time.sleep(0.02)

    def wait_for_step(self, number: int) -> None:
        file = self.out / "metrics.jsonl"
        self.wait_for(lambda: file.exists() and f'"kind": "step", "step": {number},' in file.read_text())

    def ended(self, *agents: subprocess.Popen[str]) -> bool:
        """Wait for the end of agents, and tell whether it was good."""
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
    found = Agents(tmp_path, corpus)
    yield found
    found.close()


def worker_of(agent: subprocess.Popen[str]) -> psutil.Process:
    (worker,) = psutil.Process(agent.pid).children()
    return worker


def assert_finished(agents: Agents) -> None:
    steps = [line["step"] for line in curve(agents.out) if line["kind"] == "step"]
    assert steps == list(range(1, 51)), agents.told()  # each once, none left out
    assert (agents.out / "model" / "model.safetensors").exists()
    last = load_checkpoint(checkpoints_in(agents.out / "checkpoints")[-1])
    assert last.train_state.step == 50
    assert all(bool(torch.isfinite(values).all()) for values in last.model.values())


def test_two_machines_go_on_from_the_last_checkpoint_when_a_process_is_killed(agents):
    first, second = agents.start(0, "--shard"), agents.start(1, "--shard")
    agents.wait_for_step(8)
    worker_of(second).send_signal(signal.SIGKILL)
    assert agents.finish_reason(first, second), agents.told()
    assert "continuing after step" in agents.told()
    assert_finished(agents)


@pytest.mark.soak
def test_when_an_agent_is_killed_its_processes_end_and_the_other_machine_goes_on_alone(agents):
    agents.nodes = "1:2"
    first, second = agents.start(0), agents.start(1)
    agents.wait_for_step(8)
    orphan = worker_of(second)
    second.kill()
    agents.wait_for(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)
    assert agents.finish_reason(first), agents.told()
    assert "processes 2 → 1" in agents.told()
    assert_finished(agents)


@pytest.mark.soak
def test_a_new_agent_takes_the_place_of_a_killed_one(agents, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    first, second = agents.start(0), agents.start(1)
    agents.wait_for_step(8)
    second.kill()
    assert agents.finish_reason(first, agents.start(1)), agents.told()
    assert "continuing after step" in agents.told()
    assert_finished(agents)
