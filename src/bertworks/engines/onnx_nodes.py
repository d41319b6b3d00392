"""The nodes of an ONNX graph: operators and weights in, a ModelProto out.

K input and M output channels of a linear layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# The first opset with Gelu; ONNX Runtime supports it since 1.17.
_OPSET, _FORMAT = 20, 9

Floats = npt.NDArray[np.float32]
Attributes = Mapping[str, Any]
NO_ATTRIBUTES: Attributes = {}
Shapes = dict[str, tuple[str | int, ...]]


@dataclass(slots=True)
class GraphNodes:
    """The nodes and weights of a graph under construction. The output of a node has the name of the node.

    A shared layer produces the same names again; they get a number as suffix.
    """

    helper: Any
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    name_counts: Counter[str] = field(default_factory=Counter)

    def weight(self, name: str, values: npt.ArrayLike) -> str:
        """Add a constant and return its name; adding it again changes nothing."""
        self.weights[name] = np.asarray(values, order="C")
        return name

    def op(self, kind: str, inputs: Sequence[str], name: str = "", attributes: Attributes = NO_ATTRIBUTES) -> str:
        """Add a node and return the name of its only output."""
        return self.ops(kind, inputs, (name or f"{kind}.{len(self.nodes)}",), attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], names: Sequence[str], attributes: Attributes = NO_ATTRIBUTES
    ) -> list[str]:
        """Add a node with these output names, made unique."""
        self.name_counts.update(names)
        names = [name if self.name_counts[name] == 1 else f"{name}.{self.name_counts[name]}" for name in names]
        self.nodes.append(self.helper.make_node(kind, inputs, names, names[0], **attributes))
        return list(names)


# Adds a linear layer: (nodes, input (…, K), name of the layer, weight (K, M), bias (M,)) -> name of the output.
LinearOp = Callable[[GraphNodes, str, str, Floats, Floats], str]


def float_linear(nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
    """Add values @ matrix + bias in fp32."""
    product = nodes.op("MatMul", (values, nodes.weight(f"{name}.weight", matrix)))
    return nodes.op("Add", (product, nodes.weight(f"{name}.bias", bias)), name)


def activate(nodes: GraphNodes, values: str, activation: str) -> str:
    """Add one of `encoders.layers.ACTIVATIONS`."""
    match activation:
        case "gelu" | "gelu_python":
            return nodes.op("Gelu", (values,))
        case "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast":
            return nodes.op("Gelu", (values,), attributes={"approximate": "tanh"})
        case "quick_gelu":
            scaled = nodes.op("Mul", (values, nodes.weight("quick_gelu_scale", np.float32(1.702))))
            return nodes.op("Mul", (values, nodes.op("Sigmoid", (scaled,))))
        case "silu" | "swish":
            return nodes.op("Mul", (values, nodes.op("Sigmoid", (values,))))
    operators = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "mish": "Mish", "linear": "Identity"}
    return nodes.op(operators[activation], (values,))


def build_model(onnx: Any, nodes: GraphNodes, inputs: Sequence[str], outputs: Shapes) -> Any:
    """Return the complete model; its inputs are integers (B, T)."""
    helper, dtypes = onnx.helper, onnx.TensorProto
    graph_inputs = [helper.make_tensor_value_info(name, dtypes.INT64, ["batch", "sequence"]) for name in inputs]
    graph_outputs = [helper.make_tensor_value_info(name, dtypes.FLOAT, shape) for name, shape in outputs.items()]
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in nodes.weights.items()]
    graph = helper.make_graph(nodes.nodes, "bert", graph_inputs, graph_outputs, weights)
    domains = {"": _OPSET} | {node.domain: 1 for node in nodes.nodes if node.domain}
    versions = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=_FORMAT, producer_name="bertworks")
