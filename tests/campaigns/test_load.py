"""The load campaign: an hour of 64 clients with cancels, mixed tasks and two model reloads.

A reload is a second server with new weights: it is started, the clients move to it, and the first one gets SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from campaign import Campaign, Campaigns
from load_clients import CANCELLED, FAILED, RIGHT, WRONG, LoadClients, Server, draw_requests, is_close
from process_resources import Resources
from running import start_serve_process
from small_models import TASKS, write_finetuned, write_pretrained, write_sentence_model

SECONDS = 3_600
NUM_CLIENTS, NUM_REQUESTS, NUM_VERSIONS = 64, 400, 3
MAX_GROWTH = 0.05
# Memory is compared from this part of the life of a server on: before, its caches fill.
WARMUP_RATIO = 0.3


@dataclass(slots=True)
class ServedVersion:
    """A running server, and its memory, second by second."""

    process: subprocess.Popen[str]
    address: str
    num_bytes: list[int] = field(default_factory=list)

    async def watch(self, seconds: float) -> None:
        """Record the memory for so many seconds."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(min(1.0, seconds / 20))
            self.num_bytes.append(Resources.of(self.process.pid).num_bytes)

    @property
    def growth(self) -> float:
        """The memory at the end over that after the warmup, each the median of a tenth of the time, minus 1."""
        count = max(1, len(self.num_bytes) // 10)
        start = int(len(self.num_bytes) * WARMUP_RATIO)
        return statistics.median(self.num_bytes[-count:]) / statistics.median(self.num_bytes[start : start + count]) - 1


def write_version(folder: Path, version: int) -> dict[str, Path]:
    """Write all models with the weights of a version."""
    seeds = {name: 10 * version + number for number, name in enumerate(TASKS)}
    folders = {name: write_finetuned(folder / name, TASKS[name], seed) for name, seed in seeds.items()}
    folders["pretrained"] = write_pretrained(folder / "pretrained", version)
    folders["sentences"] = write_sentence_model(folder / "sentences")
    return folders


@contextlib.contextmanager
def serve(folder: Path, version: int) -> Iterator[ServedVersion]:
    folders = write_version(folder / f"version-{version}", version)
    models = [f"{name}={path}" for name, path in folders.items()]
    with start_serve_process(*models, "--precision", "fp32", folder=folder) as (process, address):
        yield ServedVersion(process, address)


async def run_load(campaign: Campaign, folder: Path) -> tuple[LoadClients, list[ServedVersion]]:
    """Put load on one version after another; return the clients and the versions."""
    requests = draw_requests(campaign.random(), NUM_REQUESTS)
    versions: list[ServedVersion] = []
    with contextlib.ExitStack() as stack:
        clients, running = None, None
        for number in range(NUM_VERSIONS):
            version = await asyncio.to_thread(stack.enter_context, serve(folder, number))
            server = await asyncio.to_thread(Server.when_idle, version.address, requests)
            if clients is None or running is None:
                clients = LoadClients(requests, server)
                running = asyncio.ensure_future(clients.run(NUM_CLIENTS, str(campaign.settings.seed)))
            else:
                clients.server = server
                await asyncio.sleep(1)  # as a load balancer does, so that its last requests arrive
                versions[-1].process.send_signal(signal.SIGTERM)
            versions.append(version)
            await version.watch(campaign.size / NUM_VERSIONS)
        assert clients is not None
        assert running is not None
        clients.is_stopped = True
        await running
        exit_codes = [version.process.wait(60) for version in versions[:-1]]
        clients.outcomes[FAILED] += sum(code != 0 for code in exit_codes)
    return clients, versions


@pytest.mark.soak
def test_under_load_all_answers_are_right_and_memory_stays(campaigns: Campaigns, tmp_path: Path, one_thread: None):
    campaign = campaigns.start("load", SECONDS)
    clients, versions = asyncio.run(run_load(campaign, tmp_path))
    campaign.outcomes, campaign.notes = clients.outcomes, clients.notes
    growth = max(version.growth for version in versions)
    sizes = ", ".join(f"{version.num_bytes[-1] / 2**20:,.0f} MiB" for version in versions)
    details = f"{campaign.size / 60:.0f} of {SECONDS / 60:.0f} minutes; memory grew by at most {growth:+.1%} ({sizes})"
    campaign.finish(good=(RIGHT, CANCELLED), bad=(WRONG, FAILED), planned=0, details=details)
    assert growth <= MAX_GROWTH


def test_growth_compares_the_end_with_the_time_after_the_warmup():
    sizes = [50] * 6 + [100, 104] + [103] * 10 + [106, 104]  # medians of 2 of 20: 102 and 105
    version = ServedVersion(process=None, address="", num_bytes=sizes)  # type: ignore[arg-type]
    assert version.growth == pytest.approx(105 / 102 - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"label": "good", "score": 0.50001}, {"label": "good", "score": 0.5}),
        ([1.0, [2.0]], [1.00005, [2.0]]),
        ({"tokens": 3}, {"tokens": 3}),
    ],
)
def test_answers_may_differ_by_rounding(value, expected):
    assert is_close(value, expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"label": "good", "score": 0.5}, {"label": "bad", "score": 0.5}),
        ({"score": 0.51}, {"score": 0.5}),
        ([1.0], [1.0, 1.0]),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_other_answers_are_wrong(value, expected):
    assert not is_close(value, expected)
