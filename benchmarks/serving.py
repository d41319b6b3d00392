"""A server under load against offline encoding: MiniLM in; throughput, errors, latencies and memory out.

    python benchmarks/serving.py [--texts FILE] [--clients 64] [--seconds 60] [--minutes 10]
        [--precision auto|fp32|bf16] [--json]

Each client sends one text at a time and waits for its vector. The texts are sentences and paragraphs of mixed length,
from the built-in corpus or from a file with one per line. Clients, server and the offline run are separate processes on
this machine, so the clients' work counts against the server. Offline is `load(MODEL).encode` on the same texts in the
same precision, timed before and after, and the mean is used; auto is bf16 where the processor multiplies it natively.

    of_offline     texts per second served, over offline
    errors         responses without a vector, and lost connections
    p99_over_p50   the 99th percentile of latency over the median
    growth         memory of the server after `--minutes` minutes of load over that after one, minus 1; null with 0.
                   Each is the median of the last twenty seconds under load, since memory differs from batch to batch
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import itertools
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from children import Child, run_child
from hardware import resolve_precision
from minilm import minilm

NUM_TEXTS = 3_000
MAX_CHARACTERS = 1_200  # about 256 tokens, MiniLM's maximum
WARMUP_SECONDS = 5.0


def mixed_texts() -> list[str]:
    """Return texts of the built-in corpus with randomly sampled lengths."""
    import numpy as np

    from bertworks.text.document import Counts
    from bertworks.text.sources import ReadSettings, TextSource, blocks, read

    rng, texts = np.random.default_rng(0), list[str]()
    for block in blocks([TextSource("python-docs")], ReadSettings()):
        for document in read(block, Counts()):
            remaining = " ".join(document.text.split())
            while len(remaining) > 40 and len(texts) < NUM_TEXTS:
                # Most texts of a service are short, and a few are long.
                length = int(min(MAX_CHARACTERS, 20 + rng.exponential(160)))
                texts.append(remaining[:length])
                remaining = remaining[length:]
        if len(texts) >= NUM_TEXTS:
            break
    return texts


def offline_throughput(texts: list[str], seconds: float, precision: str) -> float:
    """Return the texts per second of `encode`, in this process."""
    from bertworks.inference.model import load

    model = load(minilm(), precision=precision)
    model.encode(texts[:64])
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        model.encode(texts[:1_024])
        count += len(texts[:1_024])
        texts = texts[1_024:] + texts[:1_024]
    return count / (time.perf_counter() - started)


async def run_client(
    address: tuple[str, int], requests: Iterator[bytes], until: float, log: dict[str, list[Any]]
) -> None:
    """Send one request after another until it is time; log when each was sent and answered, and errors."""
    reader, writer = await asyncio.open_connection(*address)
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(next(requests))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(size[1])) if size else b""
        except (OSError, asyncio.IncompleteReadError) as error:
            log["errors"].append(repr(error))
            return
        if not head.startswith(b"HTTP/1.1 200") or not body.startswith(b'{"vectors":[['):
            log["errors"].append(head[:40].decode())
        log["done"].append((started, time.perf_counter()))
    writer.close()


async def run_clients(
    address: tuple[str, int], texts: list[str], num_clients: int, seconds: float
) -> dict[str, list[Any]]:
    """Run all clients; return when each request was sent and answered, and errors."""
    log: dict[str, list[Any]] = {"done": [], "errors": []}
    requests = itertools.cycle([request_of(text) for text in texts])
    until = time.perf_counter() + seconds
    await asyncio.gather(*(run_client(address, requests, until, log) for _ in range(num_clients)))
    return log


def request_of(text: str) -> bytes:
    body = json.dumps({"inputs": [text]}).encode()
    head = "POST /v1/models/minilm/embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def summarize(log: dict[str, list[Any]], seconds: float) -> dict[str, Any]:
    """Return throughput and latencies after the warmup; errors count from the start."""
    start = min(sent for sent, _ in log["done"]) + WARMUP_SECONDS
    measured = [(sent, answered) for sent, answered in log["done"] if start <= answered < start + seconds]
    latencies = sorted(answered - sent for sent, answered in measured if sent >= start)
    percentiles = statistics.quantiles(latencies, n=100)
    return {
        "rate": len(measured) / seconds,
        "p50": percentiles[49],
        "p99": percentiles[98],
        "num_errors": len(log["errors"]),
        "first_errors": log["errors"][:3],
    }


@contextmanager
def start_server(precision: str) -> Iterator[tuple[int, tuple[str, int]]]:
    """Start `bertworks serve`; yield its process id and its address."""
    arguments = [f"minilm={minilm()}", "--port", "0", "--precision", precision]
    with Child("bertworks serve", [sys.executable, "-m", "bertworks", "serve", *arguments]) as child:
        while not (url := re.search(r"http://([\d.]+):(\d+)", child.read())):
            pass
        yield child.process.pid, (url[1], int(url[2]))
        child.process.send_signal(signal.SIGTERM)


def time_to_first_answer(precision: str) -> float:
    """Return the seconds from the command to the first vector."""
    started = time.perf_counter()
    with start_server(precision) as (_, address):
        log = asyncio.run(run_clients(address, ["A first text."], 1, 0.01))
        assert not log["errors"]
        return float(log["done"][0][1]) - started


def run_part(part: str, texts: Path, *arguments: object) -> Any:
    """Run a part of this benchmark in its own process, and return its result."""
    command = [sys.executable, __file__, "--part", part, "--texts", texts, *arguments]
    return json.loads(run_child(part, command))


def measure(texts: Path, num_clients: int, seconds: float, minutes: float, precision: str) -> dict[str, Any]:
    """Measure everything; only the server and its clients run at the same time."""
    offline_options = ("--seconds", min(seconds, 30), "--precision", precision)
    before = run_part("offline", texts, *offline_options)
    with start_server(precision) as (process_id, (host, port)):
        server_process = psutil.Process(process_id)
        load = seconds + WARMUP_SECONDS + 1
        address = ("--address", f"{host}:{port}", "--clients", num_clients)
        served = run_part("clients", texts, *address, "--seconds", seconds, "--load", load)
        growth = None
        if minutes:
            first, last = (
                memory_under_load(server_process, texts, address, 60 * duration) for duration in (1, minutes - 1)
            )
            growth = last / first - 1
    after = run_part("offline", texts, *offline_options)
    offline = (before["rate"] + after["rate"]) / 2
    return {
        "of_offline": served["rate"] / offline,
        "errors": served["num_errors"],
        "p99_over_p50": served["p99"] / served["p50"],
        "growth": growth,
        "precision": precision,
        "served": served,
        "offline": [before["rate"], after["rate"]],
    }


def memory_under_load(
    process: psutil.Process, texts: Path, address: tuple[object, ...], seconds: float, last: int = 20
) -> float:
    """Put load on the server; return its memory in the end: the median of the last seconds."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        load = executor.submit(
            run_part, "clients", texts, *address, "--seconds", seconds - WARMUP_SECONDS, "--load", seconds
        )
        sizes = deque[int](maxlen=last)
        while not load.done():
            sizes.append(process.memory_info().rss)
            time.sleep(1)
        load.result()
    return statistics.median(sizes)


def print_results(results: dict[str, Any], first_answer: float) -> None:
    served = results["served"]
    growth = "not measured" if results["growth"] is None else f"{results['growth']:+.1%}"
    latencies = f"p50 {served['p50'] * 1e3:.0f} ms, p99 {served['p99'] * 1e3:.0f} ms"
    for name, value in (
        ("first answer after", f"{first_answer:.1f} s"),
        ("offline", " and ".join(f"{throughput:.1f}" for throughput in results["offline"]) + " texts/s"),
        ("served", f"{served['rate']:.1f} texts/s, {results['of_offline']:.0%} of offline"),
        ("latency", f"{latencies}: {results['p99_over_p50']:.2f}×"),
        ("errors", str(results["errors"]) + "".join(f"; {error}" for error in served["first_errors"])),
        ("growth of memory", growth),
    ):
        print(f"{name:<20} {value}")


def part_results(options: argparse.Namespace) -> dict[str, Any]:
    """Run one part in this process."""
    texts = Path(options.texts).read_text(encoding="utf-8").splitlines()
    if options.part == "offline":
        return {"rate": offline_throughput(texts, options.seconds, options.precision)}
    host, _, port = options.address.partition(":")
    log = asyncio.run(run_clients((host, int(port)), texts, options.clients, options.load))
    return summarize(log, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", help="a file with one text per line; default: the built-in corpus")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--json", action="store_true")
    for name, kind in (("--part", str), ("--address", str), ("--load", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.precision = resolve_precision(options.precision)
    if options.part:
        print(json.dumps(part_results(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        lines = Path(options.texts).read_text(encoding="utf-8").splitlines() if options.texts else mixed_texts()
        texts.write_text("\n".join(text for text in lines if text.strip()), encoding="utf-8")
        first_answer = time_to_first_answer(options.precision)
        results = measure(texts, options.clients, options.seconds, options.minutes, options.precision)
    if options.json:
        print(json.dumps({**results, "first_answer_seconds": first_answer}))
    else:
        print_results(results, first_answer)


if __name__ == "__main__":
    main()
