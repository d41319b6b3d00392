"""Static vectors as encoders: features for tagging and classification, fine-tuned, saved, compared to BERT."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_folder import write_random_bert

from bertworks.commands.embed import EmbedRequest, embed
from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.senses import SensesRequest, read_uses, senses
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import read_vectors, write_vectors
from bertworks.encoders.bert import BertConfig
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import load
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
COLOURS, ANIMALS = "red blue green".split(), "tiger lion elephant".split()
OTHERS = "the a stands by old tree on big hill".split()
FEATURES_RECIPE = FinetuneRecipe(
    batch_size=4, learning_rate=2e-2, epochs=6, max_restarts=0, feature_layers="embeddings", recurrent_hidden_size=16
)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors in which colours are similar, and animals are; "green" has none."""
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
    """A BERT with the same words and random weights."""
    tokenizer = Tokenizer.load(vectors)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    return write_random_bert(tmp_path_factory.mktemp("bert") / "bert", config, tokenizer)


def texts_file(count: int) -> str:
    rng = random.Random(count)
    rows = ["text\tlabel"]
    for number in range(count):
        label, choices = [("colour", COLOURS), ("animal", ANIMALS)][number % 2]
        rows.append(" ".join([*rng.choices(OTHERS, k=4), rng.choice(choices)]) + f"\t{label}")
    return "\n".join(rows) + "\n"


def tags_file(count: int) -> str:
    rng = random.Random(count)
    lines: list[str] = []
    for _ in range(count):
        words = [(word, "O") for word in rng.choices(OTHERS, k=4)]
        words.insert(rng.randint(0, 4), (rng.choice(ANIMALS), "B-ANI"))
        lines += [*(f"{word} {tag}" for word, tag in words), ""]
    return "\n".join(lines)


TOYS: dict[str, tuple[Any, str, str]] = {"classify": (texts_file, "tsv", "accuracy"), "tag": (tags_file, "txt", "f1")}


def finetune(task: str, model: Path, folder: Path, recipe: FinetuneRecipe) -> tuple[dict[str, float], list[str]]:
    make, suffix, _ = TOYS[task]
    (folder / f"train.{suffix}").write_text(make(120), encoding="utf-8")
    (folder / f"dev.{suffix}").write_text(make(25), encoding="utf-8")
    request = FinetuneRequest(
        task=task,
        model=str(model),
        train=folder / f"train.{suffix}",
        output=folder / "run",
        dev=folder / f"dev.{suffix}",
        recipe=recipe,
    )
    notes = [event.note for event in run_finetune(request) if event.note]
    return json.loads((folder / "run" / "run.json").read_text())["scores"]["dev"], notes


@pytest.mark.parametrize("task", list(TOYS))
def test_a_task_is_learned_with_static_vectors_as_features(task: str, vectors: Path, tmp_path: Path):
    scores, _ = finetune(task, vectors, tmp_path, FEATURES_RECIPE)
    assert scores[TOYS[task][2]] >= 0.9, scores
    prediction = load(tmp_path / "run" / "model").predict(["the old lion stands by a tree"])[0]
    assert "animal" in str(prediction) or "ANI" in str(prediction)
    tuned_vectors = read_vectors(tmp_path / "run" / "model")
    assert tuned_vectors.table.tobytes() == read_vectors(vectors).table.tobytes(), "features are frozen"


def test_static_vectors_are_fine_tuned_and_saved_as_vectors(vectors: Path, tmp_path: Path):
    scores, _ = finetune(
        "classify", vectors, tmp_path, FinetuneRecipe(batch_size=8, learning_rate=3e-2, epochs=5, max_restarts=0)
    )
    assert scores["accuracy"] >= 0.9, scores
    before, after = read_vectors(vectors), read_vectors(tmp_path / "run" / "model")
    assert after.words == before.words
    assert not np.array_equal(after.vector("lion"), before.vector("lion"))


def test_words_without_a_vector_are_counted(vectors: Path, tmp_path: Path):
    _, notes = finetune("classify", vectors, tmp_path, FEATURES_RECIPE)
    (tmp_path / "texts.txt").write_text("the green tiger\nthe red lion\n")
    num_unknown = sum("green" in line for line in texts_file(120).splitlines())
    assert any(f"{num_unknown} of 840 tokens are unknown to the vocabulary" in note for note in notes), notes
    result = embed(
        EmbedRequest(model=str(vectors), file=str(tmp_path / "texts.txt"), output=tmp_path / "words", unit="words")
    )
    assert (result.num_rows, result.vector_size) == (6, 8)
    assert result.counts["words outside the vocabulary"] == 1
    embedded = np.load(tmp_path / "words" / "vectors.npy")
    assert not embedded[1].any()
    assert np.array_equal(embedded[5], read_vectors(vectors).vector("lion"))


def test_static_vectors_have_no_objective_to_adapt_them_with(vectors: Path, tmp_path: Path):
    (tmp_path / "train.tsv").write_text("text\tlabel\nthe red lion\tyes\nthe lion\tno\n")
    request = FinetuneRequest(
        task="classify",
        model=str(vectors),
        train=tmp_path / "train.tsv",
        output=tmp_path / "run",
        recipe=FinetuneRecipe(adapt=AdaptSettings(epochs=1)),
    )
    with pytest.raises(SettingsError, match="family 'static' has no language-model objective to adapt it with; leave"):
        list(run_finetune(request))
    assert not (tmp_path / "run").exists()


def test_layers_of_static_vectors_are_refused(vectors: Path, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("the red lion\n")
    with pytest.raises(SettingsError, match="'sum-last-four' needs 4 layers, but the model has 0"):
        embed(
            EmbedRequest(
                model=str(vectors), file=str(tmp_path / "texts.txt"), output=tmp_path / "v.npy", layers="sum-last-four"
            )
        )
    with pytest.raises(SettingsError, match="family 'static' run only in torch"):
        load(vectors, engine="onnx")


def sentences() -> Iterator[str]:
    yield "text\tlabel"
    for location in ("hill", "tree"):
        yield f"the tiger stands by the {location}\tby"
        yield f"the tiger stands on the {location}\ton"


def test_a_word_has_one_static_vector_and_many_of_bert(vectors: Path, small_bert: Path, tmp_path: Path):
    (tmp_path / "uses.tsv").write_text("\n".join(sentences()) + "\n")
    request = SensesRequest(
        word="tiger", file=tmp_path / "uses.tsv", models=(str(vectors), str(small_bert)), output=tmp_path / "p.svg"
    )
    static, bert = senses(request)
    assert (static.name, static.projection.num_distinct_vectors) == (vectors.name, 1)
    assert static.projection.nearest_neighbor_accuracy == pytest.approx(1 / 3)
    assert bert.projection.num_distinct_vectors == 4
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    (tmp_path / "green.tsv").write_text("text\tlabel\ngreen hill\ta\nthe green\tb\n")
    with pytest.raises(InputError, match="has no vector for 'green'"):
        senses(
            SensesRequest(word="green", file=tmp_path / "green.tsv", models=(str(vectors),), output=tmp_path / "q.svg")
        )


def test_a_sentence_without_the_word_is_refused(tmp_path: Path):
    (tmp_path / "uses.tsv").write_text("text\tlabel\na stick\twood\nsticks and stones\twood\n")
    with pytest.raises(InputError, match=r"line 3: the word 'stick' does not occur"):
        read_uses(tmp_path / "uses.tsv", "stick")
