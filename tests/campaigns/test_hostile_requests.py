"""The campaign of hostile requests: clients that break every rule, beside honest ones whose answers must not change."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from campaign import Campaign, Campaigns
from hostile_clients import KINDS, HostileClient, send
from load_clients import is_close
from process_resources import Resources, leaks
from running import TIMEOUT, start_serve_process
from small_models import write_all
from valid_requests import MODELS, VALID

NUM_REQUESTS = 10_000
NUM_THREADS = 16
# Numbers in base64 cannot be compared up to rounding, which depends on the batch.
HONEST = [(path, body) for path, body in VALID if "encoding_format" not in body]
MAX_GROWTH = 0.05
# Seconds in which the server must have closed what hostile clients left open: longer than its time limits.
SETTLE_SECONDS = 20.0
ANSWERED, CLOSED = "answered", "closed without an answer"
FAILED, WRONG, CRASHED, TRACEBACK = "status 500", "wrong answers to others", "crashes", "tracebacks"


def attack(address: str, seed: str, count: int) -> Counter[str]:
    """Send hostile requests one after another; return the outcomes."""
    host, _, port = address.removeprefix("http://").partition(":")
    client, outcomes = HostileClient(random.Random(seed), VALID), Counter[str]()
    for _ in range(count):
        status = send((host, int(port)), client.draw())
        outcomes[FAILED if status == 500 else ANSWERED if status else CLOSED] += 1
    return outcomes


def answers(address: str) -> list[Any]:
    """Return the answers to honest clients."""
    return [httpx.post(address + path, json=body, timeout=TIMEOUT).json() for path, body in HONEST]


def attack_from_all_threads(campaign: Campaign, address: str, part: str, count: int) -> None:
    """Attack, and compare the answers to honest clients meanwhile and afterwards."""
    expected = answers(address)
    seeds = [f"{campaign.settings.seed} {part} {number}" for number in range(NUM_THREADS)]
    with ThreadPoolExecutor(NUM_THREADS) as executor:
        attacks = [executor.submit(attack, address, seed, -(-count // NUM_THREADS)) for seed in seeds]
        while not all(attack.done() for attack in attacks):
            check_answers(campaign, address, expected)
        for finished in attacks:
            campaign.outcomes += finished.result()
    check_answers(campaign, address, expected)


def check_answers(campaign: Campaign, address: str, expected: list[Any]) -> None:
    for (path, _), answer, wanted in zip(HONEST, answers(address), expected, strict=True):
        if not is_close(answer, wanted):
            campaign.add(WRONG, note=f"{path}: {json.dumps(answer)[:300]}, not {json.dumps(wanted)[:300]}")


def settled_resources(process: subprocess.Popen[str], at_most: Resources | None = None) -> Resources:
    """Wait until the server has closed what was left open; return what it holds."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        resources = Resources.of(process.pid)
        if time.monotonic() > deadline or (at_most is not None and not leaks(at_most, resources, MAX_GROWTH)):
            return resources
        time.sleep(0.5)


@pytest.mark.soak
def test_hostile_requests_neither_end_nor_occupy_the_server(campaigns: Campaigns, tmp_path: Path, one_thread: None):
    campaign = campaigns.start("requests/hostile", NUM_REQUESTS)
    folders, log_file = write_all(tmp_path), tmp_path / "log"
    models = [f"{name}={folders[name]}" for name in MODELS]
    options = ["--precision", "fp32", "--time-limit", "10", "--max-body-bytes", "50000"]
    with (
        log_file.open("wb") as log,
        start_serve_process(*models, *options, folder=tmp_path, log=log) as (process, address),
    ):
        attack_from_all_threads(campaign, address, "first", campaign.size // 2)
        before = settled_resources(process)
        attack_from_all_threads(campaign, address, "then", campaign.size - campaign.outcomes.total())
        leaked = leaks(before, settled_resources(process, before), MAX_GROWTH)
        if process.poll() is not None:
            campaign.add(CRASHED)
    if num_tracebacks := log_file.read_text(errors="replace").count("Traceback"):
        campaign.add(TRACEBACK, num_tracebacks, log_file.read_text(errors="replace")[-2_000:])
    for leak in leaked:
        campaign.add("leaks", note=leak)
    campaign.finish(good=(ANSWERED, CLOSED), bad=(FAILED, WRONG, CRASHED, TRACEBACK, "leaks"))


def test_a_seed_gives_the_same_requests_of_every_kind():
    first, second = (HostileClient(random.Random("1"), VALID) for _ in range(2))
    requests = [first.draw() for _ in range(200)]
    assert requests == [second.draw() for _ in range(200)]
    assert {request.kind for request in requests} == set(KINDS)


def test_what_a_process_has_kept_is_named():
    before = Resources(10, 4, 1_000)
    assert leaks(before, Resources(9, 4, 1_040), 0.05) == []
    assert leaks(before, Resources(12, 13, 1_100), 0.05) == ["2 open files", "9 threads", "10.0% of memory"]
