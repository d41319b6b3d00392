"""A recipe on many graphics cards: a recipe and a cluster in; steps, hours, memory, network, checkpoints, reading out.

Pure arithmetic with the formulas of `FORMULAS`, the only place where they are worked out; nothing is measured, and none
of it was run on such a cluster. What is assumed stands below, each with its source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bertworks.commands.plan.estimate import FORMULAS as STEP_FORMULAS
from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.plan.hardware import Hardware
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertConfig
from bertworks.errors import SettingsError
from bertworks.objectives.registry import OBJECTIVES
from bertworks.training.memory import largest_micro_batch_size, step_bytes

_FLOAT_BYTES, _HALF_BYTES = 4, 2
_USABLE_MEMORY_RATIO = 0.8  # of a card's memory, as in a run

# What one card sends to the others of its node, in bytes a second and one direction: the makers' numbers for NVLink of
# the second to fourth generation, otherwise PCIe.
_INTRA_NODE_BANDWIDTH = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "T4": 16e9, "RTX3090": 32e9, "RTX4090": 32e9}
_BANDWIDTH_RATIO = 0.8  # of the rate of a link: assumed

# Gradients travel while others are still being worked out: in the backward pass, two thirds of a step.
_OVERLAP_RATIO = 2 / 3

_COPY_BANDWIDTH = 4e9  # bytes a second from a card to memory that is not pinned: assumed
_DISK_BANDWIDTH = 1e9  # bytes a second to the shared disk, from all machines together: assumed
# Hours until a card, or what it needs, fails. Llama 3's 16,384 cards had 419 failures in 54 days ("The Llama 3 Herd of
# Models", 2024).
_GPU_MTBF_HOURS = 50_000.0

# What a row reads of a corpus: two bytes and a bit a piece; in pages of 4 KiB at worst, two of pieces, one of word
# starts and one of the index for each of its two segments.
_BYTES_PER_TOKEN = 2.125
_PAGES_PER_SEQUENCE, _PAGE_BYTES = 8, 4_096

FORMULAS = {
    "cards": "nodes * gpus",
    "pieces of a step": "batch * length",
    "operations of a step": STEP_FORMULAS["flops_of_a_step"],
    "computing": "operations / (cards * peak * utilisation)",
    "bytes sent by a card": "whole on each card: 2 * (n - 1) / n * 4 * parameters; sharded: (n - 1) / n * "
    "micro-batches * (2 * bytes * parameters of layers + 4 * other parameters + 4 * parameters), where bytes are 2 in "
    "half precision and otherwise 4",
    "network": "bytes sent / (0.8 * rate); rate = that of the links inside a node, of several nodes at most that of a "
    "node's network, which carries what one card sends",
    "seconds of a step": "computing + max(0, network - 2/3 * computing): gradients travel during the backward pass",
    "hours": "sum over lengths of steps * seconds / 3600",
    "memory": "of one card, in full precision: training/memory.py, step_bytes",
    "checkpoint": "12 * parameters: weights and two moments",
    "stop for a checkpoint": "bytes of one process / 4e9: copied from the card, then written while others compute",
    "writing": "checkpoint / 1e9",
    "interval": "sqrt(2 * stop * 3600 * 50000 / cards), Young's: what is lost to saving and to failures is least; at "
    "least 33 stops and twice the time to write, so that saving takes under 3 %",
    "reading": "batch / seconds * length * 2.125 / nodes; at worst 8 pages of 4 KiB a row",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with some cards of a kind each. `network` is what a node sends to others, in bytes a second."""

    num_nodes: int
    gpus_per_node: int  # of one node
    gpu: Hardware
    network_bandwidth: float = 12.5e9

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.gpus_per_node < 1:
            raise SettingsError(
                f"{self.num_nodes} nodes of {self.gpus_per_node} cards compute nothing; give at least 1"
            )
        if not 0 < self.network_bandwidth < math.inf:
            raise SettingsError(
                f"a network of {self.network_bandwidth:g} bytes a second is none; give --network in Gbit/s"
            )
        if self.gpu.name not in _INTRA_NODE_BANDWIDTH:
            known = ", ".join(_INTRA_NODE_BANDWIDTH)
            raise SettingsError(f"it is not known how cards of kind {self.gpu.name} are linked; choose one of: {known}")

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def link_bandwidth(self) -> float:
        """How fast what every card sends gets to the next: the slowest link on the way."""
        inside = _INTRA_NODE_BANDWIDTH[self.gpu.name]
        return inside if self.num_nodes == 1 else min(inside, self.network_bandwidth)


@dataclass(frozen=True, slots=True)
class ClusterPhaseCost:
    """A phase on a cluster. Seconds are those of a step; a node reads `read` bytes a second, at worst `read_pages`."""

    max_length: int
    steps: int
    num_tokens: int
    flops: float
    compute_seconds: float
    bytes_sent: float
    network_seconds: float
    step_seconds: float
    read_bandwidth: float
    max_read_bandwidth: float


@dataclass(frozen=True, slots=True)
class ClusterEstimate:
    """A run on a cluster. `save_every` is the interval in steps that costs least, `stop` the seconds of one saving."""

    cluster: str
    num_gpus: int
    batch_size: int
    sequences_per_gpu: int  # of one card and step
    micro_batch_size: int
    parameters: int
    phases: tuple[ClusterPhaseCost, ...]
    steps: int
    num_tokens: int
    hours: float
    memory: int
    checkpoint_bytes: int
    checkpoint_stall_seconds: float
    checkpoint_write_seconds: float
    checkpoint_interval_seconds: float
    save_steps: int
    checkpoint_overhead_ratio: float  # of all time


def estimate_on_cluster(recipe: PretrainRecipe, vocab_size: int, cluster: Cluster, shard: bool) -> ClusterEstimate:
    """Return what a recipe takes on a cluster, whole on each card or spread over all of them."""
    if recipe.budget:
        raise SettingsError("the recipe counts time, not steps; take its budget out, and give its phases steps")
    if recipe.batch_size % cluster.num_gpus:
        raise SettingsError(
            f"a batch of {recipe.batch_size} cannot be shared equally among {cluster.num_gpus} cards; choose a recipe with a "
            f"multiple, or other --nodes and --gpus"
        )
    sizes, rows = recipe.model.config(vocab_size), recipe.batch_size // cluster.num_gpus
    num_shards = cluster.num_gpus if shard else 1
    micro_batch = _fit_micro_batch_size(recipe, sizes, cluster, rows, num_shards)
    num_all, num_layers = count_parameters(recipe, vocab_size)
    sent = _bytes_sent_per_step(recipe, cluster, (num_all, num_layers), math.ceil(rows / micro_batch) if shard else 0)
    phases = tuple(_phase_cost(recipe, sizes, cluster, one, sent) for one in recipe.phases)
    steps = sum(one.steps for one in phases)
    seconds = sum(one.steps * one.step_seconds for one in phases)
    checkpoint = 3 * _FLOAT_BYTES * num_all
    stop, writing = checkpoint / num_shards / _COPY_BANDWIDTH, checkpoint / _DISK_BANDWIDTH
    interval = max(math.sqrt(2 * stop * 3600 * _GPU_MTBF_HOURS / cluster.num_gpus), 33 * stop, 2 * writing)
    longest = max(phase.max_length for phase in recipe.phases)
    return ClusterEstimate(
        f"{cluster.num_nodes} x {cluster.gpus_per_node} {cluster.gpu.name}",
        cluster.num_gpus,
        recipe.batch_size,
        rows,
        micro_batch,
        num_all,
        phases,
        steps,
        sum(one.steps * one.num_tokens for one in phases),
        seconds / 3600,
        step_bytes(sizes, micro_batch, longest, recipe.activation_checkpointing, num_shards),
        checkpoint,
        stop,
        writing,
        interval,
        math.ceil(interval * steps / seconds),
        stop / interval,
    )


def count_parameters(recipe: PretrainRecipe, vocab_size: int) -> tuple[int, int]:
    """Return how many parameters a recipe trains, heads and all, and how many of them are in layers."""
    sizes = recipe.model.config(vocab_size)
    with torch.device("meta"):
        module = OBJECTIVES[recipe.objective](family_of(sizes.model_type).build(sizes, None), None)
    layers = sum(one.numel() for one in module.encoder.layers.parameters())
    return sum(one.numel() for one in module.parameters()), layers


def _fit_micro_batch_size(
    recipe: PretrainRecipe, config: BertConfig, cluster: Cluster, num_sequences: int, num_shards: int
) -> int:
    assert cluster.gpu.memory is not None
    longest = max(phase.max_length for phase in recipe.phases)
    wanted = min(recipe.micro_batch_size or num_sequences, num_sequences)
    usable = int(_USABLE_MEMORY_RATIO * cluster.gpu.memory)
    found = largest_micro_batch_size(config, wanted, longest, usable, recipe.activation_checkpointing, num_shards)
    if found is None:
        raise SettingsError(
            f"one example of length {longest} does not fit into the {cluster.gpu.memory / 2**30:.0f} GiB of a "
            f"{cluster.gpu.name}; add --shard, or recompute = true to the recipe"
        )
    return found


def _bytes_sent_per_step(
    recipe: PretrainRecipe, cluster: Cluster, parameters: tuple[int, int], num_all_gathers: int
) -> float:
    """Return the bytes that a card sends in a step; `num_gathered` is how often weights are gathered, 0 if never."""
    num_all, num_layers = parameters
    others = (cluster.num_gpus - 1) / cluster.num_gpus
    if not num_all_gathers:
        return 2 * others * _FLOAT_BYTES * num_all
    width = _FLOAT_BYTES if recipe.precision == "fp32" else _HALF_BYTES
    weights = 2 * width * num_layers + _FLOAT_BYTES * (
        num_all - num_layers
    )  # of layers forth and back, the others once
    return others * num_all_gathers * (weights + _FLOAT_BYTES * num_all)


def _phase_cost(
    recipe: PretrainRecipe, config: BertConfig, cluster: Cluster, phase: PhaseRecipe, bytes_sent: float
) -> ClusterPhaseCost:
    flops = step_flops(config, recipe.batch_size, phase.max_length, recipe.masking.mask_prob)
    computing = flops / (cluster.num_gpus * cluster.gpu.peak_flops * cluster.gpu.utilisation)
    network = bytes_sent / (_BANDWIDTH_RATIO * cluster.link_bandwidth)
    seconds = computing + max(0.0, network - _OVERLAP_RATIO * computing)
    rows = recipe.batch_size / seconds / cluster.num_nodes  # a second
    return ClusterPhaseCost(
        phase.max_length,
        phase.steps,
        recipe.batch_size * phase.max_length,
        flops,
        computing,
        bytes_sent,
        network,
        seconds,
        rows * phase.max_length * _BYTES_PER_TOKEN,
        rows * _PAGES_PER_SEQUENCE * _PAGE_BYTES,
    )
