"""The public Python functions: recipe keys as arguments, family defaults, interruption, and user errors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from small_models import write_pretrained
from small_run import prepare_corpus

import bertworks
from bertworks.commands.pretrain.request import TrainEvent
from bertworks.corpus.corpus import Corpus
from bertworks.errors import InputError, SettingsError

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "model.max_position_embeddings": 32,
    "warmup_steps": 1,
    "num_eval_examples": 8,
    "phases": [{"max_length": 16, "steps": 3}],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "run"
    with pytest.warns(UserWarning, match="the model has learned nothing") as warnings:
        bertworks.pretrain("tiny", data=str(corpus), output=str(output), batch_size=8, settings=SMALL)
    assert warnings[0].filename == __file__  # where the user called
    return output


def test_pretrain_applies_dotted_recipe_keys(run: Path):
    recipe = (run / "recipe.toml").read_text()
    assert "hidden_size = 16" in recipe
    assert "batch_size = 8" in recipe
    assert bertworks.load(run / "model").encoder.config.hidden_size == 16


def test_adapt_starts_from_a_model_and_reports_its_events(run: Path, corpus: Path, tmp_path: Path):
    events: list[TrainEvent] = []
    model = bertworks.adapt(
        run / "model", data=corpus, output=tmp_path / "adapted", batch_size=8,
        settings={key: value for key, value in SMALL.items() if not key.startswith("model.")}, on_event=events.append,
    )  # fmt: skip
    assert model.encoder.config.hidden_size == 16
    assert sum(event.step is not None for event in events) == 3


def test_a_vocabulary_and_a_corpus_of_texts_in_memory(tmp_path: Path):
    texts = [f"the river number {number} runs to the sea. it is long." for number in range(40)]
    tokenizer = bertworks.train_vocabulary(output=tmp_path / "vocab", texts=texts, vocab_size=200, workers=1)
    assert "river" in tokenizer.tokens
    folder = bertworks.prepare(
        vocabulary=tmp_path / "vocab", output=tmp_path / "corpus", texts={"text": texts}, held_out_ratio=0.0, workers=1
    )
    assert Corpus.open(folder).manifest["documents"] == 40
    with pytest.raises(InputError, match="there is no text; give files or folders, or texts"):
        bertworks.train_vocabulary(output=tmp_path / "other")


def test_an_unknown_setting_is_answered_with_the_nearest_key(corpus: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match=r"did you mean 'optimizer\.beta2'"):
        bertworks.pretrain("tiny", data=corpus, output=tmp_path / "run", settings={"optimizer.beta_2": 0.9})
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_raises_keyboard_interrupt(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events = [TrainEvent(note="interrupted: saved; the same command resumes", is_interrupted=True)]
    monkeypatch.setattr("bertworks.commands.pretrain.run.run_pretrain", lambda request: iter(events))
    with pytest.raises(KeyboardInterrupt):
        bertworks.pretrain("tiny", data=corpus, output=tmp_path / "run", settings=SMALL)


def test_encode_returns_a_vector_per_text(run: Path):
    assert bertworks.encode(run / "model", ["the river", "a stone"]).shape == (2, 16)


def test_compare_needs_a_corpus(tmp_path: Path):
    with pytest.raises(SettingsError, match="name the corpus folder with --data"):
        bertworks.compare("family", output=tmp_path / "out")


TEXTS = ["the film was good", "the film was bad", "a charming cat", "a dull dog"]
FINETUNE: dict[str, Any] = {"epochs": 2, "batch_size": 2, "settings": {"baselines": False, "max_restarts": 0}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretrained(tmp_path_factory.mktemp("base") / "model")


def weights_of(model: bertworks.Model) -> bytes:
    return (model.folder / "model.safetensors").read_bytes()


def test_data_in_memory_trains_the_same_bits_as_a_file(base: Path, tmp_path: Path):
    labels = [1, 0, 1, 0]
    file = tmp_path / "train.tsv"
    file.write_text(
        "\n".join(["text\tlabel", *(f"{text}\t{label}" for text, label in zip(TEXTS, labels, strict=True))])
    )
    from_file = bertworks.finetune("classify", model=base, train=file, output=tmp_path / "file", **FINETUNE)
    in_memory = bertworks.finetune(
        "classify", model=bertworks.load(base), train=(TEXTS, labels), output=tmp_path / "memory", **FINETUNE
    )
    assert weights_of(in_memory) == weights_of(from_file)
    assert bertworks.evaluate(in_memory, (TEXTS, labels)) == bertworks.evaluate(from_file.folder, file)


def test_a_run_without_output_is_in_a_temporary_folder_and_says_so(base: Path):
    with pytest.warns(UserWarning, match="no output was given: the run is in .* until Python exits") as warnings:
        model = bertworks.finetune("regress", model=base, train=(TEXTS, [0.1, 0.9, 0.2, 0.8]), **FINETUNE)
    assert str(model.folder.parent) in str(warnings[0].message)
    assert warnings[0].filename == __file__  # where the user called
    again = bertworks.finetune(
        "regress", model=model, train=(TEXTS, [0.1, 0.9, 0.2, 0.8]), output=model.folder.parent / "again", **FINETUNE
    )
    assert again.metadata["base_sha256"] == hashlib.sha256(weights_of(model)).hexdigest()


def test_an_error_in_data_in_memory_names_the_row_and_leaves_nothing(base: Path, tmp_path: Path):
    with pytest.raises(InputError, match="train, row 2: 'label' is 'x', a text, but a number"):
        bertworks.finetune("classify", model=base, train=(TEXTS, [1, 0, "x", 0]), output=tmp_path / "run")
    with pytest.raises(InputError, match="dev, row 0: the label 'other' does not occur in the training texts"):
        bertworks.finetune(
            "classify", model=base, train=(TEXTS, list("abab")), dev=(["a"], ["other"]), output=tmp_path / "run"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": None}, "train is None; give labelled data"),
        ({"train": (TEXTS, [1, 0, 1, 0]), "columns": ["text", "label"]}, "columns is .*; give a dict"),
        ({"train": (TEXTS, [1, 0, 1, 0]), "model": 3}, "the model is 3; give a name"),
        ({"train": (["\ud800", *TEXTS[1:]], [1, 0, 1, 0])}, "train, row 0, text: .* has half of a surrogate pair"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(base: Path, tmp_path: Path, arguments: Any, message: str):
    with pytest.raises(InputError, match=message):
        bertworks.finetune("classify", **{"model": base, "output": tmp_path / "run", **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("models", "message"), [([], "there is no model to serve"), ([3], "the model is 3")])
def test_serve_names_what_is_no_model(models: Any, message: str):
    with pytest.raises(InputError, match=message):
        bertworks.serve(models)
