"""ULMFiT's three stages: a stateful language model that resumes exactly, adapted to other text, fine-tuned with gradual
unfreezing; and generation, next words and vectors of its folder."""

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
from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.defaults import default_learning_rate
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.awd_lstm import AwdLstm
from bertworks.errors import SettingsError
from bertworks.inference.generate import GenerationConfig
from bertworks.models.folder import load_encoder, read_folder
from bertworks.settings import from_table, read_recipe, recipe_path, recipe_table
from bertworks.training.optimizer import LayerwiseSettings

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = ModelRecipe(size="tiny", hidden_size=16, intermediate_size=24, max_position_embeddings=64, family="awd-lstm")
LM_RECIPE = replace(RECIPE, model=MODEL, objective="causal-stream", learning_rate=1e-2)
FINETUNE_RECIPE = from_table(FinetuneRecipe, recipe_table(recipe_path("ulmfit", "finetune")), "ulmfit")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(one_thread: None, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "whole"
    assert [step.number for step in run(corpus, output, LM_RECIPE)] == list(range(1, 13))
    return output


def test_a_resumed_run_is_bit_identical_including_the_state(whole: Path, corpus: Path, tmp_path: Path):
    for stop_after in (2, 5, 3):
        run(corpus, tmp_path / "resumed", LM_RECIPE, stop_after=stop_after)
    run(corpus, tmp_path / "resumed", LM_RECIPE)
    assert_same(whole, tmp_path / "resumed")
    assert state(whole)["optimizer/state/0/0"].shape == (8, 24)
    assert abs(int(state(whole)["optimizer/state/length"]) - 4 * 28) <= 2  # the second phase starts with a new state


def test_micro_batches_do_not_change_a_stateful_run(corpus: Path, tmp_path: Path):
    recipe = replace(LM_RECIPE, model=replace(MODEL, hidden_dropout_prob=0.0))
    runs = [run(corpus, tmp_path / str(size), replace(recipe, micro_batch_size=size)) for size in (8, 2)]
    assert_close(*runs)


def test_sequences_of_a_step_continue_those_of_the_step_before(corpus: Path):
    batches = PretrainBatches(Corpus.open(corpus), LM_RECIPE)
    steps = [batches.get_batches(0, step) for step in range(4)]
    assert [[batch.is_continuation for batch in step] for step in steps] == [[False] * 2, *[[True] * 2] * 3]
    for step, next_step in pairwise(steps):
        for batch, next_batch in zip(step, next_step, strict=True):
            assert batch.targets is not None
            last_targets = batch.targets.view(batch.input_ids.shape)[:, -1]
            assert torch.equal(last_targets, next_batch.input_ids[:, 0])


def test_objectives_that_do_not_fit_the_family_are_refused():
    with pytest.raises(SettingsError, match="'openai-gpt' cannot be trained with the objective 'causal-stream'"):
        replace(LM_RECIPE, model=replace(RECIPE.model, family="openai-gpt"))
    with pytest.raises(
        SettingsError, match="'awd-lstm' cannot be trained with the objective 'mlm'; choose one of: causal, causal-str"
    ):
        replace(LM_RECIPE, objective="mlm")
    with pytest.raises(SettingsError, match="unfreeze_ratio is for fine-tuning"):
        replace(LM_RECIPE, layerwise=LayerwiseSettings(unfreeze_ratio=0.5))


def test_several_processes_are_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.commands.pretrain.batches.world_size", lambda: 2)
    with pytest.raises(SettingsError, match="runs in a single process"):
        PretrainBatches(Corpus.open(corpus), LM_RECIPE)


def test_the_folder_states_its_objective_and_is_loaded_completely(whole: Path):
    folder = read_folder(whole / "model")
    assert folder.config["model_type"] == "awd-lstm"
    assert folder.config["architectures"] == ["AwdLstmLMHeadModel"]
    assert (folder.metadata["objective"], folder.metadata["attention"]) == ("causal-stream", "causal")
    assert folder.encoder_config == MODEL.config(folder.tokenizer.vocab_size)
    encoder, report = load_encoder(folder)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    assert isinstance(encoder, AwdLstm)
    assert torch.equal(encoder.layers[1].weight_hh, folder.tensors["awd_lstm.layers.1.weight_hh"])


def test_it_generates_beyond_its_positions_predicts_next_words_and_encodes(whole: Path):
    model = bertworks.load(whole / "model")
    result = model.generate("The river", GenerationConfig(max_new_tokens=100, top_k=0, seed=1))
    assert result.finish_reason in ("max_new_tokens", "eos")
    assert len(result.tokens) == 100 or result.finish_reason == "eos"
    first, second = model.next_words("The river", 2)
    assert 1 > first.probability >= second.probability > 0
    alone, both = model.encode(["The river."]), model.encode(["The river.", "The stone the bread."])
    assert both.shape == (2, 16)
    np.testing.assert_allclose(alone[0], both[0], atol=1e-6)


@pytest.fixture(scope="module")
def adapted(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second stage: the built-in recipe, shortened."""
    folder = tmp_path_factory.mktemp("target")
    recipe = read_recipe(recipe_path("ulmfit-target"), PretrainRecipe)
    short = replace(
        recipe, batch_size=8, warmup_steps=1, phases=(PhaseRecipe(32, steps=6, budget_ratio=1.0),), num_eval_examples=8
    )
    corpus = prepare_corpus(folder, 20)
    list(
        run_pretrain(
            PretrainRequest(recipe=short, corpus=corpus, output=folder / "run", init_model=str(whole / "model"))
        )
    )
    return folder / "run"


def test_lower_layers_change_less_in_the_second_stage(whole: Path, adapted: Path):
    before, after = (read_folder(path / "model").tensors for path in (whole, adapted))
    changes = [
        float((after[name] - before[name]).abs().max())
        for name in (
            "awd_lstm.token_embeddings.weight",
            *(f"awd_lstm.layers.{number}.weight_hh" for number in range(3)),
        )
    ]
    assert 0 < changes[0] < changes[1] < changes[2] < changes[3]
    assert torch.equal(
        before["awd_lstm.pooler.weight"], after["awd_lstm.pooler.weight"]
    )  # the language model does not use it


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
def finetuned(adapted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third stage: the built-in recipe with all methods of the paper."""
    folder = tmp_path_factory.mktemp("finetuned")
    files = labelled(folder / "train.tsv", 160), labelled(folder / "dev.tsv", 24)
    # The lower layers were trained for a few steps only, so they need a higher learning rate than the paper's.
    finetune_recipe = replace(
        FINETUNE_RECIPE,
        learning_rate=0.02,
        batch_size=16,
        max_restarts=0,
        dropout=0.0,
        layerwise=LayerwiseSettings(layer_lr_decay=0.9, unfreeze_ratio=0.4),
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


def test_the_third_stage_learns_a_task(finetuned: Path):
    scores = json.loads((finetuned / "run.json").read_text())["scores"]["dev"]
    assert scores["accuracy"] >= 0.9, scores
    model = bertworks.load(finetuned / "model")
    assert model.predict(["cloud river bread", "cloud stone bread"])[1].label == "stone"
    folder = read_folder(finetuned / "model")
    assert folder.config["architectures"] == ["AwdLstmForSequenceClassification"]
    assert folder.tensors["classifier.weight"].shape == (2, 50)


def test_a_language_model_of_streams_is_adapted_to_single_texts(adapted: Path, tmp_path: Path):
    recipe = replace(FINETUNE_RECIPE, epochs=1, adapt=AdaptSettings(epochs=3, learning_rate=1e-2, batch_size=8))
    request = FinetuneRequest(
        task="classify",
        model=str(adapted / "model"),
        train=labelled(tmp_path / "train.tsv", 32),
        output=tmp_path / "run",
        recipe=recipe,
    )
    losses = [event.step.losses for event in run_finetune(request) if event.step and event.phase == "adapt"]
    assert [set(loss) for loss in losses] == [{"causal"}] * 12
    assert sum(loss["causal"] for loss in losses[-4:]) < sum(loss["causal"] for loss in losses[:4])


def test_a_long_text_is_one_sequence_without_windows(adapted: Path, tmp_path: Path):
    folder = read_folder(adapted / "model")
    assert folder.encoder_config.max_length == 64
    train = labelled(tmp_path / "train.tsv", 8, length=60)
    finetune_recipe = FinetuneRecipe(batch_size=4, learning_rate=1e-2, epochs=1, max_restarts=0, max_length=64)
    events = list(
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
    assert events[-1].model_folder is not None
    predictor = bertworks.load(tmp_path / "run" / "model").predictor
    assert predictor is not None
    example = next(iter(predictor.module.task.read(train, {})))
    (sequence,) = predictor.module.task.featurize(example, predictor.tokenizer, predictor.window_rule).sequences
    assert len(sequence) == 62


@pytest.mark.parametrize("family", ["bert", "awd-lstm"])
def test_layers_are_unfrozen_from_the_top_down_in_any_family(family: str, corpus: Path, tmp_path: Path):
    recipe = LM_RECIPE if family == "awd-lstm" else RECIPE
    run(corpus, tmp_path / "base", replace(recipe, phases=(PhaseRecipe(16, steps=4, budget_ratio=1.0),)))
    train = labelled(tmp_path / "train.tsv", 40)
    base = read_folder(tmp_path / "base" / "model")
    finetune_recipe = replace(FINETUNE_RECIPE, learning_rate=1e-3, batch_size=4, epochs=2, max_restarts=0)
    num_layers = base.encoder_config.num_hidden_layers
    unfreeze_steps = round(20 * 0.4 / (num_layers + 1))  # of 20 steps
    request = FinetuneRequest(
        task="classify", model=str(base.path), train=train, output=tmp_path / "run", recipe=finetune_recipe
    )
    for num_unfrozen in range(num_layers + 2):
        list(run_finetune(replace(request, stop_after=unfreeze_steps)))
        saved = state(tmp_path / "run")
        names = base.family.tensor_names(base.encoder_config)
        parameters = ["token_embeddings.weight", *_one_of_each_layer(names, num_layers)]  # the lowest first
        changed = [
            not torch.equal(saved[f"model/encoder.{name}"], _join(base.tensors, names[name])) for name in parameters
        ]
        assert changed == [False] * (num_layers + 1 - num_unfrozen) + [True] * num_unfrozen


def _one_of_each_layer(names: dict[str, tuple[str, ...]], num_layers: int) -> list[str]:
    return [next(name for name in names if name.startswith(f"layers.{number}.")) for number in range(num_layers)]


def _join(tensors: dict[str, torch.Tensor], names: tuple[str, ...]) -> torch.Tensor:
    return torch.cat([tensors[name] for name in names])


def test_the_default_learning_rate_is_that_of_the_family(whole: Path):
    assert default_learning_rate(read_folder(whole / "model")) == 1e-2


def test_the_paper_recipe_has_the_settings_of_the_paper():
    recipe = read_recipe(recipe_path("paper-ulmfit"), PretrainRecipe)
    config = recipe.model.config(30_000)
    assert (config.hidden_size, config.lstm_size, config.num_hidden_layers, config.hidden_dropout_prob) == (
        400,
        1_150,
        3,
        0.4,
    )
    assert (recipe.batch_size, recipe.optimizer.beta1, recipe.optimizer.beta2) == (64, 0.7, 0.99)
    assert FINETUNE_RECIPE.layerwise == LayerwiseSettings(layer_lr_decay=0.384_615, unfreeze_ratio=0.4)
    assert (FINETUNE_RECIPE.schedule, FINETUNE_RECIPE.epochs) == ("slanted-triangular", 10)
    # With three layers and ten epochs, one more layer per epoch.
    assert FINETUNE_RECIPE.layerwise.resolve(1_000, 3).unfreeze_steps == 100
