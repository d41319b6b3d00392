"""The words beside a text: a two-way model that knows rows by heart tells them, in both directions."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertworks.cli import main
from bertworks.commands.pretrain.build import write_model
from bertworks.encoders.elmo import SOFTMAX_KINDS, Elmo, config_from_preset
from bertworks.errors import InputError
from bertworks.inference.model import load
from bertworks.objectives.bilm import BiLmObjective
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river", "stone", "cloud", "garden", "the")
TOKENIZER = Tokenizer.from_backend(KINDS["words"].build(Inventory(PIECES), cased=False))
ROWS = ("the river stone", "the cloud garden")


@pytest.fixture(scope="module", params=SOFTMAX_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A model that knows two rows by heart."""
    sizes = replace(
        config_from_preset("tiny", len(PIECES)),
        hidden_size=24,
        intermediate_size=20,
        max_position_embeddings=12,
        filters=((1, 8), (2, 8)),
    )
    generator = torch.Generator().manual_seed(0)
    encoder = Elmo(replace(sizes, softmax_kind=request.param, hidden_dropout_prob=0.0), generator)
    encoder.set_tokenizer(TOKENIZER)
    module = BiLmObjective(encoder, generator)
    ids = torch.tensor([TOKENIZER.encode(row).input_ids for row in ROWS])
    places = torch.arange(2)[:, None] * 5 + torch.arange(4)
    batch = Batch(
        ids, torch.zeros_like(ids), torch.tensor([5, 5]), positions=places.flatten(), targets=ids[:, 1:].flatten()
    )
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(120):
        optimizer.zero_grad()
        module(batch, {"two-way": 1 / 16}).value.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("neighbours") / "model"
    write_model(folder, module, TOKENIZER, {"objective": "two-way"})
    return folder


def test_it_tells_what_follows_and_what_went_before(folder: Path):
    model = load(folder)
    assert not model.report.unexpected_keys
    for text, backward, word in (
        ("the river", False, "stone"),
        ("the cloud", False, "garden"),
        ("stone", True, "river"),
        ("cloud garden", True, "the"),
    ):
        found = model.next_words(text, 2, backward)
        assert found[0].word == word
        assert found[0].tokens == (word,)
        assert 0.9 < found[0].probability <= 1.0
        assert found[0].probability > found[1].probability


def test_probabilities_are_those_of_all_words_but_the_special_pieces(folder: Path):
    found = load(folder).next_words("the", 100)
    assert {one.word for one in found} == {"river", "stone", "cloud", "garden", "the"}
    assert sum(one.probability for one in found) == pytest.approx(1.0, abs=1e-5)


def test_an_unknown_word_is_read_as_it_is_written(folder: Path):
    model = load(folder)
    likely = [{one.word: one.probability for one in model.next_words(text, 5)} for text in ("the rivers", "the clouds")]
    assert likely[0]["stone"] > likely[1]["stone"]
    assert likely[1]["garden"] > likely[0]["garden"]


def test_what_cannot_be_asked_is_refused(folder: Path):
    model = load(folder)
    with pytest.raises(InputError, match="ask for at least one word"):
        model.next_words("the", 0)
    with pytest.raises(InputError, match="has 12 words and the model reads 11; shorten it"):
        model.next_words("the " * 12)


def test_the_verb_tells_both_ways(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for more, word in ((["the river"], "stone"), (["garden", "--backward"], "cloud")):
        monkeypatch.setattr(sys, "argv", ["bertworks", "next", str(folder), *more, "--top", "1", "--json"])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        assert [one["word"] for one in json.loads(capsys.readouterr().out)] == [word]
