"""Training on features of a frozen encoder: toy tasks are learned, features are computed once, runs resume exactly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from encoder_folder import write_random_bert
from safetensors.torch import load_file
from typer.testing import CliRunner

import bertworks
from bertworks.cli.app import app
from bertworks.commands.finetune import feature_cache
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.finetune.sweep import seeds_of, sweep
from bertworks.embeddings.strategies import STRATEGIES
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import FolderError, SettingsError
from bertworks.inference.attribution import example_from_texts, explain
from bertworks.inference.finetuned import load_predictor
from bertworks.sampling.batch import Batch
from bertworks.training.checkpoint import checkpoints_in
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

PLAIN = "the a walked by and saw over road then quiet".split()
COLOURS, ANIMALS, NAMES = "red blue green".split(), "cat dog fox".split(), "ann bob eve".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PLAIN, *COLOURS, *ANIMALS, *NAMES, "which", "colour", "animal"]
RECIPE = FinetuneRecipe(
    batch_size=8, learning_rate=2e-2, epochs=4, max_restarts=0, feature_layers="last", recurrent_hidden_size=32
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four layers with random weights: its features still distinguish tokens."""
    folder = tmp_path_factory.mktemp("base") / "model"
    tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.05,
    )
    return write_random_bert(folder, config, tokenizer)


def words(rng: random.Random, *more: str) -> list[str]:
    chosen = [*rng.choices(PLAIN, k=rng.randint(2, 8)), *more]
    rng.shuffle(chosen)
    return chosen


def texts(rng: random.Random, count: int) -> str:
    """Texts with a colour or an animal, which is the label."""
    rows = ["text\tlabel"]
    for _ in range(count):
        label, choices = rng.choice([("colour", COLOURS), ("animal", ANIMALS)])
        rows.append(" ".join(words(rng, rng.choice(choices))) + f"\t{label}")
    return "\n".join(rows) + "\n"


def sentences(rng: random.Random, count: int) -> str:
    """Sentences with a colour and a person: a name and the word after it."""
    lines = []
    for _ in range(count):
        tagged = [(word, "O") for word in words(rng, rng.choice(COLOURS))]
        start = rng.randint(0, len(tagged))
        tagged[start:start] = [(rng.choice(NAMES), "B-PER"), (rng.choice(PLAIN), "I-PER")]
        lines += [*(f"{word} {tag}" for word, tag in tagged), ""]
    return "\n".join(lines)


def passages(rng: random.Random, count: int) -> str:
    """Passages with a colour and an animal, and a question for one of them."""
    paragraphs = []
    for number in range(count):
        colour, animal = rng.choice(COLOURS), rng.choice(ANIMALS)
        passage = " ".join(words(rng, colour, animal))
        kind, answer = rng.choice([("colour", colour), ("animal", animal)])
        answers = [{"text": answer, "answer_start": passage.index(answer)}]
        paragraphs.append(
            {"context": passage, "qas": [{"id": str(number), "question": f"which {kind}", "answers": answers}]}
        )
    return json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": paragraphs}]})


TOYS: dict[str, tuple[Callable[[random.Random, int], str], str, int]] = {
    "classify": (texts, "tsv", 128),
    "tag": (sentences, "txt", 192),
    "answer": (passages, "json", 192),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Train and dev of each toy task."""
    folder = tmp_path_factory.mktemp("toys")
    by_task = {}
    for task, (make, suffix, num_train) in TOYS.items():
        paths = folder / f"{task}-train.{suffix}", folder / f"{task}-dev.{suffix}"
        for seed, (path, count) in enumerate(zip(paths, (num_train, 24), strict=True)):
            path.write_text(make(random.Random(seed), count), encoding="utf-8")
        by_task[task] = paths
    return by_task


Files = dict[str, tuple[Path, Path]]


def request_of(
    base: Path, files: Files, output: Path, task: str = "classify", recipe: FinetuneRecipe = RECIPE
) -> FinetuneRequest:
    train, dev = files[task]
    return FinetuneRequest(task=task, model=str(base), train=train, output=output, dev=dev, recipe=recipe)


def scores_of(output: Path) -> Any:
    return json.loads((output / "run.json").read_text())["scores"]


def cache_in(output: Path) -> Path:
    (folder,) = (output / "features").iterdir()
    return folder


@pytest.fixture(scope="module")
def run(base: Path, files: Files, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[FinetuneEvent]]:
    output = tmp_path_factory.mktemp("run") / "run"
    return output, list(run_finetune(request_of(base, files, output)))


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences of each call of the encoder."""
    sizes: list[int] = []
    forward = Bert.forward

    def counting_forward(self: Bert, batch: Batch, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(batch.input_ids))
        return forward(self, batch, *args, **kwargs)

    monkeypatch.setattr(Bert, "forward", counting_forward)
    return sizes


def test_texts_are_classified_from_features(run: tuple[Path, list[FinetuneEvent]]):
    assert scores_of(run[0])["dev"]["accuracy"] == 1.0


def test_a_note_says_that_the_encoder_is_frozen_and_where_features_are_cached(run: tuple[Path, list[FinetuneEvent]]):
    output, events = run
    (note,) = [event.note for event in events if event.note.startswith("the encoder is frozen")]
    assert "a recurrent head is trained with learning rate 0.02" in note
    assert f"features 'last' of 152 sequences are cached in {cache_in(output)} (0.2 MB, fp32)" in note
    assert np.load(cache_in(output) / "vectors.npy", mmap_mode="r").dtype == np.float32


def test_sentences_are_tagged_from_features(base: Path, files: Files, tmp_path: Path):
    list(run_finetune(request_of(base, files, tmp_path / "run", "tag")))
    assert scores_of(tmp_path / "run")["dev"]["f1"] >= 0.95


def test_passages_are_answered_from_features(base: Path, files: Files, tmp_path: Path):
    list(run_finetune(request_of(base, files, tmp_path / "run", "answer")))
    assert scores_of(tmp_path / "run")["dev"]["f1"] >= 0.95


def test_the_encoder_is_unchanged(base: Path, run: tuple[Path, list[FinetuneEvent]]):
    before, after = load_file(base / "model.safetensors"), load_file(run[0] / "model" / "model.safetensors")
    assert all(torch.equal(after[name], values) for name, values in before.items())
    assert {name for name in after if name not in before} == {
        "bertworks.head.body.score.bias",
        "bertworks.head.body.score.weight",
        *(
            f"bertworks.head.body.first.{direction}.{kind}_l0"
            for kind in ("bias_hh", "bias_ih", "weight_hh", "weight_ih")
            for direction in ("forward_lstm", "backward_lstm")
        ),
    }


def test_the_optimizer_has_only_parameters_of_the_head(run: tuple[Path, list[FinetuneEvent]]):
    (checkpoint,) = checkpoints_in(run[0] / "checkpoints")[-1:]
    moments = load_file(checkpoint / "optimizer.safetensors")
    assert moments
    assert all(name.split("/")[1].startswith("head.") for name in moments)


def test_every_sequence_is_encoded_once_for_all_epochs(
    base: Path, files: Files, tmp_path: Path, batch_sizes: list[int]
):
    list(run_finetune(request_of(base, files, tmp_path / "run")))
    assert sum(batch_sizes) == 152  # 128 of train, 24 of dev; four epochs, four evaluations, calibration, final scores


def test_sentences_that_share_a_sequence_are_encoded_together(base: Path, tmp_path: Path, batch_sizes: list[int]):
    """Four sentences of six words are a document that fits into one sequence of 32 tokens."""
    lines = []
    for number, name in enumerate(["ann", "bob", "eve", "ann"]):
        lines += [*(f"{word} O" for word in PLAIN[number : number + 5]), f"{name} B-PER", ""]
    path = tmp_path / "train.txt"
    path.write_text("\n".join(["-DOCSTART- O", "", *lines]), encoding="utf-8")
    request = FinetuneRequest(
        task="tag", model=str(base), train=path, output=tmp_path / "run", recipe=replace(RECIPE, epochs=1)
    )
    list(run_finetune(request))
    assert batch_sizes == [1]
    assert np.load(cache_in(tmp_path / "run") / "vectors.npy").shape == (4 * 6, 1, 32)


def test_a_resumed_run_is_bit_identical(
    base: Path, files: Files, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path, batch_sizes: list[int]
):
    request = request_of(base, files, tmp_path / "run")
    for stop_after in (5, 20, None):
        list(run_finetune(replace(request, stop_after=stop_after)))
    for name in ("model/model.safetensors", "model/bertworks.json"):
        assert (run[0] / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert sum(batch_sizes) == 152  # in all three calls


def test_an_interrupted_cache_is_resumed_to_the_same_bytes(
    base: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feature_cache, "_MAX_SEQUENCES", 32)
    list(run_finetune(request_of(base, files, tmp_path / "whole")))
    compute = feature_cache.FeatureCache._compute
    starts: list[int] = []

    def interrupted_compute(self: feature_cache.FeatureCache, indices: range) -> Any:
        starts.append(indices.start)
        if len(starts) == 3:
            raise KeyboardInterrupt
        return compute(self, indices)

    monkeypatch.setattr(feature_cache.FeatureCache, "_compute", interrupted_compute)
    with pytest.raises(KeyboardInterrupt):
        list(run_finetune(request_of(base, files, tmp_path / "interrupted")))
    with (cache_in(tmp_path / "interrupted") / "vectors.npy").open("ab") as file:
        file.write(b"incomplete")
    list(run_finetune(request_of(base, files, tmp_path / "interrupted")))
    assert starts == [0, 32, 64, 64, 96, 128]
    for name in (f"features/{cache_in(tmp_path / 'whole').name}/vectors.npy", "model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "interrupted" / name).read_bytes()


def test_runs_share_the_cache_of_equal_sequences_and_layers(
    base: Path, files: Files, tmp_path: Path, batch_sizes: list[int]
):
    request = replace(request_of(base, files, tmp_path / "runs"), feature_folder=tmp_path / "cache")
    request = replace(request, recipe=replace(RECIPE, epochs=1))
    list(sweep(request, seeds_of(request.recipe, 2)))
    assert sum(batch_sizes) == 152
    assert len(list((tmp_path / "cache").iterdir())) == 1
    layers = replace(request.recipe, feature_layers="embeddings")
    list(run_finetune(replace(request, output=tmp_path / "layers", recipe=layers)))
    list(run_finetune(replace(request, output=tmp_path / "sequences", dev=None)))
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_damaged_cache_is_refused(base: Path, files: Files, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    request = request_of(base, files, tmp_path / "run", recipe=replace(RECIPE, epochs=1))
    list(run_finetune(replace(request, stop_after=1)))
    vectors = cache_in(tmp_path / "run") / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-4])
    with pytest.raises(FolderError, match=f"{vectors.parent} is damaged .* remove it to compute it again"):
        list(run_finetune(request))
    vectors.unlink()
    assert any(event.model_folder for event in run_finetune(request))


def test_fp16_features_are_rounded_fp32_features(
    base: Path, files: Files, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    recipe = replace(RECIPE, feature_precision="fp16")
    list(run_finetune(request_of(base, files, tmp_path / "run", recipe=recipe)))
    vectors, full = (np.load(cache_in(output) / "vectors.npy") for output in (tmp_path / "run", run[0]))
    assert vectors.dtype == np.float16
    np.testing.assert_array_equal(vectors, full.astype(np.float16))
    assert scores_of(tmp_path / "run")["dev"]["accuracy"] == 1.0


@pytest.mark.parametrize("name", STRATEGIES)
def test_tagging_is_learned_with_every_feature_strategy(base: Path, files: Files, tmp_path: Path, name: str):
    recipe = replace(RECIPE, feature_layers=name, epochs=3)
    list(run_finetune(request_of(base, files, tmp_path / "run", "tag", recipe)))
    assert scores_of(tmp_path / "run")["dev"]["f1"] >= 0.9
    metadata = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert metadata["recurrent_head"] == {"strategy": name, "hidden_size": 32, "freeze_encoder": True}
    predictor = load_predictor(tmp_path / "run" / "model", "tag")
    examples = list(predictor.module.task.read(files["tag"][1], {}))
    scores = predictor.module.task.score(predictor.predict(examples))
    assert scores.metrics["f1"] == scores_of(tmp_path / "run")["dev"]["f1"]


def test_the_folder_predicts_and_its_encoder_loads_in_transformers(run: tuple[Path, list[FinetuneEvent]]):
    folder = run[0] / "model"
    model = bertworks.load(folder)
    assert [prediction.label for prediction in model.predict(["the red road", "a dog walked by"])] == [
        "colour",
        "animal",
    ]
    hf_model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert all(name.startswith("bertworks.head.") for name in info["unexpected_keys"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = hf_model.eval()(**tokenizer("the red road", return_tensors="pt")).last_hidden_state[0]  # (T, D)
    mean = model.encode(["the red road"], "mean")[0]
    np.testing.assert_allclose(mean, states.mean(0).numpy(), atol=1e-5)


def test_a_prediction_from_features_can_be_explained(run: tuple[Path, list[FinetuneEvent]]):
    predictor = load_predictor(run[0] / "model")
    explanation = explain(
        predictor, example_from_texts(predictor.module.task, ["the fox walked over and then saw a road"])
    )
    weights = dict(zip(explanation.texts[0].tokens, explanation.texts[0].weights, strict=True))
    assert explanation.target == "'animal'"
    assert max(weights, key=lambda token: weights[token]) == "fox"


def test_invalid_settings_are_refused(base: Path, files: Files, tmp_path: Path):
    with pytest.raises(SettingsError, match="there is no feature strategy 'first'; choose one of: embeddings"):
        FinetuneRecipe(feature_layers="first")
    with pytest.raises(SettingsError, match="an auxiliary loss has no effect"):
        FinetuneRecipe(feature_layers="last", mlm_weight=0.1)
    with pytest.raises(SettingsError, match="recurrent_hidden_size is -1"):
        FinetuneRecipe(recurrent_hidden_size=-1)
    with pytest.raises(SettingsError, match="there is no feature_precision 'double'; choose one of: fp32, fp16"):
        FinetuneRecipe(feature_precision="double")


def test_the_command_line_trains_on_features(base: Path, files: Files, tmp_path: Path):
    train, dev = map(str, files["classify"])
    command = ["finetune", "classify", "--model", str(base), "--train", train, "--dev", dev, "--epochs", "1"]
    features = ["--set", "feature_layers=sum-last-four"]
    result = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "run"), *features])
    assert result.exit_code == 0, result.output
    assert "a recurrent head is trained with learning rate 0.001; features 'sum-last-four' of 152" in result.output
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert 'feature_layers = "sum-last-four"' in recipe
    assert "learning_rate = 0.001\n" in recipe
    result = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "grid"), *features, "--sweep"])
    assert "--sweep searches over whole-model fine-tuning" in str(result.exception)
