"""Pretraining steps, ours and transformers': sizes in; speeds, ratios, utilisation and memory out.

    python benchmarks/pretraining.py [--sizes tiny,mini,small,base] [--precisions fp32,bf16] [--steps 7] [--compile]
        [--json]
    python benchmarks/pretraining.py --family [--members roberta,albert,…] [--precisions fp32,bf16] [--steps 7] [--json]

In one run, on the same batches (length 128, V = 30,522, 15 % masked, dropout 0.1, AdamW, clipping), both sides in each
precision alternate, each in its own process; medians. The default precisions are fp32 and, where the processor
multiplies it natively, bf16 (autocast on both sides). Keys without a precision are those of fp32.

    ratio_…, ratio_bf16_…    speed of ours over transformers', both in that precision
    bf16_over_fp32_…         speed of ours in bf16 over ours in fp32
    of_limit_…               FLOP/s of a step of ours (matmuls only), over those of one large matmul in the same
                             precision, which is timed between the steps
    memory_ratio_…           growth of the peak resident size of a process: ours over transformers'

`--family` measures the other model families, each at the size of its recipe (`family_steps.py`). There, speed, ratio,
share of the limit and memory are those at the fastest precision of each side, and `ratio_fp32_…` and `ratio_bf16_…` at
the same one; where transformers has no such model, only our speed is reported.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from bertworks.commands.plan.forecast import step_flops
from bertworks.encoders.bert import BertConfig
from bertworks.training.flops import count_flops
from children import Child
from family_steps import BATCH_SIZE, MEMBERS
from family_steps import make_batches as family_batches
from hardware import matmul_throughput, native_precisions
from pretraining_steps import BATCH_SIZES, LENGTH, VOCAB_SIZE, answer_requests
from timing import print_results, seconds_of, show_progress

NUM_WARMUP_STEPS = 2
Results = dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of a step and growth of memory in MiB by (side, precision), and matmul FLOP/s by precision; medians."""

    seconds: dict[tuple[str, str], float]
    growth: dict[tuple[str, str], float]
    throughput: dict[str, float]

    def fastest(self, side: str) -> str:
        """Return the precision in which a side is fastest."""
        return min((precision for name, precision in self.seconds if name == side), key=lambda p: self.seconds[side, p])


def alternate(size: str, precisions: list[str], num_steps: int, compiled: bool = False) -> Measurement:
    """Measure both sides in each precision."""
    has_peer = size not in MEMBERS or MEMBERS[size].peer_inputs is not None
    seconds: dict[tuple[str, str], list[float]] = {
        (side, precision): [] for precision in precisions for side in ("ours", "peer")[: 1 + has_peer]
    }
    throughputs: dict[str, list[float]] = {precision: [] for precision in precisions}
    with ExitStack() as stack:
        engines = {}
        for side, precision in seconds:
            arguments = ["--child", side, "--sizes", size, "--precisions", precision, *["--compile"] * compiled]
            child = Child(f"{size}, {side} in {precision}", [sys.executable, __file__, *arguments])
            engines[side, precision] = stack.enter_context(child)
            for _ in range(NUM_WARMUP_STEPS):
                child.request("step")
        for _ in range(num_steps):
            for name, engine in engines.items():
                seconds[name].append(float(engine.request("step")))
            for precision, values in throughputs.items():
                values.append(matmul_throughput(precision))
        growth = {name: float(engine.request("memory")) for name, engine in engines.items()}
    return Measurement(
        {name: statistics.median(values) for name, values in seconds.items()},
        growth,
        {precision: statistics.median(values) for precision, values in throughputs.items()},
    )


def size_results(size: str, measurement: Measurement) -> Results:
    """Return the results of one size of BERT."""
    num_tokens = BATCH_SIZES[size] * LENGTH
    flops = step_flops(BertConfig.from_preset(size, VOCAB_SIZE), BATCH_SIZES[size], LENGTH)
    results: Results = {}
    for precision, throughput in measurement.throughput.items():
        ours, peer = measurement.seconds["ours", precision], measurement.seconds["peer", precision]
        suffix = size if precision == "fp32" else f"{precision}_{size}"
        peer_suffix = f"peer_{size}" if precision == "fp32" else f"{precision}_peer_{size}"
        memory, peer_memory = (measurement.growth[side, precision] for side in ("ours", "peer"))
        results |= {
            f"pieces_per_second_{suffix}": num_tokens / ours,
            f"pieces_per_second_{peer_suffix}": num_tokens / peer,
            f"ratio_{suffix}": peer / ours,
            f"of_limit_{suffix}": flops / ours / throughput,
            f"seconds_{suffix}": ours,
            f"memory_mib_{suffix}": memory,
            f"memory_mib_{peer_suffix}": peer_memory,
            f"memory_ratio_{suffix}": memory / peer_memory,
        }
    if {"fp32", "bf16"} <= measurement.throughput.keys():
        results[f"bf16_over_fp32_{size}"] = measurement.seconds["ours", "fp32"] / measurement.seconds["ours", "bf16"]
    return results


def member_results(name: str, measurement: Measurement, flops: float) -> Results:
    """Return the results of one model family, at the fastest precision of each side."""
    seconds, growth, best = measurement.seconds, measurement.growth, measurement.fastest("ours")
    ours = seconds["ours", best]
    results: Results = {
        f"of_limit_{name}": flops / ours / measurement.throughput[best],
        f"pieces_per_second_{name}": BATCH_SIZE * LENGTH / ours,
        f"precision_{name}": best,
    }
    if not any(side == "peer" for side, _ in seconds):
        return results
    peer_best = measurement.fastest("peer")
    peer = seconds["peer", peer_best]
    return {
        **results,
        f"pieces_per_second_peer_{name}": BATCH_SIZE * LENGTH / peer,
        f"precision_peer_{name}": peer_best,
        f"ratio_{name}": peer / ours,
        **{f"ratio_{p}_{name}": seconds["peer", p] / seconds["ours", p] for p in measurement.throughput},
        f"memory_ratio_{name}": growth["ours", best] / growth["peer", peer_best],
    }


def measure_family(members: list[str], precisions: list[str], num_steps: int) -> Results:
    """Return speed, utilisation, ratio and memory of each model family."""
    results: Results = {}
    for name in members:
        flops = count_flops(cast(Any, MEMBERS[name].module()), family_batches(name, 1))
        results |= member_results(name, alternate(name, precisions, num_steps), flops)
        ratio = f", {results[f'ratio_{name}']:.2f} times the peer's" if f"ratio_{name}" in results else ""
        show_progress(f"{name}: {results[f'pieces_per_second_{name}']:,.0f} tokens/s{ratio}")
    return results


def measure_sizes(sizes: list[str], precisions: list[str], num_steps: int, compiled: bool) -> Results:
    """Return the results of each size of BERT, and the cost of loading batches."""
    suffixes = {precision: "" if precision == "fp32" else f"{precision}_" for precision in precisions}
    results: Results = {
        f"product_gflops_{suffix}".rstrip("_"): matmul_throughput(precision) / 1e9
        for precision, suffix in suffixes.items()
    }
    for size in sizes:
        results |= size_results(size, alternate(size, precisions, num_steps, compiled))
        ratios = [f"{results[f'ratio_{suffix}{size}']:.2f} in {precision}" for precision, suffix in suffixes.items()]
        show_progress(f"{size}, speed over the peer's: {', '.join(ratios)}")
    first = suffixes[precisions[0]]
    results["memory_ratio"] = max(float(results[f"memory_ratio_{first}{size}"]) for size in sizes)
    step_seconds = min(float(results[f"seconds_{suffix}{sizes[0]}"]) for suffix in suffixes.values())
    results["loader_share"] = loader_seconds(BATCH_SIZES[sizes[0]]) / step_seconds
    return results


def loader_seconds(batch_size: int) -> float:
    """Return the seconds to load one batch from a corpus."""
    from bertworks.commands.prepare import PrepareRequest, prepare
    from bertworks.commands.pretrain.batches import PretrainBatches
    from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
    from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
    from bertworks.sampling.masking import MaskSettings
    from bertworks.text.sources import TextSource
    from bertworks.vocabulary.training import VocabularySettings

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        words = [f"word{number}" for number in range(500)]
        generator = torch.Generator().manual_seed(0)
        indices = torch.randint(0, 500, (4000, 12), generator=generator).tolist()
        lines = [" ".join(words[index] for index in line).capitalize() + "." for line in indices]
        text.write_text("\n\n".join("\n".join(lines[start : start + 20]) for start in range(0, len(lines), 20)))
        train_vocabulary(
            VocabularyRequest((TextSource(str(text)),), Path(folder) / "v"), VocabularySettings(vocab_size=600), 1
        )
        corpus_folder = prepare(
            PrepareRequest(sources=(TextSource(str(text)),), vocabulary=Path(folder) / "v", output=Path(folder) / "c"),
            1,
        )
        from bertworks.corpus.corpus import Corpus

        phases = (PhaseRecipe(LENGTH, steps=1, budget_ratio=1),)
        recipe = PretrainRecipe(
            model=ModelRecipe(size="tiny"), masking=MaskSettings(), batch_size=batch_size, warmup_steps=0, phases=phases
        )
        batches = PretrainBatches(Corpus.open(corpus_folder), recipe)
        return statistics.median(seconds_of(partial(batches._load_batches, 0, step)) for step in range(20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini,small,base")
    parser.add_argument("--family", action="store_true", help="measure other model families instead of sizes of BERT")
    parser.add_argument("--members", default=",".join(MEMBERS))
    parser.add_argument("--precisions", default=",".join(native_precisions()))
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="compile our layers; off by default, as in recipes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=["ours", "peer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes, precisions = options.sizes.split(","), options.precisions.split(",")
    if options.child:
        answer_requests(options.child, sizes[0], precisions[0], options.compile)
        return
    if options.family:
        results = measure_family(options.members.split(","), precisions, options.steps)
    else:
        results = measure_sizes(sizes, precisions, options.steps, options.compile)
    print_results(results, options.json)


if __name__ == "__main__":
    main()
