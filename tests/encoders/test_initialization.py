"""Sinusoidal positions depend on distance alone, and the first heads attend to their neighbors, whatever the tokens."""

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

CONFIG = BertConfig(
    vocab_size=400,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=64,
)

CONFIG_OF_ODD_HEADS = BertConfig(
    vocab_size=50,
    hidden_size=45,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=60,
    max_position_embeddings=16,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def make_encoder() -> Bert:
    return Bert(CONFIG, torch.Generator().manual_seed(0)).eval()


def mean_attention_by_offset(encoder: Bert, layer: int) -> torch.Tensor:
    """Return (H, 2T - 1): the mean attention weight of each head at each offset from -(T - 1) to T - 1."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(0, 400, (8, 48), generator=generator)
    batch = Batch(
        input_ids=input_ids, token_type_ids=(torch.arange(48) > 20).long().expand(8, 48), lengths=torch.full((8,), 48)
    )
    with torch.no_grad():
        x = encoder(batch).hidden_states[layer]
        query_key_value = torch.nn.functional.linear(x, encoder.layers[layer].attention.query_key_value.weight)
        queries, keys, _ = query_key_value.view(8, 48, 3, 4, 32).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(queries @ keys.transpose(-2, -1) / 32**0.5, -1).mean(0)  # (H, T, T)
    means = torch.zeros(4, 95)
    for offset in range(-47, 48):
        means[:, offset + 47] = weights.diagonal(offset, 1, 2).mean(-1)
    return means


def test_the_dot_product_of_sinusoids_depends_on_their_distance_alone():
    table = scaled_sinusoidal_positions(64, 128, 0.02)
    similarity = table @ table.T
    for distance in (0, 1, 5):
        assert float(similarity.diagonal(distance).std()) < 1e-6
    assert similarity[0, 0] > similarity[0, 1] > similarity[0, 5]


def test_sinusoids_have_the_scale_of_random_weights():
    assert float(scaled_sinusoidal_positions(512, 128, 0.02).square().mean().sqrt()) == pytest.approx(0.02, rel=1e-3)


def test_sinusoidal_initialization_changes_positions_alone():
    random, initialized = make_encoder(), make_encoder()
    init_sinusoidal_positions(initialized)
    changed = [
        name for name, value in random.state_dict().items() if not torch.equal(value, initialized.state_dict()[name])
    ]
    assert changed == ["position_embeddings.weight"]


def test_each_head_of_the_first_layers_attends_most_to_its_own_neighbor():
    encoder = make_encoder()
    init_sinusoidal_positions(encoder)
    init_neighbor_attention(encoder)
    for layer, offsets in enumerate(([-1, 1, -2, 2], [-3, 3, -4, 4])):
        means = mean_attention_by_offset(encoder, layer)
        assert [int(index) - 47 for index in means[:, 30:65].argmax(-1) + 30] == offsets
        for head, offset in enumerate(offsets):
            assert means[head, offset + 47] > 4 / 48  # uniform attention is 1 / 48


def test_random_attention_is_nearly_uniform():
    means = mean_attention_by_offset(make_encoder(), 0)[:, 20:75]
    assert float(means.max()) < 1.5 / 48


def test_neighbor_attention_changes_the_first_layers_and_the_embeddings_alone():
    random, initialized = make_encoder(), make_encoder()
    init_neighbor_attention(initialized, torch.Generator().manual_seed(1))
    changed = {
        name for name, value in random.state_dict().items() if not torch.equal(value, initialized.state_dict()[name])
    }
    assert changed == {"token_embeddings.weight", "token_type_embeddings.weight"} | {
        f"layers.{layer}.attention.{part}.weight" for layer in (0, 1) for part in ("query_key_value", "out")
    }


def test_odd_head_sizes_and_numbers_of_heads_can_be_initialized():
    encoder = Bert(CONFIG_OF_ODD_HEADS, torch.Generator().manual_seed(0))
    init_sinusoidal_positions(encoder)
    init_neighbor_attention(encoder)
    batch = Batch(
        input_ids=torch.ones(1, 5, dtype=torch.long),
        token_type_ids=torch.zeros(1, 5, dtype=torch.long),
        lengths=torch.tensor([5]),
    )
    assert create_layout(batch).shape == (1, 5)
    assert bool(torch.isfinite(encoder.eval()(batch).last_hidden_state).all())
