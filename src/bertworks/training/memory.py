"""Will it fit? Sizes and a micro-batch in, bytes out; and the largest micro-batch that fits."""

from __future__ import annotations

from bertworks.encoders.bert import BertSizes

_FLOAT = 4


def num_parameters(sizes: BertSizes) -> int:
    """Return the parameters of the encoder with its pooler, without heads."""
    width = sizes.width
    layer = 4 * width * width + 4 * width + 2 * width * sizes.inner + sizes.inner + width + 4 * width
    tables = (sizes.vocabulary + sizes.positions + sizes.segments) * width
    return tables + 2 * width + sizes.num_layers * layer + width * width + width


def step_bytes(sizes: BertSizes, micro_batch: int, length: int) -> int:
    """Return about how much memory a training step takes: parameters, gradients, two moments, and what layers keep.

    For each piece a layer keeps its input, queries, keys and values, what was read, two inputs of norms, the inner
    values before and after the activation, and masks of dropout; for each pair of places, scores and their mask.
    """
    kept = 6 * _FLOAT * num_parameters(sizes)
    width = sizes.width
    per_piece = sizes.num_layers * (_FLOAT * (9 * width + 2 * sizes.inner) + 2 * width)
    per_piece += sizes.num_layers * sizes.num_heads * length * (2 * _FLOAT + 1)
    return kept + micro_batch * length * per_piece + 64 * 2**20


def fitting_micro_batch(sizes: BertSizes, batch: int, length: int, available: int) -> int | None:
    """Return the largest micro-batch, halving from `batch`, whose step fits into `available` bytes, or None."""
    size = batch
    while size and step_bytes(sizes, size, length) > available:
        size //= 2
    return size or None
