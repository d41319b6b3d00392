"""ELMo from text to use: pretrained to the same bit after a stop, its folder read again, features for three tasks; in
English by characters, in Chinese by jieba's words and strokes."""

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
from small_run import RECIPE, assert_same, run

import bertworks
from bertworks.commands.embed import EmbedRequest, embed
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
from bertworks.objectives.bilm import BiLmObjective
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
COLOURS, ANIMALS = "红色 蓝色 绿色".split(), "老虎 狮子 大象".split()
MODEL = ModelRecipe("tiny", hidden_size=32, intermediate_size=40, max_position_embeddings=64, family="elmo")
RECIPES = {
    "words": replace(RECIPE, model=MODEL, objective="two-way"),
    "jieba-words": replace(RECIPE, model=replace(MODEL, spelling="strokes"), objective="two-way"),
}


def sentences(kind: str) -> list[str]:
    draw = random.Random(5)
    words = ENGLISH if kind == "words" else [*CHINESE, *COLOURS, *ANIMALS]
    space, end = (" ", ".") if kind == "words" else ("", "。")
    return [space.join(draw.choices(words, k=draw.randint(4, 8))) + end for _ in range(240)]


@pytest.fixture(scope="module", params=list(RECIPES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepared(folder: Path, kind: str) -> Path:
    lines = sentences(kind)
    documents = ["\n".join(lines[start : start + 6]) for start in range(0, 240, 6)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    Tokenizer.from_backend(train(lines, VocabularySettings(kind=kind, vocab_size=60))).save(folder / "vocabulary")
    sources = (TextSource(str(folder / "text.txt")),)
    return prepare(PrepareRequest(sources, folder / "vocabulary", folder / "corpus"), 1)


@pytest.fixture(scope="module")
def corpus(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("corpus"), kind)


@pytest.fixture(scope="module")
def whole(one_thread: None, kind: str, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert [step.number for step in run(corpus, out, RECIPES[kind])] == list(range(1, 13))
    return out


def test_stopped_and_continued_it_is_the_same_to_the_bit(whole: Path, kind: str, corpus: Path, tmp_path: Path):
    for count in (2, 5, 3):
        run(corpus, tmp_path / "parts", RECIPES[kind], stop_after=count)
    run(corpus, tmp_path / "parts", RECIPES[kind])
    assert_same(whole, tmp_path / "parts")


def test_what_a_sampled_softmax_draws_is_the_same_after_a_stop(
    corpus: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SOFTMAXES, "sampled", partial(TableSoftmax, num_samples=8))  # of a vocabulary this small
    recipe = replace(RECIPES[kind], model=replace(RECIPES[kind].model, softmax_kind="sampled"))
    run(corpus, tmp_path / "whole", recipe)
    run(corpus, tmp_path / "parts", recipe, stop_after=7)
    run(corpus, tmp_path / "parts", recipe)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert "two_way.weight" in read_folder(tmp_path / "whole" / "model").tensors


def test_a_folder_says_what_it_is_and_is_read_again(whole: Path, kind: str, corpus: Path):
    folder = read_folder(whole / "model")
    assert folder.config["model_type"] == "elmo"
    assert folder.config["architectures"] == ["ElmoForTwoWayLM"]
    assert folder.metadata["objective"] == "two-way"
    assert folder.encoder_config == RECIPES[kind].model.config(folder.tokenizer.vocab_size)
    encoder, report = load_encoder(folder)
    assert report.missing_keys == ()
    assert isinstance(encoder, Elmo)
    expected = spell_vocabulary(folder.tokenizer, encoder.config.spelling, encoder.config.max_symbols_per_word)
    assert np.array_equal(encoder.spelling.numpy(), expected)
    # Everything, its head too, goes on as the start of another run.
    opened = Corpus.open(corpus)
    module, notes = build(
        resolve_model_init(RECIPES[kind], opened.tokenizer, str(whole / "model")), RECIPES[kind], np.zeros(60)
    )
    assert isinstance(module, BiLmObjective)
    assert not any("begin at random" in note for note in notes)
    assert torch.equal(module.bilm_head.head.weight, folder.tensors["two_way.head.weight"])


def test_texts_and_words_have_vectors(whole: Path, kind: str, tmp_path: Path):
    model = bertworks.load(whole / "model")
    first, second = sentences(kind)[:2]
    alone, both = model.encode([first]), model.encode([first, second, "？"])
    assert both.shape == (3, 32)
    np.testing.assert_allclose(alone[0], both[0], atol=1e-6)
    (tmp_path / "texts.txt").write_text(f"{first}\n{second}\n", encoding="utf-8")
    found = embed(EmbedRequest(str(whole / "model"), str(tmp_path / "texts.txt"), tmp_path / "words", unit="words"))
    num_words = sum(len(model.tokenizer.tokenize(text)) for text in (first, second))
    assert (found.num_rows, found.vector_size) == (num_words, 32)


def test_the_words_beside_a_text_are_those_that_its_halves_tell(whole: Path, kind: str):
    model = bertworks.load(whole / "model")
    text = sentences(kind)[0][:-1]
    assert model.bilm_head is not None
    for backward in (False, True):
        found = model.next_words(text, 3, backward)
        ids = model.tokenizer.encode(text).input_ids
        ids = ids[1:] if backward else ids[:-1]
        batch = Batch(torch.tensor([ids]), torch.zeros(1, len(ids), dtype=torch.long), torch.tensor([len(ids)]))
        with torch.no_grad():
            last = model.encoder(batch).last_hidden_state[0 if backward else -1].chunk(2)[backward]
            likely = model.bilm_head.log_prob(last[None])[0].exp()
        likely[list(model.tokenizer.specials.ids)] = 0.0
        best = (likely / likely.sum()).topk(3)
        assert [one.word for one in found] == [model.tokenizer.tokens[number] for number in best.indices]
        np.testing.assert_allclose([one.probability for one in found], best.values, rtol=1e-5)


def texts_file(draw: random.Random, count: int) -> str:
    rows = ["text\tlabel"]
    for _ in range(count):
        label, choices = draw.choice([("colour", COLOURS), ("animal", ANIMALS)])
        words = [*draw.choices(CHINESE, k=4), draw.choice(choices)]
        draw.shuffle(words)
        rows.append("，".join(words) + f"\t{label}")
    return "\n".join(rows) + "\n"


def tags_file(draw: random.Random, count: int) -> str:
    lines = []
    for _ in range(count):
        words = [(word, "O") for word in draw.choices(CHINESE, k=4)]
        words.insert(draw.randint(0, 4), (draw.choice(ANIMALS), "B-ANI"))
        lines += [*(f"{word} {tag}" for word, tag in words), ""]
    return "\n".join(lines)


def answers_file(draw: random.Random, count: int) -> str:
    asked = []
    for number in range(count):
        words = [*draw.choices(CHINESE, k=4), draw.choice(ANIMALS), draw.choice(COLOURS)]
        draw.shuffle(words)
        passage = "".join(words)
        right = next(word for word in words if word in ANIMALS)
        answers = [{"text": right, "answer_start": passage.index(right)}]
        asked.append({"context": passage, "qas": [{"id": str(number), "question": "老师", "answers": answers}]})
    return json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": asked}]}, ensure_ascii=False)


TOYS: dict[str, tuple[Any, str, str]] = {
    "classify": (texts_file, "tsv", "accuracy"),
    "tag": (tags_file, "txt", "f1"),
    "answer": (answers_file, "json", "f1"),
}


@pytest.mark.parametrize("kind", ["jieba-words"], indirect=True)
@pytest.mark.parametrize("task", list(TOYS))
def test_a_task_learns_from_the_weighted_sum_of_its_layers(task: str, whole: Path, kind: str, tmp_path: Path):
    make, end, figure = TOYS[task]
    train_file, dev = tmp_path / f"train.{end}", tmp_path / f"dev.{end}"
    train_file.write_text(make(random.Random(0), 160), encoding="utf-8")
    dev.write_text(make(random.Random(1), 24), encoding="utf-8")
    tuning = FinetuneRecipe(
        batch_size=8,
        learning_rate=1e-2,
        epochs=6,
        max_restarts=0,
        feature_layers="sum-with-embeddings",
        recurrent_hidden_size=24,
    )
    list(run_finetune(FinetuneRequest(task, str(whole / "model"), train_file, tmp_path / "run", dev, recipe=tuning)))
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]["dev"]
    assert scores[figure] >= 0.9, scores
    sealed = read_folder(tmp_path / "run" / "model")
    assert sealed.tensors["bertworks.head.weighted.shares"].shape == (3,)
    assert float(sealed.tensors["bertworks.head.weighted.shares"].abs().max()) > 0


def test_the_shipped_recipe_is_512_wide_with_two_layers():
    recipe = read_recipe(recipe_path("elmo"), PretrainRecipe)
    sizes = recipe.model.config(50_000)
    assert (sizes.model_type, sizes.hidden_size, sizes.num_hidden_layers, recipe.objective) == (
        "elmo",
        512,
        2,
        "two-way",
    )


def test_a_recipe_that_cannot_be_is_refused():
    with pytest.raises(SettingsError, match="spelling is for ELMo; leave it out for the family 'bert'"):
        ModelRecipe("tiny", spelling="strokes").config(10)
    with pytest.raises(SettingsError, match="scoring is for ELMo; leave it out for the family 'bert'"):
        ModelRecipe("tiny", softmax_kind="full").config(10)
    with pytest.raises(
        SettingsError, match="cannot learn by the objective 'masked-next'; choose one of: next, two-way"
    ):
        PretrainRecipe(MODEL)
