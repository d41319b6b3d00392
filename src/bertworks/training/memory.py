"""Memory of a training step: a config and a micro-batch size in, bytes out; and the largest micro-batch that fits."""

from __future__ import annotations

import functools
import math

import torch
from torch import nn

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.memory import FLOAT_BYTES
from bertworks.errors import SettingsError
from bertworks.objectives.cross_entropy import logits_bytes
from bertworks.parallel.machine import available_bytes


@functools.cache
def num_parameters(config: EncoderConfig) -> int:
    """Return the number of parameters of the encoder with its pooler, without heads; a shared layer counts once."""
    with torch.device("meta"):
        return _count(family_of(config.model_type).build(config, None))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def model_state_bytes(config: EncoderConfig, num_shards: int = 1) -> int:
    """Return the bytes that do not depend on the batch: parameters, gradients and Adam's two moments.

    With sharding, each process has its shard of the four. In addition, everything outside of the layers is gathered
    during a step, with its gradient, and at most two layers: the current one and the next.
    """
    num_total, embeddings = num_parameters(config), config.vocab_size * config.token_embedding_size
    if num_shards == 1:
        return FLOAT_BYTES * (4 * num_total + embeddings)  # tied embeddings get two gradients
    with torch.device("meta"):
        layers = [_count(layer) for layer in family_of(config.model_type).build(config, None).layers]
    num_gathered = 2 * (num_total - sum(layers)) + embeddings + 4 * max(layers)
    return FLOAT_BYTES * (-(-4 * num_total // num_shards) + num_gathered)


def ema_bytes(config: EncoderConfig, ema_decay: float, num_shards: int = 1) -> int:
    """Return the bytes of the averaged weights, with sharding those of one process; 0 without an average."""
    return FLOAT_BYTES * -(-num_parameters(config) // num_shards) if ema_decay else 0


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
    per_token = config.activation_bytes(max_length)
    num_targets = math.ceil(config.target_ratio * num_tokens)
    logits = logits_bytes(num_targets, config.vocab_size)
    layers = (config.depth - 1) * per_token.layer + per_token.last_layer
    if activation_checkpointing:
        layers = per_token.layer + FLOAT_BYTES * config.hidden_size * config.depth
    return state + num_tokens * (per_token.embeddings + layers) + max(logits, num_tokens * per_token.gradients)


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


def check_model_fits(config: EncoderConfig) -> None:
    """Refuse a config whose parameters, gradients and moments exceed the free memory, before anything is allocated."""
    required, available = model_state_bytes(config), available_bytes()
    if required > available:
        raise SettingsError(
            f"training a model of {num_parameters(config):,} parameters needs about {required / 2**30:,.1f} GiB, and "
            f"{available / 2**30:,.1f} GiB are free; choose a smaller model"
        )
