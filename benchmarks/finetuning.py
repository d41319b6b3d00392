"""Fine-tuning MiniLM, ours against transformers' Trainer: a data folder in, speeds, their ratio and dev scores out.

    python benchmarks/finetuning.py DATA_FOLDER [--sets mrpc,sst2] [--precision auto|fp32|bf16] [--seeds 3] [--epochs 3]
        [--steps 20] [--json] [--cache FOLDER] [--only scores|speed]

Both use the same weights, batch size 32, learning rate 3e-5, the same warmup and decay, the same precision (autocast;
auto: bf16 where the processor multiplies it natively, else fp32), and pad each batch to its longest sequence. Speed: in
one run, each in its own process, alternating every `--steps` steps; medians. Scores are those of whole runs, one per
seed, and take most of the time; `--cache` stores them, so that a second call continues where the first was stopped, and
`--only` measures one of the two.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.dataset import resolve_dataset
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.disk import read_json, write_json
from children import Child
from hardware import resolve_precision
from minilm import minilm
from timing import print_results, show_progress

SETS = {"mrpc": ("glue/MRPC", None), "sst2": ("glue/SST-2", 6_000)}
BATCH_SIZE, LEARNING_RATE, WARMUP_RATIO = 32, 3e-5, 0.1


def recipe_of(precision: str, epochs: int, seed: int = 0) -> FinetuneRecipe:
    """Return our recipe."""
    return FinetuneRecipe(
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        epochs=epochs,
        warmup_ratio=WARMUP_RATIO,
        seed=seed,
        max_restarts=0,
        precision=precision,
    )


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


def our_run(data: Path, name: str, precision: str, seed: int, epochs: int) -> dict[str, float]:
    """Return the dev scores of a whole run of ours."""
    with tempfile.TemporaryDirectory() as folder:
        request = request_of(data, name, Path(folder), recipe_of(precision, epochs, seed))
        for _ in run_finetune(request):
            pass
        scores: dict[str, float] = json.loads((request.output / "run.json").read_text())["scores"]["dev"]
    return scores


def peer_trainer(request: FinetuneRequest, folder: Path) -> Any:
    """Return transformers' Trainer on the same examples with the same recipe."""
    import torch
    import transformers

    from bertworks.tasks.registry import task_of

    recipe, task = request.recipe, task_of("classify")
    examples = {
        split: list(task.read(path, request.columns_of(split)))
        for split, path in (("train", request.train), ("dev", request.dev))
        if path is not None
    }
    labels = {label: number for number, label in enumerate(request.settings["labels"])}
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    transformers.set_seed(recipe.seed)
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
        learning_rate=LEARNING_RATE, num_train_epochs=recipe.epochs, warmup_steps=WARMUP_RATIO, weight_decay=0.01,
        adam_epsilon=1e-6, seed=recipe.seed, report_to=[], save_strategy="no", logging_strategy="no",
        disable_tqdm=True, use_cpu=True, bf16=recipe.precision == "bf16",
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


def peer_run(data: Path, name: str, precision: str, seed: int, epochs: int) -> dict[str, float]:
    """Return the dev scores of a whole run of the peer, by our metrics."""
    import numpy as np

    from bertworks.metrics.classification import METRICS

    with tempfile.TemporaryDirectory() as folder:
        request = request_of(data, name, Path(folder), recipe_of(precision, epochs, seed))
        trainer = peer_trainer(request, Path(folder))
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


def our_steps(request: FinetuneRequest, timer: StepTimer) -> None:
    """Train as `bertworks finetune` does, until the timer exits."""
    for event in run_finetune(request):
        if event.step is not None:
            timer.step()


def peer_steps(request: FinetuneRequest, timer: StepTimer) -> None:
    """Train with transformers' Trainer, until the timer exits."""
    import transformers

    class TimerCallback(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            timer.step()

    trainer = peer_trainer(request, request.output.parent)
    trainer.add_callback(TimerCallback())
    trainer.train()


ENGINES = {"ours": our_steps, "peer": peer_steps}
RUNS = {"ours": our_run, "peer": peer_run}


def speeds(data: Path, name: str, precision: str, steps: int, rounds: int = 5) -> dict[str, float]:
    """Return the examples per second of both: each in its own process, alternating, medians."""
    command = [sys.executable, __file__, data, "--sets", name, "--precision", precision, "--steps", steps, "--child"]
    speeds_by_engine: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    with ExitStack() as stack:
        children = {}
        for engine in ENGINES:
            children[engine] = stack.enter_context(Child(f"{name}, {engine}", [*command, engine]))
            children[engine].read()  # it is ready
        for _ in range(rounds):
            for engine, child in children.items():
                speeds_by_engine[engine].append(float(child.request("go")))
    return {engine: statistics.median(values) for engine, values in speeds_by_engine.items()}


def scores_of(engine: str, name: str, options: argparse.Namespace) -> list[float]:
    """Return the dev score of a whole run for each seed; cached runs are not repeated."""
    metric, values = "f1" if name == "mrpc" else "accuracy", []
    for seed in range(options.seeds):
        file = options.cache and (
            options.cache / f"{engine}-{name}-{options.precision}-epochs{options.epochs}-seed{seed}.json"
        )
        if file and file.is_file():
            scores = read_json(file, "cached scores")
        else:
            scores = RUNS[engine](options.data, name, options.precision, seed, options.epochs)
            if file:
                write_json(file, scores)
        values.append(scores[metric])
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", default="mrpc,sst2")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", choices=["scores", "speed"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(ENGINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.precision = resolve_precision(options.precision)
    if options.child:
        with tempfile.TemporaryDirectory() as folder:
            request = request_of(options.data, options.sets, Path(folder), recipe_of(options.precision, epochs=100))
            ENGINES[options.child](request, StepTimer(options.steps))
        return
    results: dict[str, float | str] = {"precision": options.precision}
    for name in options.sets.split(","):
        if options.only != "scores":
            by_engine = speeds(options.data, name, options.precision, options.steps)
            results |= {f"examples_per_second_{engine}_{name}": value for engine, value in by_engine.items()}
            results[f"ratio_{name}"] = by_engine["ours"] / by_engine["peer"]
            show_progress(f"{name}: {results[f'ratio_{name}']:.2f} times the peer's speed in {options.precision}")
        for engine in RUNS if options.only != "speed" else ():
            scores = scores_of(engine, name, options)
            results[f"score_{engine}_{name}"] = statistics.fmean(scores)
            results[f"deviation_{engine}_{name}"] = statistics.stdev(scores) if len(scores) > 1 else 0.0
    print_results(results, options.json)


if __name__ == "__main__":
    main()
