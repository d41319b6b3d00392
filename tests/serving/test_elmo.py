"""A served ELMo: a word outside the vocabulary is encoded from its characters, by every endpoint and command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import TASKS

from bertworks.commands.finetune.feature_cache import FeatureCache
from bertworks.datasets.files import Record
from bertworks.encoders.elmo import Elmo, ElmoConfig
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

TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "the", "cat", "saw", "who")
EXTRA_TOKENS = ("zebra", "quartz")
WINDOW_RULE = WindowRule(32, 8)
TEXTS = ("the cat saw a Zebra.", "the cat saw a quartz.")
RECURRENT_HEAD = RecurrentSettings("sum-with-embeddings", 6)


def write_elmo(folder: Path, task: Task, tokens: tuple[str, ...], recurrent: RecurrentSettings | None = None) -> Path:
    """Write a character-level ELMo: it has no word embeddings, so its weights do not depend on the vocabulary."""
    tokenizer = Tokenizer.from_backend(KINDS["words"].build(Inventory(tokens), cased=False))
    config = ElmoConfig.from_preset("tiny", len(tokens)).resized(
        hidden_size=12, intermediate_size=10, filters=((1, 8), (2, 8)), max_length=32
    )
    generator = torch.Generator().manual_seed(0)
    encoder = Elmo(config, generator)
    encoder.set_tokenizer(tokenizer)
    module = TaskModule(encoder, task, generator, recurrent=recurrent)
    save_finetuned(folder, Predictor(module, tokenizer, WINDOW_RULE), {})
    return folder


@pytest.fixture(scope="module")
def elmo_folders(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Path]:
    """For two tasks and a recurrent head: a model that lacks two words, and NAME-larger that has all."""
    folder, folders = tmp_path_factory.mktemp("elmo"), {}
    for name, task, recurrent in (
        ("classify", TASKS["classify"], None),
        ("tag", TASKS["tag"], None),
        ("recurrent", TASKS["classify"], RECURRENT_HEAD),
    ):
        folders[name] = write_elmo(folder / name, task, TOKENS, recurrent)
        folders[f"{name}-larger"] = write_elmo(folder / f"{name}-larger", task, (*TOKENS, *EXTRA_TOKENS), recurrent)
    return folders


@pytest.fixture(scope="module")
def post(make_client: Callable[..., Any], elmo_folders: dict[str, Path]) -> Callable[[str, str], Any]:
    client = make_client(models=tuple(f"{name}={folder}" for name, folder in elmo_folders.items()))

    def send(name: str, endpoint: str) -> Any:
        response = client("POST", f"/v1/models/{name}/{endpoint}", {"inputs": list(TEXTS)})
        assert response.status_code == 200
        return response.json()

    return send


def numbers_in(value: Any) -> list[float]:
    """Return all numbers of a JSON value, in order."""
    if isinstance(value, dict | list):
        elements = value.values() if isinstance(value, dict) else value
        return [number for element in elements for number in numbers_in(element)]
    return [float(value)] if isinstance(value, int | float) else []


def test_the_smaller_vocabulary_lacks_a_word(elmo_folders):
    small, larger = (load(elmo_folders[name]).tokenizer for name in ("classify", "classify-larger"))
    assert dict(small.tokenize(TEXTS[0]).unknown) == {4: "zebra"}
    assert dict(larger.tokenize(TEXTS[0]).unknown) == {}


def test_unknown_words_have_the_vectors_of_known_ones(elmo_folders, post):
    vectors, expected = (load(elmo_folders[name]).encode(TEXTS) for name in ("classify", "classify-larger"))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    np.testing.assert_allclose(post("classify", "embed")["vectors"], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["classify", "tag", "recurrent"])
def test_predictions_do_not_depend_on_whether_words_are_known(name, elmo_folders, post):
    first, second = load(elmo_folders[name]).predict(TEXTS)
    expected_predictions = load(elmo_folders[f"{name}-larger"]).predict(TEXTS)
    for prediction, expected in zip((first, second), expected_predictions, strict=True):
        np.testing.assert_allclose(prediction.logits, expected.logits, atol=1e-6)
    assert np.abs(first.logits - second.logits).max() > 1e-5
    responses = (post(model, "predict")["predictions"] for model in (name, f"{name}-larger"))
    for value, expected in zip(*(map(numbers_in, response) for response in responses), strict=True):
        assert value == pytest.approx(expected, abs=1e-5)


def test_the_feature_cache_distinguishes_sequences_that_differ_only_in_unknown_words(elmo_folders, tmp_path):
    predictor = load(elmo_folders["recurrent"]).predictor
    task = predictor.module.task
    examples = task.read_unlabelled([Record({"text": text}, "test") for text in TEXTS], {})
    features = [task.featurize(example, predictor.tokenizer, WINDOW_RULE) for example in examples]
    sequences = [sequence for example_features in features for sequence in example_features.sequences]
    assert sequences[0].input_ids.tolist() == sequences[1].input_ids.tolist()
    cache = FeatureCache(tmp_path, predictor, sequences)
    list(cache.fill())
    assert cache.num_sequences == 2
    first, second = (cache(batch_of_input_sequences([sequence], 0)) for sequence in sequences)
    assert (first - second).abs().max() > 1e-3
