"""Sentence embeddings with MiniLM, ours against peers: a data folder in; speeds, ratios, latencies and cosines out.

    python benchmarks/inference.py [DATA_FOLDER] [--sentences 1500] [--rounds 5] [--json]

The sentences are those of SST-2, MRPC and WikiText if there is a data folder, otherwise of the built-in corpus. Timed
is the whole path from texts to normalized vectors, on all cores, each engine in its own process, alternating; a ratio
is the median over rounds. `inference_engines.py` defines the engines: ours and sentence-transformers' `encode` with
their defaults; the other peers sort by length and use the fastest of a few settings.

    ratio_fp32                    speed of ours over the fastest peer in fp32
    ratio_sentence_transformers   ours over sentence-transformers' `encode`
    of_limit_fp32                 FLOP/s of the matmuls of ours, over those of one large matmul
    ratio_int8, int8_over_fp32    our `export --to int8` over CTranslate2's int8, and over our fp32
    cosine_int8                   mean cosine of its vectors to those of fp32
    ratio_latency                 time of the fastest peer for one short sentence over ours, both in fp32
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.text import python_docs
from bertworks.text.sentences import split_sentences
from inference_engines import ENGINES, FP32_ENGINES, HIDDEN_SIZE, MAX_LENGTH, Encode, make_tokenizer

SHORT_TEXT = "Where is the nearest railway station?"
# What an engine encodes, and how often per round.
NUM_REPEATS = {"all": 1, "short": 50}
# Sentences on which settings are compared.
NUM_TUNING_TEXTS = 200
# Minimum mean cosine of an fp32 engine to ours; below, it computes something else.
MIN_COSINE = 0.9999

Seconds = dict[str, list[float]]  # by engine, one per round


def real_texts(data: Path) -> Iterator[str]:
    """Yield in turn a sentence of a film review, one of the news, and one or two of an encyclopedia."""
    films = [line.split("\t")[0] for line in read_lines(data / "glue/SST-2/dev.tsv")[1:]]
    news = [text for line in read_lines(data / "glue/MRPC/dev.tsv")[1:] for text in line.split("\t")[3:5]]
    articles = (line.strip() for line in read_lines(data / "wikitext-2/test.txt") if not line.startswith(" = "))
    for texts in zip(films, news, group_sentences(articles, 2), strict=False):
        yield from texts


def built_in_texts() -> Iterator[str]:
    """Yield one to three sentences of the built-in corpus at a time: the language reference first, then the library."""
    documents = (document for part in reversed(python_docs.parts()) for document in python_docs.read(part))
    return group_sentences((line for document in documents for line in document.text.splitlines()), 3)


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


def group_sentences(paragraphs: Iterable[str], max_sentences: int) -> Iterator[str]:
    """Yield the sentences of paragraphs: one, then two together, and so on up to `max_sentences`, and again."""
    counts = itertools.cycle(range(1, max_sentences + 1))
    for paragraph in paragraphs:
        sentences = iter(split_sentences(paragraph))
        while text := "".join(itertools.islice(sentences, next(counts))).strip():
            yield text


def seconds_of(work: Callable[[], object], num_calls: int = 1) -> list[float]:
    """Return the seconds of each call."""
    seconds = []
    for _ in range(num_calls):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def child(name: str, work: Path) -> None:
    """Run an engine: choose its settings, write its vectors, then time encoding on request from standard input."""
    texts = {"all": json.loads((work / "texts.json").read_text(encoding="utf-8")), "short": [SHORT_TEXT]}
    encoders = dict(ENGINES[name](work))
    chosen = {
        "all": fastest(encoders, texts["all"][:: -(-len(texts["all"]) // NUM_TUNING_TEXTS)], 2),
        "short": fastest(encoders, texts["short"], NUM_REPEATS["short"]),
    }
    np.save(work / f"{name}.npy", encoders[chosen["all"]](texts["all"]))
    print(json.dumps(chosen), flush=True)
    for line in sys.stdin:
        kind = line.strip()
        seconds = seconds_of(partial(encoders[chosen[kind]], texts[kind]), NUM_REPEATS[kind])
        print(statistics.median(seconds), flush=True)


def fastest(encoders: dict[str, Encode], texts: list[str], num_calls: int) -> str:
    """Return the name of the fastest setting, each after one warmup call."""
    return min(encoders, key=lambda name: min(seconds_of(partial(encoders[name], texts), num_calls + 1)[1:]))


class EngineProcess:
    """An engine in its own process that encodes on request."""

    def __init__(self, name: str, work: Path) -> None:
        command = [sys.executable, __file__, "--child", name, "--work", str(work)]
        environment = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.settings: dict[str, str] = json.loads(self._read_line())

    def time(self, kind: str) -> float:
        """Return the seconds to encode all texts, or the short one."""
        assert self.process.stdin is not None
        time.sleep(0.3)  # until the threads of the previous engine are no longer spinning
        self.process.stdin.write(f"{kind}\n")
        self.process.stdin.flush()
        return float(self._read_line())

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} exited before it answered; see its output above")
        return line


@contextmanager
def start_engines(work: Path) -> Iterator[dict[str, EngineProcess]]:
    """Start the engines one after another; stop them at the end."""
    engines: dict[str, EngineProcess] = {}
    try:
        for name in ENGINES:
            engines[name] = EngineProcess(name, work)
            print(f"{name}: {engines[name].settings['all']}", file=sys.stderr, flush=True)
        yield engines
    finally:
        for engine in engines.values():
            engine.process.communicate()


def matmul_throughput() -> float:
    """Return the FLOP/s of a large matmul: the best of a few, by MKL or by oneDNN."""
    import torch

    matrix = torch.randn(2048, 2048)
    matmuls = [lambda: matrix @ matrix]
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(matrix, 2048)
        matmuls.append(lambda: torch.ops.mkldnn._linear_pointwise(matrix, packed, None, "none", [], ""))
    return 2 * 2048**3 / min(min(seconds_of(matmul, 5)) for matmul in matmuls)


def matmul_flops(lengths: Sequence[int]) -> float:
    """Return the FLOPs of the matmuls for sequences of these lengths, without padding."""
    intermediate_size, num_layers = 4 * HIDDEN_SIZE, 6
    linear = 2 * sum(lengths) * (4 * HIDDEN_SIZE * HIDDEN_SIZE + 2 * HIDDEN_SIZE * intermediate_size)
    return float(num_layers * (linear + 4 * HIDDEN_SIZE * sum(length * length for length in lengths)))


def mean_cosine(work: Path, name: str) -> float:
    """Return the mean cosine of an engine's vectors to ours in fp32."""
    ours, other = (np.load(work / f"{engine}.npy").astype(np.float64) for engine in ("ours", name))
    return float(((ours * other).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(other, axis=1)).mean())


def measure(texts: list[str], num_rounds: int, work: Path) -> dict[str, Any]:
    """Return all results for these texts."""
    (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    flops = matmul_flops([len(input_ids) for input_ids in make_tokenizer()(texts)])
    seconds: dict[str, Seconds] = {kind: {name: [] for name in ENGINES} for kind in NUM_REPEATS}
    throughputs = []
    with start_engines(work) as engines:
        for name in FP32_ENGINES:
            if not mean_cosine(work, name) >= MIN_COSINE:
                sys.exit(f"{name} computes something else: its mean cosine to ours is {mean_cosine(work, name):.5f}")
        for _, (name, engine) in itertools.product(range(num_rounds), engines.items()):
            for kind, by_engine in seconds.items():
                by_engine[name].append(engine.time(kind))
            if name == "ours":
                throughputs.append(matmul_throughput())
    medians = {
        kind: {name: statistics.median(values) for name, values in by_engine.items()}
        for kind, by_engine in seconds.items()
    }
    return {
        **ratios(seconds["all"], seconds["short"]),
        "of_limit_fp32": median_ratio([flops / throughput for throughput in throughputs], seconds["all"]["ours"]),
        "cosine_int8": mean_cosine(work, "ours_int8"),
        "cosine_ctranslate2_int8": mean_cosine(work, "ctranslate2_int8"),
        "product_gflops": statistics.median(throughputs) / 1e9,
        **{f"sentences_per_second_{name}": len(texts) / median for name, median in medians["all"].items()},
        **{f"milliseconds_{name}": 1e3 * median for name, median in medians["short"].items()},
        "settings": {name: engine.settings for name, engine in engines.items()},
    }


def ratios(seconds: Seconds, latencies: Seconds) -> dict[str, float]:
    """Return ratios of speeds from the seconds of all texts and of the short one; above 1 where ours is faster."""
    peers = [name for name in FP32_ENGINES if name != "ours"]
    fastest_peer = min(peers, key=lambda name: statistics.median(seconds[name]))
    lowest_latency = min(peers, key=lambda name: statistics.median(latencies[name]))
    return {
        "ratio_fp32": median_ratio(seconds[fastest_peer], seconds["ours"]),
        "ratio_sentence_transformers": median_ratio(seconds["sentence_transformers"], seconds["ours"]),
        "ratio_int8": median_ratio(seconds["ctranslate2_int8"], seconds["ours_int8"]),
        "int8_over_fp32": median_ratio(seconds["ours"], seconds["ours_int8"]),
        "ratio_latency": median_ratio(latencies[lowest_latency], latencies["ours"]),
    }


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median over rounds of the ratio."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", type=Path, nargs="?", help="folder with glue/ and wikitext-2/; default: the built-in corpus"
    )
    parser.add_argument("--sentences", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.work)
        return
    source = real_texts(options.data) if options.data else built_in_texts()
    tokenize = make_tokenizer()
    # Longer texts are truncated by some engines and split into windows by ours, so they are left out.
    texts = (text for text in source if len(tokenize([text])[0]) <= MAX_LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(list(itertools.islice(texts, options.sentences)), options.rounds, Path(folder))
    if options.json:
        print(
            json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in results.items()})
        )
        return
    settings = results.pop("settings")
    for key, value in results.items():
        print(f"{value:12.3f}  {key}")
    for name, chosen in settings.items():
        print(f"{name}: {chosen['all']}; for one sentence: {chosen['short']}")


if __name__ == "__main__":
    main()
