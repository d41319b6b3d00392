"""ELMo: pretraining, exact resume, model folders, and its features for three tasks; English by characters, Chinese by
jieba's words and strokes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_run import RECIPE, assert_same, curve, run

import bertworks
from bertworks.commands.embed import EmbedRequest, embed
from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.build import build, resolve_model_init
from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.elmo import Elmo
from bertworks.errors import SettingsError
from bertworks.models.folder import load_encoder, read_folder
from bertworks.objectives.bilm import BiLmModule
from bertworks.objectives.large_softmax import SOFTMAXES, TableSoftmax
from bertworks.sampling.batch import Batch
from bertworks.settings import read_recipe, recipe_path
from bertworks.text.sources import TextSource
from bertworks.vocabulary.spelling import spell_vocabulary
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

pytestmark = pytest.mark.usefixtures("one_thread")
ENGLISH = "river stone cloud garden window letter winter bread silver morning".split()
CHINESE = "北京 上海 天气 喜欢 我们 今天 学校 老师 学生 图书馆".split()
COLORS, ANIMALS = "红色 蓝色 绿色".split(), "老虎 狮子 大象".split()
MODEL = ModelRecipe(size="tiny", hidden_size=32, intermediate_size=40, max_position_embeddings=64, family="elmo")
RECIPES = {
    "words": replace(RECIPE, model=MODEL, objective="bilm"),
    "jieba-words": replace(RECIPE, model=replace(MODEL, spelling="strokes"), objective="bilm"),
}


def sentences(kind: str) -> list[str]:
    rng = random.Random(5)
    words = ENGLISH if kind == "words" else [*CHINESE, *COLORS, *ANIMALS]
    space, end = (" ", ".") if kind == "words" else ("", "。")
    return [space.join(rng.choices(words, k=rng.randint(4, 8))) + end for _ in range(240)]


@pytest.fixture(scope="module", params=list(RECIPES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepare_words(folder: Path, kind: str) -> Path:
    lines = sentences(kind)
    documents = ["\n".join(lines[start : start + 6]) for start in range(0, 240, 6)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    Tokenizer.from_backend(train(lines, VocabularySettings(kind=kind, vocab_size=60))).save(folder / "vocabulary")
    sources = (TextSource(str(folder / "text.txt")),)
    return prepare(PrepareRequest(sources=sources, vocabulary=folder / "vocabulary", output=folder / "corpus"), 1)


@pytest.fixture(scope="module")
def corpus(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_words(tmp_path_factory.mktemp("corpus"), kind)


@pytest.fixture(scope="module")
def whole(one_thread: None, kind: str, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "whole"
    assert [step.number for step in run(corpus, output, RECIPES[kind])] == list(range(1, 13))
    return output


def test_resumed_run_is_bit_identical(whole: Path, kind: str, corpus: Path, tmp_path: Path):
    for num_steps in (2, 5, 3):
        run(corpus, tmp_path / "resumed", RECIPES[kind], stop_after=num_steps)
    run(corpus, tmp_path / "resumed", RECIPES[kind])
    assert_same(whole, tmp_path / "resumed")


def test_resumed_run_with_sampled_softmax_is_bit_identical(
    corpus: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SOFTMAXES, "sampled", partial(TableSoftmax, num_samples=8))  # of a vocabulary this small
    recipe = replace(RECIPES[kind], model=replace(RECIPES[kind].model, softmax_kind="sampled"))
    run(corpus, tmp_path / "whole", recipe)
    run(corpus, tmp_path / "resumed", recipe, stop_after=7)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")
    assert "bilm_head.weight" in read_folder(tmp_path / "whole" / "model").tensors


def test_model_folder_is_loaded_again(whole: Path, kind: str, corpus: Path):
    folder = read_folder(whole / "model")
    assert folder.config["model_type"] == "elmo"
    assert folder.config["architectures"] == ["ElmoForBiLM"]
    assert folder.metadata["objective"] == "bilm"
    assert folder.encoder_config == RECIPES[kind].model.config(folder.tokenizer.vocab_size)
    encoder, report = load_encoder(folder)
    assert report.missing_keys == ()
    assert isinstance(encoder, Elmo)
    expected = spell_vocabulary(folder.tokenizer, encoder.config.spelling, encoder.config.max_symbols_per_word)
    assert np.array_equal(encoder.spelling.numpy(), expected)
    # All weights, those of the head too, initialize another run.
    opened = Corpus.open(corpus)
    module, notes = build(
        resolve_model_init(RECIPES[kind], opened.tokenizer, str(whole / "model")), RECIPES[kind], np.zeros(60)
    )
    assert isinstance(module, BiLmModule)
    assert not any("initialized randomly" in note for note in notes)
    assert torch.equal(module.bilm_head.head.weight, folder.tensors["bilm_head.head.weight"])


def test_recurrent_layers_are_fp32_in_any_precision(whole: Path, kind: str, corpus: Path, tmp_path: Path):
    exact, other = (bertworks.load(whole / "model", precision=precision) for precision in ("fp32", "bf16"))
    assert np.array_equal(exact.encode(["the river"]), other.encode(["the river"]))
    losses = [step.losses["bilm"] for step in run(corpus, tmp_path, replace(RECIPES[kind], precision="bf16"))]
    expected = [line["losses"]["bilm"] for line in curve(whole) if line["kind"] == "step"]
    assert losses == pytest.approx(expected, rel=0.01)


def test_texts_and_words_are_embedded(whole: Path, kind: str, tmp_path: Path):
    model = bertworks.load(whole / "model")
    first, second = sentences(kind)[:2]
    single, batch = model.encode([first]), model.encode([first, second, "？"])
    assert batch.shape == (3, 32)
    np.testing.assert_allclose(single[0], batch[0], atol=1e-6)
    (tmp_path / "texts.txt").write_text(f"{first}\n{second}\n", encoding="utf-8")
    result = embed(
        EmbedRequest(
            model=str(whole / "model"), file=str(tmp_path / "texts.txt"), output=tmp_path / "words", unit="words"
        )
    )
    num_words = sum(len(model.tokenizer.tokenize(text)) for text in (first, second))
    assert (result.num_rows, result.vector_size) == (num_words, 32)


def test_next_words_come_from_the_lstm_of_their_direction(whole: Path, kind: str):
    model = bertworks.load(whole / "model")
    text = sentences(kind)[0][:-1]
    assert model.bilm_head is not None
    for backward in (False, True):
        candidates = model.next_words(text, 3, backward)
        input_ids = model.tokenizer.encode(text).input_ids
        input_ids = input_ids[1:] if backward else input_ids[:-1]
        length = len(input_ids)
        batch = Batch(
            input_ids=torch.tensor([input_ids]),
            token_type_ids=torch.zeros(1, length, dtype=torch.long),
            lengths=torch.tensor([length]),
        )
        with torch.no_grad():
            hidden = model.encoder(batch).last_hidden_state[0 if backward else -1].chunk(2)[backward]
            probabilities = model.bilm_head.log_prob(hidden[None])[0].exp()
        probabilities[list(model.tokenizer.specials.ids)] = 0.0
        best = (probabilities / probabilities.sum()).topk(3)
        assert [candidate.word for candidate in candidates] == [model.tokenizer.tokens[i] for i in best.indices]
        np.testing.assert_allclose([candidate.probability for candidate in candidates], best.values, rtol=1e-5)


def texts_file(rng: random.Random, count: int) -> str:
    rows = ["text\tlabel"]
    for _ in range(count):
        label, choices = rng.choice([("color", COLORS), ("animal", ANIMALS)])
        words = [*rng.choices(CHINESE, k=4), rng.choice(choices)]
        rng.shuffle(words)
        rows.append("，".join(words) + f"\t{label}")
    return "\n".join(rows) + "\n"


def tags_file(rng: random.Random, count: int) -> str:
    lines = []
    for _ in range(count):
        words = [(word, "O") for word in rng.choices(CHINESE, k=4)]
        words.insert(rng.randint(0, 4), (rng.choice(ANIMALS), "B-ANI"))
        lines += [*(f"{word} {tag}" for word, tag in words), ""]
    return "\n".join(lines)


def answers_file(rng: random.Random, count: int) -> str:
    paragraphs = []
    for number in range(count):
        words = [*rng.choices(CHINESE, k=4), rng.choice(ANIMALS), rng.choice(COLORS)]
        rng.shuffle(words)
        passage = "".join(words)
        answer = next(word for word in words if word in ANIMALS)
        answers = [{"text": answer, "answer_start": passage.index(answer)}]
        paragraphs.append({"context": passage, "qas": [{"id": str(number), "question": "老师", "answers": answers}]})
    return json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": paragraphs}]}, ensure_ascii=False)


TOYS: dict[str, tuple[Any, str, str]] = {
    "classify": (texts_file, "tsv", "accuracy"),
    "tag": (tags_file, "txt", "f1"),
    "answer": (answers_file, "json", "f1"),
}


@pytest.mark.parametrize("kind", ["jieba-words"], indirect=True)
@pytest.mark.parametrize("task", list(TOYS))
def test_task_is_trained_on_the_weighted_sum_of_layers(task: str, whole: Path, kind: str, tmp_path: Path):
    make_file, suffix, metric = TOYS[task]
    train_file, dev = tmp_path / f"train.{suffix}", tmp_path / f"dev.{suffix}"
    train_file.write_text(make_file(random.Random(0), 160), encoding="utf-8")
    dev.write_text(make_file(random.Random(1), 24), encoding="utf-8")
    recipe = FinetuneRecipe(
        batch_size=8,
        learning_rate=1e-2,
        epochs=6,
        max_restarts=0,
        feature_layers="sum-with-embeddings",
        recurrent_hidden_size=24,
    )
    list(
        run_finetune(
            FinetuneRequest(
                task=task, model=str(whole / "model"), train=train_file, output=tmp_path / "run", dev=dev, recipe=recipe
            )
        )
    )
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]["dev"]
    assert scores[metric] >= 0.9, scores
    folder = read_folder(tmp_path / "run" / "model")
    assert folder.tensors["bertworks.head.weighted_layers.weights"].shape == (3,)
    assert float(folder.tensors["bertworks.head.weighted_layers.weights"].abs().max()) > 0


@pytest.mark.parametrize("kind", ["jieba-words"], indirect=True)
def test_a_bilm_is_adapted_to_the_texts_of_a_task_and_then_frozen(whole: Path, kind: str, tmp_path: Path):
    (tmp_path / "train.tsv").write_text(texts_file(random.Random(0), 32), encoding="utf-8")
    recipe = FinetuneRecipe(
        batch_size=8,
        epochs=1,
        feature_layers="sum-with-embeddings",
        recurrent_hidden_size=8,
        adapt=AdaptSettings(epochs=4, learning_rate=1e-2, batch_size=8),
    )
    request = FinetuneRequest(
        task="classify",
        model=str(whole / "model"),
        train=tmp_path / "train.tsv",
        output=tmp_path / "run",
        recipe=recipe,
    )
    events = list(run_finetune(request))
    losses = [event.step.losses["bilm"] for event in events if event.step and event.phase == "adapt"]
    assert len(losses) == 16
    assert sum(losses[-4:]) < sum(losses[:4]) - 0.4
    assert not any("a new one is trained" in event.note for event in events)  # the softmax is that of the folder
    adapted, finetuned = (read_folder(tmp_path / "run" / name).tensors for name in ("adapt/model", "model"))
    names = [name for name in finetuned if name.startswith("elmo.")]
    assert names
    assert all(torch.equal(adapted[name], finetuned[name]) for name in names)


def test_recipe_has_two_layers_of_512():
    recipe = read_recipe(recipe_path("elmo"), PretrainRecipe)
    config = recipe.model.config(50_000)
    assert (config.model_type, config.hidden_size, config.num_hidden_layers, recipe.objective) == (
        "elmo",
        512,
        2,
        "bilm",
    )


def test_invalid_settings_are_refused():
    with pytest.raises(SettingsError, match="the family 'bert' has no spelling; leave it out"):
        ModelRecipe(size="tiny", spelling="strokes").config(10)
    with pytest.raises(SettingsError, match="the family 'bert' has no softmax_kind; leave it out"):
        ModelRecipe(size="tiny", softmax_kind="full").config(10)
    with pytest.raises(SettingsError, match="'mlm-nsp'; choose one of: causal, bilm"):
        PretrainRecipe(model=MODEL)
