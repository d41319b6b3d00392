"""Disentangled attention in an ONNX graph, as in `encoders.disentangled_attention`: queries and keys in, scores out.

B sequences, T positions, D hidden size, H heads, d = D / H, L = 2 T relative positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bertworks.engines.onnx_nodes import Floats, GraphNodes, float_linear
from bertworks.engines.onnx_relative import relative_shift

# The tensor of an encoder with this attention: the embeddings of relative positions of the longest sequences (L, D).
RELATIVE_EMBEDDINGS = "relative_embeddings"


@dataclass(frozen=True, slots=True)
class DisentangledInputs:
    """The names of the inputs that all layers share.

    embeddings      (1, L, D) of the relative positions T, T - 1, …, 1 - T
    reversed_order  (L,) the index of each relative position from 1 - T up
    length          (1,) T
    shifted_shape   the shape of scores (B, H, T, L - 1) in the relative shift
    """

    embeddings: str
    reversed_order: str
    length: str
    shifted_shape: str


def build_disentangled_inputs(nodes: GraphNodes, table: Floats, positions: str) -> DisentangledInputs:
    """Add the inputs that all layers share; `table` (L, D) is for sequences of the maximal length."""
    op, weight = nodes.op, nodes.weight
    max_length, length = weight("max_length", np.array([len(table) // 2])), op("Shape", (positions,))
    begin, end = op("Sub", (max_length, length)), op("Add", (max_length, length))
    axis = weight("relative_axis", np.array([1]))
    embeddings = op("Slice", (weight(RELATIVE_EMBEDDINGS, table[None]), begin, end, axis))
    num_relative = op("Squeeze", (op("Add", (length, length)),))
    numbers = op("Range", (weight("zero", np.int64(0)), num_relative, weight("one", np.int64(1))))
    reversed_order = op("Mod", (op("Sub", (num_relative, numbers)), num_relative))
    batch_and_heads, inferred = weight("batch_and_heads", np.array([0, 0])), weight("inferred_size", np.array([-1]))
    shifted_shape = op("Concat", (batch_and_heads, length, inferred), attributes={"axis": 0})
    return DisentangledInputs(embeddings, reversed_order, length, shifted_shape)


def disentangled_scores(
    nodes: GraphNodes,
    projection: tuple[str, Mapping[str, Floats]],
    queries_and_keys: tuple[str, str],
    inputs: DisentangledInputs,
    split_heads: Callable[[str], str],
) -> str:
    """Return the scores (B, H, T, T) of queries and keys (B, H, T, d) by content and relative position, without scale.

    `projection` is the name of an attention and the tensors of the encoder.
    """
    op, (name, state), (queries, keys) = nodes.op, projection, queries_and_keys
    weight, bias = state[f"{name}.query_key_value.weight"], state[f"{name}.query_key_value.bias"]
    num_rows = 2 * len(bias) // 3  # of queries and keys
    projected = float_linear(nodes, inputs.embeddings, f"{name}.relative", weight[:num_rows].T, bias[:num_rows])
    names = [f"{name}.relative_queries", f"{name}.relative_keys"]
    parts = nodes.ops("Split", (projected,), names, {"axis": -1, "num_outputs": 2})
    relative_queries, relative_keys = (split_heads(part) for part in parts)  # (1, H, L, d)
    relative_queries = op("Gather", (relative_queries, inputs.reversed_order), attributes={"axis": 2})
    content = op("MatMul", (queries, _transpose(nodes, keys)))
    content_to_position = op("MatMul", (queries, _transpose(nodes, relative_keys)))
    position_to_content = op("MatMul", (keys, _transpose(nodes, relative_queries)))
    shifted = (
        relative_shift(nodes, content_to_position, inputs.length, inputs.shifted_shape),
        _transpose(nodes, relative_shift(nodes, position_to_content, inputs.length, inputs.shifted_shape)),
    )
    return op("Add", (content, op("Add", shifted)))


def _transpose(nodes: GraphNodes, values: str) -> str:
    return nodes.op("Transpose", (values,), attributes={"perm": [0, 1, 3, 2]})
