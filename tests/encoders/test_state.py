"""The encoder state: a sequence read in parts equals the one read at once, in encoders with causal attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.families import ENCODERS
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ("bert", "roberta", "albert", "ernie", "distilbert", "electra", "openai-gpt", "awd-lstm")
LENGTH = 12


def make_encoder(family: str) -> Encoder:
    heads = {} if family == "awd-lstm" else {"num_attention_heads": 3}
    config = ENCODERS[family].config_from_preset("tiny", 40)
    config = config.resized(hidden_size=24, num_hidden_layers=3, intermediate_size=96, max_length=LENGTH, **heads)
    encoder = ENCODERS[family].build(config, None).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.05, 0.3, generator=generator)
    encoder.attention = "causal"
    return encoder


def make_batch(input_ids: torch.Tensor) -> Batch:
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.full((len(input_ids),), input_ids.shape[1]),
    )


@pytest.mark.parametrize("family", FAMILIES)
@given(splits=st.sets(st.integers(1, LENGTH - 1)), seed=st.integers(0, 2**16))
def test_a_sequence_read_in_parts_equals_the_sequence_read_at_once(family: str, splits: set[int], seed: int):
    encoder = make_encoder(family)
    input_ids = torch.randint(5, 40, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        whole = encoder(make_batch(input_ids))
        state, parts = EncoderState(), []
        for start, stop in zip([0, *sorted(splits)], [*sorted(splits), LENGTH], strict=True):
            encoded = encoder(make_batch(input_ids[:, start:stop]), state)
            assert isinstance(encoded.state, EncoderState)
            state = encoded.state
            assert state.length == stop
            parts.append(encoded)
        for layer in range(len(whole.hidden_states)):
            concatenated = torch.cat([part.to_padded(layer) for part in parts], 1)
            assert float((concatenated - whole.to_padded(layer)).abs().max()) < 1e-10
    if family == "openai-gpt":  # its pooled output is that of the last token
        assert parts[-1].pooled is not None
        assert whole.pooled is not None
        assert float((parts[-1].pooled - whole.pooled).abs().max()) < 1e-10


def test_batches_that_cannot_continue_a_state_are_refused():
    encoder = make_encoder("bert")
    input_ids = torch.ones(1, LENGTH + 1).long()
    with pytest.raises(InputError, match="end within the 12 positions"):
        encoder(make_batch(input_ids), EncoderState())
    with pytest.raises(InputError, match="of equal length"):
        encoder(replace(make_batch(input_ids[:, :4]), lengths=torch.tensor([3])), EncoderState())
    encoder.attention = "bidirectional"
    with pytest.raises(SettingsError, match="only a model with causal attention"):
        encoder(make_batch(input_ids[:, :4]), EncoderState())
