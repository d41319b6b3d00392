"""Training on the features of a frozen model: three toy problems are learned, features are computed once, and a killed
run goes on to the same bytes."""

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
from safetensors.torch import load_file
from typer.testing import CliRunner

import bertworks
from bertworks.cli.app import app
from bertworks.commands.finetune import feature_cache as caching
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import finetune
from bertworks.commands.finetune.sweep import seeds_of, sweep
from bertworks.embeddings.strategies import STRATEGIES
from bertworks.encoders.bert import Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import FolderError, SettingsError
from bertworks.inference.attribution import example_from_texts, explain
from bertworks.inference.finetuned import load_predictor
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.sampling.batch import Batch
from bertworks.training.checkpoint import checkpoints_in
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

PLAIN = "the a walked by and saw over road then quiet".split()
COLOURS, ANIMALS, NAMES = "red blue green".split(), "cat dog fox".split(), "ann bob eve".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PLAIN, *COLOURS, *ANIMALS, *NAMES, "which", "colour", "animal"]
TUNING = FinetuneRecipe(
    batch_size=8, learning_rate=2e-2, epochs=4, max_restarts=0, feature_layers="last", recurrent_hidden_size=32
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four layers, drawn at random: its features still tell one piece from another, wherever they stand."""
    folder = tmp_path_factory.mktemp("base") / "model"
    tokenizer = Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))
    sizes = BertConfig(tokenizer.vocab_size, 32, 4, 2, 64, 32, initializer_range=0.05)
    encoder = Bert(sizes, torch.Generator().manual_seed(0))
    write_folder(
        folder,
        config_to_dict(sizes, ["BertModel"]),
        to_hf_names(encoder.state_dict(), tensor_names(sizes)),
        tokenizer,
        {},
    )
    return folder


def words(draw: random.Random, *more: str) -> list[str]:
    found = [*draw.choices(PLAIN, k=draw.randint(2, 8)), *more]
    draw.shuffle(found)
    return found


def texts(draw: random.Random, count: int) -> str:
    """Texts of which each has a colour or an animal, and that is its label."""
    rows = ["text\tlabel"]
    for _ in range(count):
        label, choices = draw.choice([("colour", COLOURS), ("animal", ANIMALS)])
        rows.append(" ".join(words(draw, draw.choice(choices))) + f"\t{label}")
    return "\n".join(rows) + "\n"


def sentences(draw: random.Random, count: int) -> str:
    """Sentences with a name and a colour; a name is a person, and the word behind it belongs to it."""
    lines = []
    for _ in range(count):
        own = [(word, "O") for word in words(draw, draw.choice(COLOURS))]
        at = draw.randint(0, len(own))
        own[at:at] = [(draw.choice(NAMES), "B-PER"), (draw.choice(PLAIN), "I-PER")]
        lines += [*(f"{word} {tag}" for word, tag in own), ""]
    return "\n".join(lines)


def passages(draw: random.Random, count: int) -> str:
    """Passages with a colour and an animal, and the question which of the two is wanted."""
    asked = []
    for number in range(count):
        colour, animal = draw.choice(COLOURS), draw.choice(ANIMALS)
        passage = " ".join(words(draw, colour, animal))
        kind, right = draw.choice([("colour", colour), ("animal", animal)])
        answers = [{"text": right, "answer_start": passage.index(right)}]
        asked.append(
            {"context": passage, "qas": [{"id": str(number), "question": f"which {kind}", "answers": answers}]}
        )
    return json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": asked}]})


TOYS: dict[str, tuple[Callable[[random.Random, int], str], str, int]] = {
    "classify": (texts, "tsv", 128),
    "tag": (sentences, "txt", 192),
    "answer": (passages, "json", 192),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Train and dev of each toy."""
    folder = tmp_path_factory.mktemp("toys")
    found = {}
    for task, (make, end, count) in TOYS.items():
        paths = folder / f"{task}-train.{end}", folder / f"{task}-dev.{end}"
        for seed, (path, own) in enumerate(zip(paths, (count, 24), strict=True)):
            path.write_text(make(random.Random(seed), own), encoding="utf-8")
        found[task] = paths
    return found


Files = dict[str, tuple[Path, Path]]


def request_of(
    base: Path, files: Files, out: Path, task: str = "classify", tuning: FinetuneRecipe = TUNING
) -> FinetuneRequest:
    train, dev = files[task]
    return FinetuneRequest(task, str(base), train, out, dev, recipe=tuning)


def scores_of(out: Path) -> Any:
    return json.loads((out / "run.json").read_text())["scores"]


def kept_in(out: Path) -> Path:
    (folder,) = (out / "features").iterdir()
    return folder


@pytest.fixture(scope="module")
def run(base: Path, files: Files, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[FinetuneEvent]]:
    out = tmp_path_factory.mktemp("run") / "run"
    return out, list(finetune(request_of(base, files, out)))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of an encoder had."""
    found: list[int] = []
    forward = Bert.forward

    def counted(self: Bert, batch: Batch, *more: Any, **named: Any) -> Any:
        found.append(len(batch.input_ids))
        return forward(self, batch, *more, **named)

    monkeypatch.setattr(Bert, "forward", counted)
    return found


def test_texts_are_classified_from_features(run: tuple[Path, list[FinetuneEvent]]):
    assert scores_of(run[0])["dev"]["accuracy"] == 1.0


def test_a_run_says_that_the_model_is_frozen_and_where_its_features_are(run: tuple[Path, list[FinetuneEvent]]):
    out, told = run
    (note,) = [one.note for one in told if one.note.startswith("the model is frozen")]
    assert "a recurrent head learns at a rate of 0.02" in note
    assert f"'last' of 152 rows is kept in {kept_in(out)} (0.2 MB, full precision)" in note
    assert np.load(kept_in(out) / "vectors.npy", mmap_mode="r").dtype == np.float32


def test_sentences_are_tagged_from_features(base: Path, files: Files, tmp_path: Path):
    list(finetune(request_of(base, files, tmp_path / "run", "tag")))
    assert scores_of(tmp_path / "run")["dev"]["f1"] >= 0.95


def test_passages_are_answered_from_features(base: Path, files: Files, tmp_path: Path):
    list(finetune(request_of(base, files, tmp_path / "run", "answer")))
    assert scores_of(tmp_path / "run")["dev"]["f1"] >= 0.95


def test_the_encoder_stays_as_it_was_to_the_byte(base: Path, run: tuple[Path, list[FinetuneEvent]]):
    before, after = load_file(base / "model.safetensors"), load_file(run[0] / "model" / "model.safetensors")
    assert all(torch.equal(after[name], values) for name, values in before.items())
    assert {name for name in after if name not in before} == {
        "bertworks.head.body.score.bias",
        "bertworks.head.body.score.weight",
        *(
            f"bertworks.head.body.first.{way}.{kind}_l0"
            for kind in ("bias_hh", "bias_ih", "weight_hh", "weight_ih")
            for way in ("ahead", "back")
        ),
    }


def test_the_optimizer_knows_only_the_head(run: tuple[Path, list[FinetuneEvent]]):
    (last,) = checkpoints_in(run[0] / "checkpoints")[-1:]
    moments = load_file(last / "optimizer.safetensors")
    assert moments
    assert all(name.split("/")[1].startswith("head.") for name in moments)


def test_every_row_is_computed_once_however_many_epochs_there_are(
    base: Path, files: Files, tmp_path: Path, computed: list[int]
):
    list(finetune(request_of(base, files, tmp_path / "run")))
    assert sum(computed) == 152  # 128 of train, 24 of dev; four epochs, four measurements, calibration, final scores


def test_sentences_that_share_a_row_are_computed_together(base: Path, tmp_path: Path, computed: list[int]):
    """Four sentences of six words make a document that fits into a row of 32: each of them is asked there."""
    lines = []
    for number, name in enumerate(["ann", "bob", "eve", "ann"]):
        lines += [*(f"{word} O" for word in PLAIN[number : number + 5]), f"{name} B-PER", ""]
    path = tmp_path / "train.txt"
    path.write_text("\n".join(["-DOCSTART- O", "", *lines]), encoding="utf-8")
    request = FinetuneRequest("tag", str(base), path, tmp_path / "run", recipe=replace(TUNING, epochs=1))
    list(finetune(request))
    assert computed == [1]
    assert np.load(kept_in(tmp_path / "run") / "vectors.npy").shape == (4 * 6, 1, 32)


def test_a_run_that_is_stopped_and_continued_is_the_same_to_the_bit(
    base: Path, files: Files, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path, computed: list[int]
):
    request = request_of(base, files, tmp_path / "run")
    for stop_after in (5, 20, None):
        list(finetune(replace(request, stop_after=stop_after)))
    for name in ("model/model.safetensors", "model/bertworks.json"):
        assert (run[0] / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert sum(computed) == 152  # also in three goes


def test_features_that_were_begun_are_continued_to_the_same_bytes(
    base: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(caching, "_ROWS", 32)
    list(finetune(request_of(base, files, tmp_path / "whole")))
    compute = caching.FeatureCache._compute
    begun: list[int] = []

    def killed(self: caching.KeptFeatures, numbers: range) -> Any:
        begun.append(numbers.start)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return compute(self, numbers)

    monkeypatch.setattr(caching.FeatureCache, "_computed", killed)
    with pytest.raises(KeyboardInterrupt):
        list(finetune(request_of(base, files, tmp_path / "killed")))
    with (kept_in(tmp_path / "killed") / "vectors.npy").open("ab") as file:
        file.write(b"half a row")  # that was on its way
    list(finetune(request_of(base, files, tmp_path / "killed")))
    assert begun == [0, 32, 64, 64, 96, 128]
    for name in (f"features/{kept_in(tmp_path / 'whole').name}/vectors.npy", "model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def test_other_rows_or_layers_are_kept_apart_and_equal_ones_shared(
    base: Path, files: Files, tmp_path: Path, computed: list[int]
):
    request = replace(request_of(base, files, tmp_path / "runs"), feature_folder=tmp_path / "kept")
    request = replace(request, recipe=replace(TUNING, epochs=1))
    list(sweep(request, seeds_of(request.recipe, 2)))
    assert sum(computed) == 152
    assert len(list((tmp_path / "kept").iterdir())) == 1
    layers = replace(request.recipe, feature_layers="embeddings")
    list(finetune(replace(request, output=tmp_path / "layers", recipe=layers)))
    list(finetune(replace(request, output=tmp_path / "rows", dev=None)))
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_features_that_are_damaged_are_named(
    base: Path, files: Files, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run", tuning=replace(TUNING, epochs=1))
    list(finetune(replace(request, stop_after=1)))
    vectors = kept_in(tmp_path / "run") / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-4])
    with pytest.raises(FolderError, match=f"{vectors.parent} is damaged .* remove it, and it is made anew"):
        list(finetune(request))
    vectors.unlink()
    assert any(one.model_folder for one in finetune(request))


def test_half_precision_takes_half_the_room(
    base: Path, files: Files, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    tuning = replace(TUNING, feature_precision="half")
    list(finetune(request_of(base, files, tmp_path / "run", tuning=tuning)))
    vectors, full = (np.load(kept_in(out) / "vectors.npy") for out in (tmp_path / "run", run[0]))
    assert vectors.dtype == np.float16
    np.testing.assert_array_equal(vectors, full.astype(np.float16))
    assert scores_of(tmp_path / "run")["dev"]["accuracy"] == 1.0


@pytest.mark.parametrize("name", STRATEGIES)
def test_tagging_runs_on_every_strategy_and_its_folder_says_the_same(
    base: Path, files: Files, tmp_path: Path, name: str
):
    tuning = replace(TUNING, feature_layers=name, epochs=3)
    list(finetune(request_of(base, files, tmp_path / "run", "tag", tuning)))
    assert scores_of(tmp_path / "run")["dev"]["f1"] >= 0.9
    told = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert told["features"] == {"strategy": name, "width": 32, "freezes": True}
    predictor = load_predictor(tmp_path / "run" / "model", "tag")
    cases = list(predictor.module.task.read(files["tag"][1], {}))
    assert (
        predictor.module.task.score(predictor.predict(cases)).metrics["f1"] == scores_of(tmp_path / "run")["dev"]["f1"]
    )


def test_a_folder_loads_in_python_and_its_encoder_in_transformers(run: tuple[Path, list[FinetuneEvent]]):
    folder = run[0] / "model"
    model = bertworks.load(folder)
    assert [one.label for one in model.predict(["the red road", "a dog walked by"])] == ["colour", "animal"]
    theirs, told = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert all(name.startswith("bertworks.head.") for name in told["unexpected_keys"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = theirs.eval()(**tokenizer("the red road", return_tensors="pt")).last_hidden_state[0]  # (T, D)
    mean = model.encode(["the red road"], "mean")[0]
    np.testing.assert_allclose(mean, states.mean(0).numpy(), atol=1e-5)


def test_a_prediction_from_features_can_be_explained(run: tuple[Path, list[FinetuneEvent]]):
    predictor = load_predictor(run[0] / "model")
    found = explain(predictor, example_from_texts("classify", ["the fox walked over and then saw a road"]))
    weights = dict(zip(found.texts[0].tokens, found.texts[0].weights, strict=True))
    assert found.target == "'animal'"
    assert max(weights, key=lambda piece: weights[piece]) == "fox"


def test_the_usual_rate_depends_on_what_learns():
    assert (FinetuneRecipe().learning_rate, FinetuneRecipe(feature_layers="last").learning_rate) == (3e-5, 1e-3)
    assert FinetuneRecipe(feature_layers="last", learning_rate=2e-4).learning_rate == 2e-4
    assert replace(FinetuneRecipe(feature_layers="last"), seed=1).learning_rate == 1e-3


def test_settings_that_cannot_be_are_refused(base: Path, files: Files, tmp_path: Path):
    with pytest.raises(SettingsError, match="no choice of layers 'first'; choose one of: embeddings"):
        FinetuneRecipe(feature_layers="first")
    with pytest.raises(SettingsError, match="learns no masked words"):
        FinetuneRecipe(feature_layers="last", mlm_weight=0.1)
    with pytest.raises(SettingsError, match="recurrent_width is -1"):
        FinetuneRecipe(recurrent_hidden_size=-1)
    with pytest.raises(SettingsError, match="cannot be kept in 'double'; choose one of: full, half"):
        FinetuneRecipe(feature_precision="double")


def test_the_command_line_has_features_and_says_its_rate(base: Path, files: Files, tmp_path: Path):
    train, dev = map(str, files["classify"])
    told = ["finetune", "classify", "--model", str(base), "--train", train, "--dev", dev, "--epochs", "1"]
    done = CliRunner().invoke(app, [*told, "--out", str(tmp_path / "run"), "--features", "sum-last-four"])
    assert done.exit_code == 0, done.output
    assert "a recurrent head learns at a rate of 0.001; 'sum-last-four' of 152 rows is kept in" in done.output
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert 'features = "sum-last-four"' in recipe
    assert "rate = 0.001\n" in recipe
    done = CliRunner().invoke(app, [*told, "--out", str(tmp_path / "grid"), "--features", "last", "--sweep"])
    assert done.exit_code == 2
    assert "for whole models" in done.output
