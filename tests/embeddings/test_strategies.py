"""The feature strategies by hand, and the sum with learned weights."""

import pytest
import torch

from bertworks.embeddings.strategies import STRATEGIES, get_strategy
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

# Layer k is 10^k, the embeddings 1, so that a sum shows its layers.
LAYERS = tuple(torch.full((2, 3), 10.0**index) for index in range(6))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("embeddings", 1.0),
        ("second-to-last", 10_000.0),
        ("last", 100_000.0),
        ("sum-last-four", 111_100.0),
        ("sum-all", 111_110.0),
        ("sum-with-embeddings", 111_111.0),
    ],
)
def test_a_strategy_uses_exactly_its_layers(name: str, value: float):
    assert torch.equal(STRATEGIES[name](LAYERS), torch.full((2, 3), value))


def test_the_last_four_are_concatenated_lowest_first():
    expected = [100.0] * 3 + [1_000.0] * 3 + [10_000.0] * 3 + [100_000.0] * 3
    assert torch.equal(STRATEGIES["concat-last-four"](LAYERS), torch.tensor([expected, expected]))


def test_strategies_combine_the_hidden_states_of_an_encoder():
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=5,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    encoder = Bert(config, torch.Generator().manual_seed(0)).eval()
    batch = Batch(
        input_ids=torch.tensor([[2, 7, 9, 3]]),
        token_type_ids=torch.zeros(1, 4, dtype=torch.long),
        lengths=torch.tensor([4]),
    )
    with torch.inference_mode():
        layers = encoder(batch).hidden_states
    expected = {
        "embeddings": layers[0],
        "second-to-last": layers[4],
        "last": layers[5],
        "sum-last-four": layers[2] + layers[3] + layers[4] + layers[5],
        "concat-last-four": torch.cat([layers[2], layers[3], layers[4], layers[5]], dim=1),
        "sum-all": layers[1] + layers[2] + layers[3] + layers[4] + layers[5],
        "sum-with-embeddings": layers[0] + layers[1] + layers[2] + layers[3] + layers[4] + layers[5],
    }
    assert list(STRATEGIES) == list(expected)
    for name, strategy in STRATEGIES.items():
        features = strategy(layers)
        assert torch.equal(features, expected[name])
        assert features.shape == (4, strategy.output_size(config.hidden_sizes))


def test_only_sums_of_several_layers_have_weights_to_learn():
    assert [name for name, strategy in STRATEGIES.items() if strategy.is_sum] == [
        "sum-last-four",
        "sum-all",
        "sum-with-embeddings",
    ]


@pytest.mark.parametrize(("name", "num_layers"), [("second-to-last", 1), ("sum-last-four", 3), ("concat-last-four", 2)])
def test_too_few_layers_are_rejected(name: str, num_layers: int):
    with pytest.raises(SettingsError, match=f"the model has {num_layers}; choose another"):
        STRATEGIES[name](LAYERS[: num_layers + 1])


def test_an_unknown_strategy_is_rejected_with_the_valid_ones():
    with pytest.raises(SettingsError, match="no feature strategy 'top'; choose one of: embeddings, second-to-last"):
        get_strategy("top")
