"""Better initial weights for short runs: a BERT in, the same with sinusoidal positions and neighbor attention out.

A masked token is predicted from its neighbors, and BERT must first learn where these are: positions and attention are
initialized randomly, so that every position attends to all others alike. A run of hours spends most of its time on
that. Here positions are initialized as sinusoids, in which a step to the left or right is a rotation; and the heads of
the first layers with that rotation, each attending to one neighbor and passing its token on. The first d dimensions,
of the highest frequencies, are reserved for positions: the other embeddings are zero there. All of it is trained.

D hidden size, H heads, d = D / H.
"""

from __future__ import annotations

import math

import torch

from bertworks.encoders.bert import Bert
from bertworks.encoders.layers import Layer

# The number of layers that are initialized with neighbor attention.
_NUM_LAYERS = 2
# The attention score of the neighbor above that of distant positions: a weight of about a half among 100 positions.
_SCORE_MARGIN = 5.3
# How strongly a head passes on the token of a neighbor: the scale of its values, and of the projection after them.
_VALUE_GAIN = 0.7


def scaled_sinusoidal_positions(num_positions: int, hidden_size: int, initializer_range: float) -> torch.Tensor:
    """Return (num_positions, D): the Transformer's sinusoids with a root mean square of `initializer_range`."""
    angles = torch.arange(num_positions)[:, None] * _frequencies(hidden_size)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :hidden_size] * (
        initializer_range * math.sqrt(2)
    )


@torch.no_grad()
def init_sinusoidal_positions(encoder: Bert) -> None:
    """Initialize the learned position embeddings as sinusoids."""
    config = encoder.config
    encoder.position_embeddings.weight[config.first_position :].copy_(
        scaled_sinusoidal_positions(config.max_length, config.hidden_size, config.initializer_range)
    )


@torch.no_grad()
def init_neighbor_attention(encoder: Bert, generator: torch.Generator | None = None) -> None:
    """Let each head of the first layers attend to one neighbor: 1 to the left, 1 to the right, 2 to the left, and so
    on. Positions must be sinusoidal."""
    config = encoder.config
    hidden_size, head_size = config.hidden_size, config.hidden_size // config.num_attention_heads
    for table in (encoder.token_embeddings, encoder.token_type_embeddings):
        table.weight[:, :head_size] = 0.0
    # After the first norm: d of the D dimensions hold the position alone, the others the sum of three embeddings.
    variance = (head_size + 3 * (hidden_size - head_size)) / hidden_size
    strength = math.sqrt(_SCORE_MARGIN * variance / math.sqrt(head_size))
    for index, layer in enumerate(list(encoder.layers)[:_NUM_LAYERS]):
        assert isinstance(layer, Layer)
        attention = layer.attention
        queries, keys, values = attention.query_key_value.weight.view(
            3, config.num_attention_heads, head_size, hidden_size
        )
        for head in range(config.num_attention_heads):
            distance = 1 + head // 2 + index * (config.num_attention_heads + 1) // 2
            rotation = _position_rotation(distance if head % 2 else -distance, head_size, hidden_size)
            queries[head, :, :head_size] += strength * rotation
            keys[head, :, :head_size] += strength * torch.eye(head_size)
        values[..., head_size:].normal_(0.0, _VALUE_GAIN / math.sqrt(hidden_size - head_size), generator=generator)
        attention.out.weight.normal_(0.0, _VALUE_GAIN / math.sqrt(hidden_size), generator=generator)


def _frequencies(hidden_size: int) -> torch.Tensor:
    return 10_000 ** (-torch.arange(0, hidden_size, 2) / hidden_size)


def _position_rotation(offset: int, head_size: int, hidden_size: int) -> torch.Tensor:
    """Return (d, d): the rotation from the sinusoids of a position to those of the position `offset` away."""
    angles = offset * _frequencies(hidden_size)[: (head_size + 1) // 2]
    rotation = torch.zeros(head_size + head_size % 2, head_size + head_size % 2)
    even = torch.arange(0, len(rotation), 2)
    rotation[even, even] = rotation[even + 1, even + 1] = angles.cos()
    rotation[even, even + 1] = angles.sin()
    rotation[even + 1, even] = -angles.sin()
    return rotation[:head_size, :head_size]
