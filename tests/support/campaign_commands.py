"""The commands of the campaigns, on tiny data: a folder in, every command that writes, with its arguments, out.

Each writes to `out` in the working folder it is started in; all other paths are absolute.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from small_run import RECIPE, WORDS, prepare_corpus
from small_run import run as pretrain_small

from bertworks.settings import to_toml

# Long enough to be killed in the middle, with a checkpoint every few steps.
LONG_RECIPE = replace(
    RECIPE,
    phases=(replace(RECIPE.phases[0], steps=30), replace(RECIPE.phases[1], steps=10)),
    save_steps=4,
    eval_steps=10,
)
COMPARISON = """
corpus = "{folder}/corpus"
budget = "8 steps"
finetune = {{ epochs = 1, batch_size = 8, learning_rate = 1e-3, max_restarts = 0, precision = "fp32" }}

[[members]]
name = "bidirectional"
recipe = "{folder}/short.toml"

[[members]]
name = "causal"
recipe = "{folder}/short.toml"
pretrain = {{ objective = "causal" }}

[[tasks]]
task = "classify"
name = "rivers"
train = "{folder}/train.tsv"
dev = "{folder}/dev.tsv"
"""
OUTPUT = "out"


@dataclass(frozen=True, slots=True)
class CampaignCommand:
    """A command: what follows `python -m`, and variables of its environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", *self.arguments]


def write_data(folder: Path) -> Path:
    """Write texts, a corpus, labelled files, recipes, and a pretrained model with its run."""
    corpus = prepare_corpus(folder, 200)
    pretrain_small(corpus, folder / "run")
    (folder / "long.toml").write_text(to_toml(LONG_RECIPE), encoding="utf-8")
    (folder / "short.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    (folder / "compare.toml").write_text(COMPARISON.format(folder=folder), encoding="utf-8")
    for split, count in (("train", 48), ("dev", 24)):
        rows = [f"the {WORDS[n % 12]} and {WORDS[n * 5 % 12]}\t{'no' if n % 12 else 'yes'}" for n in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    rng = random.Random(7)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 24))) for _ in range(1_500)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return folder


def commands_on(folder: Path) -> dict[str, CampaignCommand]:
    """Return the commands by name, on the data in a folder."""
    model, finetune = f"--model {folder}/run/model", f"--train {folder}/train.tsv --dev {folder}/dev.tsv"
    settings = "--precision fp32 --set max_restarts=0"
    short = f"--epochs 4 --batch-size 8 --learning-rate 1e-3 --set evals_per_epoch=2 {settings}"
    ray_variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
    lines = {
        "prepare": f"bertworks prepare {folder}/text.txt --vocab {folder}/vocab.txt --workers 2",
        "vocab": f"bertworks vocab {folder}/text.txt --size 90 --workers 1",
        "pretrain": f"bertworks pretrain {folder}/long.toml --data {folder}/corpus",
        "adapt": f"bertworks adapt {folder}/run/model --recipe {folder}/long.toml --data {folder}/corpus",
        "finetune": f"bertworks finetune classify {model} {finetune} {short}",
        "sweep": f"bertworks finetune classify {model} {finetune} {settings} --sweep",
        "compare": f"bertworks compare {folder}/compare.toml",
        "embed": f"bertworks embed {folder}/run/model {folder}/texts.txt --level words --precision fp32",
        "export": f"bertworks export {folder}/run/model --to onnx",
        "export openvino": f"bertworks export {folder}/run/model --to openvino",
        "export int8": f"bertworks export {folder}/run/model --to int8",
        "package": f"bertworks package {folder}/run --name river-tiny",
        "word-vectors": f"bertworks word-vectors train {folder}/text.txt --kind glove --vector-size 8 --workers 1",
        "bundle": f"bertworks bundle books={folder}/run --corpus {folder}/corpus",
        "sharded": (
            f"torch.distributed.run --standalone --nproc-per-node=2 -m bertworks pretrain {folder}/long.toml "
            f"--data {folder}/corpus --shard"
        ),
        "ray prepare": f"bertworks prepare {folder}/text.txt --vocab {folder}/vocab.txt --workers 2 --ray local",
        "ray finetune": f"bertworks finetune classify {model} {finetune} {short} --seeds 2 --ray local",
    }
    variables = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {
        name: CampaignCommand(
            (*line.split(), "--output", OUTPUT), {**variables, **(ray_variables if name.startswith("ray") else {})}
        )
        for name, line in lines.items()
    }
