"""Will it fit? Sizes and a micro-batch in, bytes out; and the largest micro-batch that fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.elmo import ElmoSizes
from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertSizes
from bertworks.objectives.cross_entropy import block_rows

_FLOAT = 4
_HIDDEN_RATE = 0.15  # the paper's share of the pieces that are hidden, and scored
# Which share is scored by the objective of a family where that is another.
_SCORED_RATES = {"openai-gpt": 1.0, "awd-lstm": 1.0, "elmo": 1.0, "xlnet": 1 / 6}
# Activations of which a layer keeps both sides: their slope needs what came in, the next product what went out.
_KEPT_TWICE = ("gelu_new", "gelu_pytorch_tanh", "silu")
# What an LSTM keeps of a piece for each of its cells: four gates, the cell, its output, and what is multiplied; a whole
# one by oneDNN, which AWD-LSTM's are, a copy of much of it besides (measured).
_CELL_VALUES, _WHOLE_CELL_VALUES = 7, 12
# How many symbols the longest word of a batch has, and which share of its words differ from one another.
_WORD_SYMBOLS, _DIFFERENT = 16, 0.5


@functools.cache
def num_parameters(sizes: BertSizes) -> int:
    """Return the parameters of the encoder with its pooler, without heads; a layer that is shared counts once."""
    with torch.device("meta"):
        return _count(family_of(sizes.family).build(sizes, None))


def _count(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes for each piece of a batch.

    layer    what a layer keeps for the way back
    last     what the last layer keeps
    slopes   what is there besides while a layer is on its way back
    before   what is kept of the way to the first layer
    """

    layer: int
    last: int
    slopes: int
    before: int = 0


def lasting_bytes(sizes: BertSizes, num_shards: int = 1) -> int:
    """Return what a process keeps whatever the batch: parameters, gradients and two moments.

    Spread over several processes each has its share of the four; besides, all that is no layer stands whole while a
    step lasts, with its gradient, and so do at most two layers: the one at work and the next.
    """
    num_all, table = num_parameters(sizes), sizes.vocabulary * sizes.table_width
    if num_shards == 1:
        return _FLOAT * (4 * num_all + table)  # the table has gradients from two sides
    with torch.device("meta"):
        layers = [_count(layer) for layer in family_of(sizes.family).build(sizes, None).layers]
    num_whole = 2 * (num_all - sum(layers)) + table + 4 * max(layers)
    return _FLOAT * (-(-4 * num_all // num_shards) + num_whole)


def step_bytes(sizes: BertSizes, micro_batch: int, length: int, recompute: bool = False, num_shards: int = 1) -> int:
    """Return about how much memory a training step takes: parameters, gradients, two moments, and what layers keep.

    Besides, for a while, there is the larger of two things: the scores of a block of places and their slopes, or the
    slopes of a layer. With `recompute`, layers keep only what entered them, but for the one at work. A layer that is
    passed many times keeps as much each time; only its parameters are there once.
    """
    num_pieces = micro_batch * length
    lasting = lasting_bytes(sizes, num_shards)
    kept = _KEPT.get(sizes.family, _transformer)(sizes, length)
    num_scored = math.ceil(_scored_rate(sizes) * num_pieces)
    scores = 2 * _FLOAT * min(num_scored, block_rows(sizes.vocabulary)) * sizes.vocabulary
    layers = (sizes.num_layers - 1) * kept.layer + kept.last
    if recompute:
        layers = kept.layer + _FLOAT * sizes.width * sizes.num_layers
    return lasting + num_pieces * (kept.before + layers) + max(scores, num_pieces * kept.slopes)


def _scored_rate(sizes: BertSizes) -> float:
    return _SCORED_RATES.get(sizes.family, _HIDDEN_RATE)


def _transformer(sizes: BertSizes, length: int) -> Kept:
    """For each piece a layer keeps its input, queries, keys and values, what was read, both inputs of norms and what is
    between them, the inner values, and masks of dropout; for each pair of places, its share and the mask. The last one
    has keys and values of all pieces, and the rest of the scored ones only."""
    width, shares = sizes.width, sizes.num_heads * length
    num_inner = sizes.inner * (2 if sizes.activation in _KEPT_TWICE else 1)
    layer = _FLOAT * (8 * width + num_inner + shares) + 2 * width + shares
    last = _FLOAT * 3 * width + math.ceil(_scored_rate(sizes) * layer)
    return Kept(layer, last, _FLOAT * (4 * width + max(3 * sizes.inner, 4 * shares)))


def _relative(sizes: BertSizes, length: int) -> Kept:
    """Attention by distance keeps its queries with three biases, and the shares whole and with what stays; the second
    stream as much of the places that it is asked about. Slopes of distances are of twice as many."""
    width, shares = sizes.width, sizes.num_heads * length
    num_inner = sizes.inner * (2 if sizes.activation in _KEPT_TWICE else 1)
    stream = _FLOAT * (13 * width + num_inner + 2 * shares) + 2 * width + shares
    second = math.ceil(_scored_rate(sizes) * stream)
    slopes = _FLOAT * (4 * width + max(3 * sizes.inner, 6 * shares))
    return Kept(stream + second, _FLOAT * 3 * width + second, slopes, _FLOAT * 2 * length)


def _lstm(sizes: BertSizes, length: int) -> Kept:
    layer = _FLOAT * (_WHOLE_CELL_VALUES * sizes.inner + 2 * sizes.width)
    return Kept(layer, layer, _FLOAT * 5 * sizes.inner, _FLOAT * 4 * sizes.width)


def _two_way(sizes: BertSizes, length: int) -> Kept:
    """Two LSTMs in each layer, and before them the filters over the writing of the different words of a batch."""
    assert isinstance(sizes, ElmoSizes)
    layer = _FLOAT * (2 * _CELL_VALUES * sizes.inner + 4 * sizes.width)
    num_filters = sum(count for _, count in sizes.filters) if sizes.spelling != "words" else 0
    spelled = _FLOAT * 3 * num_filters * min(_WORD_SYMBOLS, sizes.word_symbols)
    return Kept(layer, layer, _FLOAT * 10 * sizes.inner, math.ceil(_DIFFERENT * spelled) + _FLOAT * 4 * sizes.width)


# What the layers of a family keep where they are not those of BERT.
_KEPT: dict[str, Callable[[BertSizes, int], Kept]] = {"xlnet": _relative, "elmo": _two_way, "awd-lstm": _lstm}


def fitting_micro_batch(
    sizes: BertSizes, batch: int, length: int, available: int, recompute: bool = False, num_shards: int = 1
) -> int | None:
    """Return the largest micro-batch, halving from `batch`, whose step fits into `available` bytes, or None."""
    size = batch
    while size and step_bytes(sizes, size, length, recompute, num_shards) > available:
        size //= 2
    return size or None
