"""What does a step compute? A module and batches in, the operations of its matrix products out, counted, not estimated.

torch counts most of what it calls; here are the others: products that add to what is there, those of oneDNN, and
attention and LSTMs as a CPU computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.registry import Objective
from bertworks.sampling.batch import Batch


def _linear_flops(values: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * prod(values) * weight[0]


def _addmm_flops(accumulator: Sequence[int], left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * prod(left) * right[-1]


def _attention_flops(queries: Sequence[int], keys: Sequence[int], *_: Any, **__: Any) -> int:
    return 4 * prod(queries) * keys[-2]  # scores, and what is read


def _attention_backward_flops(
    grad_output: Sequence[int], queries: Sequence[int], keys: Sequence[int], *_: Any, **__: Any
) -> int:
    return 10 * prod(queries) * keys[-2]  # the scores again, and the slopes of shares, queries, keys and values


def _lstm_flops(
    values: Sequence[int], weight: Sequence[int], recurrent_weight: Sequence[int], *_: Any, **__: Any
) -> int:
    return 2 * values[0] * values[1] * (prod(weight) + prod(recurrent_weight))


def _lstm_backward_flops(*shapes: Any, **kwargs: Any) -> int:
    return 2 * _lstm_flops(*shapes, **kwargs)


# What torch does not count by itself -> from the shapes of what enters to operations. A name that this torch lacks is
# left out.
_EXTRA_FORMULAS: dict[tuple[str, str], Callable[..., int]] = {
    ("mkldnn", "_linear_pointwise"): _linear_flops,
    ("aten", "addmm_"): _addmm_flops,
    ("aten", "baddbmm_"): _addmm_flops,
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"): _attention_flops,
    ("aten", "_scaled_dot_product_flash_attention_for_cpu_backward"): _attention_backward_flops,
    ("aten", "mkldnn_rnn_layer"): _lstm_flops,
    ("aten", "mkldnn_rnn_layer_backward"): _lstm_backward_flops,
}


def count_flops(module: Objective, batches: Iterable[Batch]) -> int:
    """Return the operations of the matrix products of a training step, forward and backward; nothing is changed."""
    known = {
        getattr(getattr(torch.ops, room), name): formula
        for (room, name), formula in _EXTRA_FORMULAS.items()
        if hasattr(getattr(torch.ops, room), name)
    }
    counter = FlopCounterMode(display=False, custom_mapping=known)
    was_training = module.training
    module.train()
    with counter:
        for batch in batches:
            seeds = DropoutSeeds(torch.zeros((), dtype=torch.int32, device=batch.input_ids.device))
            loss = module(batch, dict.fromkeys(module.counts(batch), 1.0), seeds)
            loss.value.backward()
    module.zero_grad(set_to_none=True)
    module.train(was_training)
    return int(counter.get_total_flops())
