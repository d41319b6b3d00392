"""Pretraining steps, ours and transformers': sizes in; speeds, ratios, utilisation and memory out.

    python benchmarks/pretraining.py [--sizes tiny,mini,small,base] [--steps 7] [--compile] [--json]
    python benchmarks/pretraining.py --family [--members roberta,albert,…] [--steps 7] [--json]

In one run, on the same batches (length 128, V = 30,522, 15 % masked, dropout 0.1, AdamW, clipping), the two alternate,
each in its own process; medians. `of_limit` is the FLOP/s of a step (matmuls only) divided by those of one large matmul
that is timed between the steps. Memory is the growth of the peak resident size of a process. `--family` measures the
other model families, each at the size of its recipe (`family_steps.py`); where transformers has no such model, only our
speed is reported.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from bertworks.commands.plan.forecast import step_flops
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.batch import Batch
from bertworks.training.flops import count_flops
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from family_steps import BATCH_SIZE, MEMBERS, mlm_inputs
from family_steps import make_batches as family_batches

VOCAB_SIZE = 30_522
LENGTH = 128
BATCH_SIZES = {"tiny": 32, "mini": 32, "small": 32, "medium": 32, "base": 8, "large": 4}


def make_batches(batch_size: int, count: int) -> list[Batch]:
    """Return batches of random tokens with 15 % of the positions masked."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    num_masked = round(0.15 * (LENGTH - 3))
    for _ in range(count):
        input_ids = torch.randint(1000, VOCAB_SIZE, (batch_size, LENGTH), generator=generator)
        token_type_ids = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(batch_size, LENGTH).contiguous()
        columns = torch.stack(
            [torch.randperm(LENGTH, generator=generator)[:num_masked].sort().values for _ in range(batch_size)]
        )
        positions = (columns + torch.arange(batch_size)[:, None] * LENGTH).flatten()
        targets = input_ids.flatten()[positions]
        input_ids.view(-1)[positions] = 103
        batches.append(
            Batch(
                input_ids=input_ids,
                token_type_ids=token_type_ids,
                lengths=torch.full((batch_size,), LENGTH),
                positions=positions,
                targets=targets,
                labels={"nsp": torch.randint(0, 2, (batch_size,), generator=generator)},
            )
        )
    return batches


def our_module(size: str, compiled: bool) -> Any:
    """Return the module that our loop trains: a BERT of that size, or another model family."""
    if size in MEMBERS:
        return MEMBERS[size].module()
    generator = torch.Generator().manual_seed(0)
    module = MlmModule(Bert(BertConfig.from_preset(size, VOCAB_SIZE), generator), generator)
    if compiled:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    return module


def our_step(module: Any, batches: list[Batch]) -> Callable[[], object]:
    """Return a function that does one step of our loop."""
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((10**6,), 10_000, 1e-4),
        get_batches=lambda phase, step: [batches[step % len(batches)]],
        seed=0,
    )
    steps = train(training, TrainState())
    return lambda: next(steps, None)


def peer_model(size: str) -> tuple[Any, Callable[[Batch], dict[str, Any]]]:
    """Return transformers' model, and the function that makes its inputs from a batch."""
    if size in MEMBERS:
        peer_inputs = MEMBERS[size].peer_inputs
        assert peer_inputs is not None
        return MEMBERS[size].peer(), peer_inputs
    import transformers

    config = BertConfig.from_preset(size, VOCAB_SIZE)
    peer_config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
    )
    return transformers.BertForPreTraining(peer_config), _bert_inputs  # type: ignore[no-untyped-call]


def _bert_inputs(batch: Batch) -> dict[str, Any]:
    return {
        **mlm_inputs(batch),
        "token_type_ids": batch.token_type_ids,
        "attention_mask": torch.ones_like(batch.input_ids),
        "next_sentence_label": batch.labels["nsp"],
    }


def peer_step(size: str, batches: list[Batch]) -> Callable[[], None]:
    """Return a function that does one step of transformers' model in a plain loop."""
    model, make_inputs = peer_model(size)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    numbers = itertools.count()

    def step() -> None:
        model(**make_inputs(batches[next(numbers) % len(batches)])).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def matmul_throughput() -> float:
    """Return the FLOP/s of a large matmul, the best of a few."""
    matrix = torch.randn(2048, 2048)
    return max(2 * 2048**3 / seconds_of(lambda: matrix @ matrix) for _ in range(5))


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class EngineProcess:
    """An engine in its own process that does one step at a time on request."""

    def __init__(self, engine: str, size: str, compiled: bool = False) -> None:
        command = [sys.executable, __file__, "--child", engine, "--sizes", size, *["--compile"][: int(compiled)]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.time_step()  # the first two steps are warmup
        self.time_step()

    def time_step(self) -> float:
        """Do one step; return its seconds."""
        return self._request("step")

    def finish(self) -> float:
        """End the process; return by how many MiB its peak memory grew."""
        growth = self._request("end")
        self._process.wait()
        return growth

    def _request(self, command: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def child(engine: str, size: str, compiled: bool) -> None:
    batches = family_batches(size, 4) if size in MEMBERS else make_batches(BATCH_SIZES[size], 4)
    if engine == "peer":
        import transformers.models.bert.modeling_bert  # noqa: F401
    before = peak_mib()
    step = our_step(our_module(size, compiled), batches) if engine == "ours" else peer_step(size, batches)
    for line in sys.stdin:
        print(peak_mib() - before if line.strip() == "end" else seconds_of(step), flush=True)
        if line.strip() == "end":
            return


def peak_mib() -> float:
    """Return the peak resident size of this process. (getrusage would include the parent's before the fork.)"""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def loader_ratio(step_seconds: float, batch_size: int) -> float:
    """Return the time to load one batch from a corpus relative to that of a step."""
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

        phases = (PhaseRecipe(LENGTH, 1, 1),)
        recipe = PretrainRecipe(
            model=ModelRecipe(size="tiny"), masking=MaskSettings(), batch_size=batch_size, warmup_steps=0, phases=phases
        )
        batches = PretrainBatches(Corpus.open(corpus_folder), recipe)
        seconds = statistics.median(seconds_of(partial(batches._load_batches, 0, step)) for step in range(20))
    return seconds / step_seconds


def alternate(size: str, num_steps: int, compiled: bool = False) -> tuple[dict[str, float], dict[str, float], float]:
    """Return the seconds of a step and the growth of memory, both by engine, and the matmul throughput."""
    has_peer = size not in MEMBERS or MEMBERS[size].peer_inputs is not None
    engines = {"ours": EngineProcess("ours", size, compiled)} | (
        {"peer": EngineProcess("peer", size)} if has_peer else {}
    )
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    throughputs = []
    for _ in range(num_steps):
        for name, engine in engines.items():
            seconds[name].append(engine.time_step())
        throughputs.append(matmul_throughput())
    growth = {name: engine.finish() for name, engine in engines.items()}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return medians, growth, statistics.median(throughputs)


def measure(size: str, num_steps: int, compiled: bool) -> dict[str, float]:
    """Return the results of one size of BERT."""
    seconds, growth, throughput = alternate(size, num_steps, compiled)
    batch_size = BATCH_SIZES[size]
    flops = step_flops(BertConfig.from_preset(size, VOCAB_SIZE), batch_size, LENGTH)
    return {
        f"pieces_per_second_{size}": batch_size * LENGTH / seconds["ours"],
        f"pieces_per_second_peer_{size}": batch_size * LENGTH / seconds["peer"],
        f"ratio_{size}": seconds["peer"] / seconds["ours"],
        f"of_limit_{size}": flops / seconds["ours"] / throughput,
        f"seconds_{size}": seconds["ours"],
        f"memory_ratio_{size}": growth["ours"] / growth["peer"],
    }


def measure_family(members: list[str], num_steps: int) -> dict[str, float]:
    """Return speed, utilisation, ratio and memory of each model family."""
    results: dict[str, float] = {}
    for name in members:
        seconds, growth, throughput = alternate(name, num_steps)
        flops = count_flops(cast(Any, MEMBERS[name].module()), family_batches(name, 1))
        results[f"of_limit_{name}"] = flops / seconds["ours"] / throughput
        results[f"pieces_per_second_{name}"] = BATCH_SIZE * LENGTH / seconds["ours"]
        if "peer" in seconds:
            results[f"pieces_per_second_peer_{name}"] = BATCH_SIZE * LENGTH / seconds["peer"]
            results[f"ratio_{name}"] = seconds["peer"] / seconds["ours"]
            results[f"memory_ratio_{name}"] = growth["ours"] / growth["peer"]
        ratio = f", {results[f'ratio_{name}']:.2f} times the peer's" if "peer" in seconds else ""
        print(f"{name}: {results[f'pieces_per_second_{name}']:,.0f} tokens/s{ratio}", file=sys.stderr, flush=True)
    return results


def measure_sizes(sizes: list[str], num_steps: int, compiled: bool) -> dict[str, float]:
    """Return the results of each size of BERT, and the cost of loading batches."""
    results: dict[str, float] = {"product_gflops": matmul_throughput() / 1e9}
    for size in sizes:
        results |= measure(size, num_steps, compiled)
        print(f"{size}: {results[f'ratio_{size}']:.2f} times the peer's speed", file=sys.stderr, flush=True)
    results["memory_ratio"] = max(results[f"memory_ratio_{size}"] for size in sizes)
    results["loader_share"] = loader_ratio(results[f"seconds_{sizes[0]}"], BATCH_SIZES[sizes[0]])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini,small,base")
    parser.add_argument("--family", action="store_true", help="measure other model families instead of sizes of BERT")
    parser.add_argument("--members", default=",".join(MEMBERS))
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="compile our layers; off by default, as in recipes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=["ours", "peer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.sizes.split(",")
    if options.child:
        child(options.child, sizes[0], options.compile)
        return
    if options.family:
        results = measure_family(options.members.split(","), options.steps)
    else:
        results = measure_sizes(sizes, options.steps, options.compile)
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in results.items()}))
        return
    for name, value in results.items():
        print(f"{value:12.3f}  {name}")


if __name__ == "__main__":
    main()
