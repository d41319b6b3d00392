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
from bertworks.commands.pretrain.recipe import PhaseRecipe, Recipe
from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertSizes
from bertworks.errors import SettingsError
from bertworks.objectives.registry import OBJECTIVES
from bertworks.training.memory import fitting_micro_batch, step_bytes

_FLOAT, _HALF = 4, 2
_USABLE_RATE = 0.8  # of a card's memory, as in a run

# What one card sends to the others of its node, in bytes a second and one direction: the makers' numbers for NVLink of
# the second to fourth generation, otherwise PCIe.
_INSIDE = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "T4": 16e9, "RTX3090": 32e9, "RTX4090": 32e9}
_REACHED_RATE = 0.8  # of the rate of a link: assumed

# Gradients travel while others are still being worked out: in the backward pass, two thirds of a step.
_HIDDEN_RATE = 2 / 3

_COPY_RATE = 4e9  # bytes a second from a card to memory that is not pinned: assumed
_DISK_RATE = 1e9  # bytes a second to the shared disk, from all machines together: assumed
# Hours until a card, or what it needs, fails. Llama 3's 16,384 cards had 419 failures in 54 days ("The Llama 3 Herd of
# Models", 2024).
_CARD_HOURS = 50_000.0

# What a row reads of a corpus: two bytes and a bit a piece; in pages of 4 KiB at worst, two of pieces, one of word
# starts and one of the index for each of its two segments.
_PIECE_BYTES = 2.125
_ROW_PAGES, _PAGE = 8, 4_096

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
    num_cards: int  # of one node
    card: Hardware
    network: float = 12.5e9

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.num_cards < 1:
            raise SettingsError(f"{self.num_nodes} nodes of {self.num_cards} cards compute nothing; give at least 1")
        if not 0 < self.network < math.inf:
            raise SettingsError(f"a network of {self.network:g} bytes a second is none; give --network in Gbit/s")
        if self.card.name not in _INSIDE:
            known = ", ".join(_INSIDE)
            raise SettingsError(
                f"it is not known how cards of kind {self.card.name} are linked; choose one of: {known}"
            )

    @property
    def count(self) -> int:
        return self.num_nodes * self.num_cards

    @property
    def link(self) -> float:
        """How fast what every card sends gets to the next: the slowest link on the way."""
        inside = _INSIDE[self.card.name]
        return inside if self.num_nodes == 1 else min(inside, self.network)


@dataclass(frozen=True, slots=True)
class PhaseScale:
    """A phase on a cluster. Seconds are those of a step; a node reads `read` bytes a second, at worst `read_pages`."""

    length: int
    steps: int
    pieces: int
    flops: float
    computing: float
    sent: float
    network: float
    seconds: float
    read: float
    read_pages: float


@dataclass(frozen=True, slots=True)
class Scale:
    """A run on a cluster. `save_every` is the interval in steps that costs least, `stop` the seconds of one saving."""

    cards: str
    num_cards: int
    batch: int
    rows: int  # of one card and step
    micro_batch: int
    parameters: int
    phases: tuple[PhaseScale, ...]
    steps: int
    pieces: int
    hours: float
    memory: int
    checkpoint: int
    stop: float
    writing: float
    interval: float
    save_every: int
    saving_rate: float  # of all time


def scaled(recipe: Recipe, vocabulary: int, cluster: Cluster, shards: bool) -> Scale:
    """Return what a recipe takes on a cluster, whole on each card or spread over all of them."""
    if recipe.budget:
        raise SettingsError("the recipe counts time, not steps; take its budget out, and give its phases steps")
    if recipe.batch % cluster.count:
        raise SettingsError(
            f"a batch of {recipe.batch} cannot be shared equally among {cluster.count} cards; choose a recipe with a "
            f"multiple, or other --nodes and --gpus"
        )
    sizes, rows = recipe.model.sizes(vocabulary), recipe.batch // cluster.count
    num_shards = cluster.count if shards else 1
    micro_batch = _micro_batch(recipe, sizes, cluster, rows, num_shards)
    num_all, num_layers = parameters_of(recipe, vocabulary)
    sent = _sent(recipe, cluster, (num_all, num_layers), math.ceil(rows / micro_batch) if shards else 0)
    phases = tuple(_phase(recipe, sizes, cluster, one, sent) for one in recipe.phases)
    steps = sum(one.steps for one in phases)
    seconds = sum(one.steps * one.seconds for one in phases)
    checkpoint = 3 * _FLOAT * num_all
    stop, writing = checkpoint / num_shards / _COPY_RATE, checkpoint / _DISK_RATE
    interval = max(math.sqrt(2 * stop * 3600 * _CARD_HOURS / cluster.count), 33 * stop, 2 * writing)
    longest = max(phase.length for phase in recipe.phases)
    return Scale(
        f"{cluster.num_nodes} x {cluster.num_cards} {cluster.card.name}",
        cluster.count,
        recipe.batch,
        rows,
        micro_batch,
        num_all,
        phases,
        steps,
        sum(one.steps * one.pieces for one in phases),
        seconds / 3600,
        step_bytes(sizes, micro_batch, longest, recipe.recompute, num_shards),
        checkpoint,
        stop,
        writing,
        interval,
        math.ceil(interval * steps / seconds),
        stop / interval,
    )


def parameters_of(recipe: Recipe, vocabulary: int) -> tuple[int, int]:
    """Return how many parameters a recipe trains, heads and all, and how many of them are in layers."""
    sizes = recipe.model.sizes(vocabulary)
    with torch.device("meta"):
        module = OBJECTIVES[recipe.objective](family_of(sizes.family).build(sizes, None), None)
    layers = sum(one.numel() for one in module.encoder.layers.parameters())
    return sum(one.numel() for one in module.parameters()), layers


def _micro_batch(recipe: Recipe, sizes: BertSizes, cluster: Cluster, rows: int, num_shards: int) -> int:
    assert cluster.card.memory is not None
    longest = max(phase.length for phase in recipe.phases)
    wanted = min(recipe.micro_batch or rows, rows)
    usable = int(_USABLE_RATE * cluster.card.memory)
    found = fitting_micro_batch(sizes, wanted, longest, usable, recipe.recompute, num_shards)
    if found is None:
        raise SettingsError(
            f"one example of length {longest} does not fit into the {cluster.card.memory / 2**30:.0f} GiB of a "
            f"{cluster.card.name}; add --shard, or recompute = true to the recipe"
        )
    return found


def _sent(recipe: Recipe, cluster: Cluster, parameters: tuple[int, int], num_gathered: int) -> float:
    """Return the bytes that a card sends in a step; `num_gathered` is how often weights are gathered, 0 if never."""
    num_all, num_layers = parameters
    others = (cluster.count - 1) / cluster.count
    if not num_gathered:
        return 2 * others * _FLOAT * num_all
    width = _FLOAT if recipe.precision == "fp32" else _HALF
    weights = 2 * width * num_layers + _FLOAT * (num_all - num_layers)  # of layers forth and back, the others once
    return others * num_gathered * (weights + _FLOAT * num_all)


def _phase(recipe: Recipe, sizes: BertSizes, cluster: Cluster, phase: PhaseRecipe, sent: float) -> PhaseScale:
    flops = step_flops(sizes, recipe.batch, phase.length, recipe.masking.rate)
    computing = flops / (cluster.count * cluster.card.peak * cluster.card.utilisation)
    network = sent / (_REACHED_RATE * cluster.link)
    seconds = computing + max(0.0, network - _HIDDEN_RATE * computing)
    rows = recipe.batch / seconds / cluster.num_nodes  # a second
    return PhaseScale(
        phase.length,
        phase.steps,
        recipe.batch * phase.length,
        flops,
        computing,
        sent,
        network,
        seconds,
        rows * phase.length * _PIECE_BYTES,
        rows * _ROW_PAGES * _PAGE,
    )
