"""Will it fit? Sizes and a micro-batch in, bytes out; and the largest micro-batch that fits."""

from __future__ import annotations

import math

from bertworks.encoders.stack import BertSizes
from bertworks.objectives.scoring import block_rows

_FLOAT = 4
_HIDDEN_RATE = 0.15  # the paper's share of the pieces that are hidden, and scored
# Activations of which a layer keeps both sides: their slope needs what came in, the next product what went out.
_KEPT_TWICE = ("gelu_new", "gelu_pytorch_tanh", "silu")


def num_parameters(sizes: BertSizes) -> int:
    """Return the parameters of the encoder with its pooler, without heads."""
    width = sizes.width
    layer = 4 * width * width + 4 * width + 2 * width * sizes.inner + sizes.inner + width + 4 * width
    tables = (sizes.vocabulary + sizes.positions + sizes.segments) * width
    return tables + 2 * width + sizes.num_layers * layer + width * width + width


def step_bytes(sizes: BertSizes, micro_batch: int, length: int, recompute: bool = False) -> int:
    """Return about how much memory a training step takes: parameters, gradients, two moments, and what layers keep.

    For each piece a layer keeps its input, queries, keys and values, what was read, both inputs of norms and what is
    between them, the inner values, and masks of dropout; for each pair of places, its share and the mask. Besides, for
    a while, there is the largest of three things: the scores of a block of hidden places and their slopes, or the
    slopes of one half of a layer. With `recompute`, layers keep only what entered them, but for the one at work.
    """
    width, num_pieces = sizes.width, micro_batch * length
    shares = sizes.num_heads * length
    kept = _FLOAT * (4 * num_parameters(sizes) + sizes.vocabulary * width)  # the table has gradients from two sides
    num_inner = sizes.inner * (2 if sizes.activation in _KEPT_TWICE else 1)
    layer = _FLOAT * (8 * width + num_inner + shares) + 2 * width + shares
    slopes = _FLOAT * (4 * width + max(3 * sizes.inner, 4 * shares))
    num_hidden = math.ceil(_HIDDEN_RATE * num_pieces)
    scores = 2 * _FLOAT * min(num_hidden, block_rows(sizes.vocabulary)) * sizes.vocabulary
    # The last layer has keys and values of all pieces, and the rest of the hidden ones only.
    last = _FLOAT * 3 * width + math.ceil(_HIDDEN_RATE * layer)
    layers = layer + _FLOAT * width * sizes.num_layers if recompute else (sizes.num_layers - 1) * layer + last
    return kept + num_pieces * layers + max(scores, num_pieces * slopes)


def fitting_micro_batch(
    sizes: BertSizes, batch: int, length: int, available: int, recompute: bool = False
) -> int | None:
    """Return the largest micro-batch, halving from `batch`, whose step fits into `available` bytes, or None."""
    size = batch
    while size and step_bytes(sizes, size, length, recompute) > available:
        size //= 2
    return size or None
