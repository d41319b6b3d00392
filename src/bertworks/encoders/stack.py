"""A stack of Transformer layers, what BERT and its nearest relatives share: a Batch in, an Encoded out.

An encoder of the family has tables of its own, says how pieces are embedded and what sums a row up, and lets its layers
pass here. B rows of T places, N pieces, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import (
    BatchLayout,
    Encoded,
    EncoderState,
    create_layout,
    create_layout_with_cache,
    select_output_positions,
)
from bertworks.encoders.layers import ACTIVATIONS, Attention, DropoutSeeds, Layer, LayerConfig
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer

# Layers, width and heads of the released sizes; the inner width is always four times the width.
PRESETS = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, slots=True)
class BertConfig:
    """What BERT and its nearest relatives are made of. The defaults are the paper's Base.

    family           transformers' model_type of the encoder
    first_position   the row of the table of positions that belongs to the first place: RoBERTa's is 2
    """

    vocab_size: int = 30_522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3_072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    model_type: str = "bert"
    first_position: int = 0

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise SettingsError(
                f"width {self.hidden_size} cannot be divided among {self.num_attention_heads} heads; choose a multiple"
            )
        if self.hidden_act not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SettingsError(f"there is no activation '{self.hidden_act}'; choose one of: {known}")

    @classmethod
    def from_preset(cls, name: str, vocab_size: int) -> Self:
        """Return one of the released sizes by name."""
        if name not in PRESETS:
            raise SettingsError(f"there is no size '{name}'; choose one of: {', '.join(PRESETS)}")
        num_layers, width, num_heads = PRESETS[name]
        return cls(vocab_size, width, num_layers, num_heads, 4 * width)

    @property
    def token_embedding_size(self) -> int:
        """How wide the embeddings of pieces are, which a masked head compares with."""
        return self.hidden_size

    @property
    def pooled_size(self) -> int:
        """How wide the summary of a row is."""
        return self.hidden_size

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """How wide the embeddings and what leaves each layer are."""
        return (self.hidden_size,) * (self.num_hidden_layers + 1)

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            self.hidden_size,
            self.num_attention_heads,
            self.intermediate_size,
            self.hidden_dropout_prob,
            self.attention_probs_dropout_prob,
            self.hidden_act,
            self.layer_norm_eps,
        )


class Encoder(nn.Module):
    """Layers over embedded pieces. In training mode it drops values, and then needs a step's seeds.

    own_reads    who may read whom unless a batch says otherwise
    recomputes   a layer keeps only what entered it, and the rest is computed again on the way back: less memory, a
                 third more time
    adds_rows    the pieces that were read add their rows to a gradient of the table that comes whole from elsewhere,
                 instead of making a table of their own, mostly zeros
    """

    supported_attention: tuple[str, ...] = ("bidirectional", "causal", "mask")
    token_embeddings: nn.Embedding
    layers: nn.ModuleList
    pooler: nn.Linear

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = self.supported_attention[0]
        self.activation_checkpointing = False
        self.sparse_embedding_gradients = False

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers and the summary of each row. `seeds` are for dropout, and only used in training mode.

        Who looks at the last layer at some places only names them (row * T + place; none for the summary alone): what
        the last layer makes of all others is then not computed. With a `Carried` as state, rows go on behind the places
        that it was made of, in a model that reads to the left, and a new one leaves.
        """
        if state is not None:
            assert isinstance(state, EncoderState), "the state of another encoder"
            return self._forward_with_cache(batch, state)
        layout = self.create_layout(batch)
        return self.forward_layers(self.embed(batch, layout), layout, seeds, positions)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return what the layers make of embedded pieces (N, D), such as those between two texts."""
        seeds = seeds if self.training else None
        hidden_states = dropout(hidden_states, seeds.seed_for(0) if seeds else None, self.config.hidden_dropout_prob)
        found = [hidden_states]
        summaries = self.pooled_positions(layout)
        wanted = None if positions is None else select_output_positions(layout, summaries, positions)
        stacked = self.layer_sequence
        for number, layer in enumerate(stacked):
            own = tuple(seeds.seed_for(3 * number + place) for place in (1, 2, 3)) if seeds else None
            if wanted is not None and number == len(stacked) - 1:
                hidden_states = self._run_layer(layer.forward_at, hidden_states, layout, own, wanted)
            else:
                hidden_states = self._run_layer(layer, hidden_states, layout, own)
            found.append(hidden_states)
        if wanted is None:
            summing = hidden_states[summaries]
        else:
            summing, found[-1] = hidden_states[: len(summaries)], hidden_states[len(summaries) :]
        return Encoded(tuple(found), self.pool(summing), layout, positions=positions)

    def _forward_with_cache(self, batch: Batch, state: EncoderState) -> Encoded:
        """Return what the layers make of the pieces of a batch alone, which read those that were read before."""
        layout = self.create_layout_with_cache(batch, state)
        return self.forward_layers_with_cache(self.embed(batch, layout), layout, state)

    def create_layout_with_cache(self, batch: Batch, state: EncoderState) -> BatchLayout:
        """Return how rows are computed that go on behind others; refuse what cannot."""
        width = batch.input_ids.shape[1]
        if (self.attention if batch.attention is None else batch.attention) != "causal":
            raise SettingsError("only a model that reads to the left can go on from what it has read; give whole rows")
        if int(batch.lengths.min()) < width or state.length + width > self.config.max_position_embeddings:
            raise InputError(
                f"rows that go on are of equal length, and end within the {self.config.max_position_embeddings} positions of the model"
            )
        return create_layout_with_cache(batch, state.length)

    def forward_layers_with_cache(
        self, hidden_states: torch.Tensor, layout: BatchLayout, state: EncoderState
    ) -> Encoded:
        """Return what the layers make of embedded pieces (N, D) that go on behind others, and what is carried on."""
        found, kept = [hidden_states], []
        for number, layer in enumerate(self.layer_sequence):
            hidden_states, own = layer.forward_with_cache(
                hidden_states, layout, state.layers[number] if state.layers else None
            )
            found.append(hidden_states)
            kept.append(own)
        carried = EncoderState(state.length + layout.shape[1], tuple(kept))
        return Encoded(tuple(found), self.pool(hidden_states[self.pooled_positions(layout)]), layout, carried)

    @property
    def layer_sequence(self) -> Sequence[Layer]:
        """The layers in the order in which values pass them."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def has_attention(self) -> bool:
        """Whether pieces read one another by attention, so that it can be shown who reads whom (`shares`)."""
        return all(isinstance(layer, Layer) for layer in self.layer_sequence)

    def attention_weights(self, batch: Batch, layer_indices: Iterable[int]) -> Iterator[torch.Tensor]:
        """Yield (B, H, T, T) for each of these layers: how much of each place every place reads; rows of one length."""
        if not self.has_attention:
            raise SettingsError(
                f"a model of the family '{self.config.model_type}' has no attention to show: its pieces do not read one "
                f"another; choose a Transformer"
            )
        layout = self.create_layout(batch)
        found = self.forward_layers(self.embed(batch, layout), layout).hidden_states
        for number in layer_indices:
            yield self.layer_sequence[number].attention.attention_weights(found[number], layout)

    @property
    def max_cached_length(self) -> float:
        """How many places of a row can be read in parts that go on behind one another."""
        return self.config.max_position_embeddings

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.token_embeddings.weight.device

    @property
    def num_parallel_batches(self) -> int:
        """How many batches may be computed at the same time, each in a thread: one a core."""
        return torch.get_num_threads() if self.device.type == "cpu" else 1

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Be told the vocabulary, before anything is learned: for an encoder that reads how pieces are written."""

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): what enters the first layer."""
        raise NotImplementedError

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): which piece of each row its summary is made of: the first, or where each reads those before it
        only, the last, which has read them all."""
        return layout.starts + layout.lengths - 1 if self.attention == "causal" else layout.starts

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, D): the summaries made of the last layer at those pieces."""
        return torch.tanh(self.pooler(vectors))

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the embeddings that are summed for the pieces of one row (T,), each (T, E), by what they tell."""
        places = torch.arange(len(input_ids), device=input_ids.device) + self.config.first_position
        asked = {
            "token": ("token_embeddings", input_ids),
            "position": ("position_embeddings", places),
            "token_type": ("token_type_embeddings", token_type_ids),
        }
        return {told: getattr(self, table)(numbers) for told, (table, numbers) in asked.items() if hasattr(self, table)}

    def lookup_embeddings(self, batch: Batch, layout: BatchLayout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the embedding of each piece (N, E), the position of each (N,), and its segment (N,)."""
        width = batch.input_ids.shape[1]
        ids, segments = batch.input_ids.flatten(), batch.token_type_ids.flatten()
        if layout.index is None:
            places = torch.arange(width, device=ids.device).repeat(batch.input_ids.shape[0])
        else:
            ids, segments = ids[layout.index], segments[layout.index]
            places = layout.index % width
        pieces = F.embedding(ids, self.token_embeddings.weight, sparse=self.sparse_embedding_gradients)
        return pieces, places + layout.num_cached + self.config.first_position, segments

    def set_dropout(self, dropout_prob: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        self.config = replace(self.config, hidden_dropout_prob=dropout_prob, attention_probs_dropout_prob=dropout_prob)
        for part in self.modules():
            if isinstance(part, Layer | Attention):
                part.dropout_prob = dropout_prob

    def _run_layer(self, layer: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        """Return what a layer makes of values; where memory is dear, to be computed again on the way back."""
        if (
            self.activation_checkpointing and torch.is_grad_enabled()
        ):  # what is dropped follows from the seeds: the same again
            return checkpoint(layer, *args, use_reentrant=False, preserve_rng_state=False)
        return layer(*args)

    def create_layout(self, batch: Batch) -> BatchLayout:
        """Return how a batch is computed; refuse what cannot be read."""
        return create_layout(batch, self.resolve_attention(batch))

    def resolve_attention(self, batch: Batch) -> str | torch.Tensor:
        """Return who may read whom in a batch; refuse what cannot be read."""
        if batch.input_ids.shape[1] > self.config.max_position_embeddings:
            raise InputError(
                f"a row of {batch.input_ids.shape[1]} places is longer than the {self.config.max_position_embeddings} positions of this "
                f"model; cut the text into windows, or choose a shorter length"
            )
        if int(batch.lengths.min()) < 1:
            raise InputError("a row without a single piece cannot be read; an empty text still has [CLS] and [SEP]")
        reads = self.attention if batch.attention is None else batch.attention
        if (reads if isinstance(reads, str) else "mask") not in self.supported_attention:
            raise SettingsError(f"this model reads {' or '.join(self.supported_attention)} only; ask it that way")
        return reads


def initialise(module: nn.Module, initializer_range: float, generator: torch.Generator | None) -> None:
    """Draw weights from a normal distribution cut at two standard deviations; biases 0, norms 1. As in the release."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(
                part.weight, 0.0, initializer_range, -2 * initializer_range, 2 * initializer_range, generator=generator
            )
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
