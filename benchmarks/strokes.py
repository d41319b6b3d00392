"""What strokes are worth to a Chinese ELMo: a data folder in, CMRC 2018 and ChnSentiCorp for three spellings out.

    python benchmarks/strokes.py DATA_FOLDER --work FOLDER [--steps 300] [--seeds 3] [--json]

One vocabulary and one corpus, then an ELMo that reads strokes and words, one that reads words alone, and one with a
shuffled table of strokes; all else is the same. On the frozen weighted sum of each one's layers a recurrent head learns
both tasks from samples of their files, with several seeds. Every stage is a command of ours in FOLDER, and a second
call goes on where the first was stopped.
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
# How many examples of each file are taken: cases of ChnSentiCorp, questions of CMRC 2018 (whole articles).
REVIEWS = {"train": 1_200, "dev": 400, "test": 400}
QUESTIONS = {"train": 400, "dev": 200}
RECIPE = """objective = "two-way"
batch = 16
rate = 2e-3
warmup = {warmup}
save_every = 50
evaluate_every = 150
evaluate_examples = 64

[model]
family = "elmo"
size = "small"
inner = 320
positions = 256
spelling = "{spelling}"
scoring = "sampled"

[optimizer]
weight_decay = 0.0
clip = 1.0

[[phases]]
length = 64
steps = {steps}
share = 1.0
"""
HEAD = ["--features", "sum-with-embeddings", "--recipe", "head.toml"]
TASKS = {
    "chnsenticorp": (
        "classify --train chn-train.tsv --dev chn-dev.tsv --test chn-test.tsv --text text_a --label label "
        "--batch 32 --epochs 4",
        ("test", "accuracy"),
    ),
    "cmrc2018": ("answer --train cmrc-train.json --dev cmrc-dev.json --batch 16 --epochs 6", ("dev", "f1")),
}


def bertworks(work: Path, *words: str) -> None:
    """Run one of our commands in the folder."""
    subprocess.run([sys.executable, "-m", "bertworks", *words], cwd=work, check=True, stdout=sys.stderr)


def samples(data: Path, work: Path) -> None:
    """Write the samples of both sets."""
    draw = np.random.default_rng(0)
    for split, count in REVIEWS.items():
        header, *rows = (data / "chnsenticorp" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        draw.shuffle(rows)
        write_text(work / f"chn-{split}.tsv", "\n".join([header, *rows[:count]]) + "\n")
    for split, count in QUESTIONS.items():
        with gzip.open(data / "cmrc2018" / f"{split}.json.gz", "rt", encoding="utf-8") as file:
            articles = json.load(file)["data"]
        draw.shuffle(articles)
        kept, num_questions = [], 0
        for article in articles:
            if num_questions >= count:
                break
            kept.append(article)
            num_questions += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"])
        write_json(work / f"cmrc-{split}.json", {"version": "1.1", "data": kept})


def pretrained(data: Path, work: Path, spelling: str, steps: int) -> Path:
    """Return the folder of an ELMo, trained if it is not there."""
    sources = [str(data / "corpus-zh" / name) for name in ("modern.txt.gz", "clue-small-sample.txt")]
    if not (work / "vocabulary").exists():
        bertworks(work, "vocab", *sources, "--kind", "jieba-words", "--size", "50000", "--out", "vocabulary")
    bertworks(work, "prepare", *sources, "--vocab", "vocabulary", "--out", "corpus")
    write_text(work / f"{spelling}.toml", RECIPE.format(spelling=spelling, steps=steps, warmup=max(1, steps // 10)))
    bertworks(work, "pretrain", f"{spelling}.toml", "--data", "corpus", "--out", f"run-{spelling}")
    return work / f"run-{spelling}" / "model"


def scores(work: Path, spelling: str, task: str, seeds: int) -> list[float]:
    """Return the score of each seed."""
    command, (split, figure) = TASKS[task]
    out = f"tuned-{task}-{spelling}"
    write_text(work / "head.toml", "recurrent_width = 96\n")
    model = ["--model", f"run-{spelling}/model", "--seeds", str(seeds), "--out", out]
    bertworks(work, "finetune", *command.split(), *HEAD, *model)
    runs = sorted((work / out).glob("*/run.json")) or [work / out / "run.json"]
    return [float(read_json(run, "a run")["scores"][split][figure]) for run in runs]


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
    samples(data, work)
    told: dict[str, float] = {}
    for spelling in SPELLINGS:
        pretrained(data, work, spelling, options.steps)
        for task in TASKS:
            found = scores(work, spelling, task, options.seeds)
            told[f"{task}_{spelling}"] = statistics.mean(found)
            told[f"{task}_{spelling}_deviation"] = statistics.stdev(found) if len(found) > 1 else 0.0
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in told.items()}))
        return
    for spelling in SPELLINGS:
        cells = [f"{told[f'{task}_{spelling}']:.3f} ± {told[f'{task}_{spelling}_deviation']:.3f}" for task in TASKS]
        print(f"{spelling:20s} {'   '.join(cells)}   ({', '.join(TASKS)})")


if __name__ == "__main__":
    main()
