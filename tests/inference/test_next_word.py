"""Next and previous words by a bidirectional language model that has memorized two sequences."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertworks.cli import main
from bertworks.commands.pretrain.build import write_model
from bertworks.encoders.elmo import SOFTMAX_KINDS, Elmo, ElmoConfig
from bertworks.errors import InputError
from bertworks.inference.model import load
from bertworks.objectives.bilm import BiLmModule
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river", "stone", "cloud", "garden", "the")
TOKENIZER = Tokenizer.from_backend(KINDS["words"].build(Inventory(TOKENS), cased=False))
SEQUENCES = ("the river stone", "the cloud garden")


@pytest.fixture(scope="module", params=SOFTMAX_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A model that has memorized two sequences."""
    config = ElmoConfig.from_preset("tiny", len(TOKENS)).resized(
        hidden_size=24, intermediate_size=20, max_length=12, filters=((1, 8), (2, 8))
    )
    generator = torch.Generator().manual_seed(0)
    encoder = Elmo(replace(config, softmax_kind=request.param, hidden_dropout_prob=0.0), generator)
    encoder.set_tokenizer(TOKENIZER)
    module = BiLmModule(encoder, generator)
    input_ids = torch.tensor([TOKENIZER.encode(sequence).input_ids for sequence in SEQUENCES])
    positions = torch.arange(2)[:, None] * 5 + torch.arange(4)
    batch = Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.tensor([5, 5]),
        positions=positions.flatten(),
        targets=input_ids[:, 1:].flatten(),
    )
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(120):
        optimizer.zero_grad()
        module(batch, {"bilm": 1 / 16}).value.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("neighbors") / "model"
    write_model(folder, module, TOKENIZER, {"objective": "bilm"})
    return folder


def test_memorized_next_and_previous_words_are_predicted(folder: Path):
    model = load(folder)
    assert not model.report.unexpected_keys
    for text, backward, word in (
        ("the river", False, "stone"),
        ("the cloud", False, "garden"),
        ("stone", True, "river"),
        ("cloud garden", True, "the"),
    ):
        first, second = model.next_words(text, 2, backward)
        assert first.word == word
        assert first.tokens == (word,)
        assert 0.9 < first.probability <= 1.0
        assert first.probability > second.probability


def test_probabilities_sum_to_one_over_all_words_without_special_tokens(folder: Path):
    words = load(folder).next_words("the", 100)
    assert {word.word for word in words} == {"river", "stone", "cloud", "garden", "the"}
    assert sum(word.probability for word in words) == pytest.approx(1.0, abs=1e-5)


def test_an_unknown_word_is_read_by_its_characters(folder: Path):
    model = load(folder)
    rivers, clouds = (
        {word.word: word.probability for word in model.next_words(text, 5)} for text in ("the rivers", "the clouds")
    )
    assert rivers["stone"] > clouds["stone"]
    assert clouds["garden"] > rivers["garden"]


def test_invalid_requests_are_refused(folder: Path):
    model = load(folder)
    with pytest.raises(InputError, match="top_k is 0; it must be at least 1"):
        model.next_words("the", 0)
    with pytest.raises(InputError, match="has 12 words, but the model reads at most 11; shorten it"):
        model.next_words("the " * 12)


def test_the_command_predicts_in_both_directions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for arguments, word in ((["the river"], "stone"), (["garden", "--backward"], "cloud")):
        monkeypatch.setattr(sys, "argv", ["bertworks", "next", str(folder), *arguments, "--top-k", "1", "--json"])
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert not exit_info.value.code
        assert [candidate["word"] for candidate in json.loads(capsys.readouterr().out)] == [word]
