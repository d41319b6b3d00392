"""Preparation on two Ray workers beside two processes of this machine: the same text, the same bytes, taking turns.

Used by `scale.py`. What a turn includes:
  local   `prepare` with two processes, which it starts
  ray     `prepare` on two nodes of one CPU each, whose workers run but have done nothing yet
Apart from that stand `seconds_ray_start`, for the cluster, and `seconds_ray_join`, in which the command joins it and
two workers start; with the latter included the ratio is `ratio_ray_joined`. The cluster is started before its turn and
ended behind it, so that it does not burden the other. The text is made up: words of two to ten letters, as frequent as
Zipf says, in sentences and documents of various lengths; the more frequent half of its words is in the vocabulary, the
others are cut.
"""

from __future__ import annotations

import os
import shutil
import statistics
import string
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.parallel.ray_cluster import ray_connection
from bertworks.parallel.ray_pool import RayPool
from bertworks.text.sources import TextSource

NUM_WORKERS = 2
STORE = 100 * 2**20
NUM_WORDS, NUM_FILES, NUM_DOCUMENTS, MOST_WORDS = 20_000, 16, 10_000, 500


def beside_ray(num_turns: int) -> dict[str, float]:
    """Return `ratio_ray`, the time here to that on the cluster, with the medians of both."""
    with tempfile.TemporaryDirectory(prefix="bertworks-ray-") as name:
        folder = Path(name)
        size = _write_text(folder)
        request = PrepareRequest((TextSource(str(folder / "text")),), folder / "vocab.txt", folder / "corpus")
        times: dict[str, list[float]] = {"local": [], "ray_start": [], "ray_join": [], "ray": []}
        for _ in range(num_turns):
            times["local"].append(_timed(request))
            wanted = (request.output / "manifest.json").read_bytes()
            for what, seconds in _timed_on_cluster(request).items():
                times[what].append(seconds)
            assert (request.output / "manifest.json").read_bytes() == wanted, "the corpora differ"
    found = {f"seconds_{what}": statistics.median(some) for what, some in times.items()}
    local, work, join = (found[f"seconds_{what}"] for what in ("local", "ray", "ray_join"))
    return {"megabytes_ray": size / 1e6, **found, "ratio_ray_joined": local / (work + join), "ratio_ray": local / work}


def _write_text(folder: Path) -> int:
    """Write a text and a vocabulary, and return the bytes of the text."""
    draw = np.random.default_rng(0)
    letters = np.array(list(string.ascii_lowercase))
    words = np.array(["".join(draw.choice(letters, length)) for length in draw.integers(2, 11, NUM_WORDS)])
    rates = 1 / np.arange(1, NUM_WORDS + 1)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    pieces = [*specials, *letters, *(f"##{letter}" for letter in letters), *words[: NUM_WORDS // 2]]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    (folder / "text").mkdir()
    size = 0
    for number in range(NUM_FILES):
        chosen = iter(words[draw.choice(NUM_WORDS, NUM_DOCUMENTS * MOST_WORDS, p=rates / rates.sum())])
        documents = []
        for num_sentences in draw.integers(2, 40, NUM_DOCUMENTS):
            lengths = draw.integers(4, 30, num_sentences)
            documents.append("\n".join(" ".join(islice(chosen, int(length))) + "." for length in lengths))
        size += (folder / "text" / f"{number}.txt").write_bytes("\n\n".join(documents).encode())
    return size


def _timed(request: PrepareRequest) -> float:
    shutil.rmtree(request.output, ignore_errors=True)
    start = time.perf_counter()
    prepare(request, NUM_WORKERS)
    return time.perf_counter() - start


def _timed_on_cluster(request: PrepareRequest) -> dict[str, float]:
    """Return the seconds of the cluster's start, of joining it, and of the preparation."""
    os.environ.update(RAY_worker_niceness="0")  # it is 15 otherwise, and both sides should be of one rank
    from ray.cluster_utils import Cluster

    shutil.rmtree(request.output, ignore_errors=True)
    marks = [time.perf_counter()]
    size = {"num_cpus": 1, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        cluster.add_node(**size)
        cluster.wait_for_nodes()
        marks.append(time.perf_counter())
        with ray_connection(cluster.address) as ray:
            list(RayPool(ray)(time.sleep, [1.0] * NUM_WORKERS))  # so long that no worker does both
            marks.append(time.perf_counter() - 1)
            began = time.perf_counter()
            prepare(request, RayPool(ray))
            work = time.perf_counter() - began
        return {"ray_start": marks[1] - marks[0], "ray_join": marks[2] - marks[1], "ray": work}
    finally:
        cluster.shutdown()
