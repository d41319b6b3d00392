"""XLNet: a Batch in, an Encoded out. Relative attention, permutations of the prediction order, and a memory.

B sequences, T positions, N tokens, D hidden size, M positions of memory, P positions to predict, R with padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.config import (
    OPTIONAL,
    OPTIONAL_OR_ZERO,
    SUPPORTED_VALUES,
    TRANSFORMER_PRESETS,
    EncoderConfig,
    check_activation,
    check_num_heads,
)
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import (
    BatchLayout,
    Encoded,
    EncoderState,
    SequenceGroup,
    create_layout,
    pad_output_positions,
)
from bertworks.encoders.encoder import Encoder, init_truncated_normal, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import ACTIVATIONS, DropoutSeeds, LayerConfig
from bertworks.encoders.memory import FLOAT_BYTES, ActivationBytes, intermediate_values
from bertworks.encoders.relative_attention import (
    QueryStream,
    RelativeAttention,
    RelativeLayer,
    RelativeLayout,
    make_distance_embeddings,
)
from bertworks.encoders.tensor_names import expand_weight_and_bias
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

# The first dropout seed of the query stream.
_QUERY_STREAM_SEED = 5_000


@dataclass(frozen=True, kw_only=True)
class XlnetConfig(EncoderConfig):
    """The config.json of an XLNet. The defaults are the released Large.

    mem_len       number of positions that are remembered from one batch to the next; None: all
    n_positions   the longest sequence; a key of ours, as XLNet has no position embeddings and no limit
    """

    model_type: ClassVar[str] = "xlnet"
    target_ratio: ClassVar[float] = 1 / 6
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TRANSFORMER_PRESETS
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "hidden_size": ("d_model",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "intermediate_size": ("d_inner",),
        "max_length": ("n_positions",),
        "hidden_act": ("ff_activation",),
        "dropout_prob": ("dropout",),
    }
    supported_values: ClassVar[Mapping[str, Any]] = {
        **SUPPORTED_VALUES,
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "reuse_len": None,
        "same_length": False,
        "untie_r": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    }

    vocab_size: int = 32_000
    d_model: int = 1_024
    n_layer: int = 24
    n_head: int = 16
    d_inner: int = 4_096
    ff_activation: str = "gelu"
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    n_positions: int = field(default=512, metadata=OPTIONAL)
    mem_len: int | None = field(default=None, metadata=OPTIONAL_OR_ZERO)

    def __post_init__(self) -> None:
        check_num_heads(self.d_model, self.n_head)
        check_activation(self.ff_activation, ACTIVATIONS)

    def check_supported(self, config_dict: Mapping[str, Any]) -> None:
        super().check_supported(config_dict)
        if config_dict.get("d_head") not in (None, self.d_model // self.n_head):
            raise SettingsError(
                f"d_head is {config_dict['d_head']}, but only d_model / n_head is supported; choose another model"
            )

    @property
    def hidden_size(self) -> int:
        return self.d_model

    @property
    def num_hidden_layers(self) -> int:
        return self.n_layer

    @property
    def max_length(self) -> int:
        return self.n_positions

    @property
    def hidden_dropout_prob(self) -> float:
        return self.dropout

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.d_model,
            num_attention_heads=self.n_head,
            intermediate_size=self.d_inner,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            hidden_act=self.ff_activation,
            layer_norm_eps=self.layer_norm_eps,
        )

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """Relative attention saves its queries with three biases, and the attention weights before and after dropout;
        the query stream saves as much for each target. Gradients of relative distances are twice as many."""
        hidden, weights = self.d_model, self.n_head * max_length
        intermediate = intermediate_values(self.layer_config)
        content_stream = FLOAT_BYTES * (13 * hidden + intermediate + 2 * weights) + 2 * hidden + weights
        query_stream = math.ceil(self.target_ratio * content_stream)
        return ActivationBytes(
            layer=content_stream + query_stream,
            last_layer=FLOAT_BYTES * 3 * hidden + query_stream,
            gradients=FLOAT_BYTES * (4 * hidden + max(3 * self.d_inner, 6 * weights)),
            embeddings=FLOAT_BYTES * 2 * max_length,
        )


class Xlnet(Encoder):
    """The encoder of XLNet, with the pooler of the last token (transformers' sequence summary).

    With a permutation in the batch two streams are computed: the content stream knows the token at each position, the
    query stream, at the positions to predict, does not. The last hidden state is then that of the query stream.
    """

    config: XlnetConfig
    has_graph = True

    def __init__(self, config: XlnetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.mask_embedding = nn.Parameter(torch.empty(1, 1, config.d_model))  # the input of the query stream
        self.layers = nn.ModuleList(RelativeLayer(config.layer_config) for _ in range(config.n_layer))
        self.pooler = nn.Linear(config.d_model, config.d_model)
        init_weights(self, config.initializer_range, generator)
        for module in self.modules():
            if isinstance(module, Xlnet | RelativeAttention):
                for parameter in module.parameters(recurse=False):
                    init_truncated_normal(parameter, config.initializer_range, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
        sparse_grad: bool = False,
    ) -> Encoded:
        """Return all hidden states. With an `EncoderState`, tokens also attend to its memory, and a new one is
        returned."""
        if state is None and batch.permutation is None:
            return super().forward(batch, None, seeds, positions, sparse_grad)
        if self.training and state is not None and not self.config.mem_len:
            raise SettingsError(
                "training on a stream needs a limit of the memory; set mem_len under [model], such as mem_len = 128, "
                "or choose an objective without -stream"
            )
        memory = EncoderState() if state is None else state
        assert isinstance(memory, EncoderState), "the state of another encoder"
        layout, query_stream = self._create_memory_layout(batch, memory, positions)
        seeds = seeds if self.training else None
        embeddings = self.embed(batch, layout, sparse_grad)
        embeddings = dropout(embeddings, seeds.seed_for(0) if seeds else None, self.config.dropout)
        hidden_states = self._forward_streams(embeddings, layout, seeds, (memory, query_stream))
        new_state = None if state is None else self._update_memory(hidden_states, batch, memory)
        pooled = None
        if query_stream is None:
            positions = None
            pooled = self.pool(hidden_states[-1][self.pooled_positions(layout)])
        else:
            hidden_states[-1] = hidden_states[-1][query_stream.output_positions.order]
        return Encoded(
            hidden_states=tuple(hidden_states), pooled=pooled, layout=layout, state=new_state, positions=positions
        )

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): the token embeddings; positions enter in the attention."""
        return self.lookup_embeddings(batch, layout, sparse_grad)[0]

    def create_layout(self, batch: Batch) -> RelativeLayout:
        """Return the layout of a batch."""
        return self._create_relative_layout(create_layout(batch, self.resolve_attention(batch)), batch, 0)

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): the index of the last token of each sequence."""
        return layout.starts + layout.lengths - 1

    def _create_relative_layout(self, layout: BatchLayout, batch: Batch, num_memory: int) -> RelativeLayout:
        token_type_ids = batch.token_type_ids.flatten()
        max_length = max(group.length for group in layout.groups)
        return RelativeLayout(
            **{part.name: getattr(layout, part.name) for part in fields(BatchLayout)},
            token_type_ids=token_type_ids if layout.index is None else token_type_ids[layout.index],
            distance_embeddings=make_distance_embeddings(max_length, num_memory, self.token_embeddings.weight),
        )

    def _create_memory_layout(
        self, batch: Batch, memory: EncoderState, positions: torch.Tensor | None
    ) -> tuple[RelativeLayout, QueryStream | None]:
        """Return the padded layout of a batch with a memory, and the query stream if it has a permutation."""
        if memory.layers and memory.num_sequences != len(batch.input_ids):
            raise InputError(
                f"the memory is of {memory.num_sequences} sequences, but the batch has {len(batch.input_ids)}; the "
                f"sequences must continue those of the batch before, in the same order"
            )
        permutation_mask = _permutation_mask(batch)
        attention = self.attention if batch.attention is None else batch.attention
        if batch.permutation is not None or (isinstance(attention, str) and attention == "bidirectional"):
            attention = permutation_mask  # with an explicit mask the layout is padded
        layout = create_layout(batch, self.resolve_attention(replace(batch, attention=attention)))
        (group,) = layout.groups
        is_token = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device) < batch.lengths[:, None]
        layout = replace(layout, groups=(_add_memory_mask(group, memory),))
        relative_layout = self._create_relative_layout(layout, batch, _memory_length(memory))
        if batch.permutation is None:
            return relative_layout, None
        assert positions is not None, "a permutation needs positions to predict"
        mask = _additive_mask(permutation_mask & is_token[:, None])[:, None]  # a query does not see its own token
        outputs = pad_output_positions(layout, positions, positions // layout.shape[1])
        return relative_layout, QueryStream(outputs, (_add_memory_mask(replace(group, mask=mask), memory),))

    def _forward_streams(
        self,
        embeddings: torch.Tensor,
        layout: RelativeLayout,
        seeds: DropoutSeeds | None,
        memory_and_queries: tuple[EncoderState, QueryStream | None],
    ) -> list[torch.Tensor]:
        """Return the embeddings and the output of each layer: (N, D), or the last (R, D) with a query stream."""
        memory, query_stream = memory_and_queries
        hidden_states = [embeddings]
        queries = embeddings.new_empty(0)
        if query_stream is not None:
            queries = self.mask_embedding[0].expand(len(query_stream.output_positions.padded_indices), -1)
            queries = dropout(queries, seeds.seed_for(_QUERY_STREAM_SEED) if seeds else None, self.config.dropout)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, RelativeLayer)
            layout = replace(layout, memory=memory.layers[index][0] if memory.layers else None)
            layer_seeds = _stream_seeds(seeds, index) if seeds else None
            x = hidden_states[-1]
            if query_stream is None:
                x = self._run_layer(layer, x, layout, layer_seeds[:3] if layer_seeds else None)
            elif index == len(self.layers) - 1:
                x = self._run_layer(layer.forward_query_stream, x, queries, layout, query_stream, layer_seeds)
            else:
                x, queries = self._run_layer(
                    layer.forward_streams,  # type: ignore[arg-type]
                    x,
                    queries,
                    layout,
                    query_stream,
                    layer_seeds,
                )
            hidden_states.append(x)
        return hidden_states

    def _update_memory(self, hidden_states: Sequence[torch.Tensor], batch: Batch, memory: EncoderState) -> EncoderState:
        """Return the new memory: the last positions of each sequence, of the old memory and the batch."""
        num_sequences, length = batch.input_ids.shape
        num_memory = _memory_length(memory)
        size = min(self.config.mem_len or num_memory + length, num_memory + length)
        lengths = batch.lengths + memory.layers[0][1] if memory.layers else batch.lengths
        # The tokens of a sequence end at num_memory + its length, which becomes the end of the new memory.
        ends = (num_memory + batch.lengths)[:, None]
        index = (ends - size + torch.arange(size, device=ends.device)).clamp(min=0)[..., None]  # (B, size, 1)
        memories = []
        for layer, values in enumerate(hidden_states[:-1]):
            inputs = values.detach().view(num_sequences, length, -1)
            if memory.layers:
                inputs = torch.cat([memory.layers[layer][0], inputs], 1)
            memories.append(inputs.gather(1, index.expand(-1, -1, inputs.shape[2])))
        memory_lengths = lengths.clamp(max=size)
        return EncoderState(memory.length + length, tuple((values, memory_lengths) for values in memories))


def _stream_seeds(seeds: DropoutSeeds, layer_index: int) -> tuple[torch.Tensor, ...]:
    """Return the seeds of a layer: three of the content stream, three of the query stream."""
    return tuple(
        seeds.seed_for(first + 3 * layer_index + offset) for first in (0, _QUERY_STREAM_SEED) for offset in (1, 2, 3)
    )


def _permutation_mask(batch: Batch) -> torch.Tensor:
    """Return (B, T, T): whether a position may attend to another, that is, precedes it in the permutation. Positions
    that are not predicted attend to one another."""
    order, length = batch.permutation, batch.input_ids.shape[1]
    if order is None:
        return torch.ones(1, length, length, dtype=torch.bool, device=batch.input_ids.device)
    return order[:, None, :] < order.clamp(min=1)[..., None]


def _additive_mask(is_allowed: torch.Tensor) -> torch.Tensor:
    """Return what is added to attention scores: 0 where allowed, -inf elsewhere."""
    return torch.zeros(is_allowed.shape, device=is_allowed.device).masked_fill_(~is_allowed, float("-inf"))


def _memory_length(memory: EncoderState) -> int:
    return memory.layers[0][0].shape[1] if memory.layers else 0


def _add_memory_mask(group: SequenceGroup, memory: EncoderState) -> SequenceGroup:
    """Return the group with its mask extended to the memory: (B, 1, 1 or T, M + T)."""
    if not memory.layers:
        return group
    values, lengths = memory.layers[0]
    positions = torch.arange(values.shape[1], device=lengths.device)
    memory_mask = _additive_mask(positions >= values.shape[1] - lengths[:, None])[:, None, None]  # (B, 1, 1, M)
    mask = group.mask
    if mask is None:
        mask = memory_mask.new_zeros(group.num_sequences, 1, 1, group.length)
    return replace(group, mask=torch.cat([memory_mask.expand(-1, -1, mask.shape[2], -1), mask], -1))


_ATTENTION_NAMES = {
    "query": "q", "key": "k", "value": "v", "out": "o", "distance": "r", "content_bias": "r_w_bias",
    "distance_bias": "r_r_bias", "segment_bias": "r_s_bias", "segment_embeddings": "seg_embed",
}  # fmt: skip
_LAYER_NAMES = {
    "attention_norm": "rel_attn.layer_norm",
    "intermediate": "ff.layer_1",
    "output": "ff.layer_2",
    "norm": "ff.layer_norm",
}


def tensor_names(config: XlnetConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names = {
        "token_embeddings.weight": ("transformer.word_embedding.weight",),
        "mask_embedding": ("transformer.mask_emb",),
        **expand_weight_and_bias({"pooler": ("transformer.pooler",)}),
    }
    for index in range(config.n_layer):
        ours, theirs = f"layers.{index}.", f"transformer.layer.{index}."
        names |= {f"{ours}attention.{name}": (f"{theirs}rel_attn.{hf}",) for name, hf in _ATTENTION_NAMES.items()}
        names |= expand_weight_and_bias({ours + name: (theirs + hf,) for name, hf in _LAYER_NAMES.items()})
    return names


FAMILY = Family(
    config_class=XlnetConfig,
    build=Xlnet,
    tensor_names=tensor_names,
    class_prefix="XLNet",
    prefix="transformer.",
    optional_prefixes=("transformer.pooler.",),
    copies={"lm_loss.weight": "transformer.word_embedding.weight"},
    heads={
        "permutation": {"bias": ("lm_loss.bias",)},
        "sequence": expand_weight_and_bias({"score": ("logits_proj",)}),
        "choices": expand_weight_and_bias({"score": ("logits_proj",)}),
        "tokens": bert.HEADS["tokens"],
        "spans": bert.HEADS["spans"],
    },
    # With a head for sequences the pooler is part of that head.
    prefix_overrides={kind: {"transformer.pooler.": "sequence_summary.summary."} for kind in ("sequence", "choices")},
    class_suffixes={"spans": "ForQuestionAnsweringSimple"},
    padding_side="left",
    can_carry_state=True,
)
