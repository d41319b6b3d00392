"""Rotary positions and local attention in an ONNX graph, as in `encoders.rotary_attention`: heads in, rotated out.

B sequences, T positions, H heads of d values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertworks.engines.onnx_nodes import Floats, GraphNodes


@dataclass(frozen=True, slots=True)
class RotaryInputs:
    """The names of the inputs that all layers with global, or all with local attention share.

    cosines, sines   (T, d / 2) of the angles of the positions
    mask             (B, 1, 1 or T, T) what is added to attention scores
    """

    cosines: str
    sines: str
    mask: str


def build_rotary_inputs(
    nodes: GraphNodes, state: Mapping[str, Floats], kind: str, positions: str, mask: str
) -> RotaryInputs:
    """Add the inputs of the layers of a kind: "global" or "local"; the tables are for the maximal length."""
    cosines, sines = (
        nodes.op("Gather", (nodes.weight(f"{kind}_{name}", state[f"{kind}_{name}"]), positions))
        for name in ("cosines", "sines")
    )
    return RotaryInputs(cosines, sines, mask)


def is_far(nodes: GraphNodes, positions: str, reach: int) -> str:
    """Return (T, T), as floats: whether a key is more than `reach` positions from a query."""
    op, weight = nodes.op, nodes.weight
    queries = op("Unsqueeze", (positions, weight("query_axis", np.array([1]))))
    distances = op("Abs", (op("Sub", (positions, queries)),))
    return op("Cast", (op("Greater", (distances, weight("reach", np.int64(reach)))),), attributes={"to": 1})


def rotate(nodes: GraphNodes, heads: str, inputs: RotaryInputs) -> str:
    """Return rotated queries or keys (B, H, T, d)."""
    op = nodes.op
    x, y = nodes.ops("Split", (heads,), (f"{heads}.first", f"{heads}.second"), {"axis": -1, "num_outputs": 2})
    cosines, sines = inputs.cosines, inputs.sines
    first = op("Sub", (op("Mul", (x, cosines)), op("Mul", (y, sines))))
    second = op("Add", (op("Mul", (y, cosines)), op("Mul", (x, sines))))
    return op("Concat", (first, second), attributes={"axis": -1})
