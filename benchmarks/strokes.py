"""What strokes contribute to a Chinese ELMo: a data folder in, CMRC 2018 and ChnSentiCorp for three spellings out.

    python benchmarks/strokes.py DATA_FOLDER --work FOLDER [--steps 300] [--seeds 3] [--json]

One vocabulary and one corpus, then an ELMo that encodes words from strokes, one from word embeddings alone, and one
from a shuffled table of strokes; all else is equal. A recurrent head is trained on the frozen weighted sum of layers of
each, for both tasks, on samples of their files, with several seeds. Every stage is a bertworks command in FOLDER, and a
second call continues where the first was stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from bertworks.disk import read_json, write_json, write_text

SPELLINGS = ("strokes", "words", "shuffled-strokes")
# Number of examples sampled from each file: reviews of ChnSentiCorp, questions of CMRC 2018 (whole articles).
REVIEWS = {"train": 1_200, "dev": 400, "test": 400}
QUESTIONS = {"train": 400, "dev": 200}
RECIPE = """objective = "bilm"
batch_size = 16
learning_rate = 2e-3
warmup_steps = {warmup_steps}
save_steps = 50
eval_steps = 150
num_eval_examples = 64

[model]
family = "elmo"
size = "small"
intermediate_size = 320
max_position_embeddings = 256
spelling = "{spelling}"
softmax_kind = "sampled"

[optimizer]
weight_decay = 0.0
clip = 1.0

[[phases]]
max_length = 64
steps = {steps}
budget_ratio = 1.0
"""
HEAD_OPTIONS = ["--set", "feature_layers=sum-with-embeddings", "--set", "recurrent_hidden_size=96"]
TASKS = {
    "chnsenticorp": (
        "classify --train chn-train.tsv --dev chn-dev.tsv --test chn-test.tsv --text text_a --label label "
        "--batch-size 32 --epochs 4",
        ("test", "accuracy"),
    ),
    "cmrc2018": ("answer --train cmrc-train.json --dev cmrc-dev.json --batch-size 16 --epochs 6", ("dev", "f1")),
}


def bertworks(work: Path, *arguments: str) -> None:
    """Run a bertworks command in the folder."""
    subprocess.run([sys.executable, "-m", "bertworks", *arguments], cwd=work, check=True, stdout=sys.stderr)


def write_samples(data: Path, work: Path) -> None:
    """Write samples of both datasets."""
    rng = np.random.default_rng(0)
    for split, count in REVIEWS.items():
        header, *rows = (data / "chnsenticorp" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        rng.shuffle(rows)
        write_text(work / f"chn-{split}.tsv", "\n".join([header, *rows[:count]]) + "\n")
    for split, count in QUESTIONS.items():
        with gzip.open(data / "cmrc2018" / f"{split}.json.gz", "rt", encoding="utf-8") as file:
            articles = json.load(file)["data"]
        rng.shuffle(articles)
        sample, num_questions = [], 0
        for article in articles:
            if num_questions >= count:
                break
            sample.append(article)
            num_questions += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"])
        write_json(work / f"cmrc-{split}.json", {"version": "1.1", "data": sample})


def pretrain(data: Path, work: Path, spelling: str, steps: int) -> Path:
    """Pretrain an ELMo, unless it is finished; return its model folder."""
    sources = [str(data / "corpus-zh" / name) for name in ("modern.txt.gz", "clue-small-sample.txt")]
    if not (work / "vocabulary").exists():
        bertworks(work, "vocab", *sources, "--kind", "jieba-words", "--size", "50000", "--output", "vocabulary")
    bertworks(work, "prepare", *sources, "--vocab", "vocabulary", "--output", "corpus")
    write_text(
        work / f"{spelling}.toml", RECIPE.format(spelling=spelling, steps=steps, warmup_steps=max(1, steps // 10))
    )
    bertworks(work, "pretrain", f"{spelling}.toml", "--data", "corpus", "--output", f"run-{spelling}")
    return work / f"run-{spelling}" / "model"


def scores(work: Path, spelling: str, task: str, seeds: int) -> list[float]:
    """Return the score of each seed."""
    command, (split, metric) = TASKS[task]
    output = f"finetuned-{task}-{spelling}"
    options = ["--model", f"run-{spelling}/model", "--seeds", str(seeds), "--output", output]
    bertworks(work, "finetune", *command.split(), *HEAD_OPTIONS, *options)
    runs = sorted((work / output).glob("*/run.json")) or [work / output / "run.json"]
    return [float(read_json(run, "a run")["scores"][split][metric]) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    data, work = options.data.resolve(), options.work.resolve()
    write_samples(data, work)
    results: dict[str, float] = {}
    for spelling in SPELLINGS:
        pretrain(data, work, spelling, options.steps)
        for task in TASKS:
            values = scores(work, spelling, task, options.seeds)
            results[f"{task}_{spelling}"] = statistics.mean(values)
            results[f"{task}_{spelling}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in results.items()}))
        return
    for spelling in SPELLINGS:
        cells = [
            f"{results[f'{task}_{spelling}']:.3f} ± {results[f'{task}_{spelling}_deviation']:.3f}" for task in TASKS
        ]
        print(f"{spelling:20s} {'   '.join(cells)}   ({', '.join(TASKS)})")


if __name__ == "__main__":
    main()
