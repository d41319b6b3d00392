"""XLNet: a Batch in, an Encoded out. Pieces read by distance; a row can be told in any order; texts can be remembered.

B rows of T places, N pieces, D width, M remembered places, P places to predict, R of them with what fills rows up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, Encoded, EncoderState, SequenceGroup, pad_output_positions
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.relative_attention import (
    QueryStream,
    RelativeAttention,
    RelativeLayer,
    RelativeLayout,
    make_distance_embeddings,
)
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import NameTable, expand_weight_and_bias
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

# The number of the first place where the second stream drops values.
_QUERY_STREAM_SEED = 5_000


@dataclass(frozen=True, slots=True)
class XlnetConfig(BertConfig):
    """What an XLNet is made of. Segments are only compared with one another, so there is no table of them; nor of
    positions, which are the longest rows that are read at once.

    memory   how many pieces are remembered from one batch to the next, where somebody asks for that; 0: all
    """

    mem_len: int = 0


class Xlnet(Encoder):
    """The encoder of XLNet, with the product that sums a row up (its last piece).

    With a permutation in the batch two streams pass the layers: the first knows the piece of each place, the second,
    at the places to predict, only where they are. The last layer is then the second stream's at these places.
    """

    config: XlnetConfig

    def __init__(self, config: XlnetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mask_embedding = nn.Parameter(torch.empty(1, 1, config.hidden_size))  # what the second stream begins with
        self.layers = nn.ModuleList(RelativeLayer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(self, config.initializer_range, generator)
        for part in self.modules():
            if isinstance(part, Xlnet | RelativeAttention):
                for own in part.parameters(recurse=False):
                    nn.init.trunc_normal_(
                        own,
                        0.0,
                        config.initializer_range,
                        -2 * config.initializer_range,
                        2 * config.initializer_range,
                        generator=generator,
                    )

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers. With a `Carried` as state, what it remembers is read too, and a new one leaves.

        It has for each layer what entered it for the pieces before (B, M, D), and how many of a row are real (B,), the
        last ones.
        """
        if state is None and batch.permutation is None:
            return super().forward(batch, None, seeds, positions)
        if self.training and state is not None and not self.config.mem_len:
            raise SettingsError(
                "rows that go on need a bound to what is remembered of them; say how many pieces, such as memory = 128 "
                "under [model], or choose an objective whose rows stand alone"
            )
        memory = EncoderState() if state is None else state
        assert isinstance(memory, EncoderState), "the state of another encoder"
        layout, asking = self._create_memory_layout(batch, memory, positions)
        seeds = seeds if self.training else None
        values = dropout(
            self.embed(batch, layout), seeds.seed_for(0) if seeds else None, self.config.hidden_dropout_prob
        )
        found = self._forward_streams(values, layout, seeds, (memory, asking))
        kept = None if state is None else self._update_memory(found, batch, memory)
        if asking is None:
            return Encoded(tuple(found), self.pool(found[-1][self.pooled_positions(layout)]), layout, kept)
        found[-1] = found[-1][asking.output_positions.order]
        return Encoded(tuple(found), None, layout, kept, positions)

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): the pieces alone. Where they stand, layers find out."""
        return self.lookup_embeddings(batch, layout)[0]

    def create_layout(self, batch: Batch) -> RelativeLayout:
        """Return how a batch is computed; refuse what cannot be read."""
        return self._create_relative_layout(super().create_layout(batch), batch, 0)

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): the last piece of each row."""
        return layout.starts + layout.lengths - 1

    def set_dropout(self, dropout_prob: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        super().set_dropout(dropout_prob)
        for part in self.modules():
            if isinstance(part, RelativeAttention):
                part.dropout_prob = dropout_prob

    def _create_relative_layout(self, layout: BatchLayout, batch: Batch, num_memory: int) -> RelativeLayout:
        segments = batch.token_type_ids.flatten()
        segments = segments if layout.index is None else segments[layout.index]
        widest = max(group.length for group in layout.groups)
        waves = make_distance_embeddings(widest, num_memory, self.token_embeddings.weight)
        return RelativeLayout(
            layout.groups, layout.starts, layout.lengths, layout.index, layout.shape, segments, waves
        )  # fmt: skip

    def _create_memory_layout(
        self, batch: Batch, memory: EncoderState, positions: torch.Tensor | None
    ) -> tuple[RelativeLayout, QueryStream | None]:
        """Return how a batch is computed in its own shape, behind a memory, and what the second stream asks, if any."""
        if memory.layers and memory.num_sequences != len(batch.input_ids):
            raise InputError(
                f"the memory is of {memory.num_sequences} rows, but the batch has {len(batch.input_ids)}; let rows continue "
                f"those of the batch before, in the same order"
            )
        earlier = _permutation_mask(batch)
        reads = self.attention if batch.attention is None else batch.attention
        if batch.permutation is not None or (isinstance(reads, str) and reads == "bidirectional"):
            reads = earlier  # a mask keeps the batch in its shape
        layout = super().create_layout(replace(batch, attention=reads))
        (group,) = layout.groups
        real = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device) < batch.lengths[:, None]
        layout = replace(layout, groups=(_add_memory_mask(group, memory),))
        relative = self._create_relative_layout(layout, batch, _memory_length(memory))
        if batch.permutation is None:
            return relative, None
        assert positions is not None, "a permutation is for places to predict"
        mask = _additive_mask(earlier & real[:, None])[:, None]  # the second stream does not read its own piece
        wanted = pad_output_positions(layout, positions, positions // layout.shape[1])
        return relative, QueryStream(wanted, (_add_memory_mask(replace(group, mask=mask), memory),))

    def _forward_streams(
        self,
        hidden_states: torch.Tensor,
        layout: RelativeLayout,
        seeds: DropoutSeeds | None,
        memory_and_queries: tuple[EncoderState, QueryStream | None],
    ) -> list[torch.Tensor]:
        """Return what enters the first layer and what leaves each: (N, D), or (R, D) where the second stream ends."""
        memory, asking = memory_and_queries
        found = [hidden_states]
        asked = hidden_states.new_empty(0)
        if asking is not None:
            asked = self.mask_embedding[0].expand(len(asking.output_positions.padded_indices), -1)
            asked = dropout(
                asked, seeds.seed_for(_QUERY_STREAM_SEED) if seeds else None, self.config.hidden_dropout_prob
            )
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, RelativeLayer)
            here = replace(layout, memory=memory.layers[number][0] if memory.layers else None)
            own = _stream_seeds(seeds, number) if seeds else None
            if asking is None:
                found.append(self._run_layer(layer, found[-1], here, own[:3] if own else None))
            elif number == len(self.layers) - 1:
                found.append(self._run_layer(layer.forward_query_stream, found[-1], asked, here, asking, own))
            else:
                both = self._run_layer(layer.forward_streams, found[-1], asked, here, asking, own)  # type: ignore[arg-type]
                hidden_states, asked = both
                found.append(hidden_states)
        return found

    def _update_memory(self, hidden_states: Sequence[torch.Tensor], batch: Batch, memory: EncoderState) -> EncoderState:
        """Return what is carried on: the last pieces of each row, those of the old memory and of the batch."""
        rows, width = batch.input_ids.shape
        before = _memory_length(memory)
        size = min(self.config.mem_len or before + width, before + width)
        lengths = batch.lengths + memory.layers[0][1] if memory.layers else batch.lengths
        # Real pieces of a row end at before + its length; they become the end of the new memory.
        ends = (before + batch.lengths)[:, None]
        index = (ends - size + torch.arange(size, device=ends.device)).clamp(min=0)[..., None]  # (B, size, 1)
        kept = []
        for number, values in enumerate(hidden_states[:-1]):
            all_values = values.detach().view(rows, width, -1)
            if memory.layers:
                all_values = torch.cat([memory.layers[number][0], all_values], 1)
            kept.append(all_values.gather(1, index.expand(-1, -1, all_values.shape[2])))
        real = lengths.clamp(max=size)
        return EncoderState(memory.length + width, tuple((values, real) for values in kept))


def _stream_seeds(seeds: DropoutSeeds, layer_index: int) -> tuple[torch.Tensor, ...]:
    """Return the seeds of a layer: three of the first stream, three of the second."""
    return tuple(
        seeds.seed_for(first + 3 * layer_index + place) for first in (0, _QUERY_STREAM_SEED) for place in (1, 2, 3)
    )


def _permutation_mask(batch: Batch) -> torch.Tensor:
    """Return (B, T, T): whether a place is told the piece of another one before its own is asked. A place that is not
    asked is told all others that are not."""
    if batch.permutation is None:
        return torch.ones(
            1, batch.input_ids.shape[1], batch.input_ids.shape[1], dtype=torch.bool, device=batch.input_ids.device
        )
    told = batch.permutation
    return told[:, None, :] < told.clamp(min=1)[..., None]


def _additive_mask(allowed: torch.Tensor) -> torch.Tensor:
    """Return what is added to scores: 0 where reading is allowed, minus infinity elsewhere."""
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def _memory_length(memory: EncoderState) -> int:
    return memory.layers[0][0].shape[1] if memory.layers else 0


def _add_memory_mask(group: SequenceGroup, memory: EncoderState) -> SequenceGroup:
    """Return the group with a mask that reaches over the memory too: (B, 1, 1 or T, M + T)."""
    if not memory.layers:
        return group
    values, lengths = memory.layers[0]
    numbers = torch.arange(values.shape[1], device=lengths.device)
    remembered = _additive_mask(numbers >= values.shape[1] - lengths[:, None])[:, None, None]  # (B, 1, 1, M)
    mask = group.mask
    if mask is None:
        mask = remembered.new_zeros(group.num_sequences, 1, 1, group.length)
    return replace(group, mask=torch.cat([remembered.expand(-1, -1, mask.shape[2], -1), mask], -1))


CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "hidden_act": "ff_activation",
    "hidden_dropout_prob": "dropout",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Settings that would change the numbers, and the only value of each that is computed here.
SUPPORTED_VALUES: dict[str, Any] = {
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
# transformers has no word for the longest rows, as it reads any; this key is ours.
_MAX_LENGTH_KEY = "n_positions"
_FAMILY_CONFIG: dict[str, Any] = {"type_vocab_size": 3, "model_type": "xlnet"}  # the third is that of <cls>

HEADS: dict[str, NameTable] = {
    "permutation": {"bias": ("lm_loss.bias",)},
    "sequence": expand_weight_and_bias({"score": ("logits_proj",)}),
    "choices": expand_weight_and_bias({"score": ("logits_proj",)}),
    "tokens": bert.HEADS["tokens"],
    "spans": bert.HEADS["spans"],
}
# Beside heads for whole rows what sums them up is called a part of the head.
PREFIX_OVERRIDES = {kind: {"transformer.pooler.": "sequence_summary.summary."} for kind in ("sequence", "choices")}
COPIES = {"lm_loss.weight": "transformer.word_embedding.weight"}
CLASS_SUFFIXES = {"spans": "ForQuestionAnsweringSimple"}
_ATTENTION_NAMES = {
    "query": "q", "key": "k", "value": "v", "out": "o", "distance": "r", "content_bias": "r_w_bias",
    "distance_bias": "r_r_bias", "segment_bias": "r_s_bias", "segment_embeddings": "seg_embed",
}  # fmt: skip
_LAYER_NAMES = {
    "attention_norm": ("rel_attn.layer_norm",),
    "intermediate": ("ff.layer_1",),
    "output": ("ff.layer_2",),
    "norm": ("ff.layer_norm",),
}


def config_from_preset(name: str, vocab_size: int) -> XlnetConfig:
    """Return BERT's sizes by name, which are those of the released XLNets."""
    usual = BertConfig.from_preset(name, vocab_size)
    return XlnetConfig(
        vocab_size,
        usual.hidden_size,
        usual.num_hidden_layers,
        usual.num_attention_heads,
        usual.intermediate_size,
        **_FAMILY_CONFIG,
    )


def config_from_dict(config_dict: Mapping[str, Any]) -> XlnetConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_supported(config_dict, SUPPORTED_VALUES)
    found = bert.read_config_fields(config_dict, CONFIG_KEYS)
    if config_dict.get("d_head") not in (None, found["hidden_size"] // found["num_attention_heads"]):
        raise SettingsError(f"d_head is {config_dict['d_head']}, but should be d_model / n_head; choose another model")
    numbers = {
        "max_position_embeddings": config_dict.get(_MAX_LENGTH_KEY, 512),
        "mem_len": config_dict.get("mem_len") or 0,
    }
    for key, number in numbers.items():
        if not isinstance(number, int) or number < 0:
            raise SettingsError(f"{key} should be a whole number, but is {number!r}; bring the model's own config.json")
    return XlnetConfig(**found, **numbers, attention_probs_dropout_prob=found["hidden_dropout_prob"], **_FAMILY_CONFIG)


def config_to_dict(config: XlnetConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as XLNetLMHeadModel."""
    told = {key: getattr(config, name) for name, key in CONFIG_KEYS.items()}
    own = {_MAX_LENGTH_KEY: config.max_position_embeddings, "mem_len": config.mem_len or None}
    return {"model_type": "xlnet", "architectures": list(architectures), **told, **own}


def tensor_names(config: XlnetConfig) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's."""
    names = {
        "token_embeddings.weight": ("transformer.word_embedding.weight",),
        "mask_embedding": ("transformer.mask_emb",),
        **expand_weight_and_bias({"pooler": ("transformer.pooler",)}),
    }
    for number in range(config.num_hidden_layers):
        here, there = f"layers.{number}.", f"transformer.layer.{number}."
        names |= {f"{here}attention.{ours}": (f"{there}rel_attn.{one}",) for ours, one in _ATTENTION_NAMES.items()}
        names |= expand_weight_and_bias({here + ours: (there + one,) for ours, (one,) in _LAYER_NAMES.items()})
    return names
