"""MPNet: buckets of distances, the bias of attention scores, the padding token, and packed batches in bf16."""

from dataclasses import replace

import pytest
import torch
from random_weights import randomize_parameters
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from bertworks.encoders.families import family_of
from bertworks.encoders.mpnet import Mpnet, MpnetConfig, distance_buckets
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = MpnetConfig(vocab_size=70).resized(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, max_length=40
)


def make_encoder() -> Mpnet:
    encoder = randomize_parameters(Mpnet(CONFIG)).eval()
    assert isinstance(encoder, Mpnet)
    return encoder


def make_batch(lengths: tuple[int, ...]) -> Batch:
    input_ids = torch.randint(5, 70, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def test_near_distances_have_buckets_of_their_own_and_far_ones_share_them():
    # 16 buckets a side: 0 to 7, then [8, 11], [12, 15], [16, 22], … with equal steps of the logarithm up to 128.
    distances = torch.tensor([0, -1, -7, -8, -11, -12, -16, -127, -5_000, 1, 7, 8, 5_000])
    assert distance_buckets(distances).tolist() == [0, 1, 7, 8, 8, 9, 10, 15, 15, 17, 23, 24, 31]


def test_buckets_equal_those_of_transformers():
    distances = torch.arange(-600, 601)
    assert torch.equal(distance_buckets(distances), MPNetEncoder.relative_position_bucket(distances))


def test_the_bias_of_a_pair_of_positions_is_that_of_its_distance():
    encoder = make_encoder()
    bias = encoder.position_bias(12)
    assert bias.shape == (1, 3, 12, 12)
    table = encoder.distance_bias.weight
    assert torch.equal(bias[0, :, 3, 3], table[0])
    assert torch.equal(bias[0, :, 5, 3], table[2])  # the key is 2 before the query
    assert torch.equal(bias[0, :, 3, 5], table[16 + 2])
    assert torch.equal(bias[0, :, 11, 1], table[8])


def test_a_large_bias_draws_all_attention_to_one_distance():
    encoder = make_encoder()
    with torch.no_grad():
        encoder.distance_bias.weight.zero_()
        encoder.distance_bias.weight[1] = 1_000.0  # the position before
    (weights, *_) = encoder.attention_weights(make_batch((6,)), [0])
    assert torch.allclose(weights[0, :, 1:], torch.eye(6)[:-1].expand(3, 5, 6))


def test_packed_batches_are_those_of_one_sequence_in_any_precision():
    encoder = make_encoder()
    batch = make_batch((17, 3, 33, 1, 9))
    with torch.inference_mode():
        packed = encoder(batch).to_padded()
        alone = [
            encoder(replace(make_batch((length,)), input_ids=batch.input_ids[index : index + 1, :length])).to_padded()
            for index, length in enumerate((17, 3, 33, 1, 9))
        ]
        encoder.set_precision("bf16")
        rounded = encoder(batch).to_padded()
    for index, values in enumerate(alone):
        assert float((packed[index, : values.shape[1]] - values[0]).abs().max()) < 1e-5
    assert float((rounded - packed).norm()) < 2**-5 * float(packed.norm())


def test_the_padding_token_must_have_the_id_that_transformers_counts_positions_with():
    assert (CONFIG.first_position, CONFIG.max_length, CONFIG.max_position_embeddings) == (2, 40, 42)
    assert CONFIG.with_pad_token_id(1) == CONFIG
    with pytest.raises(SettingsError, match="needs a padding token with the id 1, but that of the vocabulary has 0"):
        CONFIG.with_pad_token_id(0)


def test_another_number_of_buckets_is_refused():
    config_dict = family_of("mpnet").config_to_dict(CONFIG, [])
    with pytest.raises(SettingsError, match="relative_attention_num_buckets is 64, but only 32 is supported"):
        family_of("mpnet").config_from_dict({**config_dict, "relative_attention_num_buckets": 64})
    with pytest.raises(SettingsError, match="max_position_embeddings is 2, but the first two have no token"):
        family_of("mpnet").config_from_dict({**config_dict, "max_position_embeddings": 2})
