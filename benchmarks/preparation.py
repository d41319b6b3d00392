"""Preparing a corpus against its parts alone: a data folder in; throughputs, ratios, memory and opening times out.

    python benchmarks/preparation.py DATA_FOLDER [--repeats 3] [--json]

DATA_FOLDER holds `books-en/`, `corpus-zh/modern.txt.gz` and `vocab/`. In one run, on the same cores, alternating:
  prepare        `bertworks prepare` from files on disk to a finished corpus folder, including its start
  encode_batch   `tokenizers` on the same text in memory, all cores
  segmenter      rjieba on the same text in memory, one process per core (and jieba itself for comparison)
Medians of the repeats. Memory is the proportional set size of all processes together, sampled.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from children import Child, run_child, run_function, run_functions
from timing import print_results, seconds_of, show_progress

NUM_CORES = len(os.sched_getaffinity(0))
TOTALS = ("documents", "sentences", "characters")  # of a corpus manifest


def read_lines(path: Path) -> list[str]:
    """Return the lines of a gzip file or of all those in a folder."""
    files = sorted(path.glob("*.gz")) if path.is_dir() else [path]
    lines: list[str] = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            lines += [line for line in stream.read().split("\n") if line]
    return lines


def prepare_command(source: Path, vocabulary: Path, output: Path, words: str = "tokens") -> list[str]:
    """Remove the corpus folder, and return the command that writes it."""
    shutil.rmtree(output, ignore_errors=True)
    arguments = [str(source), "--vocab", str(vocabulary), "--output", str(output), "--words", words]
    return [sys.executable, "-m", "bertworks", "prepare", *arguments]


def timed_prepare(source: Path, vocabulary: Path, output: Path, words: str = "tokens") -> float:
    """Return the seconds of one `bertworks prepare`, from start to exit."""
    command = prepare_command(source, vocabulary, output, words)
    return seconds_of(lambda: run_child("bertworks prepare", command))


def peak_of_prepare(source: Path, vocabulary: Path, output: Path) -> float:
    """Return the peak memory in MiB of one `bertworks prepare`; a separate run, since sampling costs time."""
    with Child("bertworks prepare", prepare_command(source, vocabulary, output)) as child:
        root, done = psutil.Process(child.process.pid), threading.Event()
        with ThreadPoolExecutor(1) as executor:
            peak = executor.submit(sampled_peak, root, done)
            try:
                child.finish()
            finally:
                done.set()
            return peak.result()


def sampled_peak(root: psutil.Process, done: threading.Event) -> float:
    """Return the highest memory, in MiB, of a process and its children together, until it is done."""
    peak = 0.0
    while not done.wait(0.2):
        total = 0
        try:
            processes = [root, *root.children(recursive=True)]
        except psutil.Error:
            continue
        for process in processes:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        peak = max(peak, total / 2**20)
    return peak


def timed_encode_batch(lines: list[str], vocabulary: Path) -> float:
    """Return the seconds of raw `tokenizers`, in its own process."""
    return float(run_function("encode_batch", _encode_batch, lines, vocabulary))


def _encode_batch(lines: list[str], vocabulary: Path) -> float:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    start = time.perf_counter()
    for first in range(0, len(lines), 10_000):
        tokenizer.encode_batch(lines[first : first + 10_000], add_special_tokens=False)
    return time.perf_counter() - start


def timed_segmenter(lines: list[str], name: str) -> float:
    """Return the seconds of the segmenter with one process per core, each with an equal part of the lines."""
    size = -(-len(lines) // NUM_CORES)
    parts = [lines[first : first + size] for first in range(0, len(lines), size)]
    barrier = multiprocessing.get_context("fork").Barrier(len(parts))
    return max(map(float, run_functions(name, [partial(_segment, part, name, barrier) for part in parts])))


def _segment(lines: list[str], name: str, barrier: Any) -> float:
    if name == "rjieba":
        import rjieba

        segment: Callable[[str], Any] = lambda line: rjieba.cut(line, True)  # noqa: E731
    else:
        import jieba

        jieba.setLogLevel(60)
        jieba.initialize()
        segment = jieba.lcut
    segment("热身")
    barrier.wait()
    start = time.perf_counter()
    for line in lines:
        segment(line)
    return time.perf_counter() - start


def four_times(source: Path, output: Path) -> Path:
    """Write four different copies of each book: every paragraph ends with a word of its copy."""
    output.mkdir(parents=True)
    for copy in range(4):
        for file in sorted(source.glob("*.gz")):
            with gzip.open(file, "rt", encoding="utf-8") as stream:
                text = stream.read()
            changed = "\n".join(f"{line} Copy{copy}." if line else line for line in text.split("\n"))
            with gzip.open(output / f"{copy}-{file.name}", "wt", encoding="utf-8", compresslevel=1) as stream:
                stream.write(changed)
    return output


def tenfold(value: Any) -> Any:
    """Return a count, or a table of counts, times ten."""
    return {name: tenfold(item) for name, item in value.items()} if isinstance(value, dict) else 10 * value


def numbered(file: str, copy: int) -> str:
    """Return the name of a copy of a shard, such as text/3-000000.jsonl."""
    path = Path(file)
    return path.with_name(f"{copy}-{path.name}").as_posix()


def ten_times(corpus: Path, output: Path) -> Path:
    """Make a corpus of ten times as many shards, by links to the same files."""
    manifest = json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))
    (key,) = manifest["tokens"]
    shutil.copytree(corpus, output, ignore=shutil.ignore_patterns("*.jsonl", "*.safetensors"))
    tokens = output / "tokens" / key
    tokens_manifest = json.loads((tokens / "manifest.json").read_text(encoding="utf-8"))
    for copy in range(10):
        for shard in tokens_manifest["shards"]:
            os.link(corpus / "tokens" / key / shard["file"], tokens / f"{copy}-{shard['file']}")
    for table, path in ((manifest, output), (tokens_manifest, tokens)):
        enlarged = {name: tenfold(table[name]) for name in (*TOTALS, "counts", "splits") if name in table}
        shards = [{**shard, "file": numbered(shard["file"], copy)} for copy in range(10) for shard in table["shards"]]
        (path / "manifest.json").write_text(json.dumps({**table, **enlarged, "shards": shards}), encoding="utf-8")
    return output


OPENING = """
import json, sys, time
import torch
from bertworks.corpus.corpus import Corpus
from bertworks.sampling.batch import collate_examples
from bertworks.sampling.loading import Loader
from bertworks.sampling.masking import Masker
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.pairs import NextSentencePairs
start = time.perf_counter()
corpus = Corpus.open(sys.argv[1])
tokenizer = corpus.tokenizer
sampler = NextSentencePairs(corpus.split("train"), 128, tokenizer.specials)
loader = Loader(sampler, Masker(tokenizer), ExampleOrder(0, "128", "train"))
examples, masked = zip(*(loader.load_example(index) for index in range(32)))
collate_examples(examples, masked, tokenizer.specials.pad)
first = time.perf_counter()
for index in range(32, 4032):
    loader.load_example(index)
print(json.dumps([1e3 * (first - start), 1e6 * (time.perf_counter() - first) / 4000]))
"""


def time_opening(corpus: Path) -> tuple[float, float]:
    """Return the milliseconds to open a corpus and load a batch of 32, and the microseconds of a later example."""
    output = run_child("opening a corpus", [sys.executable, "-c", OPENING, corpus])
    milliseconds, microseconds = json.loads(output)
    return milliseconds, microseconds


def measure_throughputs(data: Path, work: Path, repeats: int) -> dict[str, float]:
    """Return MB/s of raw text, medians of alternating repeats."""
    english, chinese = read_lines(data / "books-en"), read_lines(data / "corpus-zh" / "modern.txt.gz")
    size_en, size_zh = (sum(len(line.encode()) + 1 for line in lines) / 1e6 for lines in (english, chinese))
    uncased, han = (data / "vocab" / f"bert-base-{name}-vocab.txt" for name in ("uncased", "chinese"))
    throughputs: dict[str, list[float]] = {}
    for repeat in range(repeats):
        show_progress(f"repeat {repeat + 1} of {repeats}")
        throughputs.setdefault("prepare_english", []).append(
            size_en / timed_prepare(data / "books-en", uncased, work / "en")
        )
        throughputs.setdefault("encode_batch_english", []).append(size_en / timed_encode_batch(english, uncased))
        source = data / "corpus-zh" / "modern.txt.gz"
        throughputs.setdefault("prepare_chinese", []).append(size_zh / timed_prepare(source, han, work / "zh"))
        throughputs.setdefault("encode_batch_chinese", []).append(size_zh / timed_encode_batch(chinese, han))
        seconds = timed_prepare(source, han, work / "zh-words", "jieba")
        throughputs.setdefault("prepare_chinese_words", []).append(size_zh / seconds)
        throughputs.setdefault("rjieba", []).append(size_zh / timed_segmenter(chinese, "rjieba"))
    sample = chinese[: len(chinese) // 4]
    throughputs["jieba"] = [sum(len(line.encode()) + 1 for line in sample) / 1e6 / timed_segmenter(sample, "jieba")]
    return {name: statistics.median(values) for name, values in throughputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        results = measure_throughputs(options.data, work, options.repeats)
        uncased = options.data / "vocab" / "bert-base-uncased-vocab.txt"
        results["peak_mib"] = peak_of_prepare(options.data / "books-en", uncased, work / "en")
        large = peak_of_prepare(four_times(options.data / "books-en", work / "four"), uncased, work / "en4")
        small_open = [time_opening(work / "en") for _ in range(5)]
        large_open = [time_opening(ten_times(work / "en", work / "en10"))] + [
            time_opening(work / "en10") for _ in range(4)
        ]
    results |= {
        "ratio_english": results["prepare_english"] / results["encode_batch_english"],
        "ratio_chinese": results["prepare_chinese"] / results["encode_batch_chinese"],
        "ratio_chinese_words": results["prepare_chinese_words"] / results["rjieba"],
        "ratio_chinese_words_to_jieba": results["prepare_chinese_words"] / results["jieba"],
        "peak_growth": large / results["peak_mib"] - 1,
        "open_ms": statistics.median(milliseconds for milliseconds, _ in small_open),
        "open_ms_ten_times": statistics.median(milliseconds for milliseconds, _ in large_open),
        "example_us": statistics.median(microseconds for _, microseconds in small_open),
    }
    print_results(results, options.json)


if __name__ == "__main__":
    main()
