"""FLOPs of a training step: an objective and batches in, the counted FLOPs of all matmuls out.

torch's FlopCounterMode knows most operators; this file adds the others: in-place addmm, oneDNN's linear, and attention
and LSTMs as the CPU computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.objective import ObjectiveModule
from bertworks.sampling.batch import Batch


def _linear_flops(values: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * prod(values) * weight[0]


def _addmm_flops(accumulator: Sequence[int], left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * prod(left) * right[-1]


def _attention_flops(queries: Sequence[int], keys: Sequence[int], *_: Any, **__: Any) -> int:
    return 4 * prod(queries) * keys[-2]  # attention scores and context


def _attention_backward_flops(
    grad_output: Sequence[int], queries: Sequence[int], keys: Sequence[int], *_: Any, **__: Any
) -> int:
    return 10 * prod(queries) * keys[-2]  # scores again; gradients of weights, queries, keys, values


def _lstm_flops(
    values: Sequence[int], weight: Sequence[int], recurrent_weight: Sequence[int], *_: Any, **__: Any
) -> int:
    return 2 * values[0] * values[1] * (prod(weight) + prod(recurrent_weight))


def _lstm_backward_flops(*shapes: Any, **kwargs: Any) -> int:
    return 2 * _lstm_flops(*shapes, **kwargs)


# (namespace, operator) -> its FLOPs by the shapes of its inputs. Operators that this torch lacks are skipped.
_EXTRA_FORMULAS: dict[tuple[str, str], Callable[..., int]] = {
    ("mkldnn", "_linear_pointwise"): _linear_flops,
    ("aten", "addmm_"): _addmm_flops,
    ("aten", "baddbmm_"): _addmm_flops,
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"): _attention_flops,
    ("aten", "_scaled_dot_product_flash_attention_for_cpu_backward"): _attention_backward_flops,
    ("aten", "mkldnn_rnn_layer"): _lstm_flops,
    ("aten", "mkldnn_rnn_layer_backward"): _lstm_backward_flops,
}


def count_flops(module: ObjectiveModule, batches: Iterable[Batch]) -> int:
    """Return the FLOPs of the matmuls of a training step, forward and backward; no parameter changes."""
    formulas = {
        getattr(getattr(torch.ops, namespace), name): formula
        for (namespace, name), formula in _EXTRA_FORMULAS.items()
        if hasattr(getattr(torch.ops, namespace), name)
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
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
