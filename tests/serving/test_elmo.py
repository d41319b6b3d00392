"""ELMo behind the port and in the verbs: a word outside the vocabulary is read as it is written, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import TASKS

from bertworks.commands.finetune.feature_cache import FeatureCache
from bertworks.datasets.files import Record
from bertworks.encoders.elmo import Elmo, config_from_preset
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.model import load
from bertworks.inference.predictor import Predictor
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_input_sequences
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "the", "cat", "saw", "who")
MORE = ("zebra", "quartz")
RULE = WindowRule(32, 8)
TEXTS = ("the cat saw a Zebra.", "the cat saw a quartz.")
FEATURES = RecurrentSettings("sum-with-embeddings", 6)


def write_elmo(folder: Path, task: Task, pieces: tuple[str, ...], recurrent: RecurrentSettings | None = None) -> Path:
    """Write an ELMo that reads characters: the same weights whatever the vocabulary, for it has no table of words."""
    tokenizer = Tokenizer.from_backend(KINDS["words"].build(Inventory(pieces), cased=False))
    sizes = replace(
        config_from_preset("tiny", len(pieces)),
        hidden_size=12,
        intermediate_size=10,
        filters=((1, 8), (2, 8)),
        max_position_embeddings=32,
    )
    generator = torch.Generator().manual_seed(0)
    encoder = Elmo(sizes, generator)
    encoder.set_tokenizer(tokenizer)
    save_finetuned(folder, Predictor(TaskModule(encoder, task, generator, recurrent=recurrent), tokenizer, RULE), {})
    return folder


@pytest.fixture(scope="module")
def elmos(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Path]:
    """For two tasks, and for one of them on features, a model that knows all words and one that lacks two."""
    folder, found = tmp_path_factory.mktemp("elmo"), {}
    for name, task, how in (
        ("classify", TASKS["classify"], None),
        ("tag", TASKS["tag"], None),
        ("features", TASKS["classify"], FEATURES),
    ):
        found[name] = write_elmo(folder / name, task, PIECES, how)
        found[f"{name}-larger"] = write_elmo(folder / f"{name}-larger", task, (*PIECES, *MORE), how)
    return found


@pytest.fixture(scope="module")
def asked(ask_app: Callable[..., Any], elmos: dict[str, Path]) -> Callable[[str, str], Any]:
    app = ask_app(models=tuple(f"{name}={folder}" for name, folder in elmos.items()))

    def ask(name: str, endpoint: str) -> Any:
        answer = app("POST", f"/v1/models/{name}/{endpoint}", {"inputs": list(TEXTS)})
        assert answer.status_code == 200
        return answer.json()

    return ask


def numbers_in(told: Any) -> list[float]:
    """All numbers of an answer, however deep they lie, in their order."""
    if isinstance(told, dict | list):
        return [number for one in (told.values() if isinstance(told, dict) else told) for number in numbers_in(one)]
    return [float(told)] if isinstance(told, int | float) else []


def test_one_model_knows_the_words_and_the_other_does_not(elmos):
    small, larger = (load(elmos[name]).tokenizer for name in ("classify", "classify-larger"))
    assert dict(small.tokenize(TEXTS[0]).unknown) == {4: "zebra"}
    assert dict(larger.tokenize(TEXTS[0]).unknown) == {}


def test_vectors_of_unknown_words_are_those_of_known_ones(elmos, asked):
    found, expected = (load(elmos[name]).encode(TEXTS) for name in ("classify", "classify-larger"))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_allclose(asked("classify", "embed")["vectors"], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["classify", "tag", "features"])
def test_predictions_are_the_same_with_and_without_the_words(name, elmos, asked):
    first, second = load(elmos[name]).predict(TEXTS)
    wanted = load(elmos[f"{name}-larger"]).predict(TEXTS)
    for found, expected in zip((first, second), wanted, strict=True):
        np.testing.assert_allclose(found.logits, expected.logits, atol=1e-6)
    assert np.abs(first.logits - second.logits).max() > 1e-5
    answers = (asked(which, "predict")["predictions"] for which in (name, f"{name}-larger"))
    for found, expected in zip(*(map(numbers_in, answer) for answer in answers), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_kept_features_tell_rows_apart_that_differ_in_unknown_words_only(elmos, tmp_path):
    predictor = load(elmos["features"]).predictor
    task = predictor.module.task
    cases = task.read_unlabelled([Record({"text": text}, "here") for text in TEXTS], {})
    questions = [task.featurize(case, predictor.tokenizer, RULE) for case in cases]
    rows = [row for question in questions for row in question.sequences]
    assert rows[0].window.input_ids.tolist() == rows[1].window.input_ids.tolist()
    kept = FeatureCache(tmp_path, predictor, rows)
    list(kept.fill())
    assert kept.num_sequences == 2
    first, second = (kept(batch_of_input_sequences([row], 0)) for row in rows)
    assert (first - second).abs().max() > 1e-3
