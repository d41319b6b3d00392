"""ONNX graphs: an encoder and its head in, the same computation as an ONNX graph out.

Names are those of Optimum: the inputs are input_ids, attention_mask and token_type_ids (B, T); the outputs are
last_hidden_state (B, T, D), pooler_output (B, D) and the logits of the head. All operators are standard: ONNX Runtime
fuses them itself, and its own operators for attention and norms made no clear difference (9 % slower to 6 % faster).

The graph follows the encoder: its embeddings with optional norm and projection, its own or shared layers, with norms
after or before their parts, absolute, relative or rotary positions, and its pooled position.

B sequences, T positions, D hidden size, H heads, d = D / H, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertworks.encoders.disentangled_attention import DisentangledAttention
from bertworks.encoders.encoded import BatchLayout, SequenceGroup
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.modernbert import ModernBert
from bertworks.encoders.relative_attention import RelativeAttention
from bertworks.engines.graph_names import END_LOGITS, INPUTS, LAST_HIDDEN_STATE, LOGITS, POOLER_OUTPUT, START_LOGITS
from bertworks.engines.onnx_disentangled import (
    RELATIVE_EMBEDDINGS,
    DisentangledInputs,
    build_disentangled_inputs,
    disentangled_scores,
)
from bertworks.engines.onnx_nodes import Floats, GraphNodes, LinearOp, Shapes, activate, build_model, float_linear
from bertworks.engines.onnx_relative import RelativeInputs, build_relative_inputs, relative_scores
from bertworks.engines.onnx_rotary import RotaryInputs, build_rotary_inputs, is_far, rotate
from bertworks.engines.optional import import_optional
from bertworks.errors import SettingsError

# What the layers of an encoder share, beside the mask.
PositionInputs = RelativeInputs | DisentangledInputs | RotaryInputs | None
# Added to the scores of masked positions: their softmax is 0, and sums stay finite in fp16.
_MASKED_SCORE = -1e4


@dataclass(frozen=True, slots=True)
class GraphHead:
    """The head on the encoder: one of `HEADS`, and its tensors by our names."""

    kind: str
    tensors: Mapping[str, Floats]


def build_graph(encoder: Encoder, head: GraphHead | None, has_pooler: bool, linear_op: LinearOp = float_linear) -> Any:
    """Return the graph of an encoder with its head as an onnx.ModelProto. `linear_op` adds the layers' linears."""
    if not encoder.has_graph:
        raise SettingsError(
            f"models of the family '{encoder.config.model_type}' run only in torch and cannot be exported to a graph; "
            f"leave --engine out"
        )
    onnx = import_optional("onnx", "onnx", "writing an ONNX graph")
    state = {name: values.detach().float().cpu().numpy() for name, values in encoder.graph_tensors().items()}
    writer = _GraphWriter(GraphNodes(onnx.helper), encoder, state, linear_op)
    embeddings = writer.embeddings()
    last = writer.pre_norm_layers(embeddings) if isinstance(encoder, ModernBert) else writer.layers(embeddings)
    outputs: Shapes = {LAST_HIDDEN_STATE: ("batch", "sequence", encoder.config.hidden_size)}
    if has_pooler:
        writer.pooled_output(last)
        outputs[POOLER_OUTPUT] = ("batch", encoder.config.hidden_size)
    if head is not None:
        outputs |= HEADS[head.kind](writer, head.tensors)
    return build_model(onnx, writer.nodes, INPUTS, outputs)


@dataclass(frozen=True, slots=True)
class _GraphWriter:
    """Adds the parts of an encoder to a graph; `state` has its tensors."""

    nodes: GraphNodes
    encoder: Encoder
    state: Mapping[str, Floats]
    linear_op: LinearOp

    def embeddings(self) -> str:
        """Return the input of the first layer (B, T, D)."""
        op = self.nodes.op
        indices = {
            "token_embeddings": INPUTS[0],
            "token_type_embeddings": INPUTS[2],
            "position_embeddings": self.positions(),
        }
        parts = [
            op("Gather", (self.nodes.weight(name, self.state[f"{name}.weight"]), index))
            for name, index in indices.items()
            if f"{name}.weight" in self.state
        ]
        values = parts[0]
        for part in parts[1:]:
            values = op("Add", (values, part))
        if "norm.weight" in self.state:
            values = self.norm("norm", values)
        if "embedding_projection.weight" in self.state:
            values = self.dense(values, "embedding_projection", self.state)
        return values

    def positions(self) -> str:
        """Return the position ids (T,)."""
        op, weight = self.nodes.op, self.nodes.weight
        length = op("Gather", (op("Shape", (INPUTS[0],)), weight("one", np.int64(1))))
        return op("Range", (weight("zero", np.int64(0)), length, "one"))

    def layers(self, hidden_states: str) -> str:
        """Return the last hidden state (B, T, D)."""
        op, mask, layers = self.nodes.op, self.mask(), list(self.encoder.layers)
        relative_inputs = self.relative_inputs()
        names = [f"layers.{layers.index(layer)}" for layer in self.encoder.layer_sequence]
        for index, name in enumerate(names):
            attention_output = self.attention(f"{name}.attention", hidden_states, mask, relative_inputs)
            hidden_states = self.norm(f"{name}.attention_norm", op("Add", (attention_output, hidden_states)))
            intermediate = self.linear(f"{name}.intermediate", hidden_states)
            intermediate = activate(self.nodes, intermediate, self.encoder.config.layer_config.hidden_act)
            output = self.linear(f"{name}.output", intermediate)
            is_last = index + 1 == len(names)
            hidden_states = self.norm(
                f"{name}.norm", op("Add", (output, hidden_states)), LAST_HIDDEN_STATE if is_last else ""
            )
        return hidden_states

    def pre_norm_layers(self, hidden_states: str) -> str:
        """Return the last hidden state (B, T, D) of layers with norms before their parts."""
        op, encoder = self.nodes.op, self.encoder
        assert isinstance(encoder, ModernBert)
        is_masked, positions = self.is_masked(), self.positions()
        is_out_of_reach = op("Max", (is_masked, is_far(self.nodes, positions, encoder.config.reach)))
        shared_inputs = [
            build_rotary_inputs(self.nodes, self.state, kind, positions, self.masked_scores(masked))
            for kind, masked in (("global", is_masked), ("local", is_out_of_reach))
        ]
        for index in range(encoder.config.num_hidden_layers):
            name, inputs = f"layers.{index}", shared_inputs[index % encoder.config.global_attn_every_n_layers > 0]
            normalized = self.norm(f"{name}.attention_norm", hidden_states) if index else hidden_states
            attention_output = self.attention(f"{name}.attention", normalized, inputs.mask, inputs)
            hidden_states = op("Add", (attention_output, hidden_states))
            intermediate = self.linear(f"{name}.intermediate", self.norm(f"{name}.norm", hidden_states))
            names = (f"{name}.inputs", f"{name}.gates")
            values, gates = self.nodes.ops("Split", (intermediate,), names, {"axis": -1, "num_outputs": 2})
            activated = activate(self.nodes, values, encoder.config.hidden_activation)
            output = self.linear(f"{name}.output", op("Mul", (activated, gates)))
            hidden_states = op("Add", (output, hidden_states))
        return self.norm(f"layers.{encoder.config.num_hidden_layers - 1}.final_norm", hidden_states, LAST_HIDDEN_STATE)

    def mask(self) -> str:
        """Return what is added to attention scores (B, 1 or H, 1 or T, T): 0, or _MASKED_SCORE at masked positions; and
        the bias of relative positions, if the encoder has one."""
        mask = self.masked_scores(self.is_masked())
        return self.nodes.op("Add", (mask, self.distance_bias())) if "distance_bias" in self.state else mask

    def masked_scores(self, is_masked: str) -> str:
        return self.nodes.op("Mul", (is_masked, self.nodes.weight("masked_score", np.float32(_MASKED_SCORE))))

    def is_masked(self) -> str:
        """Return (B, 1, 1 or T, T), as floats: whether a key is masked."""
        op, weight = self.nodes.op, self.nodes.weight
        mask_axes = weight("mask_axes", np.array([1, 2]))
        is_visible = op("Cast", (op("Unsqueeze", (INPUTS[1], mask_axes)),), attributes={"to": 1})
        is_masked = op("Sub", (weight("all_visible", np.float32(1)), is_visible))  # (B, 1, 1, T), as floats
        if self.encoder.attention == "causal":
            keys = self.positions()
            queries = op("Unsqueeze", (keys, weight("query_axis", np.array([1]))))
            is_future = op("Greater", (keys, queries))  # (T, T)
            is_masked = op("Max", (is_masked, op("Cast", (is_future,), attributes={"to": 1})))
        return is_masked

    def distance_bias(self) -> str:
        """Return the bias (1, H, T, T) by the distance of keys from queries."""
        op, weight, table = self.nodes.op, self.nodes.weight, self.state["distance_bias"]  # (H, 2 max_length - 1)
        keys = self.positions()
        distances = op("Sub", (keys, op("Unsqueeze", (keys, weight("query_axis", np.array([1]))))))  # (T, T)
        index = op("Add", (distances, weight("last_distance", np.int64(table.shape[1] // 2))))
        return op("Gather", (weight("distance_bias", table[None]), index), attributes={"axis": 2})

    def relative_inputs(self) -> PositionInputs:
        """Return the inputs of relative attention, shared by all layers; None for plain attention."""
        attention = self.encoder.layers[0].attention
        if isinstance(attention, RelativeAttention):
            return build_relative_inputs(self.nodes, self.encoder.config, self.positions(), INPUTS[2])
        if isinstance(attention, DisentangledAttention):
            return build_disentangled_inputs(self.nodes, self.state[RELATIVE_EMBEDDINGS], self.positions())
        return None

    def attention(self, name: str, hidden_states: str, mask: str, relative_inputs: PositionInputs) -> str:
        """Return the attention output (B, T, D)."""
        op = self.nodes.op
        if isinstance(relative_inputs, RelativeInputs):
            queries, keys, values = (self.split_heads(self.linear(f"{name}.{role}", hidden_states)) for role in _ROLES)
            scores = relative_scores(self.nodes, self.state, name, (queries, keys), relative_inputs)
        else:
            query_key_value = self.linear(f"{name}.query_key_value", hidden_states)  # (B, T, 3D)
            names = [f"{name}.{role}" for role in ("queries", "keys", "values")]
            parts = self.nodes.ops("Split", (query_key_value,), names, {"axis": -1, "num_outputs": 3})
            queries, keys, values = (self.split_heads(part) for part in parts)
            scores = self.content_scores(name, (queries, keys), relative_inputs)
        scores = op("Mul", (scores, self.scale(relative_inputs)))  # (B, H, T, T)
        weights = op("Softmax", (op("Add", (scores, mask)),), attributes={"axis": -1})
        context = op("Transpose", (op("MatMul", (weights, values)),), attributes={"perm": [0, 2, 1, 3]})
        merged_shape = self.nodes.weight("merged_heads_shape", np.array([0, 0, self.encoder.config.hidden_size]))
        return self.linear(f"{name}.out", op("Reshape", (context, merged_shape)))

    def content_scores(
        self, name: str, queries_and_keys: tuple[str, str], inputs: DisentangledInputs | RotaryInputs | None
    ) -> str:
        """Return the scores (B, H, T, T) by content, and by position if it is disentangled or rotary."""
        if isinstance(inputs, DisentangledInputs):
            projection = (name, self.state)
            return disentangled_scores(self.nodes, projection, queries_and_keys, inputs, self.split_heads)
        queries, keys = queries_and_keys
        if isinstance(inputs, RotaryInputs):
            queries, keys = rotate(self.nodes, queries, inputs), rotate(self.nodes, keys, inputs)
        return self.nodes.op("MatMul", (queries, self.transpose(keys)))

    def split_heads(self, values: str) -> str:
        """Return (B, H, T, d) of (B, T, D)."""
        config = self.encoder.config
        head_size = config.hidden_size // config.layer_config.num_attention_heads
        shape = self.nodes.weight("heads_shape", np.array([0, 0, config.layer_config.num_attention_heads, head_size]))
        return self.nodes.op(
            "Transpose", (self.nodes.op("Reshape", (values, shape)),), attributes={"perm": [0, 2, 1, 3]}
        )

    def transpose(self, keys: str) -> str:
        return self.nodes.op("Transpose", (keys,), attributes={"perm": [0, 1, 3, 2]})

    def scale(self, relative_inputs: PositionInputs) -> str:
        """Return 1 / sqrt(d), or 1 / sqrt(3 d) for the three products of disentangled attention."""
        config = self.encoder.config
        num_products = 3 if isinstance(relative_inputs, DisentangledInputs) else 1
        head_size = config.hidden_size // config.layer_config.num_attention_heads
        return self.nodes.weight("scale", np.float32(1 / math.sqrt(num_products * head_size)))

    def linear(self, name: str, values: str) -> str:
        """Add a linear of a layer, some without a bias. Those of XLNet's attention have one matrix per head."""
        if f"{name}.weight" in self.state:
            matrix = self.state[f"{name}.weight"].T
            bias = self.state.get(f"{name}.bias", np.zeros(matrix.shape[1], np.float32))
            return self.linear_op(self.nodes, values, name, matrix, bias)
        matrix = self.state[name].reshape(len(self.state[name]), -1)
        matrix = matrix.T if name.endswith(".out") else matrix
        return self.linear_op(self.nodes, values, name, matrix, np.zeros(matrix.shape[1], np.float32))

    def norm(self, name: str, values: str, output: str = "") -> str:
        weight = self.state[f"{name}.weight"]
        return self.layer_norm(values, name, weight, self.state.get(f"{name}.bias", np.zeros_like(weight)), output)

    def layer_norm(self, values: str, name: str, weight: Floats, bias: Floats, output: str = "") -> str:
        tensors = (self.nodes.weight(f"{name}.weight", weight), self.nodes.weight(f"{name}.bias", bias))
        return self.nodes.op(
            "LayerNormalization",
            (values, *tensors),
            output,
            {"epsilon": self.encoder.config.layer_config.layer_norm_eps},
        )

    def pooled_output(self, last_hidden_state: str) -> str:
        """Return the pooled output (B, D)."""
        op, weight = self.nodes.op, self.nodes.weight
        position_axis = weight("position_axis", np.array([1]))
        if self.encoder.pools_mean:
            is_visible = op("Cast", (INPUTS[1],), attributes={"to": 1})  # (B, T)
            mask = op("Unsqueeze", (is_visible, weight("index_axis", np.array([2]))))
            sums = op("ReduceSum", (op("Mul", (last_hidden_state, mask)), position_axis), attributes={"keepdims": 0})
            counts = op("ReduceSum", (is_visible, position_axis))  # (B, 1)
            vectors = op("Div", (sums, op("Max", (counts, weight("min_count", np.float32(1))))))
        elif _pools_last_token(self.encoder):
            # The last position that is visible, so that texts may be padded on either side: XLNet's are on the left.
            positions = op("Mul", (INPUTS[1], self.positions()))  # (B, T)
            if self.encoder.unpooled_token_id is not None:
                is_unpooled = op("Equal", (INPUTS[0], weight("unpooled", np.int64(self.encoder.unpooled_token_id))))
                positions = op("Where", (is_unpooled, weight("zero", np.int64(0)), positions))
            last = op("ReduceMax", (positions, position_axis))  # (B, 1)
            index = op("Unsqueeze", (last, weight("index_axis", np.array([2]))))
            gathered = op("GatherND", (last_hidden_state, index), attributes={"batch_dims": 1})
            vectors = op("Squeeze", (gathered, position_axis))
        else:
            vectors = op("Gather", (last_hidden_state, weight("zero", np.int64(0))), attributes={"axis": 1})
        if "pooler.weight" not in self.state:
            return op("Identity", (vectors,), POOLER_OUTPUT)
        return op("Identity", (self.pool(vectors),), POOLER_OUTPUT)

    def pool(self, vectors: str) -> str:
        """Return activation(pooler(vectors)), normalized if the pooler has a norm."""
        values = activate(self.nodes, self.dense(vectors, "pooler", self.state), self.encoder.pooler_activation)
        return self.norm("pooler_norm", values) if "pooler_norm.weight" in self.state else values

    def head_input(self) -> str:
        """Return what heads for tokens read (B, T, D): the pooler is applied if all heads share it."""
        return LAST_HIDDEN_STATE if self.encoder.config.has_mlm_transform else self.pool(LAST_HIDDEN_STATE)

    def dense(self, values: str, name: str, tensors: Mapping[str, Floats], output: str = "") -> str:
        """Add a linear outside of the layers, always in fp32; some heads have no bias."""
        bias = f"{name}.bias"
        matrix = self.nodes.weight(f"{name}.weight", tensors[f"{name}.weight"].T)
        if bias not in tensors:
            return self.nodes.op("MatMul", (values, matrix), output)
        product = self.nodes.op("MatMul", (values, matrix))
        return self.nodes.op("Add", (product, self.nodes.weight(bias, tensors[bias])), output)


_ROLES = ("query", "key", "value")


def _pools_last_token(encoder: Encoder) -> bool:
    """Return whether the pooled position is the last token, tested with a sequence of two tokens."""
    layout = BatchLayout(
        groups=(SequenceGroup(0, 1, 2),),
        starts=torch.tensor([0]),
        lengths=torch.tensor([2]),
        index=None,
        shape=(1, 2),
    )
    return bool(encoder.pooled_positions(layout)[0])


def _sequence_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    writer.dense(POOLER_OUTPUT, "score", tensors, LOGITS)
    return {LOGITS: ("batch", len(tensors["score.weight"]))}


def _token_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    writer.dense(writer.head_input(), "score", tensors, LOGITS)
    return {LOGITS: ("batch", "sequence", len(tensors["score.weight"]))}


def _span_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    scores = writer.dense(writer.head_input(), "score", tensors)  # (B, T, 2)
    parts = writer.nodes.ops("Split", (scores,), ("starts", "ends"), {"axis": -1, "num_outputs": 2})
    for name, part in zip((START_LOGITS, END_LOGITS), parts, strict=True):
        writer.nodes.op("Squeeze", (part, writer.nodes.weight("last_axis", np.array([-1]))), name)
    return dict.fromkeys((START_LOGITS, END_LOGITS), ("batch", "sequence"))


def _mlm_logits(writer: _GraphWriter, tensors: Mapping[str, Floats]) -> Shapes:
    op, activation, values = writer.nodes.op, writer.encoder.config.mlm_hidden_act, writer.head_input()
    if "dense.weight" in tensors:
        values = activate(writer.nodes, writer.dense(values, "dense", tensors), activation)
        values = writer.layer_norm(values, "mlm_norm", tensors["norm.weight"], tensors["norm.bias"])
    if "output" in tensors:
        output_embeddings = writer.nodes.weight("output_embeddings", tensors["output"].T)
    else:  # tied, stored once
        output_embeddings = op("Transpose", ("token_embeddings",), attributes={"perm": [1, 0]})
    scores = op("MatMul", (values, output_embeddings))
    op("Add", (scores, writer.nodes.weight("mlm_bias", tensors["bias"])), LOGITS)
    return {LOGITS: ("batch", "sequence", writer.encoder.config.vocab_size)}


# Head kind -> a function that adds its outputs and returns their shapes.
HEADS: dict[str, Callable[[_GraphWriter, Mapping[str, Floats]], Shapes]] = {
    "sequence": _sequence_logits,
    "tokens": _token_logits,
    "spans": _span_logits,
    "mlm": _mlm_logits,
}
