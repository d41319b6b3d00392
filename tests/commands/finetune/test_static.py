"""Static vectors through the verbs of all models: features for tagging and classifying, fine-tuned themselves, read
again as vectors, served, and drawn beside a BERT."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.commands.embed import EmbedRequest, embed
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import finetune
from bertworks.commands.senses import SensesRequest, read_uses, senses
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import read_vectors, write_vectors
from bertworks.encoders.bert import Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import load
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
COLOURS, ANIMALS = "red blue green".split(), "tiger lion elephant".split()
OTHERS = "the a stands by old tree on big hill".split()
FEATURES = FinetuneRecipe(
    batch_size=4, learning_rate=2e-2, epochs=6, max_restarts=0, feature_layers="embeddings", recurrent_hidden_size=16
)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors in which colours are alike, and animals are; "green" has none."""
    folder = tmp_path_factory.mktemp("static") / "v"
    words = [*COLOURS[:2], *ANIMALS, *OTHERS]
    generator = np.random.default_rng(0)
    table = 0.2 * generator.standard_normal((len(words), 8))
    table[:2, 0] += 1
    table[2:5, 1] += 1
    write_vectors(folder, StaticVectors(words, table.astype(np.float32)), "folder")
    return folder


@pytest.fixture(scope="module")
def small_bert(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of the same words, its weights drawn at random."""
    tokenizer = Tokenizer.load(vectors)
    sizes = BertConfig(
        tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    encoder = Bert(sizes, torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("bert") / "bert"
    tensors = to_hf_names(encoder.state_dict(), tensor_names(sizes))
    write_folder(folder, config_to_dict(sizes, ["BertModel"]), tensors, tokenizer, {})
    return folder


def texts_file(count: int) -> str:
    draw = random.Random(count)
    rows = ["text\tlabel"]
    for number in range(count):
        label, choices = [("colour", COLOURS), ("animal", ANIMALS)][number % 2]
        rows.append(" ".join([*draw.choices(OTHERS, k=4), draw.choice(choices)]) + f"\t{label}")
    return "\n".join(rows) + "\n"


def tags_file(count: int) -> str:
    draw = random.Random(count)
    lines: list[str] = []
    for _ in range(count):
        words = [(word, "O") for word in draw.choices(OTHERS, k=4)]
        words.insert(draw.randint(0, 4), (draw.choice(ANIMALS), "B-ANI"))
        lines += [*(f"{word} {tag}" for word, tag in words), ""]
    return "\n".join(lines)


TOYS: dict[str, tuple[Any, str, str]] = {"classify": (texts_file, "tsv", "accuracy"), "tag": (tags_file, "txt", "f1")}


def tuned(task: str, model: Path, folder: Path, tuning: FinetuneRecipe) -> tuple[dict[str, float], list[str]]:
    make, end, _ = TOYS[task]
    (folder / f"train.{end}").write_text(make(120), encoding="utf-8")
    (folder / f"dev.{end}").write_text(make(25), encoding="utf-8")
    request = FinetuneRequest(
        task, str(model), folder / f"train.{end}", folder / "run", folder / f"dev.{end}", recipe=tuning
    )
    notes = [told.note for told in finetune(request) if told.note]
    return json.loads((folder / "run" / "run.json").read_text())["scores"]["dev"], notes


@pytest.mark.parametrize("task", list(TOYS))
def test_a_task_learns_from_static_vectors_as_features(task: str, vectors: Path, tmp_path: Path):
    scores, _ = tuned(task, vectors, tmp_path, FEATURES)
    assert scores[TOYS[task][2]] >= 0.9, scores
    found = load(tmp_path / "run" / "model").predict(["the old lion stands by a tree"])[0]
    assert "animal" in str(found) or "ANI" in str(found)
    again = read_vectors(tmp_path / "run" / "model")
    assert again.table.tobytes() == read_vectors(vectors).table.tobytes(), "features are frozen"


def test_vectors_themselves_learn_a_task_and_stay_vectors(vectors: Path, tmp_path: Path):
    scores, _ = tuned(
        "classify", vectors, tmp_path, FinetuneRecipe(batch_size=8, learning_rate=3e-2, epochs=5, max_restarts=0)
    )
    assert scores["accuracy"] >= 0.9, scores
    before, after = read_vectors(vectors), read_vectors(tmp_path / "run" / "model")
    assert after.words == before.words
    assert not np.array_equal(after.vector("lion"), before.vector("lion"))


def test_words_without_a_vector_are_counted(vectors: Path, tmp_path: Path):
    _, notes = tuned("classify", vectors, tmp_path, FEATURES)
    (tmp_path / "texts.txt").write_text("the green tiger\nthe red lion\n")
    unknown = sum("green" in line for line in texts_file(120).splitlines())
    assert any(f"{unknown} of 840 pieces are words that the vocabulary does not have" in note for note in notes), notes
    done = embed(EmbedRequest(str(vectors), str(tmp_path / "texts.txt"), tmp_path / "words", unit="words"))
    assert (done.num_rows, done.vector_size) == (6, 8)
    assert done.counts["words outside the vocabulary"] == 1
    found = np.load(tmp_path / "words" / "vectors.npy")
    assert not found[1].any()
    assert np.array_equal(found[5], read_vectors(vectors).vector("lion"))


def test_what_asks_for_layers_is_refused(vectors: Path, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("the red lion\n")
    with pytest.raises(SettingsError, match="'sum-last-four' needs 4 layers, but the model has 0"):
        embed(EmbedRequest(str(vectors), str(tmp_path / "texts.txt"), tmp_path / "v.npy", layers="sum-last-four"))
    with pytest.raises(SettingsError, match="family 'static' runs in torch only"):
        load(vectors, engine="onnx")


def sentences() -> Iterator[str]:
    yield "text\tlabel"
    for place in ("hill", "tree"):
        yield f"the tiger stands by the {place}\tby"
        yield f"the tiger stands on the {place}\ton"


def test_a_word_is_one_point_by_static_vectors_and_many_by_bert(vectors: Path, small_bert: Path, tmp_path: Path):
    (tmp_path / "uses.tsv").write_text("\n".join(sentences()) + "\n")
    request = SensesRequest("tiger", tmp_path / "uses.tsv", (str(vectors), str(small_bert)), tmp_path / "p.svg")
    static, bert = senses(request)
    assert (static.name, static.projection.num_distinct_vectors) == (vectors.name, 1)
    assert static.projection.nearest_neighbor_accuracy == pytest.approx(1 / 3)
    assert bert.projection.num_distinct_vectors == 4
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    (tmp_path / "green.tsv").write_text("text\tlabel\ngreen hill\ta\nthe green\tb\n")
    with pytest.raises(InputError, match="has no vector for 'green'"):
        senses(SensesRequest("green", tmp_path / "green.tsv", (str(vectors),), tmp_path / "q.svg"))


def test_a_sentence_without_the_word_is_refused_by_its_line(tmp_path: Path):
    (tmp_path / "uses.tsv").write_text("text\tlabel\na stick\twood\nsticks and stones\twood\n")
    with pytest.raises(InputError, match=r"line 3: the word 'stick' does not stand in it"):
        read_uses(tmp_path / "uses.tsv", "stick")
