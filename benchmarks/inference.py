"""Sentence embeddings with MiniLM, ours against peers: a data folder in; speeds, ratios, latencies and cosines out.

    python benchmarks/inference.py [DATA_FOLDER] [--precisions fp32,bf16,int8] [--sentences 1500] [--rounds 5] [--json]

The sentences are those of SST-2, MRPC and WikiText if there is a data folder, otherwise of the built-in corpus. Timed
is the whole path from texts to normalized vectors, on all cores, each engine in its own process, alternating; a ratio
is the median over rounds. `inference_engines.py` defines the engines: ours and sentence-transformers' `encode` with
their defaults; the other peers sort by length and use the fastest of a few settings. bf16 is measured where the
processor multiplies it natively. A peer counts if the mean cosine of its vectors to ours in fp32 is at least that of
MIN_COSINES.

    ratio_fp32                    speed of ours in fp32 over the fastest peer in fp32
    ratio_bf16, ratio_bf16_peer   ours in bf16 over the fastest peer in fp32, and over the fastest in bf16
    ratio_int8                    our `export --to int8` over the fastest peer in int8
    bf16_over_fp32, int8_over_fp32    ours over ours in fp32
    ratio_sentence_transformers   ours over sentence-transformers' `encode`, both in fp32
    of_limit_fp32, of_limit_bf16  FLOP/s of the matmuls of ours, over those of one large matmul in that precision
    cosine_bf16, cosine_int8      mean cosine of our vectors to those of fp32
    ratio_latency                 time of the fastest peer for one short text over ours, each in its fastest precision;
                                  ratio_latency_fp32 and so on: both in that precision
    peer_fp32, peer_latency, …    the name of that fastest peer

    python benchmarks/inference.py [DATA_FOLDER] --family [--members roberta,modernbert,…] [--size small]

measures encoders of other families against transformers', in the same precision (`inference_family.py`):
tokens_per_second_fp32_NAME, tokens_per_second_fp32_peer_NAME and ratio_fp32_NAME, and so on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.text import python_docs
from bertworks.text.sentences import split_sentences
from children import Child
from hardware import matmul_throughput, native_precisions
from inference_batches import HIDDEN_SIZE, MAX_LENGTH, Encode, make_tokenizer
from inference_engines import ENGINES
from inference_family import MEMBERS, make_sequences, measure_family
from inference_family import child as family_child
from timing import print_results, seconds_of, show_progress

SHORT_TEXT = "Where is the nearest railway station?"
# What an engine encodes, and how often per round.
NUM_REPEATS = {"all": 1, "short": 50}
# Sentences on which settings are compared, and how many of the settings are timed more than once.
NUM_TUNING_TEXTS, NUM_FINALISTS = 128, 3
# Minimum mean cosine to ours in fp32, by precision. In fp32, an engine below computes something else.
MIN_COSINES = {"fp32": 0.9999, "bf16": 0.999, "int8": 0.996}

# Our engine in each precision.
OURS = {"fp32": "ours", "bf16": "ours_bf16", "int8": "ours_int8"}

Seconds = Mapping[str, Sequence[float]]  # by engine, one per round


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


def child(name: str, work: Path) -> None:
    """Run an engine: choose its settings, write its vectors, then time encoding on request from standard input."""
    texts = {"all": json.loads((work / "texts.json").read_text(encoding="utf-8")), "short": [SHORT_TEXT]}
    encoders = dict(ENGINES[name].settings(work))
    chosen: dict[str, str] = {}
    if encoders:
        tuning_texts = texts["all"][:: -(-len(texts["all"]) // NUM_TUNING_TEXTS)]
        chosen = {"all": fastest(encoders, tuning_texts, 2), "short": fastest(encoders, texts["short"], 20)}
        encoders = {setting: encoders[setting] for setting in chosen.values()}
        np.save(work / f"{name}.npy", encoders[chosen["all"]](texts["all"]))
    print(json.dumps(chosen), flush=True)
    for line in sys.stdin:
        kind = line.strip()
        encode = partial(encoders[chosen[kind]], texts[kind])
        print(statistics.median(seconds_of(encode) for _ in range(NUM_REPEATS[kind])), flush=True)


def fastest(encoders: dict[str, Encode], texts: list[str], num_calls: int) -> str:
    """Return the name of the fastest setting: each is timed once after a warmup, the fastest few again."""

    def least_seconds(name: str, num_calls: int) -> float:
        return min(seconds_of(partial(encoders[name], texts)) for _ in range(num_calls))

    for name in encoders:
        encoders[name](texts)
    finalists = sorted(encoders, key=lambda name: least_seconds(name, 1))[:NUM_FINALISTS]
    return min(finalists, key=lambda name: least_seconds(name, num_calls))


def start_engines(names: list[str], work: Path, stack: ExitStack) -> tuple[dict[str, Child], dict[str, dict[str, str]]]:
    """Start the engines one after another; return them and their settings, without those that cannot run here."""
    engines, settings = {}, {}
    environment = {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    for name in names:
        show_progress(f"{name}: starting and choosing its settings")
        start = time.perf_counter()
        engine = Child(name, [sys.executable, __file__, "--child", name, "--work", work], environment)
        chosen = json.loads(stack.enter_context(engine).read())
        if not chosen:
            show_progress(f"{name}: not installed, or not on this processor; left out")
            engine.finish()
            continue
        engines[name], settings[name] = engine, chosen
        show_progress(f"{name}: {chosen['all']}; {time.perf_counter() - start:.0f} s")
    return engines, settings


def matmul_flops(lengths: Sequence[int]) -> float:
    """Return the FLOPs of the matmuls for sequences of these lengths, without padding."""
    intermediate_size, num_layers = 4 * HIDDEN_SIZE, 6
    linear = 2 * sum(lengths) * (4 * HIDDEN_SIZE * HIDDEN_SIZE + 2 * HIDDEN_SIZE * intermediate_size)
    return float(num_layers * (linear + 4 * HIDDEN_SIZE * sum(length * length for length in lengths)))


def mean_cosine(work: Path, name: str) -> float:
    """Return the mean cosine of an engine's vectors to ours in fp32."""
    ours, other = (np.load(work / f"{engine}.npy").astype(np.float64) for engine in ("ours", name))
    return float(((ours * other).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(other, axis=1)).mean())


def measure(texts: list[str], precisions: list[str], num_rounds: int, work: Path) -> dict[str, Any]:
    """Return all results for these texts."""
    (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    names = [name for name, engine in ENGINES.items() if engine.precision in precisions or name == "ours"]
    limits: dict[str, list[float]] = {precision: [] for precision in precisions if precision != "int8"}
    with ExitStack() as stack:
        engines, settings = start_engines(names, work, stack)
        cosines = {name: mean_cosine(work, name) for name in engines}
        check_cosines(cosines)
        seconds: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in engines} for kind in NUM_REPEATS}
        for round_number in range(1, num_rounds + 1):
            for (name, engine), (kind, by_engine) in itertools.product(engines.items(), seconds.items()):
                by_engine[name].append(float(engine.request(kind)))
            for precision, throughputs in limits.items():
                throughputs.append(matmul_throughput(precision, packed=True))
            show_progress(f"round {round_number} of {num_rounds}")
    flops = matmul_flops([len(input_ids) for input_ids in make_tokenizer()(texts)])
    return {
        **ratios(seconds["all"], seconds["short"], cosines),
        **limit_results(flops, limits, seconds["all"]),
        **{f"cosine_{name.removeprefix('ours_')}": cosine for name, cosine in cosines.items() if name != "ours"},
        **{f"sentences_per_second_{name}": len(texts) / statistics.median(v) for name, v in seconds["all"].items()},
        **{f"milliseconds_{name}": 1e3 * statistics.median(v) for name, v in seconds["short"].items()},
        "settings": settings,
    }


def check_cosines(cosines: Mapping[str, float]) -> None:
    """End the benchmark if an fp32 engine computes something else; name the others that do not count."""
    for name, cosine in cosines.items():
        precision = ENGINES[name].precision
        if not cosine >= MIN_COSINES[precision]:
            message = f"the mean cosine of {name} to ours in fp32 is {cosine:.5f}, below {MIN_COSINES[precision]}"
            if precision == "fp32":
                sys.exit(f"{message}: it computes something else")
            show_progress(f"{message}: it does not count as a peer")


def ratios(seconds: Seconds, latencies: Seconds, cosines: Mapping[str, float]) -> dict[str, float | str]:
    """Return ratios of speeds from the seconds of all texts and of the short one; above 1 where ours is faster."""
    results: dict[str, float | str] = {}
    for precision, ours in OURS.items():
        peers = peers_of([precision], seconds, cosines)
        if ours not in seconds or not peers:
            continue
        peer, latency_peer = fastest_of(peers, seconds), fastest_of(peers, latencies)
        key = "ratio_bf16_peer" if precision == "bf16" else f"ratio_{precision}"
        results |= {key: median_ratio(seconds[peer], seconds[ours]), f"peer_{precision}": peer}
        results[f"ratio_latency_{precision}"] = median_ratio(latencies[latency_peer], latencies[ours])
    if "peer_fp32" in results and "ours_bf16" in seconds:
        results["ratio_bf16"] = median_ratio(seconds[str(results["peer_fp32"])], seconds["ours_bf16"])
    for precision in ("bf16", "int8"):
        if f"ours_{precision}" in seconds:
            results[f"{precision}_over_fp32"] = median_ratio(seconds["ours"], seconds[f"ours_{precision}"])
    if "sentence_transformers" in seconds:
        results["ratio_sentence_transformers"] = median_ratio(seconds["sentence_transformers"], seconds["ours"])
    ours = fastest_of([name for name in OURS.values() if name in seconds], latencies)
    peers = peers_of(list(OURS), seconds, cosines)
    if peers:
        peer = fastest_of(peers, latencies)
        ratio = median_ratio(latencies[peer], latencies[ours])
        results |= {"ratio_latency": ratio, "ours_latency": ours, "peer_latency": peer}
    return results


def peers_of(precisions: list[str], names: Iterable[str], cosines: Mapping[str, float]) -> list[str]:
    """Return the peers in these precisions whose vectors are close enough."""
    return [
        name
        for name in names
        if name not in OURS.values()
        and ENGINES[name].precision in precisions
        and cosines[name] >= MIN_COSINES[ENGINES[name].precision]
    ]


def fastest_of(names: Iterable[str], seconds: Seconds) -> str:
    return min(names, key=lambda name: statistics.median(seconds[name]))


def limit_results(flops: float, limits: Mapping[str, Sequence[float]], seconds: Seconds) -> dict[str, float]:
    """Return the FLOP/s of a large matmul by precision, and those of ours relative to it."""
    results = {}
    for precision, throughputs in limits.items():
        suffix = "" if precision == "fp32" else f"_{precision}"
        results[f"product_gflops{suffix}"] = statistics.median(throughputs) / 1e9
        limit_seconds = [flops / throughput for throughput in throughputs]
        results[f"of_limit_{precision}"] = median_ratio(limit_seconds, seconds[OURS[precision]])
    return results


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median over rounds of the ratio."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", type=Path, nargs="?", help="folder with glue/ and wikitext-2/; default: the built-in corpus"
    )
    parser.add_argument("--precisions", help="default: fp32, bf16 where it is native, and int8 (not with --family)")
    parser.add_argument("--family", action="store_true", help="measure encoders of other families")
    parser.add_argument("--members", default=",".join(MEMBERS))
    parser.add_argument("--size", default="small", help="of the encoders of other families")
    parser.add_argument("--sentences", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=["ours", "peer"], help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.work)
        return
    if options.side:
        family_child(options.side, options.members, options.size, options.precisions, options.work)
        return
    default_precisions = native_precisions() if options.family else [*native_precisions(), "int8"]
    precisions = options.precisions.split(",") if options.precisions else default_precisions
    source = real_texts(options.data) if options.data else built_in_texts()
    if options.family:
        with tempfile.TemporaryDirectory() as folder:
            sequences = make_sequences(itertools.islice(source, options.sentences))
            (Path(folder) / "sequences.json").write_text(json.dumps(sequences), encoding="utf-8")
            members = options.members.split(",")
            results = measure_family(members, options.size, precisions, options.rounds, Path(folder))
        print_results(results, options.json)
        return
    tokenize = make_tokenizer()
    # Longer texts are truncated by some engines and split into windows by ours, so they are left out.
    texts = itertools.islice((text for text in source if len(tokenize([text])[0]) <= MAX_LENGTH), options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(list(texts), precisions, options.rounds, Path(folder))
    print_results(results, options.json)


if __name__ == "__main__":
    main()
