"""A Transformer and its head in, the same computation as an ONNX graph out, for whatever reads ONNX.

Names are those of Optimum: input_ids, attention_mask and token_type_ids (B, T) enter; last_hidden_state (B, T, D),
pooler_output (B, D) and what the head says leave. All operators are standard ones: ONNX Runtime joins them by itself,
and its own operators for attention and norms made no clear difference (from 9 % slower to 6 % faster).

What an encoder of the family has is what is written: its tables, a norm and a product behind them, layers that are
passed once or many times, attention by place or by distance, a piece that sums a row up.

B rows of T places, D width, H heads, d = D / H, C outputs, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertworks.encoders.albert import Albert
from bertworks.encoders.bert import Bert
from bertworks.encoders.encoded import BatchLayout, SequenceGroup
from bertworks.encoders.gpt import Gpt
from bertworks.encoders.stack import Encoder
from bertworks.encoders.xlnet import Xlnet
from bertworks.engines.onnx_nodes import Floats, GraphNodes, LinearOp, Shapes, activate, build_model, float_linear
from bertworks.engines.onnx_relative import RelativeInputs, build_relative_inputs, relative_scores
from bertworks.engines.optional import import_optional
from bertworks.errors import SettingsError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LAST_HIDDEN_STATE, POOLER_OUTPUT, LOGITS = "last_hidden_state", "pooler_output", "logits"
START_LOGITS, END_LOGITS = "start_logits", "end_logits"
# All that these embed, read and sum up is written; another encoder may do more.
_SUPPORTED_ENCODERS = (Bert, Albert, Gpt, Xlnet)
# What is added to the scores of what is not read. The softmax of it is 0, and sums with it stay finite in half
# precision.
_MASKED_SCORE = -1e4


@dataclass(frozen=True, slots=True)
class GraphHead:
    """What stands on the encoder: one of `HEADS`, and its tensors by our names."""

    kind: str
    tensors: Mapping[str, Floats]


def build_graph(encoder: Encoder, head: GraphHead | None, has_pooler: bool, linear_op: LinearOp = float_linear) -> Any:
    """Return the graph of an encoder with its head as an onnx.ModelProto. `product` computes those of the layers."""
    if not isinstance(encoder, _SUPPORTED_ENCODERS):
        known = ", ".join(one.__name__ for one in _SUPPORTED_ENCODERS)
        raise SettingsError(
            f"a model of the family '{encoder.config.model_type}' runs in torch only: graphs are written of {known}; leave "
            f"--engine and export out"
        )
    onnx = import_optional("onnx", "onnx", "writing an ONNX graph")
    state = {name: values.detach().float().cpu().numpy() for name, values in encoder.state_dict().items()}
    if "positions.weight" in state:
        state["positions.weight"] = state["positions.weight"][encoder.config.first_position :]
    writer = _GraphWriter(GraphNodes(onnx.helper), encoder, state, linear_op)
    last = writer.layers(writer.embeddings())
    outputs: Shapes = {LAST_HIDDEN_STATE: ("batch", "sequence", encoder.config.hidden_size)}
    if has_pooler:
        writer.pooled_output(last)
        outputs[POOLER_OUTPUT] = ("batch", encoder.config.hidden_size)
    if head is not None:
        outputs |= HEADS[head.kind](writer, head.tensors)
    return build_model(onnx, writer.nodes, INPUTS, outputs)


@dataclass(frozen=True, slots=True)
class _GraphWriter:
    """Writes the parts of an encoder into nodes; `state` has its tensors."""

    nodes: GraphNodes
    encoder: Encoder
    state: Mapping[str, Floats]
    linear_op: LinearOp

    def embeddings(self) -> str:
        """Return (B, T, D): what enters the first layer."""
        op = self.nodes.op
        numbers = {"pieces": INPUTS[0], "segments": INPUTS[2], "positions": self.positions()}
        found = [
            op("Gather", (self.nodes.weight(name, self.state[f"{name}.weight"]), of))
            for name, of in numbers.items()
            if f"{name}.weight" in self.state
        ]
        values = found[0]
        for more in found[1:]:
            values = op("Add", (values, more))
        if "norm.weight" in self.state:
            values = self.norm("norm", values)
        return self.dense(values, "widen", self.state) if "widen.weight" in self.state else values

    def positions(self) -> str:
        """Return (T,): 0, 1, 2, …"""
        op, weight = self.nodes.op, self.nodes.weight
        length = op("Gather", (op("Shape", (INPUTS[0],)), weight("one", np.int64(1))))
        return op("Range", (weight("zero", np.int64(0)), length, "one"))

    def layers(self, hidden_states: str) -> str:
        """Return (B, T, D): what leaves the last layer."""
        op, mask, own = self.nodes.op, self.mask(), list(self.encoder.layers)
        near = self.relative_inputs()
        names = [f"layers.{own.index(layer)}" for layer in self.encoder.layer_sequence]
        for number, name in enumerate(names):
            read = self.attention(f"{name}.attention", hidden_states, mask, near)
            hidden_states = self.norm(f"{name}.attention_norm", op("Add", (read, hidden_states)))
            inner = activate(self.nodes, self.linear(f"{name}.inner", hidden_states), self.encoder.config.hidden_act)
            outer = self.linear(f"{name}.outer", inner)
            hidden_states = self.norm(
                f"{name}.norm", op("Add", (outer, hidden_states)), LAST_HIDDEN_STATE if number + 1 == len(names) else ""
            )
        return hidden_states

    def mask(self) -> str:
        """Return (B, 1, 1 or T, T): what is added to scores: nothing, or much less than nothing where none is read."""
        op, weight = self.nodes.op, self.nodes.weight
        real = op("Cast", (op("Unsqueeze", (INPUTS[1], weight("rows", np.array([1, 2])))),), attributes={"to": 1})
        unread = op("Sub", (weight("all", np.float32(1)), real))  # (B, 1, 1, T), as floats
        if self.encoder.attention == "left":
            places = self.positions()
            ahead = op("Greater", (places, op("Unsqueeze", (places, weight("readers", np.array([1]))))))  # (T, T)
            unread = op("Max", (unread, op("Cast", (ahead,), attributes={"to": 1})))
        return op("Mul", (unread, weight("unread", np.float32(_MASKED_SCORE))))

    def relative_inputs(self) -> RelativeInputs | None:
        """Return what attention by distance is told of all layers; None where places are in what is embedded."""
        if not isinstance(self.encoder, Xlnet):
            return None
        return build_relative_inputs(self.nodes, self.encoder.config, self.positions(), INPUTS[2])

    def attention(self, name: str, hidden_states: str, mask: str, relative_inputs: RelativeInputs | None) -> str:
        """Return (B, T, D): what every place read."""
        op = self.nodes.op
        if relative_inputs is None:
            mixed = self.linear(f"{name}.query_key_value", hidden_states)  # (B, T, 3D)
            names = [f"{name}.{role}" for role in ("queries", "keys", "values")]
            bands = self.nodes.ops("Split", (mixed,), names, {"axis": -1, "num_outputs": 3})
            queries, keys, read = (self.split_heads(band) for band in bands)
            scores = op("Mul", (op("MatMul", (queries, self.transpose(keys))), self.scale()))  # (B, H, T, T)
        else:
            queries, keys, read = (self.split_heads(self.linear(f"{name}.{role}", hidden_states)) for role in _ROLES)
            scores = op(
                "Mul", (relative_scores(self.nodes, self.state, name, (queries, keys), relative_inputs), self.scale())
            )
        shares = op("Softmax", (op("Add", (scores, mask)),), attributes={"axis": -1})
        together = op("Transpose", (op("MatMul", (shares, read)),), attributes={"perm": [0, 2, 1, 3]})
        joined = self.nodes.weight("joined", np.array([0, 0, self.encoder.config.hidden_size]))
        return self.linear(f"{name}.out", op("Reshape", (together, joined)))

    def split_heads(self, values: str) -> str:
        """Return (B, H, T, d) of (B, T, D)."""
        sizes = self.encoder.config
        shape = self.nodes.weight(
            "heads", np.array([0, 0, sizes.num_attention_heads, sizes.hidden_size // sizes.num_attention_heads])
        )
        return self.nodes.op(
            "Transpose", (self.nodes.op("Reshape", (values, shape)),), attributes={"perm": [0, 2, 1, 3]}
        )

    def transpose(self, keys: str) -> str:
        return self.nodes.op("Transpose", (keys,), attributes={"perm": [0, 1, 3, 2]})

    def scale(self) -> str:
        sizes = self.encoder.config
        return self.nodes.weight("scale", np.float32(1 / math.sqrt(sizes.hidden_size // sizes.num_attention_heads)))

    def linear(self, name: str, values: str) -> str:
        """Return a product of the layers with its bias. XLNet's have a matrix for each head, and no bias."""
        if f"{name}.weight" in self.state:
            return self.linear_op(self.nodes, values, name, self.state[f"{name}.weight"].T, self.state[f"{name}.bias"])
        matrix = self.state[name].reshape(len(self.state[name]), -1)
        matrix = matrix.T if name.endswith(".out") else matrix
        return self.linear_op(self.nodes, values, name, matrix, np.zeros(matrix.shape[1], np.float32))

    def norm(self, name: str, values: str, out: str = "") -> str:
        return self.layer_norm(values, name, self.state[f"{name}.weight"], self.state[f"{name}.bias"], out)

    def layer_norm(self, values: str, name: str, weight: Floats, bias: Floats, out: str = "") -> str:
        tensors = (self.nodes.weight(f"{name}.weight", weight), self.nodes.weight(f"{name}.bias", bias))
        return self.nodes.op(
            "LayerNormalization", (values, *tensors), out, {"epsilon": self.encoder.config.layer_norm_eps}
        )

    def pooled_output(self, last_hidden_state: str) -> str:
        """Return (B, D): the summary of each row."""
        op, weight = self.nodes.op, self.nodes.weight
        if _pools_last_token(self.encoder):
            length = op("ReduceSum", (INPUTS[1], weight("places", np.array([1]))))  # (B, 1)
            at = op("Unsqueeze", (op("Sub", (length, weight("one", np.int64(1)))), weight("values", np.array([2]))))
            picked = op("Squeeze", (op("GatherND", (last_hidden_state, at), attributes={"batch_dims": 1}), "places"))
        else:
            picked = op("Gather", (last_hidden_state, weight("zero", np.int64(0))), attributes={"axis": 1})
        if "pooler.weight" not in self.state:
            return op("Identity", (picked,), POOLER_OUTPUT)
        return op("Tanh", (self.dense(picked, "pooler", self.state),), POOLER_OUTPUT)

    def dense(self, values: str, name: str, tensors: Mapping[str, Floats], out: str = "") -> str:
        """Return the product with a head's matrix, always in full precision; some heads have no bias."""
        bias = f"{name}.bias"
        matrix = self.nodes.weight(f"{name}.weight", tensors[f"{name}.weight"].T)
        found = self.nodes.op("MatMul", (values, matrix), "" if bias in tensors else out)
        return self.nodes.op("Add", (found, self.nodes.weight(bias, tensors[bias])), out) if bias in tensors else found


_ROLES = ("query", "key", "value")


def _pools_last_token(encoder: Encoder) -> bool:
    """Whether it is the last piece of a row that sums it up, asked with a row of two."""
    nothing, two = torch.tensor([0]), torch.tensor([2])
    return bool(encoder.pooled_positions(BatchLayout((SequenceGroup(0, 1, 2),), nothing, two, None, (1, 2)))[0])


def _sequence_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    writer.dense(POOLER_OUTPUT, "score", tensors, LOGITS)
    return {LOGITS: ("batch", len(tensors["score.weight"]))}


def _token_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    writer.dense(LAST_HIDDEN_STATE, "score", tensors, LOGITS)
    return {LOGITS: ("batch", "sequence", len(tensors["score.weight"]))}


def _span_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    both = writer.dense(LAST_HIDDEN_STATE, "score", tensors)  # (B, T, 2)
    halves = writer.nodes.ops("Split", (both,), ("starts", "ends"), {"axis": -1, "num_outputs": 2})
    for name, half in zip((START_LOGITS, END_LOGITS), halves, strict=True):
        writer.nodes.op("Squeeze", (half, writer.nodes.weight("last", np.array([-1]))), name)
    return dict.fromkeys((START_LOGITS, END_LOGITS), ("batch", "sequence"))


def _mlm_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    op, activation = writer.nodes.op, writer.encoder.config.hidden_act
    values = activate(writer.nodes, writer.dense(LAST_HIDDEN_STATE, "dense", tensors), activation)
    values = writer.layer_norm(values, "masked_norm", tensors["norm.weight"], tensors["norm.bias"])
    scores = op(
        "MatMul", (values, op("Transpose", ("pieces",), attributes={"perm": [1, 0]}))
    )  # the table is written once
    op("Add", (scores, writer.nodes.weight("masked_bias", tensors["bias"])), LOGITS)
    return {LOGITS: ("batch", "sequence", writer.encoder.config.vocab_size)}


# What a head answers: each writes its outputs and returns their shapes.
HEADS: dict[str, Callable[[_GraphWriter, Mapping[str, Floats]], Shapes]] = {
    "rows": _sequence_logits,
    "places": _token_logits,
    "spans": _span_logits,
    "blanks": _mlm_logits,
}
