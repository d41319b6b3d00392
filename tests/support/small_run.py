"""A run so small that it takes a second: its corpus, its recipe, and how two runs are compared."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain
from bertworks.text.sources import TextSource
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.loop import Step

WORDS = "river stone cloud garden window letter winter bread silver morning road engine".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", *WORDS]
RECIPE = PretrainRecipe(
    ModelRecipe("tiny", hidden_size=16, num_attention_heads=2, max_position_embeddings=32),
    batch_size=8,
    micro_batch_size=4,
    learning_rate=1e-3,
    warmup_steps=3,
    phases=(PhaseRecipe(16, 8, 0.7), PhaseRecipe(32, 4, 0.3)),
    save_steps=3,
    eval_steps=5,
    num_eval_examples=8,
)


def prepare_corpus(folder: Path, num_documents: int = 40) -> Path:
    """Prepare documents of six short sentences."""
    draw = random.Random(5)
    documents = [
        "\n".join("The " + " ".join(draw.choices(WORDS, k=draw.randint(3, 7))) + "." for _ in range(6))
        for _ in range(num_documents)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return prepare(PrepareRequest((TextSource(str(folder / "text.txt")),), folder / "vocab.txt", folder / "corpus"), 1)


def run(corpus: Path, out: Path, recipe: PretrainRecipe = RECIPE, stop_after: int | None = None) -> list[Step]:
    request = PretrainRequest(recipe, corpus, out, stop_after=stop_after)
    return [told.step for told in pretrain(request) if told.step is not None]


def state(out: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint: weights and optimizer."""
    last = checkpoints_in(out / "checkpoints")[-1]
    return {
        f"{name}/{key}": value
        for name in ("model", "optimizer")
        for key, value in load_file(last / f"{name}.safetensors").items()
    }


def assert_same(one: Path, other: Path) -> None:
    """Two runs are the same to the bit: weights, moments, the model, and all that was recorded but for the time."""
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert curve(one) == curve(other)
    assert (one / "samples.jsonl").read_text() == (other / "samples.jsonl").read_text()
    model = "model/model.safetensors"
    assert (one / model).read_bytes() == (other / model).read_bytes()


def curve(out: Path) -> list[dict[str, object]]:
    """Return what was recorded, but for the time it took."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_close(one: Sequence[Step], other: Sequence[Step]) -> None:
    """Two runs have the same losses within 1e-5."""
    assert [step.number for step in one] == [step.number for step in other]
    for step, twin in zip(one, other, strict=True):
        assert step.losses.keys() == twin.losses.keys()
        assert max(abs(step.losses[name] - twin.losses[name]) for name in step.losses) < 1e-5
