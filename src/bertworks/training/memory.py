"""Memory of a training step: a config and a micro-batch size in, bytes out; and the largest micro-batch that fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.awd_lstm import AwdLstmConfig
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.elmo import ElmoConfig
from bertworks.encoders.families import family_of
from bertworks.objectives.cross_entropy import block_size

_FLOAT = 4
_MASK_PROB = 0.15  # the paper's ratio of masked tokens, which are the targets
# The ratio of tokens that are targets, for families with other objectives.
_TARGET_RATIOS = {"openai-gpt": 1.0, "awd-lstm": 1.0, "elmo": 1.0, "xlnet": 1 / 6}
# Activations whose input and output are both saved: the input for their gradient, the output for the next linear.
_TWO_TENSOR_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "silu")
# Values that an LSTM saves for each token and cell: four gates, the cell, its output and the matmul input; oneDNN's
# fused LSTM, which AWD-LSTM uses, copies many of them (measured).
_CELL_VALUES, _FUSED_CELL_VALUES = 7, 12
# Symbols of the longest word of a batch, and the ratio of unique words among its words.
_WORD_SYMBOLS, _UNIQUE_WORD_RATIO = 16, 0.5


@functools.cache
def num_parameters(config: EncoderConfig) -> int:
    """Return the number of parameters of the encoder with its pooler, without heads; a shared layer counts once."""
    with torch.device("meta"):
        return _count(family_of(config.model_type).build(config, None))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


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


def model_state_bytes(config: EncoderConfig, num_shards: int = 1) -> int:
    """Return the bytes that do not depend on the batch: parameters, gradients and Adam's two moments.

    With sharding, each process has its shard of the four. In addition, everything outside of the layers is gathered
    during a step, with its gradient, and at most two layers: the current one and the next.
    """
    num_all, embeddings = num_parameters(config), config.vocab_size * config.token_embedding_size
    if num_shards == 1:
        return _FLOAT * (4 * num_all + embeddings)  # tied embeddings get two gradients
    with torch.device("meta"):
        layers = [_count(layer) for layer in family_of(config.model_type).build(config, None).layers]
    num_gathered = 2 * (num_all - sum(layers)) + embeddings + 4 * max(layers)
    return _FLOAT * (-(-4 * num_all // num_shards) + num_gathered)


def step_bytes(
    config: EncoderConfig,
    micro_batch_size: int,
    max_length: int,
    activation_checkpointing: bool = False,
    num_shards: int = 1,
) -> int:
    """Estimate the memory of a training step: parameters, gradients, Adam's moments and saved activations.

    The temporary peak is the larger of two: the logits of a block of targets with their gradients, or the gradients of
    a layer. With activation checkpointing, a layer saves only its input, except for the current one. A shared layer
    saves activations each time it runs; only its parameters count once.
    """
    num_tokens = micro_batch_size * max_length
    state = model_state_bytes(config, num_shards)
    saved = _ACTIVATION_BYTES.get(config.model_type, _transformer)(config, max_length)
    num_targets = math.ceil(_target_ratio(config) * num_tokens)
    logits = 2 * _FLOAT * min(num_targets, block_size(config.vocab_size)) * config.vocab_size
    layers = (config.num_hidden_layers - 1) * saved.layer + saved.last_layer
    if activation_checkpointing:
        layers = saved.layer + _FLOAT * config.hidden_size * config.num_hidden_layers
    return state + num_tokens * (saved.embeddings + layers) + max(logits, num_tokens * saved.gradients)


def _target_ratio(config: EncoderConfig) -> float:
    return _TARGET_RATIOS.get(config.model_type, _MASK_PROB)


def _transformer(config: EncoderConfig, max_length: int) -> ActivationBytes:
    """For each token, a layer saves its input, queries, keys, values, attention output, both norms' inputs and what is
    between them, intermediate values and dropout masks; for each pair of positions, the attention weight and its mask.
    The last layer has keys and values of all tokens, and everything else of targets only."""
    layer_config = config.layer_config
    hidden, weights = layer_config.hidden_size, layer_config.num_attention_heads * max_length
    intermediate = layer_config.intermediate_size * (2 if layer_config.hidden_act in _TWO_TENSOR_ACTIVATIONS else 1)
    layer = _FLOAT * (8 * hidden + intermediate + weights) + 2 * hidden + weights
    last_layer = _FLOAT * 3 * hidden + math.ceil(_target_ratio(config) * layer)
    gradients = _FLOAT * (4 * hidden + max(3 * layer_config.intermediate_size, 4 * weights))
    return ActivationBytes(layer, last_layer, gradients)


def _relative(config: EncoderConfig, max_length: int) -> ActivationBytes:
    """Relative attention saves its queries with three biases, and the attention weights before and after dropout; the
    query stream saves as much for each target. Gradients of relative distances are twice as many."""
    layer_config = config.layer_config
    hidden, weights = layer_config.hidden_size, layer_config.num_attention_heads * max_length
    intermediate = layer_config.intermediate_size * (2 if layer_config.hidden_act in _TWO_TENSOR_ACTIVATIONS else 1)
    content_stream = _FLOAT * (13 * hidden + intermediate + 2 * weights) + 2 * hidden + weights
    query_stream = math.ceil(_target_ratio(config) * content_stream)
    return ActivationBytes(
        layer=content_stream + query_stream,
        last_layer=_FLOAT * 3 * hidden + query_stream,
        gradients=_FLOAT * (4 * hidden + max(3 * layer_config.intermediate_size, 6 * weights)),
        embeddings=_FLOAT * 2 * max_length,
    )


def _lstm(config: EncoderConfig, max_length: int) -> ActivationBytes:
    assert isinstance(config, AwdLstmConfig)
    layer = _FLOAT * (_FUSED_CELL_VALUES * config.lstm_size + 2 * config.hidden_size)
    return ActivationBytes(layer, layer, _FLOAT * 5 * config.lstm_size, _FLOAT * 4 * config.hidden_size)


def _bilm(config: EncoderConfig, max_length: int) -> ActivationBytes:
    """Two LSTMs per layer, and before them the character convolutions over the unique words of a batch."""
    assert isinstance(config, ElmoConfig)
    layer = _FLOAT * (2 * _CELL_VALUES * config.lstm_size + 4 * config.hidden_size)
    num_filters = sum(count for _, count in config.filters) if config.spelling != "words" else 0
    convolutions = _FLOAT * 3 * num_filters * min(_WORD_SYMBOLS, config.max_symbols_per_word)
    return ActivationBytes(
        layer=layer,
        last_layer=layer,
        gradients=_FLOAT * 10 * config.lstm_size,
        embeddings=math.ceil(_UNIQUE_WORD_RATIO * convolutions) + _FLOAT * 4 * config.hidden_size,
    )


# Activation memory of families whose layers are not BERT's.
_ACTIVATION_BYTES: dict[str, Callable[[EncoderConfig, int], ActivationBytes]] = {
    "xlnet": _relative,
    "elmo": _bilm,
    "awd-lstm": _lstm,
}


def largest_micro_batch_size(
    config: EncoderConfig,
    batch_size: int,
    max_length: int,
    available: int,
    activation_checkpointing: bool = False,
    num_shards: int = 1,
) -> int | None:
    """Return the largest micro-batch size, halving from `batch_size`, that fits into `available` bytes, or None."""
    size = batch_size
    while size and step_bytes(config, size, max_length, activation_checkpointing, num_shards) > available:
        size //= 2
    return size or None
