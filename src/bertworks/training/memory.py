"""Will it fit? Sizes and a micro-batch in, bytes out; and the largest micro-batch that fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.elmo import ElmoConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertConfig
from bertworks.objectives.cross_entropy import block_size

_FLOAT = 4
_MASK_PROB = 0.15  # the paper's share of the pieces that are hidden, and scored
# Which share is scored by the objective of a family where that is another.
_TARGET_RATIOS = {"openai-gpt": 1.0, "awd-lstm": 1.0, "elmo": 1.0, "xlnet": 1 / 6}
# Activations of which a layer keeps both sides: their slope needs what came in, the next product what went out.
_TWO_TENSOR_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "silu")
# What an LSTM keeps of a piece for each of its cells: four gates, the cell, its output, and what is multiplied; a whole
# one by oneDNN, which AWD-LSTM's are, a copy of much of it besides (measured).
_CELL_VALUES, _FUSED_CELL_VALUES = 7, 12
# How many symbols the longest word of a batch has, and which share of its words differ from one another.
_WORD_SYMBOLS, _UNIQUE_WORD_RATIO = 16, 0.5


@functools.cache
def num_parameters(config: BertConfig) -> int:
    """Return the parameters of the encoder with its pooler, without heads; a layer that is shared counts once."""
    with torch.device("meta"):
        return _count(family_of(config.model_type).build(config, None))


def _count(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Bytes for each piece of a batch.

    layer    what a layer keeps for the way back
    last     what the last layer keeps
    slopes   what is there besides while a layer is on its way back
    before   what is kept of the way to the first layer
    """

    layer: int
    last_layer: int
    gradients: int
    embeddings: int = 0


def model_state_bytes(config: BertConfig, num_shards: int = 1) -> int:
    """Return what a process keeps whatever the batch: parameters, gradients and two moments.

    Spread over several processes each has its share of the four; besides, all that is no layer stands whole while a
    step lasts, with its gradient, and so do at most two layers: the one at work and the next.
    """
    num_all, table = num_parameters(config), config.vocab_size * config.token_embedding_size
    if num_shards == 1:
        return _FLOAT * (4 * num_all + table)  # the table has gradients from two sides
    with torch.device("meta"):
        layers = [_count(layer) for layer in family_of(config.model_type).build(config, None).layers]
    num_whole = 2 * (num_all - sum(layers)) + table + 4 * max(layers)
    return _FLOAT * (-(-4 * num_all // num_shards) + num_whole)


def step_bytes(
    config: BertConfig,
    micro_batch_size: int,
    max_length: int,
    activation_checkpointing: bool = False,
    num_shards: int = 1,
) -> int:
    """Return about how much memory a training step takes: parameters, gradients, two moments, and what layers keep.

    Besides, for a while, there is the larger of two things: the scores of a block of places and their slopes, or the
    slopes of a layer. With `recompute`, layers keep only what entered them, but for the one at work. A layer that is
    passed many times keeps as much each time; only its parameters are there once.
    """
    num_pieces = micro_batch_size * max_length
    lasting = model_state_bytes(config, num_shards)
    kept = _ACTIVATION_BYTES.get(config.model_type, _transformer)(config, max_length)
    num_scored = math.ceil(_target_ratio(config) * num_pieces)
    scores = 2 * _FLOAT * min(num_scored, block_size(config.vocab_size)) * config.vocab_size
    layers = (config.num_hidden_layers - 1) * kept.layer + kept.last_layer
    if activation_checkpointing:
        layers = kept.layer + _FLOAT * config.hidden_size * config.num_hidden_layers
    return lasting + num_pieces * (kept.embeddings + layers) + max(scores, num_pieces * kept.gradients)


def _target_ratio(config: BertConfig) -> float:
    return _TARGET_RATIOS.get(config.model_type, _MASK_PROB)


def _transformer(config: BertConfig, max_length: int) -> ActivationBytes:
    """For each piece a layer keeps its input, queries, keys and values, what was read, both inputs of norms and what is
    between them, the inner values, and masks of dropout; for each pair of places, its share and the mask. The last one
    has keys and values of all pieces, and the rest of the scored ones only."""
    width, shares = config.hidden_size, config.num_attention_heads * max_length
    num_inner = config.intermediate_size * (2 if config.hidden_act in _TWO_TENSOR_ACTIVATIONS else 1)
    layer = _FLOAT * (8 * width + num_inner + shares) + 2 * width + shares
    last = _FLOAT * 3 * width + math.ceil(_target_ratio(config) * layer)
    return ActivationBytes(layer, last, _FLOAT * (4 * width + max(3 * config.intermediate_size, 4 * shares)))


def _relative(config: BertConfig, max_length: int) -> ActivationBytes:
    """Attention by distance keeps its queries with three biases, and the shares whole and with what stays; the second
    stream as much of the places that it is asked about. Slopes of distances are of twice as many."""
    width, shares = config.hidden_size, config.num_attention_heads * max_length
    num_inner = config.intermediate_size * (2 if config.hidden_act in _TWO_TENSOR_ACTIVATIONS else 1)
    stream = _FLOAT * (13 * width + num_inner + 2 * shares) + 2 * width + shares
    second = math.ceil(_target_ratio(config) * stream)
    slopes = _FLOAT * (4 * width + max(3 * config.intermediate_size, 6 * shares))
    return ActivationBytes(stream + second, _FLOAT * 3 * width + second, slopes, _FLOAT * 2 * max_length)


def _lstm(config: BertConfig, max_length: int) -> ActivationBytes:
    layer = _FLOAT * (_FUSED_CELL_VALUES * config.intermediate_size + 2 * config.hidden_size)
    return ActivationBytes(layer, layer, _FLOAT * 5 * config.intermediate_size, _FLOAT * 4 * config.hidden_size)


def _bilm(config: BertConfig, max_length: int) -> ActivationBytes:
    """Two LSTMs in each layer, and before them the filters over the writing of the different words of a batch."""
    assert isinstance(config, ElmoConfig)
    layer = _FLOAT * (2 * _CELL_VALUES * config.intermediate_size + 4 * config.hidden_size)
    num_filters = sum(count for _, count in config.filters) if config.spelling != "words" else 0
    spelled = _FLOAT * 3 * num_filters * min(_WORD_SYMBOLS, config.max_symbols_per_word)
    return ActivationBytes(
        layer,
        layer,
        _FLOAT * 10 * config.intermediate_size,
        math.ceil(_UNIQUE_WORD_RATIO * spelled) + _FLOAT * 4 * config.hidden_size,
    )


# What the layers of a family keep where they are not those of BERT.
_ACTIVATION_BYTES: dict[str, Callable[[BertConfig, int], ActivationBytes]] = {
    "xlnet": _relative,
    "elmo": _bilm,
    "awd-lstm": _lstm,
}


def largest_micro_batch_size(
    config: BertConfig,
    batch_size: int,
    max_length: int,
    available: int,
    activation_checkpointing: bool = False,
    num_shards: int = 1,
) -> int | None:
    """Return the largest micro-batch, halving from `batch`, whose step fits into `available` bytes, or None."""
    size = batch_size
    while size and step_bytes(config, size, max_length, activation_checkpointing, num_shards) > available:
        size //= 2
    return size or None
