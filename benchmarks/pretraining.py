"""A pretraining step, ours beside transformers': sizes in, speeds, ratios, share of the machine's limit and memory out.

    python benchmarks/pretraining.py [--sizes tiny,mini,small,base] [--steps 7] [--compile] [--json]
    python benchmarks/pretraining.py --family [--members roberta,albert,…] [--steps 7] [--json]

In one run, on the same batches (length 128, V = 30,522, 15 % hidden, dropout 0.1, AdamW, clipping), the two take turns,
each in a process of its own; medians. `of_limit` is the arithmetic that a step needs (products of matrices only) to
the rate of one large product measured between the turns. Memory is the growth of the peak resident size of a process.
With `--family` it is the relatives' turn, each at the size of its recipe (`family_steps.py`); where transformers has no
such model, only our speed is told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from bertworks.encoders.bert import Bert
from bertworks.encoders.stack import BertConfig
from bertworks.objectives.mlm import MlmObjective
from bertworks.sampling.batch import Batch
from bertworks.training.flops import count_flops
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from family_steps import MEMBERS, ROWS, ask_masked
from family_steps import batches_of as family_batches

VOCABULARY = 30_522
LENGTH = 128
BATCH = {"tiny": 32, "mini": 32, "small": 32, "medium": 32, "base": 8, "large": 4}


def batches_of(rows: int, count: int) -> list[Batch]:
    """Return batches of random pieces with 15 % of the places hidden."""
    generator = torch.Generator().manual_seed(1)
    found = []
    hidden = round(0.15 * (LENGTH - 3))
    for _ in range(count):
        ids = torch.randint(1000, VOCABULARY, (rows, LENGTH), generator=generator)
        segments = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(rows, LENGTH).contiguous()
        places = torch.stack([torch.randperm(LENGTH, generator=generator)[:hidden].sort().values for _ in range(rows)])
        flat = (places + torch.arange(rows)[:, None] * LENGTH).flatten()
        targets = ids.flatten()[flat]
        ids.view(-1)[flat] = 103
        labels = {"pair": torch.randint(0, 2, (rows,), generator=generator)}
        found.append(Batch(ids, segments, torch.full((rows,), LENGTH), positions=flat, targets=targets, labels=labels))
    return found


def our_module(size: str, compiled: bool) -> Any:
    """Return what our loop trains: a BERT of that size, or a member of the family."""
    if size in MEMBERS:
        return MEMBERS[size].module()
    generator = torch.Generator().manual_seed(0)
    module = MlmObjective(Bert(BertConfig.from_preset(size, VOCABULARY), generator), generator)
    if compiled:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    return module


def our_step(module: Any, batches: list[Batch]) -> Callable[[], object]:
    """Return a function that does one step of our loop."""
    pace = StepSchedule((10**6,), 10_000, 1e-4)
    draw = lambda phase, step: [batches[step % len(batches)]]  # noqa: E731
    steps = train(
        Training(
            module=module,
            trainable=module,
            optimizer=BertAdam(module, AdamSettings()),
            schedule=pace,
            get_batches=draw,
            seed=0,
        ),
        TrainState(),
    )
    return lambda: next(steps, None)


def peer_model(size: str) -> tuple[Any, Callable[[Batch], dict[str, Any]]]:
    """Return transformers' model, and how it is asked what a batch asks."""
    if size in MEMBERS:
        asked = MEMBERS[size].asked
        assert asked is not None
        return MEMBERS[size].peer(), asked
    import transformers

    sizes = BertConfig.from_preset(size, VOCABULARY)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
    )
    return transformers.BertForPreTraining(config), _asked  # type: ignore[no-untyped-call]


def _asked(batch: Batch) -> dict[str, Any]:
    more = {"token_type_ids": batch.token_type_ids, "attention_mask": torch.ones_like(batch.input_ids)}
    return {**ask_masked(batch), **more, "next_sentence_label": batch.labels["pair"]}


def peer_step(size: str, batches: list[Batch]) -> Callable[[], None]:
    """Return a function that does one step of transformers' model in a plain loop."""
    model, asked = peer_model(size)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    at = iter(range(10**9))

    def step() -> None:
        model(**asked(batches[next(at) % len(batches)])).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def operations(size: str, rows: int) -> float:
    """Return the floating-point operations of the matrix products that a step needs, forward and backward."""
    sizes = BertConfig.from_preset(size, VOCABULARY)
    width, pieces = sizes.hidden_size, rows * LENGTH
    layer = 2 * pieces * (4 * width * width + 2 * width * sizes.intermediate_size) + 4 * pieces * LENGTH * width
    hidden = rows * round(0.15 * (LENGTH - 3))
    head = 2 * hidden * (width * width + width * VOCABULARY) + 2 * rows * width * width
    return 3.0 * (sizes.num_hidden_layers * layer + head)


def product_rate() -> float:
    """Return the operations per second of a large product of matrices, the best of a few."""
    matrix = torch.randn(2048, 2048)
    return max(2 * 2048**3 / seconds_of(lambda: matrix @ matrix) for _ in range(5))


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Turns:
    """An engine in a process of its own that does a step when told to; no other touches its memory and settings."""

    def __init__(self, engine: str, size: str, compiled: bool = False) -> None:
        command = [sys.executable, __file__, "--child", engine, "--sizes", size, *["--compile"][: int(compiled)]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds()  # the first two steps set things up
        self.seconds()

    def seconds(self) -> float:
        """Do one step; return how long it took."""
        return self._asked("step")

    def end(self) -> float:
        """Return by how many MiB the peak memory grew through all steps, and end."""
        growth = self._asked("end")
        self._process.wait()
        return growth

    def _asked(self, what: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def child(engine: str, size: str, compiled: bool) -> None:
    batches = family_batches(size, 4) if size in MEMBERS else batches_of(BATCH[size], 4)
    if engine == "peer":
        import transformers.models.bert.modeling_bert  # noqa: F401
    before = peak_mib()
    step = our_step(our_module(size, compiled), batches) if engine == "ours" else peer_step(size, batches)
    for line in sys.stdin:
        print(peak_mib() - before if line.strip() == "end" else seconds_of(step), flush=True)
        if line.strip() == "end":
            return


def peak_mib() -> float:
    """Return the peak resident size of this process. (getrusage would count the parent's from before the start.)"""
    told = Path("/proc/self/status").read_text()
    return int(next(line for line in told.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def loader_share(step_seconds: float, rows: int) -> float:
    """Return the time to draw one batch from a corpus against the time of a step."""
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
        draws = torch.randint(0, 500, (4000, 12), generator=generator).tolist()
        lines = [" ".join(words[number] for number in line).capitalize() + "." for line in draws]
        text.write_text("\n\n".join("\n".join(lines[at : at + 20]) for at in range(0, len(lines), 20)))
        train_vocabulary(
            VocabularyRequest((TextSource(str(text)),), Path(folder) / "v"), VocabularySettings(vocab_size=600), 1
        )
        corpus_folder = prepare(PrepareRequest((TextSource(str(text)),), Path(folder) / "v", Path(folder) / "c"), 1)
        from bertworks.corpus.corpus import Corpus

        phases = (PhaseRecipe(LENGTH, 1, 1),)
        recipe = PretrainRecipe(
            model=ModelRecipe(size="tiny"), masking=MaskSettings(), batch_size=rows, warmup_steps=0, phases=phases
        )
        drawer = PretrainBatches(Corpus.open(corpus_folder), recipe)
        seconds = statistics.median(seconds_of(lambda at=at: drawer._load_batches(0, at)) for at in range(20))  # type: ignore[misc]
    return seconds / step_seconds


def turns(size: str, num_steps: int, compiled: bool = False) -> tuple[dict[str, float], dict[str, float], float]:
    """Return the seconds of a step, the growth of memory, both by engine, and the rate of one large product."""
    has_peer = size not in MEMBERS or MEMBERS[size].asked is not None
    engines = {"ours": Turns("ours", size, compiled)} | ({"peer": Turns("peer", size)} if has_peer else {})
    times: dict[str, list[float]] = {name: [] for name in engines}
    rates = []
    for _ in range(num_steps):
        for name, engine in engines.items():
            times[name].append(engine.seconds())
        rates.append(product_rate())
    growth = {name: engine.end() for name, engine in engines.items()}
    return {name: statistics.median(took) for name, took in times.items()}, growth, statistics.median(rates)


def measure(size: str, num_steps: int, compiled: bool) -> dict[str, float]:
    """Return the figures of one size; the two engines take turns."""
    seconds, growth, rate = turns(size, num_steps, compiled)
    pieces = BATCH[size] * LENGTH
    return {
        f"pieces_per_second_{size}": pieces / seconds["ours"],
        f"pieces_per_second_peer_{size}": pieces / seconds["peer"],
        f"ratio_{size}": seconds["peer"] / seconds["ours"],
        f"of_limit_{size}": operations(size, BATCH[size]) / seconds["ours"] / rate,
        f"seconds_{size}": seconds["ours"],
        f"memory_ratio_{size}": growth["ours"] / growth["peer"],
    }


def measure_family(members: list[str], num_steps: int) -> dict[str, float]:
    """Return speed, share of the limit, ratio and memory of each member."""
    told: dict[str, float] = {}
    for name in members:
        seconds, growth, rate = turns(name, num_steps)
        needed = count_flops(cast(Any, MEMBERS[name].module()), family_batches(name, 1))
        told[f"of_limit_{name}"] = needed / seconds["ours"] / rate
        told[f"pieces_per_second_{name}"] = ROWS * LENGTH / seconds["ours"]
        if "peer" in seconds:
            told[f"pieces_per_second_peer_{name}"] = ROWS * LENGTH / seconds["peer"]
            told[f"ratio_{name}"] = seconds["peer"] / seconds["ours"]
            told[f"memory_ratio_{name}"] = growth["ours"] / growth["peer"]
        ratio = f", {told[f'ratio_{name}']:.2f} times the peer's" if "peer" in seconds else ""
        print(f"{name}: {told[f'pieces_per_second_{name}']:,.0f} pieces a second{ratio}", file=sys.stderr, flush=True)
    return told


def measure_sizes(sizes: list[str], num_steps: int, compiled: bool) -> dict[str, float]:
    """Return the figures of each size of BERT, and how long loading takes."""
    told: dict[str, float] = {"product_gflops": product_rate() / 1e9}
    for size in sizes:
        told |= measure(size, num_steps, compiled)
        print(f"{size}: {told[f'ratio_{size}']:.2f} times the peer's speed", file=sys.stderr, flush=True)
    told["memory_ratio"] = max(told[f"memory_ratio_{size}"] for size in sizes)
    told["loader_share"] = loader_share(told[f"seconds_{sizes[0]}"], BATCH[sizes[0]])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini,small,base")
    parser.add_argument("--family", action="store_true", help="the relatives of BERT instead of its sizes")
    parser.add_argument("--members", default=",".join(MEMBERS))
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="compile our layers; off, as in a recipe")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=["ours", "peer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.sizes.split(",")
    if options.child:
        child(options.child, sizes[0], options.compile)
        return
    if options.family:
        told = measure_family(options.members.split(","), options.steps)
    else:
        told = measure_sizes(sizes, options.steps, options.compile)
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in told.items()}))
        return
    for name, value in told.items():
        print(f"{value:12.3f}  {name}")


if __name__ == "__main__":
    main()
