"""AWD-LSTM: its layers are torch's LSTMs, what is dropped is dropped for a whole pass, slopes end with a stretch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bertworks.encoders.awd_lstm import (
    AwdLstm,
    AwdLstmConfig,
    WeightDropLstm,
    config_from_dict,
    config_from_preset,
    config_to_dict,
)
from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = replace(
    config_from_preset("tiny", 40),
    hidden_size=6,
    intermediate_size=10,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    bptt_length=8,
    pooler_size=5,
)


def built(sizes: AwdLstmConfig = SIZES) -> AwdLstm:
    return AwdLstm(sizes, torch.Generator().manual_seed(0)).double().eval()


def rows(*lengths: int, seed: int = 0) -> Batch:
    ids = torch.randint(5, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, torch.zeros_like(ids), torch.tensor(lengths))


def seeds(number: int = 7) -> DropoutSeeds:
    return DropoutSeeds(torch.tensor(number, dtype=torch.int32))


def test_layers_are_those_of_torch_one_on_another():
    encoder, batch = built(), rows(9, 4)
    with torch.no_grad():
        found = encoder(batch)
        values = encoder.token_embeddings(batch.input_ids)
        for number, layer in enumerate(encoder.layers):
            assert isinstance(layer, WeightDropLstm)
            peer = nn.LSTM(values.shape[2], layer.weight_hh.shape[1], batch_first=True).double()
            peer.weight_ih_l0.copy_(layer.weight_ih)
            peer.weight_hh_l0.copy_(layer.weight_hh)
            peer.bias_ih_l0.copy_(layer.bias)
            peer.bias_hh_l0.zero_()
            values = peer(values)[0]
            for row, length in enumerate((9, 4)):
                torch.testing.assert_close(found.to_padded(number + 1)[row, :length], values[row, :length])
    assert [layer.shape[1] for layer in found.layers] == [6, 10, 10, 6] == list(SIZES.hidden_sizes)


def test_the_paper_is_three_layers_400_wide_with_1150_cells():
    sizes = config_from_preset("base", 30_000)
    assert sizes.hidden_sizes == (400, 1_150, 1_150, 400)
    with torch.device("meta"):
        count = sum(one.numel() for one in AwdLstm(sizes).layers.parameters())
    # Four gates of each cell: from what enters, from the step before, and a bias.
    assert count == 4 * (1_150 * (400 + 1_150 + 1) + 1_150 * (1_150 + 1_150 + 1) + 400 * (1_150 + 400 + 1))


def test_the_last_output_the_largest_and_the_mean_sum_a_row_up():
    encoder, batch = built(), rows(7, 3)
    with torch.no_grad():
        found = encoder(batch)
        for row, length in enumerate((7, 3)):
            own = found.to_padded()[row, :length]
            views = torch.cat([own[-1], own.max(0).values, own.mean(0)])
            assert found.pooled is not None
            torch.testing.assert_close(found.pooled[row], torch.tanh(encoder.pooler(views)))
    assert found.pooled.shape[1] == SIZES.pooled_size == 5


def test_a_piece_that_is_dropped_is_dropped_wherever_it_stands():
    sizes = replace(
        SIZES, hidden_size=32, max_position_embeddings=80, hidden_dropout_prob=0.4
    )  # of the pieces an eighth of that: 0.05
    encoder, ids = built(sizes).train(), torch.arange(40)
    batch = Batch(torch.cat([ids, ids])[None], torch.zeros(1, 80).long(), torch.tensor([80]))
    gone = []
    with torch.no_grad():
        for number in range(60):
            first, second = encoder(batch, seeds=seeds(number)).to_padded(0)[0].eq(0).all(1).view(2, 40)
            assert torch.equal(first, second)
            gone.append(first)
    assert abs(float(torch.stack(gone).float().mean()) - 0.05) < 0.015


def test_a_value_is_dropped_at_all_places_of_a_row_and_in_each_row_apart():
    encoder, batch = built(replace(SIZES, hidden_dropout_prob=0.5)).train(), rows(12, 12)
    with torch.no_grad():
        found = encoder(batch, seeds=seeds())
    masks = found.to_padded().eq(0)  # (B, T, D)
    assert torch.equal(masks, masks[:, :1].expand_as(masks))
    assert 0 < int(masks[:, 0].sum()) < masks[:, 0].numel()
    inner = found.to_padded(1).eq(0)
    assert torch.equal(inner, inner[:, :1].expand_as(inner))
    assert not torch.equal(inner[0, 0], inner[1, 0])


def test_weights_between_steps_are_dropped_once_for_a_pass():
    layer = WeightDropLstm(4, 3).double()
    with torch.no_grad():
        for one in layer.parameters():
            one.normal_(generator=torch.Generator().manual_seed(1))
    values = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2)).double()
    seed = torch.tensor(3, dtype=torch.int32)
    with torch.no_grad():
        dropped = layer(values, None, [6], seed, 0.5)[0]
        in_parts = layer(values, None, [2, 4], seed, 0.5)[0]
        assert torch.equal(dropped[:, 0], layer(values, None, [6], None, 0.5)[0][:, 0])  # nothing came before
        whole = layer(values, None, [6], None, 0.5)[0]
    torch.testing.assert_close(dropped, in_parts)  # with the same weights gone
    assert float((dropped[:, 1:] - whole[:, 1:]).abs().max()) > 1e-3


def test_the_same_seeds_drop_the_same_and_use_drops_nothing():
    encoder, batch = built(replace(SIZES, hidden_dropout_prob=0.4)), rows(9, 9)
    with torch.no_grad():
        used = encoder(batch, seeds=seeds()).last_hidden_state
        encoder.train()
        first, again, other = (encoder(batch, seeds=seeds(number)).last_hidden_state for number in (1, 1, 2))
        encoder.set_dropout(0.0)
        without = encoder(batch, seeds=seeds()).last_hidden_state
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(without, used)


def reached(encoder: AwdLstm, batch: Batch, number: int) -> list[int]:
    """The places that the last output's slopes reach in a step of that number."""
    layout = encoder.create_layout(batch)
    values = encoder.embed(batch, layout).detach().requires_grad_()
    encoder.forward_layers(values, layout, seeds(number)).last_hidden_state[-1].sum().backward()
    assert values.grad is not None
    return torch.nonzero(values.grad.abs().sum(1)).flatten().tolist()


def test_slopes_reach_back_a_stretch_at_most_and_where_it_begins_changes():
    encoder, batch = built().train(), rows(30)
    reaches = {tuple(reached(encoder, batch, number)) for number in range(12)}
    for places in reaches:
        assert list(places) == list(range(30 - len(places), 30))
        assert 1 <= len(places) <= 8
    assert len(reaches) > 3
    with torch.no_grad():  # the values are those of the row at once
        torch.testing.assert_close(
            encoder(batch, seeds=seeds()).last_hidden_state, encoder.eval()(batch).last_hidden_state
        )
    # But every stretch is learned from: all its outputs are looked at when a row is summed up.
    encoder.train()
    layout = encoder.create_layout(batch)
    values = encoder.embed(batch, layout).detach().requires_grad_()
    summary = encoder.forward_layers(values, layout, seeds()).pooled
    assert summary is not None
    summary.sum().backward()
    assert values.grad is not None
    assert float(values.grad.abs().sum(1).min()) > 0


def test_slopes_do_not_reach_into_rows_of_the_step_before():
    encoder = built().train()
    first = encoder(rows(8, 8), EncoderState(), seeds())
    assert isinstance(first.state, EncoderState)
    assert first.state.length == 8
    assert [tuple(one.shape) for both in first.state.layers for one in both] == [(2, 10)] * 4 + [(2, 6)] * 2
    assert not any(one.requires_grad for both in first.state.layers for one in both)


def test_what_cannot_be_is_refused():
    encoder = built()
    with pytest.raises(InputError, match="rows that go on are of equal length"):
        encoder(rows(5, 4), EncoderState())
    with pytest.raises(InputError, match="longer than the 64 positions"):
        encoder(rows(65))
    with pytest.raises(SettingsError, match="no size 'huge' of an AWD-LSTM; choose one of: tiny, mini"):
        config_from_preset("huge", 10)
    with pytest.raises(SettingsError, match="would leave no weights"):
        replace(SIZES, hidden_dropout_prob=0.8)
    config = config_to_dict(SIZES, ["AwdLstmModel"])
    with pytest.raises(SettingsError, match="bptt_length should be a whole number above 0, but is 0"):
        config_from_dict({**config, "bptt_length": 0})
    with pytest.raises(SettingsError, match="lstm_size should be a whole number"):
        config_from_dict({key: value for key, value in config.items() if key != "lstm_size"})
