"""The default settings of fine-tuning beside others: labelled sets and pretrained models in, a table of scores out.

    python benchmarks/finetune_defaults.py DATA_FOLDER --model tiny=FOLDER --model mini=FOLDER --output FOLDER
        [--language zh] [--only sst2-1000,mrpc] [--variants default,lr-3]
        [--seeds 2] [--jobs 2] [--page docs/recipes.md]

Every model is fine-tuned on every set with default settings, and then with one setting changed at a time, relative to
what the defaults chose. The table shows by how much each change moves the dev score, as a mean over the sets. A run
that is finished is not run again; several run at a time, each on its share of the cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.disk import read_json, write_json, write_text
from result_page import replace_between


@dataclass(frozen=True, slots=True)
class Dataset:
    """A labelled set: the arguments of `bertworks finetune`, its score on dev, and how many training examples."""

    arguments: tuple[str, ...]
    metric: str
    sizes: tuple[int, ...]  # 0: all

    def command(self, data: Path, size: int) -> list[str]:
        arguments = [argument.replace("$DATA", str(data)) for argument in self.arguments]
        return arguments + (["--set", f"max_train_examples={size}"] if size else [])


def _glue(name: str, metric: str, sizes: tuple[int, ...]) -> Dataset:
    return Dataset((f"glue/{name}", "--data", f"$DATA/glue/{name}"), metric, sizes)


DATASETS = {
    "en": {
        "sst2": _glue("SST-2", "accuracy", (100, 1_000, 6_000, 60_000)),
        "mrpc": _glue("MRPC", "f1", (400, 0)),
        "stsb": _glue("STS-B", "spearman", (400, 0)),
        "cola": _glue("CoLA", "matthews", (1_000, 0)),
        "conll": Dataset(("conll2003", "--data", "$DATA/conll2003"), "f1", (1_000,)),
    },
    "zh": {
        "chn": Dataset(
            ("classify", "--train", "$DATA/chnsenticorp/train.tsv", "--dev", "$DATA/chnsenticorp/dev.tsv"),
            "accuracy",
            (100, 1_000, 0),
        ),
    },
}

Settings = Mapping[str, Any]  # of the run with default settings


@dataclass(frozen=True, slots=True)
class Variant:
    """What is changed, and the options that change it, from the settings that the defaults chose."""

    title: str
    options: Callable[[Settings], list[str]]


def _scaled_learning_rate(factor: float) -> Callable[[Settings], list[str]]:
    return lambda settings: ["--learning-rate", f"{settings['learning_rate'] * factor:.3g}"]


def _scaled_epochs(factor: float) -> Callable[[Settings], list[str]]:
    return lambda settings: ["--epochs", str(max(1, round(settings["epochs"] * factor)))]


def _fixed(*options: str) -> Callable[[Settings], list[str]]:
    return lambda settings: list(options)


VARIANTS = {
    "default": Variant("default settings", _fixed()),
    "lr-third": Variant("a third of the learning rate", _scaled_learning_rate(1 / 3)),
    "lr-3": Variant("three times the learning rate", _scaled_learning_rate(3)),
    "epochs-half": Variant("half the epochs", _scaled_epochs(1 / 2)),
    "epochs-2": Variant("twice the epochs", _scaled_epochs(2)),
    "batch-2": Variant("twice the batch size", lambda settings: ["--batch-size", str(2 * settings["batch_size"])]),
    "paper": Variant("the paper's: --recipe paper", _fixed("--recipe", "paper")),
    "dropout-0": Variant("no dropout", _fixed("--set", "dropout=0.0")),
    "dropout-2": Variant("dropout 0.2", _fixed("--set", "dropout=0.2")),
    "decay": Variant("weight decay 0.1", _fixed("--set", "optimizer.weight_decay=0.1")),
    "layers": Variant("learning rate of each layer 0.8 of the next", _fixed("--set", "layerwise.layer_lr_decay=0.8")),
    "adapt": Variant("masked LM on the training texts first (--adapt-epochs 5)", _fixed("--adapt-epochs", "5")),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One fine-tuning run; `default` is the same with default settings."""

    model: str
    dataset: str
    size: int
    variant: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.dataset}-{self.size or 'all'}-{self.variant}-{self.seed}"

    @property
    def default(self) -> Run:
        return Run(self.model, self.dataset, self.size, "default", self.seed)


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of data and results, the models by name, and the datasets of their language."""

    data: Path
    output: Path
    models: Mapping[str, Path]
    datasets: Mapping[str, Dataset]

    def result(self, run: Run) -> Path:
        return self.output / "scores" / f"{run.name}.json"


def complete(run: Run, paths: Paths, num_threads: int) -> None:
    """Fine-tune unless that is done, and write its settings and its scores on dev."""
    file, folder = paths.result(run), paths.output / "runs" / run.name
    if file.exists():
        return
    settings = {} if run.variant == "default" else read_json(paths.result(run.default), "the default run")["recipe"]
    dataset = paths.datasets[run.dataset]
    command = [sys.executable, "-m", "bertworks", "finetune", *dataset.command(paths.data, run.size)]
    command += ["--model", str(paths.models[run.model]), "--seed", str(run.seed), "--output", str(folder)]
    command += ["--set", "baselines=false", *VARIANTS[run.variant].options(settings)]
    env = {**os.environ, "OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}
    log = paths.output / "logs" / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as stream:
        if subprocess.run(command, stdout=stream, stderr=stream, env=env).returncode:
            raise SystemExit(f"{run.name} did not finish; see {log}")
    record = read_json(folder / "run.json", "a finished run")
    write_json(file, {"score": record["scores"]["dev"][dataset.metric], "recipe": record["recipe"]})
    shutil.rmtree(folder)


def all_runs(paths: Paths, variants: Sequence[str], only: Sequence[str], num_seeds: int) -> Iterator[Run]:
    """Yield the runs; those with default settings, from which the others take theirs, come first."""
    for variant in ("default", *(name for name in variants if name != "default")):
        for seed in range(num_seeds):
            for name, dataset in paths.datasets.items():
                for size in dataset.sizes:
                    if not only or {name, f"{name}-{size or 'all'}"} & set(only):
                        yield from (Run(model, name, size, variant, seed) for model in paths.models)


def complete_all(runs: Sequence[Run], paths: Paths, num_jobs: int) -> None:
    """Complete the runs, several at a time."""
    num_threads = max(1, (os.cpu_count() or 1) // num_jobs)
    is_default = [run.variant == "default" for run in runs]
    for wanted in (True, False):
        with ThreadPoolExecutor(num_jobs) as pool:
            selected = [run for run, default in zip(runs, is_default, strict=True) if default is wanted]
            for number, _ in enumerate(pool.map(lambda run: complete(run, paths, num_threads), selected), 1):
                print(f"{number} of {len(selected)}: {selected[number - 1].name}", file=sys.stderr, flush=True)


def mean_score(run: Run, paths: Paths, num_seeds: int) -> float | None:
    """Return the mean of the seeds that are finished; None if none is."""
    runs = (Run(run.model, run.dataset, run.size, run.variant, seed) for seed in range(num_seeds))
    scores = [read_json(paths.result(run), "a run")["score"] for run in runs if paths.result(run).exists()]
    return statistics.fmean(scores) if scores else None


def default_table(paths: Paths, num_seeds: int) -> list[str]:
    """Return a table of what the defaults chose, and their scores: a row a set, a column a model."""
    lines = [f"| | {' | '.join(paths.models)} |", "|---" * (len(paths.models) + 1) + "|"]
    for name, dataset in paths.datasets.items():
        for size in dataset.sizes:
            cells = []
            for model in paths.models:
                run = Run(model, name, size, "default", 0)
                if not paths.result(run).exists():
                    cells.append("–")
                    continue
                recipe = read_json(paths.result(run), "a run")["recipe"]
                score = mean_score(run, paths, num_seeds)
                cells.append(f"{100 * (score or 0):.1f} ({recipe['learning_rate']:g}, {recipe['epochs']})")
            lines.append(f"| {name}, {size or 'all'} | {' | '.join(cells)} |")
    return lines


def change_table(paths: Paths, num_seeds: int) -> list[str]:
    """Return a table of the changes of the score, in points: the mean over the sets, and on how many it is a gain."""
    lines = [f"| | {' | '.join(paths.models)} |", "|---" * (len(paths.models) + 1) + "|"]
    for variant in list(VARIANTS)[1:]:
        cells = []
        for model in paths.models:
            changes = list(score_changes(model, variant, paths, num_seeds))
            gains = sum(change > 0 for change in changes)
            cells.append(f"{100 * statistics.fmean(changes):+.1f} ({gains} of {len(changes)})" if changes else "–")
        lines.append(f"| {VARIANTS[variant].title} | {' | '.join(cells)} |")
    return lines


def score_changes(model: str, variant: str, paths: Paths, num_seeds: int) -> Iterator[float]:
    """Yield the difference to the default score on every set on which both are known."""
    for name, dataset in paths.datasets.items():
        for size in dataset.sizes:
            run = Run(model, name, size, variant, 0)
            score, default = mean_score(run, paths, num_seeds), mean_score(run.default, paths, num_seeds)
            if score is not None and default is not None:
                yield score - default


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", action="append", required=True, help="NAME=FOLDER of a pretrained model")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--language", choices=tuple(DATASETS), default="en")
    parser.add_argument("--only", default="", help="sets such as sst2 or sst2-1000, separated by commas")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced at the end")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    models = dict(text.split("=", 1) for text in options.model)
    folders = {name: Path(folder).absolute() for name, folder in models.items()}
    paths = Paths(options.data.absolute(), options.output.absolute(), folders, DATASETS[options.language])
    unknown = [name for name in options.variants.split(",") if name not in VARIANTS]
    if unknown:
        raise SystemExit(f"there is no variant {', '.join(unknown)}; the variants are {', '.join(VARIANTS)}")
    only = [name for name in options.only.split(",") if name]
    complete_all(list(all_runs(paths, options.variants.split(","), only, options.seeds)), paths, options.jobs)
    text = "\n".join([*default_table(paths, options.seeds), "", *change_table(paths, options.seeds)])
    print(text)
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        write_text(options.page, replace_between(page, f"finetune-defaults-{options.language}", text))


if __name__ == "__main__":
    main()
