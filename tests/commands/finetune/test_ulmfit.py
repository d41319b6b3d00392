"""ULMFiT in its three steps: a language model that resumes to the bit with its state, the same on other text, tasks
with layers that thaw one by one; and what else a folder of it answers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import RECIPE, WORDS, assert_close, assert_same, prepare_corpus, run, state

import bertworks
from bertworks.commands.finetune.recipe import FinetuneRecipe, default_learning_rate
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import pretrain
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.awd_lstm import AwdLstm
from bertworks.errors import SettingsError
from bertworks.inference.generate import GenerationConfig
from bertworks.models.folder import load_encoder, read_folder
from bertworks.settings import from_table, read_recipe, recipe_path, recipe_table
from bertworks.training.optimizer import LayerwiseSettings

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = ModelRecipe(size="tiny", hidden_size=16, intermediate_size=24, max_position_embeddings=64, family="awd-lstm")
LANGUAGE = replace(RECIPE, model=MODEL, objective="next-stream", learning_rate=1e-2)
TUNING = from_table(FinetuneRecipe, recipe_table(recipe_path("ulmfit", "finetune")), "ulmfit")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(one_thread: None, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "whole"
    assert [step.number for step in run(corpus, output, LANGUAGE)] == list(range(1, 13))
    return output


def test_stopped_and_continued_it_is_the_same_to_the_bit_state_and_all(whole: Path, corpus: Path, tmp_path: Path):
    for count in (2, 5, 3):
        run(corpus, tmp_path / "parts", LANGUAGE, stop_after=count)
    run(corpus, tmp_path / "parts", LANGUAGE)
    assert_same(whole, tmp_path / "parts")
    assert state(whole)["optimizer/carried/0/0"].shape == (8, 24)
    assert abs(int(state(whole)["optimizer/carried/length"]) - 4 * 28) <= 2  # the second phase began anew


def test_micro_batches_change_nothing_though_each_row_has_a_state(corpus: Path, tmp_path: Path):
    recipe = replace(LANGUAGE, model=replace(MODEL, hidden_dropout_prob=0.0))
    found = [run(corpus, tmp_path / str(size), replace(recipe, micro_batch_size=size)) for size in (8, 2)]
    assert_close(*found)


def test_rows_of_a_step_go_on_where_those_of_the_last_ended(corpus: Path):
    rows = PretrainBatches(Corpus.open(corpus), LANGUAGE)
    steps = [rows.get_batches(0, number) for number in range(4)]
    assert [[batch.is_continuation for batch in batches] for batches in steps] == [[False] * 2, *[[True] * 2] * 3]
    for batches, following in pairwise(steps):
        for batch, after in zip(batches, following, strict=True):
            assert batch.targets is not None
            last = batch.targets.view(batch.input_ids.shape)[:, -1]
            assert torch.equal(last, after.input_ids[:, 0])


def test_a_model_that_cannot_go_on_and_a_step_too_many_are_refused():
    with pytest.raises(SettingsError, match="'openai-gpt' cannot learn by the objective 'next-stream'"):
        replace(LANGUAGE, model=replace(RECIPE.model, family="openai-gpt"))
    with pytest.raises(
        SettingsError, match="'awd-lstm' cannot learn by the objective 'masked'; choose one of: next, ne"
    ):
        replace(LANGUAGE, objective="masked")
    with pytest.raises(SettingsError, match="unfreeze_rate is for fine-tuning"):
        replace(LANGUAGE, layerwise=LayerwiseSettings(unfreeze_ratio=0.5))


def test_several_processes_are_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.commands.pretrain.batches._rank_and_world_size", lambda: (0, 2))
    with pytest.raises(SettingsError, match="read by a single process"):
        PretrainBatches(Corpus.open(corpus), LANGUAGE)


def test_a_folder_says_what_it_is_and_is_read_again(whole: Path):
    folder = read_folder(whole / "model")
    assert folder.config["model_type"] == "awd-lstm"
    assert folder.config["architectures"] == ["AwdLstmLMHeadModel"]
    assert (folder.metadata["objective"], folder.metadata["reads"]) == ("next-stream", "left")
    assert folder.encoder_config == MODEL.config(folder.tokenizer.vocab_size)
    encoder, report = load_encoder(folder)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    assert isinstance(encoder, AwdLstm)
    assert torch.equal(encoder.layers[1].weight_hh, folder.tensors["awd_lstm.layers.1.again"])


def test_it_goes_on_with_a_text_beyond_its_positions_tells_the_next_word_and_embeds(whole: Path):
    model = bertworks.load(whole / "model")
    told = model.generate("The river", GenerationConfig(max_new_tokens=100, top_k=0, seed=1))
    assert told.finish_reason in ("pieces", "end")
    assert len(told.tokens) == 100 or told.finish_reason == "end"
    first, second = model.next_words("The river", 2)
    assert 1 > first.probability >= second.probability > 0
    alone, both = model.encode(["The river."]), model.encode(["The river.", "The stone the bread."])
    assert both.shape == (2, 16)
    np.testing.assert_allclose(alone[0], both[0], atol=1e-6)


@pytest.fixture(scope="module")
def adapted(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second step, by the shipped recipe but for its length."""
    folder = tmp_path_factory.mktemp("target")
    recipe = read_recipe(recipe_path("ulmfit-target"), PretrainRecipe)
    short = replace(recipe, batch_size=8, warmup_steps=1, phases=(PhaseRecipe(32, 6, 1.0),), num_eval_examples=8)
    corpus = prepare_corpus(folder, 20)
    list(pretrain(PretrainRequest(recipe=short, corpus=corpus, output=folder / "run", init_model=str(whole / "model"))))
    return folder / "run"


def test_on_other_text_lower_layers_learn_less(whole: Path, adapted: Path):
    before, after = (read_folder(path / "model").tensors for path in (whole, adapted))
    moved = [
        float((after[name] - before[name]).abs().max())
        for name in ("awd_lstm.pieces.weight", *(f"awd_lstm.layers.{number}.again" for number in range(3)))
    ]
    assert 0 < moved[0] < moved[1] < moved[2] < moved[3]
    assert torch.equal(before["awd_lstm.pooler.weight"], after["awd_lstm.pooler.weight"])  # nobody asked it


def labelled(path: Path, count: int, length: int = 5) -> Path:
    rng = random.Random(count)
    lines = ["text\tlabel"]
    for number in range(count):
        words = rng.choices(WORDS[2:], k=length)
        words[rng.randrange(length)] = WORDS[number % 2]
        lines.append(f"{' '.join(words)}\t{WORDS[number % 2]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(adapted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third step, with all of the paper's ways by one recipe."""
    folder = tmp_path_factory.mktemp("tuned")
    files = labelled(folder / "train.tsv", 160), labelled(folder / "dev.tsv", 24)
    # Its layers have learned hardly anything before, so that the lower ones have more to learn than the paper's.
    finetune_recipe = replace(
        TUNING,
        learning_rate=0.02,
        batch_size=16,
        max_restarts=0,
        dropout=0.0,
        layerwise=LayerwiseSettings(0.9, unfreeze_ratio=0.4),
    )
    request = FinetuneRequest(
        task="classify",
        model=str(adapted / "model"),
        train=files[0],
        output=folder / "run",
        dev=files[1],
        recipe=finetune_recipe,
    )
    list(run_finetune(request))
    return folder / "run"


def test_the_third_step_learns_a_task_and_its_folder_predicts(tuned: Path):
    scores = json.loads((tuned / "run.json").read_text())["scores"]["dev"]
    assert scores["accuracy"] >= 0.9, scores
    model = bertworks.load(tuned / "model")
    assert model.predict(["cloud river bread", "cloud stone bread"])[1].label == "stone"
    folder = read_folder(tuned / "model")
    assert folder.config["architectures"] == ["AwdLstmForSequenceClassification"]
    assert folder.tensors["classifier.weight"].shape == (2, 50)


def test_a_long_text_is_one_row_and_no_window_however_far_slopes_reach(adapted: Path, tmp_path: Path):
    folder = read_folder(adapted / "model")
    assert folder.encoder_config.max_length == 64
    train = labelled(tmp_path / "train.tsv", 8, length=60)
    finetune_recipe = FinetuneRecipe(batch_size=4, learning_rate=1e-2, epochs=1, max_restarts=0, max_length=64)
    told = list(
        run_finetune(
            FinetuneRequest(
                task="classify",
                model=str(adapted / "model"),
                train=train,
                output=tmp_path / "run",
                recipe=finetune_recipe,
            )
        )
    )
    assert told[-1].model_folder is not None
    predictor = bertworks.load(tmp_path / "run" / "model").predictor
    assert predictor is not None
    example = next(iter(predictor.module.task.read(train, {})))
    (row,) = predictor.module.task.featurize(example, predictor.tokenizer, predictor.window_rule).sequences
    assert len(row) == 62


@pytest.mark.parametrize("family", ["bert", "awd-lstm"])
def test_layers_thaw_from_the_top_down_in_any_model(family: str, corpus: Path, tmp_path: Path):
    recipe = LANGUAGE if family == "awd-lstm" else RECIPE
    run(corpus, tmp_path / "base", replace(recipe, phases=(PhaseRecipe(16, 4, 1.0),)))
    train = labelled(tmp_path / "train.tsv", 40)
    base = read_folder(tmp_path / "base" / "model")
    finetune_recipe = replace(TUNING, learning_rate=1e-3, batch_size=4, epochs=2, max_restarts=0)
    num_layers = base.encoder_config.num_hidden_layers
    every = round(20 * 0.4 / (num_layers + 1))  # of 20 steps
    request = FinetuneRequest(
        task="classify", model=str(base.path), train=train, output=tmp_path / "run", recipe=finetune_recipe
    )
    for num_thawed in range(num_layers + 2):
        list(run_finetune(replace(request, stop_after=every)))
        saved = state(tmp_path / "run")
        tables = base.family.tensor_names(base.encoder_config)
        lasts = ["pieces.weight", *_one_of_each_layer(tables, num_layers)]  # the lowest first
        changed = [not torch.equal(saved[f"model/encoder.{name}"], _ours(base.tensors, tables[name])) for name in lasts]
        assert changed == [False] * (num_layers + 1 - num_thawed) + [True] * num_thawed


def _one_of_each_layer(tables: dict[str, tuple[str, ...]], num_layers: int) -> list[str]:
    return [next(name for name in tables if name.startswith(f"layers.{number}.")) for number in range(num_layers)]


def _ours(tensors: dict[str, torch.Tensor], names: tuple[str, ...]) -> torch.Tensor:
    return torch.cat([tensors[name] for name in names])


def test_the_usual_rate_is_the_family_s(whole: Path):
    assert default_learning_rate(str(whole / "model")) == 1e-2


def test_the_paper_s_recipe_is_the_paper_s():
    recipe = read_recipe(recipe_path("paper-ulmfit"), PretrainRecipe)
    config = recipe.model.config(30_000)
    assert (config.hidden_size, config.lstm_size, config.num_hidden_layers, config.hidden_dropout_prob) == (
        400,
        1_150,
        3,
        0.4,
    )
    assert (recipe.batch_size, recipe.optimizer.beta1, recipe.optimizer.beta2) == (64, 0.7, 0.99)
    assert TUNING.layerwise == LayerwiseSettings(layer_lr_decay=0.384_615, unfreeze_ratio=0.4)
    assert (TUNING.schedule, TUNING.epochs) == ("triangular", 10)
    # With three layers and ten epochs, one layer more an epoch.
    assert TUNING.layerwise.resolve(1_000, 3).unfreeze_steps == 100
