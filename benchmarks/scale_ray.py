"""Preparation on two Ray workers against two local processes: the same text, identical corpora, alternating.

Used by `scale.py`. What is timed:
  local   `prepare` with two processes, which it starts
  ray     `prepare` on two nodes of one CPU each, whose workers run but are idle
Timed separately: `seconds_ray_start`, the start of the cluster, and `seconds_ray_join`, in which the command connects
and two workers start; `ratio_ray_joined` includes the latter. The cluster is started and stopped around its turn, so
that it does not slow the local one down. The text is synthetic: words of two to ten letters with Zipf frequencies, in
sentences and documents of various lengths; the more frequent half of its words is in the vocabulary, the others are
split into subwords.
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
OBJECT_STORE_BYTES = 100 * 2**20
NUM_WORDS, NUM_FILES, NUM_DOCUMENTS, MAX_WORDS = 20_000, 16, 10_000, 500


def compare_with_ray(num_turns: int) -> dict[str, float]:
    """Return `ratio_ray`, the local time divided by that on the cluster, and the medians of both."""
    with tempfile.TemporaryDirectory(prefix="bertworks-ray-") as temporary:
        folder = Path(temporary)
        size = _write_text(folder)
        request = PrepareRequest(
            sources=(TextSource(str(folder / "text")),), vocabulary=folder / "vocab.txt", output=folder / "corpus"
        )
        times: dict[str, list[float]] = {"local": [], "ray_start": [], "ray_join": [], "ray": []}
        for _ in range(num_turns):
            times["local"].append(_timed(request))
            expected = (request.output / "manifest.json").read_bytes()
            for name, seconds in _timed_on_cluster(request).items():
                times[name].append(seconds)
            assert (request.output / "manifest.json").read_bytes() == expected, "the corpora differ"
    medians = {f"seconds_{name}": statistics.median(values) for name, values in times.items()}
    local, work, join = (medians[f"seconds_{name}"] for name in ("local", "ray", "ray_join"))
    return {
        "megabytes_ray": size / 1e6,
        **medians,
        "ratio_ray_joined": local / (work + join),
        "ratio_ray": local / work,
    }


def _write_text(folder: Path) -> int:
    """Write a text and a vocabulary, and return the bytes of the text."""
    rng = np.random.default_rng(0)
    letters = np.array(list(string.ascii_lowercase))
    words = np.array(["".join(rng.choice(letters, length)) for length in rng.integers(2, 11, NUM_WORDS)])
    frequencies = 1 / np.arange(1, NUM_WORDS + 1)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    tokens = [*specials, *letters, *(f"##{letter}" for letter in letters), *words[: NUM_WORDS // 2]]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)) + "\n")
    (folder / "text").mkdir()
    size = 0
    for number in range(NUM_FILES):
        sampled = iter(words[rng.choice(NUM_WORDS, NUM_DOCUMENTS * MAX_WORDS, p=frequencies / frequencies.sum())])
        documents = []
        for num_sentences in rng.integers(2, 40, NUM_DOCUMENTS):
            lengths = rng.integers(4, 30, num_sentences)
            documents.append("\n".join(" ".join(islice(sampled, int(length))) + "." for length in lengths))
        size += (folder / "text" / f"{number}.txt").write_bytes("\n\n".join(documents).encode())
    return size


def _timed(request: PrepareRequest) -> float:
    shutil.rmtree(request.output, ignore_errors=True)
    start = time.perf_counter()
    prepare(request, NUM_WORKERS)
    return time.perf_counter() - start


def _timed_on_cluster(request: PrepareRequest) -> dict[str, float]:
    """Return the seconds to start the cluster, to join it, and to prepare."""
    os.environ.update(RAY_worker_niceness="0")  # the default is 15; both sides need the same priority
    from ray.cluster_utils import Cluster

    shutil.rmtree(request.output, ignore_errors=True)
    times = [time.perf_counter()]
    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        times.append(time.perf_counter())
        with ray_connection(cluster.address) as ray:
            list(RayPool(ray)(time.sleep, [1.0] * NUM_WORKERS))  # long enough that each worker does one
            times.append(time.perf_counter() - 1)
            start = time.perf_counter()
            prepare(request, RayPool(ray))
            work = time.perf_counter() - start
        return {"ray_start": times[1] - times[0], "ray_join": times[2] - times[1], "ray": work}
    finally:
        cluster.shutdown()
