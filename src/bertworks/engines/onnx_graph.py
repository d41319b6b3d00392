"""A BERT and its head in, the same computation as an ONNX graph out, for ONNX Runtime and for whatever reads ONNX.

Names are those of Optimum: input_ids, attention_mask and token_type_ids (B, T) enter; last_hidden_state (B, T, D),
pooler_output (B, D) and what the head says leave. All operators are standard ones: ONNX Runtime joins them by itself,
and its own operators for attention and norms made no clear difference (from 9 % slower to 6 % faster).

B rows of T places, D width, H heads, d = D / H, C outputs, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.encoders.bert import Bert
from bertworks.encoders.stack import Stack
from bertworks.engines.parts import part
from bertworks.errors import SettingsError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LAST, SUMMARY, LOGITS = "last_hidden_state", "pooler_output", "logits"
STARTS, ENDS = "start_logits", "end_logits"
# The first version of the standard that has Gelu; ONNX Runtime reads it since 1.17.
_OPSET, _FORMAT = 20, 9
# What is added to the scores of padding. The softmax of it is 0, and sums with it stay finite in half precision.
_UNREAD = -1e4

Floats = npt.NDArray[np.float32]
Attributes = Mapping[str, Any]
NONE: Attributes = {}
Shapes = dict[str, tuple[str | int, ...]]


@dataclass(frozen=True, slots=True)
class GraphHead:
    """What stands on the encoder: one of `HEADS`, and its tensors by our names."""

    kind: str
    tensors: Mapping[str, Floats]


@dataclass(slots=True)
class Nodes:
    """The nodes and weights of a graph while it is written. What a node gives has the node's own name."""

    helper: Any
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def weight(self, name: str, values: npt.ArrayLike) -> str:
        """Keep a constant under a name; the same one again changes nothing."""
        self.weights[name] = np.asarray(values, order="C")
        return name

    def op(self, kind: str, inputs: Sequence[str], name: str = "", attributes: Attributes = NONE) -> str:
        """Add a node and return the name of its only output."""
        return self.ops(kind, inputs, (name or f"{kind}.{len(self.nodes)}",), attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], names: Sequence[str], attributes: Attributes = NONE) -> list[str]:
        """Add a node with outputs of these names."""
        self.nodes.append(self.helper.make_node(kind, inputs, names, names[0], **attributes))
        return list(names)


# How a product is computed: nodes, the name of what is multiplied (…, K), the product's, its matrix (K, N), bias (N,).
Product = Callable[[Nodes, str, str, Floats, Floats], str]


def plain_product(nodes: Nodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
    """Return values times matrix plus bias, in full precision."""
    found = nodes.op("MatMul", (values, nodes.weight(f"{name}.weight", matrix)))
    return nodes.op("Add", (found, nodes.weight(f"{name}.bias", bias)), name)


def activated(nodes: Nodes, values: str, activation: str) -> str:
    """Return values after one of `encoders.layers.ACTIVATIONS`."""
    match activation:
        case "gelu":
            return nodes.op("Gelu", (values,))
        case "gelu_new" | "gelu_pytorch_tanh":
            return nodes.op("Gelu", (values,), attributes={"approximate": "tanh"})
        case "silu":
            return nodes.op("Mul", (values, nodes.op("Sigmoid", (values,))))
    return nodes.op({"relu": "Relu", "tanh": "Tanh"}[activation], (values,))


def graph_of(encoder: Stack, head: GraphHead | None, has_pooler: bool, product: Product = plain_product) -> Any:
    """Return the graph of an encoder with its head as an onnx.ModelProto. `product` computes those of the layers."""
    if not isinstance(encoder, Bert):
        raise SettingsError(
            f"a model of the family '{encoder.sizes.family}' runs in torch only; leave --engine and export out"
        )
    onnx = part("onnx", "onnx", "writing an ONNX graph")
    state = {name: values.detach().float().cpu().numpy() for name, values in encoder.state_dict().items()}
    state["positions.weight"] = state["positions.weight"][encoder.sizes.first_position :]
    writer = _Writer(Nodes(onnx.helper), encoder, state, product)
    last = writer.layers(writer.embedded())
    outputs: Shapes = {LAST: ("batch", "sequence", encoder.sizes.width)}
    if has_pooler:
        writer.summary(last)
        outputs[SUMMARY] = ("batch", encoder.sizes.width)
    if head is not None:
        outputs |= HEADS[head.kind](writer, head.tensors)
    return _model(onnx, writer.nodes, outputs)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the parts of a BERT into nodes; `state` has its tensors."""

    nodes: Nodes
    encoder: Bert
    state: Mapping[str, Floats]
    product: Product

    def embedded(self) -> str:
        """Return (B, T, D): what enters the first layer."""
        op, weight = self.nodes.op, self.nodes.weight
        ids, _, segments = INPUTS
        length = op("Gather", (op("Shape", (ids,)), weight("one", np.int64(1))))
        places = op("Range", (weight("zero", np.int64(0)), length, "one"))
        tables = ((name, weight(name, self.state[f"{name}.weight"])) for name in ("pieces", "segments", "positions"))
        indices = {"pieces": ids, "segments": segments, "positions": places}
        pieces, kinds, positions = (op("Gather", (table, indices[name])) for name, table in tables)
        return self.norm("norm", op("Add", (op("Add", (pieces, kinds)), positions)))

    def layers(self, values: str) -> str:
        """Return (B, T, D): what leaves the last layer."""
        op = self.nodes.op
        real = op(
            "Cast", (op("Unsqueeze", (INPUTS[1], self.nodes.weight("rows", np.array([1, 2])))),), attributes={"to": 1}
        )  # to float
        padding = op("Sub", (self.nodes.weight("all", np.float32(1)), real))  # (B, 1, 1, T)
        mask = op("Mul", (padding, self.nodes.weight("unread", np.float32(_UNREAD))))
        for number in range(self.encoder.sizes.num_layers):
            name = f"layers.{number}"
            read = self.linear(f"{name}.attention.out", self.attended(f"{name}.attention", values, mask))
            values = self.norm(f"{name}.attention_norm", op("Add", (read, values)))
            inner = activated(self.nodes, self.linear(f"{name}.inner", values), self.encoder.sizes.activation)
            outer = self.linear(f"{name}.outer", inner)
            is_last = number + 1 == self.encoder.sizes.num_layers
            values = self.norm(f"{name}.norm", op("Add", (outer, values)), LAST if is_last else "")
        return values

    def attended(self, name: str, values: str, mask: str) -> str:
        """Return (B, T, D): what every place read, before the last product of attention."""
        op, sizes = self.nodes.op, self.encoder.sizes
        depth = sizes.width // sizes.num_heads
        shape = self.nodes.weight("heads", np.array([0, 0, sizes.num_heads, depth]))
        orders = {"queries": [0, 2, 1, 3], "keys": [0, 2, 3, 1], "values": [0, 2, 1, 3]}
        mixed = self.linear(f"{name}.query_key_value", values)  # (B, T, 3D)
        names = [f"{name}.{role}" for role in orders]
        bands = zip(
            self.nodes.ops("Split", (mixed,), names, {"axis": -1, "num_outputs": 3}), orders.values(), strict=True
        )
        queries, keys, read = (
            op("Transpose", (op("Reshape", (band, shape)),), attributes={"perm": order}) for band, order in bands
        )
        scale = self.nodes.weight("scale", np.float32(1 / math.sqrt(depth)))
        scores = op("Add", (op("Mul", (op("MatMul", (queries, keys)), scale)), mask))  # (B, H, T, T)
        together = op("MatMul", (op("Softmax", (scores,), attributes={"axis": -1}), read))  # (B, H, T, d)
        joined = self.nodes.weight("joined", np.array([0, 0, sizes.width]))
        return op("Reshape", (op("Transpose", (together,), attributes={"perm": [0, 2, 1, 3]}), joined))

    def linear(self, name: str, values: str) -> str:
        """Return a product of the layers with its bias."""
        return self.product(self.nodes, values, name, self.state[f"{name}.weight"].T, self.state[f"{name}.bias"])

    def norm(self, name: str, values: str, out: str = "") -> str:
        return self.normed(values, name, self.state[f"{name}.weight"], self.state[f"{name}.bias"], out)

    def normed(self, values: str, name: str, weight: Floats, bias: Floats, out: str = "") -> str:
        tensors = (self.nodes.weight(f"{name}.weight", weight), self.nodes.weight(f"{name}.bias", bias))
        return self.nodes.op("LayerNormalization", (values, *tensors), out, {"epsilon": self.encoder.sizes.norm_eps})

    def summary(self, last: str) -> str:
        first = self.nodes.op(
            "Gather", (last, self.nodes.weight("zero", np.int64(0))), attributes={"axis": 1}
        )  # (B, D)
        return self.nodes.op("Tanh", (self.dense(first, "pooler", self.state),), SUMMARY)

    def dense(self, values: str, name: str, tensors: Mapping[str, Floats], out: str = "") -> str:
        """Return the product with a head's matrix, always in full precision."""
        found = self.nodes.op("MatMul", (values, self.nodes.weight(f"{name}.weight", tensors[f"{name}.weight"].T)))
        return self.nodes.op("Add", (found, self.nodes.weight(f"{name}.bias", tensors[f"{name}.bias"])), out)


def _of_rows(writer: _Writer, tensors: Mapping[str, Floats]) -> Shapes:
    writer.dense(SUMMARY, "score", tensors, LOGITS)
    return {LOGITS: ("batch", len(tensors["score.bias"]))}


def _of_places(writer: _Writer, tensors: Mapping[str, Floats]) -> Shapes:
    writer.dense(LAST, "score", tensors, LOGITS)
    return {LOGITS: ("batch", "sequence", len(tensors["score.bias"]))}


def _of_spans(writer: _Writer, tensors: Mapping[str, Floats]) -> Shapes:
    both = writer.dense(LAST, "score", tensors)  # (B, T, 2)
    halves = writer.nodes.ops("Split", (both,), ("starts", "ends"), {"axis": -1, "num_outputs": 2})
    for name, half in zip((STARTS, ENDS), halves, strict=True):
        writer.nodes.op("Squeeze", (half, writer.nodes.weight("last", np.array([-1]))), name)
    return dict.fromkeys((STARTS, ENDS), ("batch", "sequence"))


def _of_blanks(writer: _Writer, tensors: Mapping[str, Floats]) -> Shapes:
    op, activation = writer.nodes.op, writer.encoder.sizes.activation
    values = activated(writer.nodes, writer.dense(LAST, "dense", tensors), activation)
    values = writer.normed(values, "masked_norm", tensors["norm.weight"], tensors["norm.bias"])
    scores = op(
        "MatMul", (values, op("Transpose", ("pieces",), attributes={"perm": [1, 0]}))
    )  # the table is written once
    op("Add", (scores, writer.nodes.weight("masked_bias", tensors["bias"])), LOGITS)
    return {LOGITS: ("batch", "sequence", writer.encoder.sizes.vocabulary)}


# What a head answers: each writes its outputs and returns their shapes.
HEADS: dict[str, Callable[[_Writer, Mapping[str, Floats]], Shapes]] = {
    "rows": _of_rows,
    "places": _of_places,
    "spans": _of_spans,
    "blanks": _of_blanks,
}


def _model(onnx: Any, nodes: Nodes, outputs: Shapes) -> Any:
    helper, kinds = onnx.helper, onnx.TensorProto
    entering = [helper.make_tensor_value_info(name, kinds.INT64, ["batch", "sequence"]) for name in INPUTS]
    leaving = [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in outputs.items()]
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in nodes.weights.items()]
    graph = helper.make_graph(nodes.nodes, "bert", entering, leaving, weights)
    domains = {"": _OPSET} | {node.domain: 1 for node in nodes.nodes if node.domain}
    versions = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=_FORMAT, producer_name="bertworks")
