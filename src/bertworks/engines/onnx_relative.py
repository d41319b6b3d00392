"""Relative attention in an ONNX graph, as in `encoders.relative_attention`: queries and keys in, scores out.

B sequences, T positions, D hidden size, H heads, d = D / H, L = 2 T relative distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.relative_attention import make_distance_embeddings
from bertworks.engines.onnx_nodes import Floats, GraphNodes


@dataclass(frozen=True, slots=True)
class RelativeInputs:
    """The names of the inputs that all layers share.

    distance_embeddings   (1, 1, L, D) sinusoidal, from the farthest position before to the farthest behind
    segment_mismatch      (B, 1, T, T) 1 where two positions are in different segments, else 0
    length                (1,) T
    shifted_shape         the shape of scores (B, H, T, L - 1) in the relative shift
    """

    distance_embeddings: str
    segment_mismatch: str
    length: str
    shifted_shape: str


def build_relative_inputs(
    nodes: GraphNodes, config: EncoderConfig, positions: str, token_type_ids: str
) -> RelativeInputs:
    """Add the inputs that all layers share, for sequences up to the maximal length."""
    op, weight = nodes.op, nodes.weight
    max_length = weight("max_length", np.array([config.max_length]))
    table = make_distance_embeddings(config.max_length, 0, torch.empty(0, config.hidden_size)).numpy()
    length = op("Shape", (positions,))
    begin, end = op("Sub", (max_length, length)), op("Add", (max_length, length))
    # OpenVINO needs all operands of matmuls with four dimensions.
    embeddings, distance_axis = weight("distance_embeddings", table[None, None]), weight("distance_axis", np.array([2]))
    distances = op("Slice", (embeddings, begin, end, distance_axis))
    query_segments = op("Unsqueeze", (token_type_ids, weight("query_segment_axes", np.array([1, 3]))))  # (B, 1, T, 1)
    key_segments = op("Unsqueeze", (token_type_ids, weight("key_segment_axes", np.array([1, 2]))))  # (B, 1, 1, T)
    mismatch = op("Cast", (op("Not", (op("Equal", (query_segments, key_segments)),)),), attributes={"to": 1})
    batch_and_heads, inferred = weight("batch_and_heads", np.array([0, 0])), weight("inferred_size", np.array([-1]))
    shifted_shape = op("Concat", (batch_and_heads, length, inferred), attributes={"axis": 0})
    return RelativeInputs(distances, mismatch, length, shifted_shape)


def relative_scores(
    nodes: GraphNodes,
    state: Mapping[str, Floats],
    name: str,
    queries_and_keys: tuple[str, str],
    relative_inputs: RelativeInputs,
) -> str:
    """Return the scores (B, H, T, T) of queries and keys (B, H, T, d) by content, distance and segment."""
    op, weight = nodes.op, nodes.weight
    queries, keys = queries_and_keys

    def add_bias(kind: str) -> str:
        bias = state[f"{name}.{kind}_bias"][:, None]  # (H, 1, d)
        return op("Add", (queries, weight(f"{name}.{kind}_bias", bias)))

    transposed_keys = op("Transpose", (keys,), attributes={"perm": [0, 1, 3, 2]})
    content = op("MatMul", (add_bias("content"), transposed_keys))
    matrices = state[f"{name}.distance"].transpose(1, 0, 2)[None]  # (1, H, D, d)
    distance_keys = op(
        "MatMul", (relative_inputs.distance_embeddings, weight(f"{name}.distance", matrices))
    )  # (1, H, L, d)
    distance = op(
        "MatMul", (add_bias("distance"), op("Transpose", (distance_keys,), attributes={"perm": [0, 1, 3, 2]}))
    )
    same, different = state[f"{name}.segment_embeddings"]
    difference = weight(f"{name}.segment_difference", (different - same)[None, ..., None])  # (1, H, d, 1)
    segment = op("Mul", (op("MatMul", (add_bias("segment"), difference)), relative_inputs.segment_mismatch))
    shifted = relative_shift(nodes, distance, relative_inputs.length, relative_inputs.shifted_shape)
    return op("Add", (op("Add", (content, shifted)), segment))


def relative_shift(nodes: GraphNodes, scores: str, length: str, shifted_shape: str) -> str:
    """Return (B, H, T, T) of scores (B, H, T, L): query i and key j have the distance index T - i + j.

    Each row starts one index before the previous row: flatten, drop the first T scores, reshape to rows of L - 1.
    """
    op, weight = nodes.op, nodes.weight
    flat = op("Reshape", (scores, weight("flat_shape", np.array([0, 0, -1]))))
    end = weight("slice_end", np.array([np.iinfo(np.int64).max]))
    tail = op("Slice", (flat, length, end, weight("flat_axis", np.array([2]))))
    shifted = op("Reshape", (tail, shifted_shape))
    start, key_axis = weight("slice_start", np.array([0])), weight("key_axis", np.array([3]))
    return op("Slice", (shifted, start, length, key_axis))
