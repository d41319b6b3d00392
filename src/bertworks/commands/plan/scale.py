"""Estimate a recipe on a GPU cluster: a recipe and a Cluster in; steps, hours, memory, network, checkpoints, reads out.

Pure arithmetic with the formulas of `FORMULAS`, which are computed here only; nothing is measured, and none of it was
run on such a cluster. Assumptions are listed below, each with its source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bertworks.commands.plan.estimate import FORMULAS as STEP_FORMULAS
from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.plan.hardware import Hardware
from bertworks.commands.pretrain.recipe import Phase, PretrainRecipe
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.objectives.registry import OBJECTIVES
from bertworks.training.memory import ema_bytes, largest_micro_batch_size, step_bytes

_FLOAT_BYTES, _HALF_BYTES = 4, 2
_USABLE_MEMORY_RATIO = 0.8  # of a GPU's memory, as in a run

# Bytes per second that one GPU sends to the others of its node, in one direction: the vendors' numbers for NVLink of
# the second to fourth generation, otherwise PCIe.
_INTRA_NODE_BANDWIDTH = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "T4": 16e9, "RTX3090": 32e9, "RTX4090": 32e9}
_BANDWIDTH_RATIO = 0.8  # of the bandwidth of a link: assumed

# Gradients are sent while others are still being computed: in the backward pass, two thirds of a step.
_OVERLAP_RATIO = 2 / 3

_COPY_BANDWIDTH = 4e9  # bytes per second from a GPU to unpinned memory: assumed
_DISK_BANDWIDTH = 1e9  # bytes per second to the shared disk, from all nodes together: assumed
# Mean time between failures of a GPU, or of what it needs. Llama 3's 16,384 GPUs had 419 failures in 54 days ("The
# Llama 3 Herd of Models", 2024).
_GPU_MTBF_HOURS = 50_000.0

# What a sequence reads of a corpus: two bytes and a bit per token; in the worst case in pages of 4 KiB: two of tokens,
# one of word starts and one of the index for each of its two segments.
_BYTES_PER_TOKEN = 2.125
_PAGES_PER_SEQUENCE, _PAGE_BYTES = 8, 4_096

FORMULAS = {
    "gpus": "nodes * GPUs per node",
    "tokens per step": "batch size * max_length",
    "FLOPs per step": STEP_FORMULAS["flops_of_a_step"],
    "compute": "FLOPs / (gpus * peak * utilisation)",
    "bytes sent by a GPU": "replicated: 2 * (n - 1) / n * 4 * parameters; sharded: (n - 1) / n * micro-batches * "
    "(2 * bytes * layer parameters + 4 * other parameters + 4 * parameters), where bytes are 2 in half precision and "
    "otherwise 4",
    "network": "bytes sent / (0.8 * bandwidth); bandwidth = that of the links inside a node; with several nodes at "
    "most that of a node's network, which carries what one GPU sends",
    "seconds per step": "compute + max(0, network - 2/3 * compute): gradients are sent during the backward pass",
    "hours": "sum over phases of steps * seconds / 3600",
    "memory": "of one GPU, in full precision: training/memory.py, step_bytes",
    "checkpoint": "12 * parameters: weights and two moments",
    "checkpoint stall": "bytes of one process / 4e9: copied from the GPU, then written in the background",
    "checkpoint write": "checkpoint / 1e9",
    "checkpoint interval": "sqrt(2 * stall * 3600 * 50000 / gpus), Young's: it minimizes the time lost to saving and "
    "to failures; at least 33 stalls and twice the time to write, so that saving takes under 3 %",
    "reading": "batch size / seconds * max_length * 2.125 / nodes; in the worst case 8 pages of 4 KiB per sequence",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with equal GPUs. `network_bandwidth` is what a node sends to others, in bytes per second."""

    num_nodes: int
    gpus_per_node: int
    gpu: Hardware
    network_bandwidth: float = 12.5e9

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.gpus_per_node < 1:
            raise SettingsError(
                f"a cluster needs at least 1 node with 1 GPU, not {self.num_nodes} nodes with {self.gpus_per_node}"
            )
        if not 0 < self.network_bandwidth < math.inf:
            raise SettingsError(
                f"the network bandwidth is {self.network_bandwidth:g} bytes/s; give --network in Gbit/s, above 0"
            )
        if self.gpu.name not in _INTRA_NODE_BANDWIDTH:
            gpu_names = ", ".join(_INTRA_NODE_BANDWIDTH)
            raise SettingsError(
                f"the bandwidth between {self.gpu.name} devices is not known; choose one of: {gpu_names}"
            )

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def link_bandwidth(self) -> float:
        """The bandwidth of the slowest link between GPUs."""
        intra_node = _INTRA_NODE_BANDWIDTH[self.gpu.name]
        return intra_node if self.num_nodes == 1 else min(intra_node, self.network_bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPhaseCost:
    """A phase on a cluster. Seconds, FLOPs and bytes sent are per step, bandwidths in bytes per second and node."""

    name: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEstimate:
    """A run on a cluster; `batch_size` is that of the phase with the largest one.

    `save_steps` is the checkpoint interval that costs least, in steps.
    """

    cluster: str
    num_gpus: int
    batch_size: int
    sequences_per_gpu: int
    micro_batch_size: int
    num_parameters: int
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
    checkpoint_overhead_ratio: float  # of the total time


def estimate_on_cluster(recipe: PretrainRecipe, vocab_size: int, cluster: Cluster, shard: bool) -> ClusterEstimate:
    """Estimate a recipe on a cluster, with the model replicated on each GPU or sharded over all of them."""
    if recipe.budget:
        raise SettingsError("the recipe has a time budget; remove it, and set steps in its phases")
    batch_size = _largest_batch_size(recipe, cluster)
    config, num_sequences = recipe.model.config(vocab_size), batch_size // cluster.num_gpus
    num_shards = cluster.num_gpus if shard else 1
    micro_batch_size = _fit_micro_batch_size(recipe, config, cluster, num_sequences, num_shards)
    parameters = count_parameters(recipe, vocab_size)
    phases = []
    for phase in recipe.resolve_phases():
        num_micro_batches = math.ceil(phase.batch_size // cluster.num_gpus / micro_batch_size)
        bytes_sent = _bytes_sent_per_step(recipe, cluster, parameters, num_micro_batches if shard else 0)
        phases.append(_phase_cost(config, cluster, phase, bytes_sent))
    steps = sum(phase.steps for phase in phases)
    seconds = sum(phase.steps * phase.step_seconds for phase in phases)
    checkpoint_bytes = (4 if recipe.ema_decay else 3) * _FLOAT_BYTES * parameters[0]
    stall, write = checkpoint_bytes / num_shards / _COPY_BANDWIDTH, checkpoint_bytes / _DISK_BANDWIDTH
    interval = max(math.sqrt(2 * stall * 3600 * _GPU_MTBF_HOURS / cluster.num_gpus), 33 * stall, 2 * write)
    max_length = max(phase.max_length for phase in recipe.phases)
    return ClusterEstimate(
        cluster=f"{cluster.num_nodes} x {cluster.gpus_per_node} {cluster.gpu.name}",
        num_gpus=cluster.num_gpus,
        batch_size=batch_size,
        sequences_per_gpu=num_sequences,
        micro_batch_size=micro_batch_size,
        num_parameters=parameters[0],
        phases=tuple(phases),
        steps=steps,
        num_tokens=sum(phase.steps * phase.num_tokens for phase in phases),
        hours=seconds / 3600,
        memory=step_bytes(config, micro_batch_size, max_length, recipe.activation_checkpointing, num_shards)
        + ema_bytes(config, recipe.ema_decay, num_shards),
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_stall_seconds=stall,
        checkpoint_write_seconds=write,
        checkpoint_interval_seconds=interval,
        save_steps=math.ceil(interval * steps / seconds),
        checkpoint_overhead_ratio=stall / interval,
    )


def _largest_batch_size(recipe: PretrainRecipe, cluster: Cluster) -> int:
    """Return the largest batch size of a phase; each has to be a multiple of the number of GPUs."""
    batch_sizes = [phase.batch_size for phase in recipe.resolve_phases()]
    for batch_size in batch_sizes:
        if batch_size % cluster.num_gpus:
            raise SettingsError(
                f"batch_size {batch_size} is no multiple of {cluster.num_gpus} GPUs; choose a recipe with a "
                f"multiple, or other --nodes and --gpus"
            )
    return max(batch_sizes)


def count_parameters(recipe: PretrainRecipe, vocab_size: int) -> tuple[int, int]:
    """Return the number of parameters that a recipe trains, with heads, and how many of them are in layers."""
    config = recipe.model.config(vocab_size)
    with torch.device("meta"):
        module = OBJECTIVES[recipe.objective].build(family_of(config.model_type).build(config, None), None)
    num_layer = sum(parameter.numel() for parameter in module.encoder.layers.parameters())
    return sum(parameter.numel() for parameter in module.parameters()), num_layer


def _fit_micro_batch_size(
    recipe: PretrainRecipe, config: EncoderConfig, cluster: Cluster, num_sequences: int, num_shards: int
) -> int:
    assert cluster.gpu.memory is not None
    max_length = max(phase.max_length for phase in recipe.phases)
    target_size = min(recipe.micro_batch_size or num_sequences, num_sequences)
    usable = int(_USABLE_MEMORY_RATIO * cluster.gpu.memory) - ema_bytes(config, recipe.ema_decay, num_shards)
    size = largest_micro_batch_size(
        config, target_size, max_length, usable, recipe.activation_checkpointing, num_shards
    )
    if size is None:
        raise SettingsError(
            f"one example of length {max_length} does not fit into the {cluster.gpu.memory / 2**30:.0f} GiB of a "
            f"{cluster.gpu.name}; add --shard, or activation_checkpointing = true to the recipe"
        )
    return size


def _bytes_sent_per_step(
    recipe: PretrainRecipe, cluster: Cluster, parameters: tuple[int, int], num_all_gathers: int
) -> float:
    """Return the bytes that a GPU sends per step. `num_all_gathers`: how often weights are gathered, 0 if never."""
    num_parameters, num_layer = parameters
    other_gpus = (cluster.num_gpus - 1) / cluster.num_gpus
    if not num_all_gathers:
        return 2 * other_gpus * _FLOAT_BYTES * num_parameters
    dtype_bytes = _FLOAT_BYTES if recipe.precision == "fp32" else _HALF_BYTES
    # Layer weights are gathered in the forward and the backward pass, the others once.
    weights = 2 * dtype_bytes * num_layer + _FLOAT_BYTES * (num_parameters - num_layer)
    return other_gpus * num_all_gathers * (weights + _FLOAT_BYTES * num_parameters)


def _phase_cost(config: EncoderConfig, cluster: Cluster, phase: Phase, bytes_sent: float) -> ClusterPhaseCost:
    flops = step_flops(config, phase.batch_size, phase.max_length, phase.masking.mask_prob)
    compute = flops / (cluster.num_gpus * cluster.gpu.peak_flops * cluster.gpu.utilisation)
    network = bytes_sent / (_BANDWIDTH_RATIO * cluster.link_bandwidth)
    step_seconds = compute + max(0.0, network - _OVERLAP_RATIO * compute)
    sequences_per_second = phase.batch_size / step_seconds / cluster.num_nodes
    return ClusterPhaseCost(
        name=phase.name,
        max_length=phase.max_length,
        steps=phase.steps,
        num_tokens=phase.batch_size * phase.max_length,
        flops=flops,
        compute_seconds=compute,
        bytes_sent=bytes_sent,
        network_seconds=network,
        step_seconds=step_seconds,
        read_bandwidth=sequences_per_second * phase.max_length * _BYTES_PER_TOKEN,
        max_read_bandwidth=sequences_per_second * _PAGES_PER_SEQUENCE * _PAGE_BYTES,
    )
