"""AWD-LSTM: its layers equal torch's LSTMs, dropout masks hold for a whole pass, truncated BPTT ends gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bertworks.encoders.awd_lstm import AwdLstm, AwdLstmConfig, WeightDropLstm
from bertworks.encoders.config import config_from_dict, config_to_dict
from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = AwdLstmConfig(
    vocab_size=40,
    hidden_size=6,
    lstm_size=10,
    max_length=64,
    hidden_dropout_prob=0.0,
    bptt_length=8,
    pooler_size=5,
)


def make_encoder(config: AwdLstmConfig = CONFIG) -> AwdLstm:
    return AwdLstm(config, torch.Generator().manual_seed(0)).double().eval()


def make_batch(*lengths: int, seed: int = 0) -> Batch:
    input_ids = torch.randint(5, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def make_seeds(number: int = 7) -> DropoutSeeds:
    return DropoutSeeds(torch.tensor(number, dtype=torch.int32))


def test_layers_equal_stacked_lstms_of_torch():
    encoder, batch = make_encoder(), make_batch(9, 4)
    with torch.no_grad():
        encoded = encoder(batch)
        values = encoder.token_embeddings(batch.input_ids)
        for index, layer in enumerate(encoder.layers):
            assert isinstance(layer, WeightDropLstm)
            peer = nn.LSTM(values.shape[2], layer.weight_hh.shape[1], batch_first=True).double()
            peer.weight_ih_l0.copy_(layer.weight_ih)
            peer.weight_hh_l0.copy_(layer.weight_hh)
            peer.bias_ih_l0.copy_(layer.bias)
            peer.bias_hh_l0.zero_()
            values = peer(values)[0]
            for sequence, length in enumerate((9, 4)):
                torch.testing.assert_close(encoded.to_padded(index + 1)[sequence, :length], values[sequence, :length])
    assert [states.shape[1] for states in encoded.hidden_states] == [6, 10, 10, 6] == list(CONFIG.hidden_sizes)


def test_preset_base_has_the_sizes_of_the_paper():
    config = AwdLstmConfig.from_preset("base", 30_000)
    assert config.hidden_sizes == (400, 1_150, 1_150, 400)
    with torch.device("meta"):
        count = sum(one.numel() for one in AwdLstm(config).layers.parameters())
    # Four gates of each cell: input weights, recurrent weights and a bias.
    assert count == 4 * (1_150 * (400 + 1_150 + 1) + 1_150 * (1_150 + 1_150 + 1) + 400 * (1_150 + 400 + 1))


def test_the_pooled_output_is_of_the_last_output_the_maximum_and_the_mean():
    encoder, batch = make_encoder(), make_batch(7, 3)
    with torch.no_grad():
        encoded = encoder(batch)
        for sequence, length in enumerate((7, 3)):
            states = encoded.to_padded()[sequence, :length]
            pooled = torch.cat([states[-1], states.max(0).values, states.mean(0)])
            assert encoded.pooled is not None
            torch.testing.assert_close(encoded.pooled[sequence], torch.tanh(encoder.pooler(pooled)))
    assert encoded.pooled.shape[1] == CONFIG.pooled_size == 5


def test_a_dropped_token_is_dropped_at_all_its_positions():
    config = replace(CONFIG, hidden_size=32, max_length=80, hidden_dropout_prob=0.4)  # of tokens an eighth: 0.05
    encoder, input_ids = make_encoder(config).train(), torch.arange(40)
    batch = Batch(
        input_ids=torch.cat([input_ids, input_ids])[None],
        token_type_ids=torch.zeros(1, 80).long(),
        lengths=torch.tensor([80]),
    )
    dropped_tokens = []
    with torch.no_grad():
        for number in range(60):
            first, second = encoder(batch, seeds=make_seeds(number)).to_padded(0)[0].eq(0).all(1).view(2, 40)
            assert torch.equal(first, second)
            dropped_tokens.append(first)
    assert abs(float(torch.stack(dropped_tokens).float().mean()) - 0.05) < 0.015


def test_a_value_is_dropped_at_all_positions_of_a_sequence_and_independently_of_other_sequences():
    encoder, batch = make_encoder(replace(CONFIG, hidden_dropout_prob=0.5)).train(), make_batch(12, 12)
    with torch.no_grad():
        encoded = encoder(batch, seeds=make_seeds())
    masks = encoded.to_padded().eq(0)  # (B, T, D)
    assert torch.equal(masks, masks[:, :1].expand_as(masks))
    assert 0 < int(masks[:, 0].sum()) < masks[:, 0].numel()
    inner_masks = encoded.to_padded(1).eq(0)
    assert torch.equal(inner_masks, inner_masks[:, :1].expand_as(inner_masks))
    assert not torch.equal(inner_masks[0, 0], inner_masks[1, 0])


def test_recurrent_weights_are_dropped_once_for_a_pass():
    layer = WeightDropLstm(4, 3).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    values = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2)).double()
    seed = torch.tensor(3, dtype=torch.int32)
    with torch.no_grad():
        dropped = layer(values, None, [6], seed, 0.5)[0]
        in_parts = layer(values, None, [2, 4], seed, 0.5)[0]
        assert torch.equal(dropped[:, 0], layer(values, None, [6], None, 0.5)[0][:, 0])  # there is no previous step
        whole = layer(values, None, [6], None, 0.5)[0]
    torch.testing.assert_close(dropped, in_parts)  # the same weights are dropped
    assert float((dropped[:, 1:] - whole[:, 1:]).abs().max()) > 1e-3


def test_dropout_follows_the_seeds_and_is_off_in_evaluation():
    encoder, batch = make_encoder(replace(CONFIG, hidden_dropout_prob=0.4)), make_batch(9, 9)
    with torch.no_grad():
        evaluated = encoder(batch, seeds=make_seeds()).last_hidden_state
        encoder.train()
        first, again, other = (encoder(batch, seeds=make_seeds(number)).last_hidden_state for number in (1, 1, 2))
        encoder.set_dropout(0.0)
        without = encoder(batch, seeds=make_seeds()).last_hidden_state
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(without, evaluated)


def positions_with_gradient(encoder: AwdLstm, batch: Batch, number: int) -> list[int]:
    """The positions that the gradient of the last output reaches in a step with that seed."""
    layout = encoder.create_layout(batch)
    values = encoder.embed(batch, layout).detach().requires_grad_()
    encoder.forward_layers(values, layout, make_seeds(number)).last_hidden_state[-1].sum().backward()
    assert values.grad is not None
    return torch.nonzero(values.grad.abs().sum(1)).flatten().tolist()


def test_gradients_reach_back_one_bptt_part_whose_boundary_changes():
    encoder, batch = make_encoder().train(), make_batch(30)
    reached = {tuple(positions_with_gradient(encoder, batch, number)) for number in range(12)}
    for positions in reached:
        assert list(positions) == list(range(30 - len(positions), 30))
        assert 1 <= len(positions) <= 8
    assert len(reached) > 3
    with torch.no_grad():  # the values equal those of the whole sequence
        torch.testing.assert_close(
            encoder(batch, seeds=make_seeds()).last_hidden_state, encoder.eval()(batch).last_hidden_state
        )
    # Every part gets a gradient from the pooled output.
    encoder.train()
    layout = encoder.create_layout(batch)
    values = encoder.embed(batch, layout).detach().requires_grad_()
    pooled = encoder.forward_layers(values, layout, make_seeds()).pooled
    assert pooled is not None
    pooled.sum().backward()
    assert values.grad is not None
    assert float(values.grad.abs().sum(1).min()) > 0


def test_a_carried_state_has_no_gradient():
    encoder = make_encoder().train()
    first = encoder(make_batch(8, 8), EncoderState(), make_seeds())
    assert isinstance(first.state, EncoderState)
    assert first.state.length == 8
    assert [tuple(values.shape) for layer in first.state.layers for values in layer] == [(2, 10)] * 4 + [(2, 6)] * 2
    assert not any(values.requires_grad for layer in first.state.layers for values in layer)


def test_invalid_batches_and_configs_are_refused():
    encoder = make_encoder()
    with pytest.raises(InputError, match="sequences that are continued must be of equal length"):
        encoder(make_batch(5, 4), EncoderState())
    with pytest.raises(InputError, match="longer than the 64 positions"):
        encoder(make_batch(65))
    with pytest.raises(SettingsError, match="no size 'huge' of the family 'awd-lstm'; choose one of: tiny, mini"):
        AwdLstmConfig.from_preset("huge", 10)
    with pytest.raises(SettingsError, match="which must be below 1"):
        replace(CONFIG, hidden_dropout_prob=0.8)
    config_dict = config_to_dict(CONFIG, ["AwdLstmModel"])
    with pytest.raises(SettingsError, match="bptt_length should be a whole number above 0, but is 0"):
        config_from_dict(AwdLstmConfig, {**config_dict, "bptt_length": 0})
    with pytest.raises(SettingsError, match="lstm_size should be a whole number"):
        config_from_dict(AwdLstmConfig, {key: value for key, value in config_dict.items() if key != "lstm_size"})
