"""The nodes of an ONNX graph while it is written: operators and weights in, a ModelProto out.

K values that enter a product, N that leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# The first version of the standard that has Gelu; ONNX Runtime reads it since 1.17.
_OPSET, _FORMAT = 20, 9

Floats = npt.NDArray[np.float32]
Attributes = Mapping[str, Any]
NO_ATTRIBUTES: Attributes = {}
Shapes = dict[str, tuple[str | int, ...]]


@dataclass(slots=True)
class GraphNodes:
    """The nodes and weights of a graph while it is written. What a node gives has the node's own name.

    A layer that is passed several times gives the same names again; behind those a number is put.
    """

    helper: Any
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    name_counts: Counter[str] = field(default_factory=Counter)

    def weight(self, name: str, values: npt.ArrayLike) -> str:
        """Keep a constant under a name; the same one again changes nothing."""
        self.weights[name] = np.asarray(values, order="C")
        return name

    def op(self, kind: str, inputs: Sequence[str], name: str = "", attributes: Attributes = NO_ATTRIBUTES) -> str:
        """Add a node and return the name of its only output."""
        return self.ops(kind, inputs, (name or f"{kind}.{len(self.nodes)}",), attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], names: Sequence[str], attributes: Attributes = NO_ATTRIBUTES
    ) -> list[str]:
        """Add a node with outputs of these names, or of such that are still free."""
        self.name_counts.update(names)
        names = [name if self.name_counts[name] == 1 else f"{name}.{self.name_counts[name]}" for name in names]
        self.nodes.append(self.helper.make_node(kind, inputs, names, names[0], **attributes))
        return list(names)


# How a product is computed: nodes, the name of what is multiplied (…, K), the product's, its matrix (K, N), bias (N,).
LinearOp = Callable[[GraphNodes, str, str, Floats, Floats], str]


def float_linear(nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
    """Return values times matrix plus bias, in full precision."""
    found = nodes.op("MatMul", (values, nodes.weight(f"{name}.weight", matrix)))
    return nodes.op("Add", (found, nodes.weight(f"{name}.bias", bias)), name)


def activate(nodes: GraphNodes, values: str, activation: str) -> str:
    """Return values after one of `encoders.layers.ACTIVATIONS`."""
    match activation:
        case "gelu":
            return nodes.op("Gelu", (values,))
        case "gelu_new" | "gelu_pytorch_tanh":
            return nodes.op("Gelu", (values,), attributes={"approximate": "tanh"})
        case "silu":
            return nodes.op("Mul", (values, nodes.op("Sigmoid", (values,))))
    return nodes.op({"relu": "Relu", "tanh": "Tanh"}[activation], (values,))


def build_model(onnx: Any, nodes: GraphNodes, inputs: Sequence[str], outputs: Shapes) -> Any:
    """Return the finished graph; its inputs are whole numbers (B, T)."""
    helper, kinds = onnx.helper, onnx.TensorProto
    entering = [helper.make_tensor_value_info(name, kinds.INT64, ["batch", "sequence"]) for name in inputs]
    leaving = [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in outputs.items()]
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in nodes.weights.items()]
    graph = helper.make_graph(nodes.nodes, "bert", entering, leaving, weights)
    domains = {"": _OPSET} | {node.domain: 1 for node in nodes.nodes if node.domain}
    versions = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=_FORMAT, producer_name="bertworks")
