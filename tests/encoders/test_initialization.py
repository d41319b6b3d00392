"""A head start: waves turn by steps, and the first heads look at their neighbours, whatever the pieces are."""

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.encoded import create_layout
from bertworks.encoders.initialization import (
    init_neighbor_attention,
    init_sinusoidal_positions,
    scaled_sinusoidal_positions,
)
from bertworks.sampling.batch import Batch

SIZES = BertConfig(
    vocab_size=400,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=64,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def encoder() -> Bert:
    return Bert(SIZES, torch.Generator().manual_seed(0)).eval()


def shares_by_offset(one: Bert, number: int) -> torch.Tensor:
    """Return (H, 2T - 1): how much a head of a layer reads, on the average, of the place so far away."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 400, (8, 48), generator=generator)
    batch = Batch(ids, (torch.arange(48) > 20).long().expand(8, 48), torch.full((8,), 48))
    with torch.no_grad():
        values = one(batch).hidden_states[number]
        mixed = torch.nn.functional.linear(values, one.layers[number].attention.query_key_value.weight)
        queries, keys, _ = mixed.view(8, 48, 3, 4, 32).permute(2, 0, 3, 1, 4)
        shares = torch.softmax(queries @ keys.transpose(-2, -1) / 32**0.5, -1).mean(0)  # (H, T, T)
    found = torch.zeros(4, 95)
    for offset in range(-47, 48):
        found[:, offset + 47] = shares.diagonal(offset, 1, 2).mean(-1)
    return found


def test_between_waves_only_the_distance_counts():
    table = scaled_sinusoidal_positions(64, 128, 0.02)
    likeness = table @ table.T
    for distance in (0, 1, 5):
        assert float(likeness.diagonal(distance).std()) < 1e-6
    assert likeness[0, 0] > likeness[0, 1] > likeness[0, 5]


def test_waves_are_as_widely_spread_as_drawn_weights():
    assert float(scaled_sinusoidal_positions(512, 128, 0.02).square().mean().sqrt()) == pytest.approx(0.02, rel=1e-3)


def test_only_positions_begin_as_waves():
    plain, begun = encoder(), encoder()
    init_sinusoidal_positions(begun)
    changed = [name for name, value in plain.state_dict().items() if not torch.equal(value, begun.state_dict()[name])]
    assert changed == ["position_embeddings.weight"]


def test_each_head_of_the_first_layers_reads_its_own_neighbour_most():
    one = encoder()
    init_sinusoidal_positions(one)
    init_neighbor_attention(one)
    for number, offsets in enumerate(([-1, 1, -2, 2], [-3, 3, -4, 4])):
        found = shares_by_offset(one, number)
        assert [int(place) - 47 for place in found[:, 30:65].argmax(-1) + 30] == offsets
        for head, offset in enumerate(offsets):
            assert found[head, offset + 47] > 4 / 48  # read alike, each place would have 1 / 48


def test_without_it_all_places_are_read_alike():
    found = shares_by_offset(encoder(), 0)[:, 20:75]
    assert float(found.max()) < 1.5 / 48


def test_the_last_layer_and_all_else_stay_as_drawn():
    plain, begun = encoder(), encoder()
    init_neighbor_attention(begun, torch.Generator().manual_seed(1))
    changed = {name for name, value in plain.state_dict().items() if not torch.equal(value, begun.state_dict()[name])}
    assert changed == {"token_embeddings.weight", "token_type_embeddings.weight"} | {
        f"layers.{number}.attention.{part}.weight" for number in (0, 1) for part in ("query_key_value", "out")
    }


def test_heads_of_odd_depth_and_number_begin_too():
    one = Bert(BertConfig(50, 45, 2, 3, 60, 16), torch.Generator().manual_seed(0))
    init_sinusoidal_positions(one)
    init_neighbor_attention(one)
    batch = Batch(torch.ones(1, 5, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long), torch.tensor([5]))
    assert create_layout(batch).shape == (1, 5)
    assert bool(torch.isfinite(one.eval()(batch).last_hidden_state).all())
