"""Beam search: the same as trying every text on a tiny model, greedy, in any company, and where it stops."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from bertworks.encoders.transformer import Transformer, config_from_preset
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.tasks.beam_search import BeamSearchDecoder, BeamSearchSettings, Hypothesis

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY, START, END, NEVER = 7, 0, 1, (0, 2)
LETTERS = (3, 4, 5, 6)  # what a text may be written with


def writer(seed: int = 0) -> BeamSearchDecoder:
    """A model of random weights, so wide that pieces differ much in probability."""
    sizes = replace(
        config_from_preset("tiny", VOCABULARY),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=20,
    )
    encoder = Transformer(sizes).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.1, 0.7, generator=generator)
    return BeamSearchDecoder(encoder, torch.linspace(-0.5, 0.5, VOCABULARY), START, END, NEVER)


def sources(*lengths: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = 2
    return Batch(ids, torch.zeros_like(ids), torch.tensor(lengths))


def row_of(batch: Batch, row: int) -> Batch:
    length = int(batch.lengths[row])
    return Batch(
        batch.input_ids[row : row + 1, :length],
        batch.token_type_ids[row : row + 1, :length],
        batch.lengths[row : row + 1],
    )


@torch.no_grad()
def log_probabilities(one: BeamSearchDecoder, source: Batch, texts: Sequence[tuple[int, ...]]) -> list[float]:
    """The log probability of each of some texts of one length, with their ends, all of it read at once."""
    count = len(texts)
    ids = torch.tensor([[START, *text] for text in texts])
    again = Batch(
        source.input_ids.repeat(count, 1), source.token_type_ids.repeat(count, 1), source.lengths.repeat(count)
    )
    lengths = torch.full((count,), ids.shape[1])
    vectors = one.encoder(Batch(ids, torch.zeros_like(ids), lengths, source=again)).to_padded()
    scores = vectors @ one.encoder.token_embeddings.weight.t() + one.bias
    scores[:, :, list(NEVER)] = float("-inf")
    wanted = torch.tensor([[*text, END] for text in texts])
    return torch.log_softmax(scores, -1).gather(2, wanted[:, :, None]).sum((1, 2)).tolist()


def best_of_all(one: BeamSearchDecoder, source: Batch, searching: BeamSearchSettings, limit: int) -> Hypothesis:
    """The best of all texts that come to their end within so many pieces, every one of them tried."""
    found = []
    for length in range(limit):
        texts = list(itertools.product(LETTERS, repeat=length))
        for text, value in zip(texts, log_probabilities(one, source, texts), strict=True):
            found.append((value / searching.penalty(length + 1), Hypothesis(text, value, True)))
    return max(found, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0, -0.5])
def test_with_beams_enough_the_search_finds_what_trying_every_text_finds(penalty: float):
    for seed in range(2):
        one, batch = writer(seed), sources(2, 3, seed=seed)
        limits = (4, 5)
        searching = BeamSearchSettings(
            num_beams=(len(LETTERS) + 1) * len(LETTERS) ** 4, length_penalty=penalty, max_extra_tokens=2
        )
        for row, found in enumerate(one.generate(batch, searching)):
            expected = best_of_all(one, row_of(batch, row), searching, limits[row])
            assert found.pieces == expected.token_ids
            assert found.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
            assert found.is_whole


def test_one_beam_takes_the_likeliest_piece_each_time():
    one, batch = writer(5), sources(4)
    (found,) = one.generate(batch, BeamSearchSettings(num_beams=1, max_extra_tokens=8))
    text: tuple[int, ...] = ()
    while len(text) < 12:
        ids = torch.tensor([[START, *text]])
        with torch.no_grad():
            read = Batch(ids, torch.zeros_like(ids), torch.tensor([len(text) + 1]), source=batch)
            scores = one.encoder(read).last_hidden_state[-1] @ one.encoder.token_embeddings.weight.t() + one.bias
        scores[list(NEVER)] = float("-inf")
        if int(scores.argmax()) == END:
            break
        text = (*text, int(scores.argmax()))
    assert found.pieces == text
    assert found.is_whole == (len(text) < 12)


def test_texts_are_the_same_alone_and_in_company():
    one, batch = writer(2), sources(5, 1, 3, 3)
    searching = BeamSearchSettings(num_beams=3, max_extra_tokens=6)
    together = one.generate(batch, searching)
    for row, found in enumerate(together):
        (alone,) = one.generate(row_of(batch, row), searching)
        assert alone.pieces == found.pieces
        assert alone.log_probability == pytest.approx(found.log_probability, abs=1e-4)


def test_more_beams_never_find_a_worse_text_than_the_best_of_all():
    one, batch = writer(3), sources(2)
    wide = BeamSearchSettings(num_beams=320, max_extra_tokens=2)
    (best,) = one.generate(batch, wide)
    for beams in (1, 2, 4):
        (found,) = one.generate(batch, replace(wide, num_beams=beams))
        if found.is_whole:
            own, other = (wide.penalty(len(text.pieces) + 1) for text in (found, best))
            assert found.log_probability / own <= best.log_probability / other + 1e-5


def test_a_text_that_does_not_end_is_as_long_as_allowed_and_says_so():
    one = writer()
    never_ends = replace(one, bias=torch.where(torch.arange(VOCABULARY) == END, -1e4, one.bias))
    for found, length in zip(
        never_ends.generate(sources(2, 4), BeamSearchSettings(num_beams=2, max_extra_tokens=3)), (5, 7), strict=True
    ):
        assert len(found.pieces) == length
        assert not found.is_whole
    (found,) = never_ends.generate(sources(4), BeamSearchSettings(num_beams=2, max_extra_tokens=100))
    assert len(found.pieces) == 20  # the model has no more positions


def test_pieces_that_may_not_stand_in_a_text_do_not():
    one = writer(7)
    likes_them = replace(
        one, bias=torch.where(torch.isin(torch.arange(VOCABULARY), torch.tensor(NEVER)), 50.0, one.bias)
    )
    for found in likes_them.generate(sources(3, 5), BeamSearchSettings(num_beams=3, max_extra_tokens=5)):
        assert set(found.pieces) <= set(LETTERS)


def test_a_search_that_cannot_work_is_refused():
    with pytest.raises(SettingsError, match="0 beams"):
        BeamSearchSettings(num_beams=0)
    with pytest.raises(SettingsError, match="length penalty of nan"):
        BeamSearchSettings(length_penalty=float("nan"))
