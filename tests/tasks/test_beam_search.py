"""Beam search: equal to an exhaustive search on a tiny model, greedy with one beam, independent of the batch."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from bertworks.encoders.transformer import Transformer, TransformerConfig
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.tasks.beam_search import BeamSearchDecoder, Hypothesis
from bertworks.tasks.beam_search_settings import BeamSearchSettings

pytestmark = pytest.mark.usefixtures("one_thread")
VOCAB_SIZE, START, END, SUPPRESSED = 7, 0, 1, (0, 2)
ALLOWED = (3, 4, 5, 6)  # tokens that may be generated


def make_decoder(seed: int = 0) -> BeamSearchDecoder:
    """A model with random weights, large enough that token probabilities differ much."""
    config = TransformerConfig.from_preset("tiny", VOCAB_SIZE).resized(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_length=20
    )
    encoder = Transformer(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.1, 0.7, generator=generator)
    return BeamSearchDecoder(
        encoder=encoder, bias=torch.linspace(-0.5, 0.5, VOCAB_SIZE), start=START, end=END, suppress_tokens=SUPPRESSED
    )


def make_sources(*lengths: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(3, VOCAB_SIZE, (len(lengths), max(lengths)), generator=generator)
    for index, length in enumerate(lengths):
        input_ids[index, length:] = 2
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def select_sequence(batch: Batch, index: int) -> Batch:
    length = int(batch.lengths[index])
    return Batch(
        input_ids=batch.input_ids[index : index + 1, :length],
        token_type_ids=batch.token_type_ids[index : index + 1, :length],
        lengths=batch.lengths[index : index + 1],
    )


@torch.no_grad()
def log_probabilities(decoder: BeamSearchDecoder, source: Batch, texts: Sequence[tuple[int, ...]]) -> list[float]:
    """The log probability of texts of one length, with their end tokens, in one forward pass."""
    count = len(texts)
    input_ids = torch.tensor([[START, *text] for text in texts])
    repeated = Batch(
        input_ids=source.input_ids.repeat(count, 1),
        token_type_ids=source.token_type_ids.repeat(count, 1),
        lengths=source.lengths.repeat(count),
    )
    lengths = torch.full((count,), input_ids.shape[1])
    vectors = decoder.encoder(
        Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=lengths, source=repeated)
    ).to_padded()
    scores = vectors @ decoder.encoder.token_embeddings.weight.t() + decoder.bias
    scores[:, :, list(SUPPRESSED)] = float("-inf")
    targets = torch.tensor([[*text, END] for text in texts])
    return torch.log_softmax(scores, -1).gather(2, targets[:, :, None]).sum((1, 2)).tolist()


def exhaustive_search(
    decoder: BeamSearchDecoder, source: Batch, settings: BeamSearchSettings, limit: int
) -> Hypothesis:
    """The best of all texts of fewer than `limit` tokens."""
    hypotheses = []
    for length in range(limit):
        texts = list(itertools.product(ALLOWED, repeat=length))
        for text, value in zip(texts, log_probabilities(decoder, source, texts), strict=True):
            hypotheses.append((value / settings.penalty(length + 1), Hypothesis(text, value, True)))
    return max(hypotheses, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0, -0.5])
def test_with_enough_beams_the_result_equals_an_exhaustive_search(penalty: float):
    for seed in range(2):
        decoder, batch = make_decoder(seed), make_sources(2, 3, seed=seed)
        limits = (4, 5)
        settings = BeamSearchSettings(
            num_beams=(len(ALLOWED) + 1) * len(ALLOWED) ** 4, length_penalty=penalty, max_extra_tokens=2
        )
        for index, hypothesis in enumerate(decoder.generate(batch, settings)):
            expected = exhaustive_search(decoder, select_sequence(batch, index), settings, limits[index])
            assert hypothesis.token_ids == expected.token_ids
            assert hypothesis.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
            assert hypothesis.is_finished


def test_one_beam_is_greedy_decoding():
    decoder, batch = make_decoder(5), make_sources(4)
    (hypothesis,) = decoder.generate(batch, BeamSearchSettings(num_beams=1, max_extra_tokens=8))
    text: tuple[int, ...] = ()
    while len(text) < 12:
        input_ids = torch.tensor([[START, *text]])
        with torch.no_grad():
            prefix = Batch(
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                lengths=torch.tensor([len(text) + 1]),
                source=batch,
            )
            scores = (
                decoder.encoder(prefix).last_hidden_state[-1] @ decoder.encoder.token_embeddings.weight.t()
                + decoder.bias
            )
        scores[list(SUPPRESSED)] = float("-inf")
        if int(scores.argmax()) == END:
            break
        text = (*text, int(scores.argmax()))
    assert hypothesis.token_ids == text
    assert hypothesis.is_finished == (len(text) < 12)


def test_batching_does_not_change_hypotheses():
    decoder, batch = make_decoder(2), make_sources(5, 1, 3, 3)
    settings = BeamSearchSettings(num_beams=3, max_extra_tokens=6)
    together = decoder.generate(batch, settings)
    for index, hypothesis in enumerate(together):
        (alone,) = decoder.generate(select_sequence(batch, index), settings)
        assert alone.token_ids == hypothesis.token_ids
        assert alone.log_probability == pytest.approx(hypothesis.log_probability, abs=1e-4)


def test_fewer_beams_never_score_higher_than_the_optimum():
    decoder, batch = make_decoder(3), make_sources(2)
    wide = BeamSearchSettings(num_beams=320, max_extra_tokens=2)
    (best,) = decoder.generate(batch, wide)
    for num_beams in (1, 2, 4):
        (hypothesis,) = decoder.generate(batch, replace(wide, num_beams=num_beams))
        if hypothesis.is_finished:
            penalty, best_penalty = (wide.penalty(len(text.token_ids) + 1) for text in (hypothesis, best))
            assert hypothesis.log_probability / penalty <= best.log_probability / best_penalty + 1e-5


def test_a_hypothesis_without_end_has_the_maximum_length_and_is_unfinished():
    decoder = make_decoder()
    endless = replace(decoder, bias=torch.where(torch.arange(VOCAB_SIZE) == END, -1e4, decoder.bias))
    for hypothesis, length in zip(
        endless.generate(make_sources(2, 4), BeamSearchSettings(num_beams=2, max_extra_tokens=3)), (5, 7), strict=True
    ):
        assert len(hypothesis.token_ids) == length
        assert not hypothesis.is_finished
    (hypothesis,) = endless.generate(make_sources(4), BeamSearchSettings(num_beams=2, max_extra_tokens=100))
    assert len(hypothesis.token_ids) == 20  # the model's maximum length


def test_suppressed_tokens_are_not_generated():
    decoder = make_decoder(7)
    biased = replace(
        decoder, bias=torch.where(torch.isin(torch.arange(VOCAB_SIZE), torch.tensor(SUPPRESSED)), 50.0, decoder.bias)
    )
    for hypothesis in biased.generate(make_sources(3, 5), BeamSearchSettings(num_beams=3, max_extra_tokens=5)):
        assert set(hypothesis.token_ids) <= set(ALLOWED)


def test_invalid_settings_raise_an_error():
    with pytest.raises(SettingsError, match="num_beams is 0"):
        BeamSearchSettings(num_beams=0)
    with pytest.raises(SettingsError, match="length_penalty nan"):
        BeamSearchSettings(length_penalty=float("nan"))
