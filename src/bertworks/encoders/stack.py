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

from bertworks.encoders.dropout import drop
from bertworks.encoders.encoded import Carried, Encoded, Layout, layout_of, layout_onward, wanted_of
from bertworks.encoders.layers import ACTIVATIONS, Attention, Layer, LayerSizes, Seeds
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer

# Layers, width and heads of the released sizes; the inner width is always four times the width.
RELEASED = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, slots=True)
class BertSizes:
    """What BERT and its nearest relatives are made of. The defaults are the paper's Base.

    family           transformers' model_type of the encoder
    first_position   the row of the table of positions that belongs to the first place: RoBERTa's is 2
    """

    vocabulary: int = 30_522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    inner: int = 3_072
    positions: int = 512
    segments: int = 2
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12
    spread: float = 0.02
    family: str = "bert"
    first_position: int = 0

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise SettingsError(f"width {self.width} cannot be divided among {self.num_heads} heads; choose a multiple")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SettingsError(f"there is no activation '{self.activation}'; choose one of: {known}")

    @classmethod
    def released(cls, name: str, vocabulary: int) -> Self:
        """Return one of the released sizes by name."""
        if name not in RELEASED:
            raise SettingsError(f"there is no size '{name}'; choose one of: {', '.join(RELEASED)}")
        num_layers, width, num_heads = RELEASED[name]
        return cls(vocabulary, width, num_layers, num_heads, 4 * width)

    @property
    def table_width(self) -> int:
        """How wide the embeddings of pieces are, which a masked head compares with."""
        return self.width

    @property
    def summary_width(self) -> int:
        """How wide the summary of a row is."""
        return self.width

    @property
    def widths(self) -> tuple[int, ...]:
        """How wide the embeddings and what leaves each layer are."""
        return (self.width,) * (self.num_layers + 1)

    @property
    def layer(self) -> LayerSizes:
        return LayerSizes(
            self.width,
            self.num_heads,
            self.inner,
            self.dropout,
            self.attention_dropout,
            self.activation,
            self.norm_eps,
        )


class Stack(nn.Module):
    """Layers over embedded pieces. In training mode it drops values, and then needs a step's seeds.

    own_reads    who may read whom unless a batch says otherwise
    recomputes   a layer keeps only what entered it, and the rest is computed again on the way back: less memory, a
                 third more time
    adds_rows    the pieces that were read add their rows to a gradient of the table that comes whole from elsewhere,
                 instead of making a table of their own, mostly zeros
    """

    reads: tuple[str, ...] = ("both", "left", "given")
    pieces: nn.Embedding
    layers: nn.ModuleList
    pooler: nn.Linear

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.own_reads = self.reads[0]
        self.recomputes = False
        self.adds_rows = False

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: Seeds | None = None,
        places: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers and the summary of each row. `seeds` are for dropout, and only used in training mode.

        Who looks at the last layer at some places only names them (row * T + place; none for the summary alone): what
        the last layer makes of all others is then not computed. With a `Carried` as state, rows go on behind the places
        that it was made of, in a model that reads to the left, and a new one leaves.
        """
        if state is not None:
            assert isinstance(state, Carried), "the state of another encoder"
            return self._onward(batch, state)
        layout = self.laid(batch)
        return self.through(self.embed(batch, layout), layout, seeds, places)

    def through(
        self, values: torch.Tensor, layout: Layout, seeds: Seeds | None = None, places: torch.Tensor | None = None
    ) -> Encoded:
        """Return what the layers make of embedded pieces (N, D), such as those between two texts."""
        seeds = seeds if self.training else None
        values = drop(values, seeds.of(0) if seeds else None, self.sizes.dropout)
        found = [values]
        summaries = self.summaries(layout)
        wanted = None if places is None else wanted_of(layout, summaries, places)
        stacked = self.stacked
        for number, layer in enumerate(stacked):
            own = tuple(seeds.of(3 * number + place) for place in (1, 2, 3)) if seeds else None
            if wanted is not None and number == len(stacked) - 1:
                values = self._passed(layer.at, values, layout, own, wanted)
            else:
                values = self._passed(layer, values, layout, own)
            found.append(values)
        if wanted is None:
            summing = values[summaries]
        else:
            summing, found[-1] = values[: len(summaries)], values[len(summaries) :]
        return Encoded(tuple(found), self.summed(summing), layout, places=places)

    def _onward(self, batch: Batch, state: Carried) -> Encoded:
        """Return what the layers make of the pieces of a batch alone, which read those that were read before."""
        layout = self.laid_onward(batch, state)
        return self.through_onward(self.embed(batch, layout), layout, state)

    def laid_onward(self, batch: Batch, state: Carried) -> Layout:
        """Return how rows are computed that go on behind others; refuse what cannot."""
        width = batch.ids.shape[1]
        if (self.own_reads if batch.reads is None else batch.reads) != "left":
            raise SettingsError("only a model that reads to the left can go on from what it has read; give whole rows")
        if int(batch.lengths.min()) < width or state.length + width > self.sizes.positions:
            raise InputError(
                f"rows that go on are of equal length, and end within the {self.sizes.positions} positions of the model"
            )
        return layout_onward(batch, state.length)

    def through_onward(self, values: torch.Tensor, layout: Layout, state: Carried) -> Encoded:
        """Return what the layers make of embedded pieces (N, D) that go on behind others, and what is carried on."""
        found, kept = [values], []
        for number, layer in enumerate(self.stacked):
            values, own = layer.onward(values, layout, state.layers[number] if state.layers else None)
            found.append(values)
            kept.append(own)
        carried = Carried(state.length + layout.shape[1], tuple(kept))
        return Encoded(tuple(found), self.summed(values[self.summaries(layout)]), layout, carried)

    @property
    def stacked(self) -> Sequence[Layer]:
        """The layers in the order in which values pass them."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def attends(self) -> bool:
        """Whether pieces read one another by attention, so that it can be shown who reads whom (`shares`)."""
        return all(isinstance(layer, Layer) for layer in self.stacked)

    def shares(self, batch: Batch, numbers: Iterable[int]) -> Iterator[torch.Tensor]:
        """Yield (B, H, T, T) for each of these layers: how much of each place every place reads; rows of one length."""
        if not self.attends:
            raise SettingsError(
                f"a model of the family '{self.sizes.family}' has no attention to show: its pieces do not read one "
                f"another; choose a Transformer"
            )
        layout = self.laid(batch)
        found = self.through(self.embed(batch, layout), layout).layers
        for number in numbers:
            yield self.stacked[number].attention.shares(found[number], layout)

    @property
    def most_places(self) -> float:
        """How many places of a row can be read in parts that go on behind one another."""
        return self.sizes.positions

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.pieces.weight.device

    @property
    def num_at_once(self) -> int:
        """How many batches may be computed at the same time, each in a thread: one a core."""
        return torch.get_num_threads() if self.device.type == "cpu" else 1

    def meet(self, tokenizer: Tokenizer) -> None:
        """Be told the vocabulary, before anything is learned: for an encoder that reads how pieces are written."""

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): what enters the first layer."""
        raise NotImplementedError

    def summaries(self, layout: Layout) -> torch.Tensor:
        """Return (B,): which piece of each row its summary is made of: the first, or where each reads those before it
        only, the last, which has read them all."""
        return layout.starts + layout.lengths - 1 if self.own_reads == "left" else layout.starts

    def summed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (B, D): the summaries made of the last layer at those pieces."""
        return torch.tanh(self.pooler(vectors))

    def tables(self, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the embeddings that are summed for the pieces of one row (T,), each (T, E), by what they tell."""
        places = torch.arange(len(ids), device=ids.device) + self.sizes.first_position
        asked = {"piece": ("pieces", ids), "position": ("positions", places), "segment": ("segments", segments)}
        return {told: getattr(self, table)(numbers) for told, (table, numbers) in asked.items() if hasattr(self, table)}

    def looked_up(self, batch: Batch, layout: Layout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the embedding of each piece (N, E), the position of each (N,), and its segment (N,)."""
        width = batch.ids.shape[1]
        ids, segments = batch.ids.flatten(), batch.segments.flatten()
        if layout.index is None:
            places = torch.arange(width, device=ids.device).repeat(batch.ids.shape[0])
        else:
            ids, segments = ids[layout.index], segments[layout.index]
            places = layout.index % width
        pieces = F.embedding(ids, self.pieces.weight, sparse=self.adds_rows)
        return pieces, places + layout.before + self.sizes.first_position, segments

    def set_dropout(self, rate: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        self.sizes = replace(self.sizes, dropout=rate, attention_dropout=rate)
        for part in self.modules():
            if isinstance(part, Layer | Attention):
                part.dropout = rate

    def _passed(self, layer: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """Return what a layer makes of values; where memory is dear, to be computed again on the way back."""
        if self.recomputes and torch.is_grad_enabled():  # what is dropped follows from the seeds: the same again
            return checkpoint(layer, *given, use_reentrant=False, preserve_rng_state=False)
        return layer(*given)

    def laid(self, batch: Batch) -> Layout:
        """Return how a batch is computed; refuse what cannot be read."""
        return layout_of(batch, self.checked(batch))

    def checked(self, batch: Batch) -> str | torch.Tensor:
        """Return who may read whom in a batch; refuse what cannot be read."""
        if batch.ids.shape[1] > self.sizes.positions:
            raise InputError(
                f"a row of {batch.ids.shape[1]} places is longer than the {self.sizes.positions} positions of this "
                f"model; cut the text into windows, or choose a shorter length"
            )
        if int(batch.lengths.min()) < 1:
            raise InputError("a row without a single piece cannot be read; an empty text still has [CLS] and [SEP]")
        reads = self.own_reads if batch.reads is None else batch.reads
        if (reads if isinstance(reads, str) else "given") not in self.reads:
            raise SettingsError(f"this model reads {' or '.join(self.reads)} only; ask it that way")
        return reads


def initialise(module: nn.Module, spread: float, generator: torch.Generator | None) -> None:
    """Draw weights from a normal distribution cut at two standard deviations; biases 0, norms 1. As in the release."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, 0.0, spread, -2 * spread, 2 * spread, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
