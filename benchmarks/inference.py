"""Sentence vectors by MiniLM, ours beside its peers': a data folder in, speeds, ratios, latencies and cosines out.

    python benchmarks/inference.py [DATA_FOLDER] [--sentences 1500] [--rounds 5] [--json]

The sentences are SST-2's, MRPC's and WikiText's if there is a data folder, else those of the built-in corpus. All of
the way is measured, from texts to vectors of length 1, on all cores, each engine in a process of its own, the engines
taking turns; a ratio is the median of the rounds'. `inference_engines.py` says what each does: ours comes as it is, and
so does sentence-transformers' `encode`; the other peers sort by length and keep the fastest of a few settings.

    ratio_fp32                    ours over the fastest peer in full precision
    ratio_sentence_transformers   ours over sentence-transformers' own `encode`
    of_limit_fp32                 the products of matrices that ours needs, as a share of the rate of one large product
    ratio_int8, int8_over_fp32    our `export --to int8` over CTranslate2's int8, and over our full precision
    cosine_int8                   the mean cosine of its vectors to those of full precision
    ratio_latency                 the quickest peer's time for one short sentence over ours, both in full precision
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
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.text import python_docs
from bertworks.text.sentences import split_sentences
from inference_engines import ENGINES, FULL, LONGEST, WIDTH, Encode, cutter

SHORT = "Where is the nearest railway station?"
# What an engine is asked to encode, and how often in one turn.
TIMES = {"all": 1, "short": 50}
# Sentences on which settings are tried.
TRIED = 200
# The mean cosine of an engine in full precision to ours; below it, it computes something else.
SAME = 0.9999

Figures = dict[str, list[float]]


def real_texts(data: Path) -> Iterator[str]:
    """Yield by turns a sentence on a film, one of the news, and one or two of an encyclopedia."""
    films = [line.split("\t")[0] for line in lines(data / "glue/SST-2/dev.tsv")[1:]]
    news = [text for line in lines(data / "glue/MRPC/dev.tsv")[1:] for text in line.split("\t")[3:5]]
    articles = (line.strip() for line in lines(data / "wikitext-2/test.txt") if not line.startswith(" = "))
    for three in zip(films, news, runs(articles, 2), strict=False):
        yield from three


def built_in_texts() -> Iterator[str]:
    """Yield one to three sentences at a time of the built-in corpus: the language's topics first, then the library."""
    passages = (passage for part in reversed(python_docs.parts()) for passage in python_docs.read(part))
    return runs((line for passage in passages for line in passage.text.splitlines()), 3)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


def runs(paragraphs: Iterable[str], most: int) -> Iterator[str]:
    """Yield the sentences of paragraphs: by turns one, then two together, and so on up to `most`, and again."""
    counts = itertools.cycle(range(1, most + 1))
    for paragraph in paragraphs:
        sentences = iter(split_sentences(paragraph))
        while text := "".join(itertools.islice(sentences, next(counts))).strip():
            yield text


def seconds_of(work: Callable[[], object], times: int = 1) -> list[float]:
    """Return how long each of so many calls takes."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def child(name: str, work: Path) -> None:
    """Be an engine: choose settings, write the vectors, then encode what standard input asks for and tell how long."""
    asked = {"all": json.loads((work / "texts.json").read_text(encoding="utf-8")), "short": [SHORT]}
    ways = dict(ENGINES[name](work))
    chosen = {
        "all": quickest(ways, asked["all"][:: -(-len(asked["all"]) // TRIED)], 2),
        "short": quickest(ways, asked["short"], TIMES["short"]),
    }
    np.save(work / f"{name}.npy", ways[chosen["all"]](asked["all"]))
    print(json.dumps(chosen), flush=True)
    for line in sys.stdin:
        what = line.strip()
        encode, texts = ways[chosen[what]], asked[what]
        print(statistics.median(seconds_of(lambda: encode(texts), TIMES[what])), flush=True)  # noqa: B023


def quickest(ways: dict[str, Encode], texts: list[str], times: int) -> str:
    """Return the name of the setting that takes the least time, after it was used once."""

    def best(told: str) -> float:
        return min(seconds_of(lambda: ways[told](texts), times + 1)[1:])

    return min(ways, key=best)


class Turns:
    """An engine in a process of its own that encodes when it is told to; no other touches its memory and settings."""

    def __init__(self, name: str, work: Path) -> None:
        command = [sys.executable, __file__, "--child", name, "--work", str(work)]
        environment = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.chosen: dict[str, str] = json.loads(self._line())

    def seconds(self, what: str) -> float:
        """Return how long it took to encode all texts, or the short one."""
        assert self.process.stdin is not None
        time.sleep(0.3)  # until the threads of the engine before it no longer wait for work
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended before it answered; what it said stands above")
        return line


@contextmanager
def started(work: Path) -> Iterator[dict[str, Turns]]:
    """Start the engines one after the other; end them."""
    engines: dict[str, Turns] = {}
    try:
        for name in ENGINES:
            engines[name] = Turns(name, work)
            print(f"{name}: {engines[name].chosen['all']}", file=sys.stderr, flush=True)
        yield engines
    finally:
        for engine in engines.values():
            engine.process.communicate()


def product_rate() -> float:
    """Return the operations per second of a large product of matrices: the best of a few, by MKL or by oneDNN."""
    import torch

    matrix = torch.randn(2048, 2048)
    ways = [lambda: matrix @ matrix]
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        ready = torch.ops.mkldnn._reorder_linear_weight(matrix, 2048)
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(matrix, ready, None, "none", [], ""))
    return 2 * 2048**3 / min(min(seconds_of(way, 5)) for way in ways)


def operations(lengths: Sequence[int]) -> float:
    """Return the floating-point operations of the matrix products that rows of these lengths need, padding left out."""
    inner, num_layers = 4 * WIDTH, 6
    products = 2 * sum(lengths) * (4 * WIDTH * WIDTH + 2 * WIDTH * inner)
    return float(num_layers * (products + 4 * WIDTH * sum(length * length for length in lengths)))


def cosine(work: Path, name: str) -> float:
    """Return the mean cosine of an engine's vectors to ours in full precision."""
    mine, other = (np.load(work / f"{one}.npy").astype(np.float64) for one in ("ours", name))
    return float(((mine * other).sum(1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(other, axis=1)).mean())


def measure(texts: list[str], num_rounds: int, work: Path) -> dict[str, Any]:
    """Return all figures of these texts."""
    (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    needed = operations([len(row) for row in cutter()(texts)])
    seconds: dict[str, Figures] = {what: {name: [] for name in ENGINES} for what in TIMES}
    rates = []
    with started(work) as engines:
        for name in FULL:
            if not cosine(work, name) >= SAME:
                sys.exit(f"{name} computes something else: the mean cosine to ours is {cosine(work, name):.5f}")
        for _, (name, engine) in itertools.product(range(num_rounds), engines.items()):
            for what, found in seconds.items():
                found[name].append(engine.seconds(what))
            if name == "ours":
                rates.append(product_rate())
    return {
        **ratios(seconds["all"], seconds["short"]),
        "of_limit_fp32": middle([needed / rate for rate in rates], seconds["all"]["ours"]),
        "cosine_int8": cosine(work, "ours_int8"),
        "cosine_ctranslate2_int8": cosine(work, "ctranslate2_int8"),
        "product_gflops": statistics.median(rates) / 1e9,
        **{f"sentences_per_second_{name}": len(texts) / statistics.median(own) for name, own in seconds["all"].items()},
        **{f"milliseconds_{name}": 1e3 * statistics.median(own) for name, own in seconds["short"].items()},
        "settings": {name: engine.chosen for name, engine in engines.items()},
    }


def ratios(seconds: Figures, waits: Figures) -> dict[str, float]:
    """Return ratios of speeds, from the seconds that all texts and the short one took: above 1 where ours is faster."""
    peers = [name for name in FULL if name != "ours"]
    fastest = min(peers, key=lambda name: statistics.median(seconds[name]))
    quick = min(peers, key=lambda name: statistics.median(waits[name]))
    return {
        "ratio_fp32": middle(seconds[fastest], seconds["ours"]),
        "ratio_sentence_transformers": middle(seconds["sentence_transformers"], seconds["ours"]),
        "ratio_int8": middle(seconds["ctranslate2_int8"], seconds["ours_int8"]),
        "int8_over_fp32": middle(seconds["ours"], seconds["ours_int8"]),
        "ratio_latency": middle(waits[quick], waits["ours"]),
    }


def middle(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of two rows of figures, round by round."""
    return statistics.median(one / other for one, other in zip(some, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="has glue/ and wikitext-2/; built-in texts without it")
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
    cut = cutter()
    # Longer texts are cut off by some and read in windows by ours, so they are left out.
    fitting = (text for text in source if len(cut([text])[0]) <= LONGEST)
    with tempfile.TemporaryDirectory() as folder:
        told = measure(list(itertools.islice(fitting, options.sentences)), options.rounds, Path(folder))
    if options.json:
        print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in told.items()}))
        return
    settings = told.pop("settings")
    for key, value in told.items():
        print(f"{value:12.3f}  {key}")
    for name, chosen in settings.items():
        print(f"{name}: {chosen['all']}; for one sentence: {chosen['short']}")


if __name__ == "__main__":
    main()
