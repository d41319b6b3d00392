"""Going on from what was read: a row in parts is the row at once, in every encoder that can read to the left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.families import ENCODERS
from bertworks.encoders.stack import Encoder
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ("bert", "roberta", "albert", "openai-gpt", "awd-lstm")
WIDTH = 12


def encoder_of(family: str) -> Encoder:
    sizes = replace(
        ENCODERS[family].config_from_preset("tiny", 40),
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=96,
        max_position_embeddings=WIDTH,
    )
    encoder = ENCODERS[family].build(sizes, None).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.05, 0.3, generator=generator)
    encoder.attention = "causal"
    return encoder


def rows(ids: torch.Tensor) -> Batch:
    return Batch(ids, torch.zeros_like(ids), torch.full((len(ids),), ids.shape[1]))


@pytest.mark.parametrize("family", FAMILIES)
@given(cuts=st.sets(st.integers(1, WIDTH - 1)), seed=st.integers(0, 2**16))
def test_a_row_read_in_parts_is_the_row_read_at_once(family: str, cuts: set[int], seed: int):
    encoder = encoder_of(family)
    ids = torch.randint(5, 40, (2, WIDTH), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        whole = encoder(rows(ids))
        state, parts = EncoderState(), []
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), WIDTH], strict=True):
            found = encoder(rows(ids[:, start:stop]), state)
            assert isinstance(found.state, EncoderState)
            state = found.state
            assert state.length == stop
            parts.append(found)
        for layer in range(len(whole.hidden_states)):
            joined = torch.cat([part.to_padded(layer) for part in parts], 1)
            assert float((joined - whole.to_padded(layer)).abs().max()) < 1e-10
    if family == "openai-gpt":  # whose summary is that of the last piece
        assert parts[-1].pooled is not None
        assert whole.pooled is not None
        assert float((parts[-1].pooled - whole.pooled).abs().max()) < 1e-10


def test_what_cannot_go_on_is_refused():
    encoder = encoder_of("bert")
    ids = torch.ones(1, WIDTH + 1).long()
    with pytest.raises(InputError, match="end within the 12 positions"):
        encoder(rows(ids), EncoderState())
    with pytest.raises(InputError, match="of equal length"):
        encoder(replace(rows(ids[:, :4]), lengths=torch.tensor([3])), EncoderState())
    encoder.attention = "bidirectional"
    with pytest.raises(SettingsError, match="only a model that reads to the left"):
        encoder(rows(ids[:, :4]), EncoderState())
