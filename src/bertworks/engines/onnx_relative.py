"""Attention by distance and segment as nodes of a graph, as in `encoders.relative`: queries and keys in, scores out.

B rows of T places, D width, H heads, d = D / H, L = 2 T distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from bertworks.encoders.relative_attention import make_distance_embeddings
from bertworks.encoders.stack import BertConfig
from bertworks.engines.onnx_nodes import Floats, GraphNodes


@dataclass(frozen=True, slots=True)
class RelativeInputs:
    """The names of what all layers are told alike.

    waves     (1, 1, L, D) the distances of a row, from the farthest before a place to the farthest behind it
    differs   (B, 1, T, T) 1 where two places are of different segments, else 0
    length    (1,) T
    rows      the shape of scores (B, H, T, …) whose distances are shifted
    """

    distance_embeddings: str
    segment_mismatch: str
    length: str
    shifted_shape: str


def build_relative_inputs(nodes: GraphNodes, config: BertConfig, positions: str, token_type_ids: str) -> RelativeInputs:
    """Write what all layers are told; rows are as long as the sizes allow, or shorter."""
    op, weight = nodes.op, nodes.weight
    longest = weight("longest", np.array([config.max_position_embeddings]))
    table = make_distance_embeddings(config.max_position_embeddings, 0, torch.empty(0, config.hidden_size)).numpy()
    length = op("Shape", (positions,))
    begin, end = op("Sub", (longest, length)), op("Add", (longest, length))
    # All that is multiplied has four dimensions, which OpenVINO asks for.
    waves = op("Slice", (weight("waves", table[None, None]), begin, end, weight("distances", np.array([2]))))
    readers = op("Unsqueeze", (token_type_ids, weight("of_readers", np.array([1, 3]))))  # (B, 1, T, 1)
    read = op("Unsqueeze", (token_type_ids, weight("of_read", np.array([1, 2]))))
    differs = op("Cast", (op("Not", (op("Equal", (readers, read)),)),), attributes={"to": 1})
    rows = op(
        "Concat",
        (weight("as_they_are", np.array([0, 0])), length, weight("the_rest", np.array([-1]))),
        attributes={"axis": 0},
    )
    return RelativeInputs(waves, differs, length, rows)


def relative_scores(
    nodes: GraphNodes,
    state: Mapping[str, Floats],
    name: str,
    queries_and_keys: tuple[str, str],
    relative_inputs: RelativeInputs,
) -> str:
    """Return (B, H, T, T): how queries (B, H, T, d) like keys (B, H, T, d) by content, distance and segment."""
    op, weight = nodes.op, nodes.weight
    queries, keys = queries_and_keys

    def biased(kind: str) -> str:
        bias = state[f"{name}.{kind}_bias"][:, None]  # (H, 1, d)
        return op("Add", (queries, weight(f"{name}.{kind}_bias", bias)))

    turned = op("Transpose", (keys,), attributes={"perm": [0, 1, 3, 2]})
    content = op("MatMul", (biased("content"), turned))
    matrices = state[f"{name}.distance"].transpose(1, 0, 2)[None]  # (1, H, D, d)
    far = op("MatMul", (relative_inputs.distance_embeddings, weight(f"{name}.distance", matrices)))  # (1, H, L, d)
    by_distance = op("MatMul", (biased("distance"), op("Transpose", (far,), attributes={"perm": [0, 1, 3, 2]})))
    one, other = state[f"{name}.segments"]
    slopes = weight(f"{name}.segments", (other - one)[None, ..., None])  # (1, H, d, 1)
    by_segment = op("Mul", (op("MatMul", (biased("segment"), slopes)), relative_inputs.segment_mismatch))
    return op("Add", (op("Add", (content, _relative_shift(nodes, by_distance, relative_inputs))), by_segment))


def _relative_shift(nodes: GraphNodes, scores: str, relative_inputs: RelativeInputs) -> str:
    """Return (B, H, T, T) of scores (B, H, T, L): place i reads place j at distance number T - i + j.

    Each row begins one earlier than the one before: laid out as one row without its first T, in rows of L - 1.
    """
    op, weight = nodes.op, nodes.weight
    flat = op("Reshape", (scores, weight("in_one_row", np.array([0, 0, -1]))))
    most = weight("to_the_end", np.array([np.iinfo(np.int64).max]))
    later = op("Slice", (flat, relative_inputs.length, most, weight("in_the_row", np.array([2]))))
    rows = op("Reshape", (later, relative_inputs.shifted_shape))
    return op(
        "Slice",
        (rows, weight("from_the_first", np.array([0])), relative_inputs.length, weight("places_read", np.array([3]))),
    )
