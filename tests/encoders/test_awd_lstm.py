"""AWD-LSTM: its layers are torch's LSTMs, what is dropped is dropped for a whole pass, slopes end with a stretch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bertworks.encoders.awd_lstm import AwdLstm, AwdLstmSizes, WeightDroppedLstm, config_of, released, sizes_of
from bertworks.encoders.encoded import Carried
from bertworks.encoders.layers import Seeds
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = replace(released("tiny", 40), width=6, inner=10, positions=64, dropout=0.0, stretch=8, pooled=5)


def built(sizes: AwdLstmSizes = SIZES) -> AwdLstm:
    return AwdLstm(sizes, torch.Generator().manual_seed(0)).double().eval()


def rows(*lengths: int, seed: int = 0) -> Batch:
    ids = torch.randint(5, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, torch.zeros_like(ids), torch.tensor(lengths))


def seeds(number: int = 7) -> Seeds:
    return Seeds(torch.tensor(number, dtype=torch.int32))


def test_layers_are_those_of_torch_one_on_another():
    encoder, batch = built(), rows(9, 4)
    with torch.no_grad():
        found = encoder(batch)
        values = encoder.pieces(batch.ids)
        for number, layer in enumerate(encoder.layers):
            assert isinstance(layer, WeightDroppedLstm)
            peer = nn.LSTM(values.shape[2], layer.again.shape[1], batch_first=True).double()
            peer.weight_ih_l0.copy_(layer.enter)
            peer.weight_hh_l0.copy_(layer.again)
            peer.bias_ih_l0.copy_(layer.bias)
            peer.bias_hh_l0.zero_()
            values = peer(values)[0]
            for row, length in enumerate((9, 4)):
                torch.testing.assert_close(found.padded(number + 1)[row, :length], values[row, :length])
    assert [layer.shape[1] for layer in found.layers] == [6, 10, 10, 6] == list(SIZES.widths)


def test_the_paper_is_three_layers_400_wide_with_1150_cells():
    sizes = released("base", 30_000)
    assert sizes.widths == (400, 1_150, 1_150, 400)
    with torch.device("meta"):
        count = sum(one.numel() for one in AwdLstm(sizes).layers.parameters())
    # Four gates of each cell: from what enters, from the step before, and a bias.
    assert count == 4 * (1_150 * (400 + 1_150 + 1) + 1_150 * (1_150 + 1_150 + 1) + 400 * (1_150 + 400 + 1))


def test_the_last_output_the_largest_and_the_mean_sum_a_row_up():
    encoder, batch = built(), rows(7, 3)
    with torch.no_grad():
        found = encoder(batch)
        for row, length in enumerate((7, 3)):
            own = found.padded()[row, :length]
            views = torch.cat([own[-1], own.max(0).values, own.mean(0)])
            assert found.summary is not None
            torch.testing.assert_close(found.summary[row], torch.tanh(encoder.pooler(views)))
    assert found.summary.shape[1] == SIZES.summary_width == 5


def test_a_piece_that_is_dropped_is_dropped_wherever_it_stands():
    sizes = replace(SIZES, width=32, positions=80, dropout=0.4)  # of the pieces an eighth of that: 0.05
    encoder, ids = built(sizes).train(), torch.arange(40)
    batch = Batch(torch.cat([ids, ids])[None], torch.zeros(1, 80).long(), torch.tensor([80]))
    gone = []
    with torch.no_grad():
        for number in range(60):
            first, second = encoder(batch, seeds=seeds(number)).padded(0)[0].eq(0).all(1).view(2, 40)
            assert torch.equal(first, second)
            gone.append(first)
    assert abs(float(torch.stack(gone).float().mean()) - 0.05) < 0.015


def test_a_value_is_dropped_at_all_places_of_a_row_and_in_each_row_apart():
    encoder, batch = built(replace(SIZES, dropout=0.5)).train(), rows(12, 12)
    with torch.no_grad():
        found = encoder(batch, seeds=seeds())
    masks = found.padded().eq(0)  # (B, T, D)
    assert torch.equal(masks, masks[:, :1].expand_as(masks))
    assert 0 < int(masks[:, 0].sum()) < masks[:, 0].numel()
    inner = found.padded(1).eq(0)
    assert torch.equal(inner, inner[:, :1].expand_as(inner))
    assert not torch.equal(inner[0, 0], inner[1, 0])


def test_weights_between_steps_are_dropped_once_for_a_pass():
    layer = WeightDroppedLstm(4, 3).double()
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
    encoder, batch = built(replace(SIZES, dropout=0.4)), rows(9, 9)
    with torch.no_grad():
        used = encoder(batch, seeds=seeds()).last
        encoder.train()
        first, again, other = (encoder(batch, seeds=seeds(number)).last for number in (1, 1, 2))
        encoder.set_dropout(0.0)
        without = encoder(batch, seeds=seeds()).last
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(without, used)


def reached(encoder: AwdLstm, batch: Batch, number: int) -> list[int]:
    """The places that the last output's slopes reach in a step of that number."""
    layout = encoder.laid(batch)
    values = encoder.embed(batch, layout).detach().requires_grad_()
    encoder.through(values, layout, seeds(number)).last[-1].sum().backward()
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
        torch.testing.assert_close(encoder(batch, seeds=seeds()).last, encoder.eval()(batch).last)
    # But every stretch is learned from: all its outputs are looked at when a row is summed up.
    encoder.train()
    layout = encoder.laid(batch)
    values = encoder.embed(batch, layout).detach().requires_grad_()
    summary = encoder.through(values, layout, seeds()).summary
    assert summary is not None
    summary.sum().backward()
    assert values.grad is not None
    assert float(values.grad.abs().sum(1).min()) > 0


def test_slopes_do_not_reach_into_rows_of_the_step_before():
    encoder = built().train()
    first = encoder(rows(8, 8), Carried(), seeds())
    assert isinstance(first.state, Carried)
    assert first.state.length == 8
    assert [tuple(one.shape) for both in first.state.layers for one in both] == [(2, 10)] * 4 + [(2, 6)] * 2
    assert not any(one.requires_grad for both in first.state.layers for one in both)


def test_what_cannot_be_is_refused():
    encoder = built()
    with pytest.raises(InputError, match="rows that go on are of equal length"):
        encoder(rows(5, 4), Carried())
    with pytest.raises(InputError, match="longer than the 64 positions"):
        encoder(rows(65))
    with pytest.raises(SettingsError, match="no size 'huge' of an AWD-LSTM; choose one of: tiny, mini"):
        released("huge", 10)
    with pytest.raises(SettingsError, match="would leave no weights"):
        replace(SIZES, dropout=0.8)
    config = config_of(SIZES, ["AwdLstmModel"])
    with pytest.raises(SettingsError, match="stretch_size should be a whole number above 0, but is 0"):
        sizes_of({**config, "stretch_size": 0})
    with pytest.raises(SettingsError, match="lstm_size should be a whole number"):
        sizes_of({key: value for key, value in config.items() if key != "lstm_size"})
