"""Word vectors: text in, the cost of counting co-occurrences in bounded memory, and GloVe against a C reference, out.

    python benchmarks/static_vectors.py counting TEXT... [--memory 8 64 1024] [--json]
    python benchmarks/static_vectors.py glove TEXT... --lists LIST... [--epochs 25] [--x-max 100] [--json]

`counting` counts the co-occurrences of the same words once for each memory limit in MiB, each time in its own process:
words per second of CPU time, sorted runs on disk, and the growth of peak memory. `glove` trains on one thread, and so
does glove.c (compiled here; needs `cc`), which processes one pair at a time, with the same counts, settings and number
of epochs: CPU time, costs, and scores on lists of word pairs and analogies.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.commands.word_vectors import evaluate_vectors
from bertworks.embeddings.cooccurrence import PairCounter, ShuffledPairs, max_pairs_in_memory
from bertworks.embeddings.glove import Glove
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_settings import GloveSettings
from bertworks.embeddings.static_words import WordSettings, document_contexts
from bertworks.embeddings.word_stream import WordStream, WordStreamWriter
from bertworks.metrics.word_vectors import Similarity, total
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts
from bertworks.text.sources import ReadSettings, TextSource, blocks, read
from children import run_child

WINDOW = 10


def stream_of(sources: list[str], folder: Path) -> WordStream:
    """Return the words of texts as ids, as `bertworks word-vectors train` reads them."""
    counts, settings = Counts(), WordSettings()
    with WordStreamWriter(folder / "ids", counts) as writer:
        for block in blocks([TextSource(source) for source in sources], ReadSettings()):
            documents = (clean(document, CleanSettings(), counts) for document in read(block, counts))
            writer.add(
                context for document in documents if document for context in document_contexts(document, settings)
            )
        return writer.finish(settings)


def _memory_mib(field: str) -> float:
    """Return a field of /proc/self/status: VmRSS, the memory of this process, or VmHWM, its peak since the reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 2**10


def count_pairs(stream: WordStream, memory_mb: int) -> dict[str, float]:
    """Count all pairs and read them once, merged."""
    with tempfile.TemporaryDirectory() as folder:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        before, start = _memory_mib("VmRSS"), time.process_time()
        counter = PairCounter(len(stream.words), WINDOW, Path(folder), max_pairs_in_memory(memory_mb))
        for chunk in stream.chunks(counter.chunk_size):
            counter.add(chunk)
        num_pairs = sum(len(pairs.keys) for pairs in counter.iter_sorted())
        seconds = time.process_time() - start
        num_runs = len(list(Path(folder).glob("*.run")))
    return {
        "memory_mib": memory_mb,
        "words_a_second": stream.num_words / seconds,
        "pairs": num_pairs,
        "runs": num_runs,
        "grown_mib": _memory_mib("VmHWM") - before,
    }


def train_ours(stream: WordStream, settings: GloveSettings, folder: Path) -> dict[str, Any]:
    """Train our GloVe, and write the pairs of the last epoch for the reference."""
    torch.set_num_threads(1)
    counter = PairCounter(len(stream.words), WINDOW, folder, max_pairs_in_memory(settings.memory_mb))
    for chunk in stream.chunks(counter.chunk_size):
        counter.add(chunk)
    generator = np.random.default_rng(settings.seed)
    pairs = ShuffledPairs(counter.iter_sorted(), len(stream.words), 1, folder, generator)
    glove, costs = Glove(len(stream.words), settings), []
    start = time.process_time()
    for _ in range(settings.epochs):
        (rounds,) = pairs.epoch(generator)
        costs.append(sum(cost for _, cost in glove.train_rounds(rounds)) / pairs.num_pairs)
    seconds = time.process_time() - start
    records = np.rec.fromarrays([rounds.firsts, rounds.seconds, rounds.counts])
    records.tofile(folder / "ordered")
    return {"seconds": seconds, "pairs": pairs.num_pairs, "cost": costs[-1], "table": glove.table()}


def train_reference(stream: WordStream, settings: GloveSettings, folder: Path) -> dict[str, Any]:
    source = Path(__file__).with_name("glove.c")
    run_child("cc", ["cc", "-O3", "-ffast-math", "-o", folder / "glove", source, "-lm"])
    arguments = (len(stream.words), settings.vector_size, settings.epochs, settings.x_max)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [str(folder / "glove"), str(folder / "ordered"), *map(str, arguments), str(folder / "table")]
    output = run_child("glove.c", command)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    table = np.fromfile(folder / "table", dtype=np.float32).reshape(len(stream.words), -1)
    return {"seconds": seconds, "cost": float(output.split()[-1]), "table": table}


def evaluate(vectors: StaticVectors, lists: list[Path]) -> dict[str, float]:
    scores = {}
    for name, score in evaluate_vectors(vectors, lists).items():
        if isinstance(score, Similarity):
            scores[name] = score.spearman
        else:
            scores[name] = total(score).num_correct / max(1, total(score).num_known)
    return scores


def count_in_process(stream: WordStream, memory_mb: int) -> dict[str, float]:
    # Unlike a Pool, this does not wait for ever for a worker that was killed.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(count_pairs, stream, memory_mb).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("counting", "glove"))
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--memory", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--lists", type=Path, nargs="+", default=[])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--x-max", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stream = stream_of(options.texts, Path(folder))
        rows: list[dict[str, Any]] = []
        if options.what == "counting":
            rows += [count_in_process(stream, memory) for memory in options.memory]
        else:
            settings = GloveSettings(epochs=options.epochs, x_max=options.x_max)
            for name, train in (("ours", train_ours), ("one by one", train_reference)):
                result = train(stream, settings, Path(folder))
                vectors = StaticVectors(stream.words, result.pop("table"))
                rows.append({"who": name, **result, **evaluate(vectors, options.lists)})
    if options.json:
        print(json.dumps({"words": stream.num_words, "different": len(stream.words), "rows": rows}))
        return
    print(f"{stream.num_words:,} words, {len(stream.words):,} distinct words")
    for row in rows:
        print("  ".join(f"{key} {value if isinstance(value, str) else f'{value:,.5g}'}" for key, value in row.items()))


if __name__ == "__main__":
    main()
