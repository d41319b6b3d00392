"""Activation memory of a layer: its sizes in, bytes per token out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertworks.encoders.layers import LayerConfig

FLOAT_BYTES = 4
# Activations whose input and output are both saved: the input for their gradient, the output for the next linear.
_TWO_TENSOR_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "silu")


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Bytes per token of a batch.

    layer        saved by a layer for the backward pass
    last_layer   saved by the last layer
    gradients    temporary, during the backward pass of a layer
    embeddings   saved by the embeddings
    """

    layer: int
    last_layer: int
    gradients: int
    embeddings: int = 0


def transformer_activation_bytes(config: LayerConfig, max_length: int, target_ratio: float) -> ActivationBytes:
    """Return the activation memory of a Transformer with absolute positions.

    For each token, a layer saves its input, queries, keys, values, attention output, both norms' inputs and what is
    between them, intermediate values and dropout masks; for each pair of positions, the attention weight and its mask.
    The last layer has keys and values of all tokens, and everything else of targets only.
    """
    hidden, weights = config.hidden_size, config.num_attention_heads * max_length
    layer = FLOAT_BYTES * (8 * hidden + intermediate_values(config) + weights) + 2 * hidden + weights
    last_layer = FLOAT_BYTES * 3 * hidden + math.ceil(target_ratio * layer)
    gradients = FLOAT_BYTES * (4 * hidden + 3 * max(config.intermediate_size, weights))
    return ActivationBytes(layer, last_layer, gradients)


def intermediate_values(config: LayerConfig) -> int:
    """Return how many values the feed-forward network saves for a token."""
    return config.intermediate_size * (2 if config.hidden_act in _TWO_TENSOR_ACTIVATIONS else 1)
