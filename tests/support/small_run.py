"""A pretraining run that takes a second: its corpus and recipe, and assertions that compare two runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.text.sources import TextSource
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.loop import Step

WORDS = "river stone cloud garden window letter winter bread silver morning road engine".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", *WORDS]
RECIPE = PretrainRecipe(
    precision="fp32",
    model=ModelRecipe(size="tiny", hidden_size=16, num_attention_heads=2, max_position_embeddings=32),
    batch_size=8,
    micro_batch_size=4,
    learning_rate=1e-3,
    warmup_steps=3,
    phases=(PhaseRecipe(16, steps=8, budget_ratio=0.7), PhaseRecipe(32, steps=4, budget_ratio=0.3)),
    save_steps=3,
    eval_steps=5,
    num_eval_examples=8,
)


def prepare_corpus(folder: Path, num_documents: int = 40) -> Path:
    """Prepare a corpus of documents with six short sentences each."""
    rng = random.Random(5)
    documents = [
        "\n".join("The " + " ".join(rng.choices(WORDS, k=rng.randint(3, 7))) + "." for _ in range(6))
        for _ in range(num_documents)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return prepare(
        PrepareRequest(
            sources=(TextSource(str(folder / "text.txt")),), vocabulary=folder / "vocab.txt", output=folder / "corpus"
        ),
        1,
    )


def run(corpus: Path, output: Path, recipe: PretrainRecipe = RECIPE, stop_after: int | None = None) -> list[Step]:
    request = PretrainRequest(recipe=recipe, corpus=corpus, output=output, stop_after=stop_after)
    return [event.step for event in run_pretrain(request) if event.step is not None]


def state(output: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint: weights and optimizer."""
    last = checkpoints_in(output / "checkpoints")[-1]
    return {
        f"{name}/{key}": value
        for name in ("model", "optimizer")
        for key, value in load_file(last / f"{name}.safetensors").items()
    }


def assert_same(output: Path, other: Path) -> None:
    """Assert that two runs are bit-identical: weights, moments, the model, and the records except for times."""
    assert_same_state(output, other)
    assert curve(output) == curve(other)
    assert (output / "samples.jsonl").read_text() == (other / "samples.jsonl").read_text()
    model = "model/model.safetensors"
    assert (output / model).read_bytes() == (other / model).read_bytes()


def assert_same_state(output: Path, other: Path) -> None:
    """Assert that the last checkpoints of two runs are bit-identical: weights and moments."""
    first, second = state(output), state(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def curve(output: Path) -> list[dict[str, object]]:
    """Return the records of a run without times."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_close(steps: Sequence[Step], other_steps: Sequence[Step]) -> None:
    """Assert that two runs have the same losses within 1e-5."""
    assert [step.number for step in steps] == [step.number for step in other_steps]
    for step, other in zip(steps, other_steps, strict=True):
        assert step.losses.keys() == other.losses.keys()
        assert max(abs(step.losses[name] - other.losses[name]) for name in step.losses) < 1e-5
