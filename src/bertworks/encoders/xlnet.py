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
from bertworks.encoders.dropout import drop
from bertworks.encoders.encoded import Carried, Encoded, Group, Layout, lined_up
from bertworks.encoders.layers import Seeds
from bertworks.encoders.relative_attention import Asking, RelativeAttention, RelativeLayer, RelativeLayout, waves_of
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import NameTable, with_ends
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

# The number of the first place where the second stream drops values.
_SECOND_STREAM = 5_000


@dataclass(frozen=True, slots=True)
class XlnetSizes(BertSizes):
    """What an XLNet is made of. Segments are only compared with one another, so there is no table of them; nor of
    positions, which are the longest rows that are read at once.

    memory   how many pieces are remembered from one batch to the next, where somebody asks for that; 0: all
    """

    memory: int = 0


class Xlnet(Stack):
    """The encoder of XLNet, with the product that sums a row up (its last piece).

    With a permutation in the batch two streams pass the layers: the first knows the piece of each place, the second,
    at the places to predict, only where they are. The last layer is then the second stream's at these places.
    """

    sizes: XlnetSizes

    def __init__(self, sizes: XlnetSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blank = nn.Parameter(torch.empty(1, 1, sizes.width))  # what the second stream begins with
        self.layers = nn.ModuleList(RelativeLayer(sizes.layer) for _ in range(sizes.num_layers))
        self.pooler = nn.Linear(sizes.width, sizes.width)
        initialise(self, sizes.spread, generator)
        for part in self.modules():
            if isinstance(part, Xlnet | RelativeAttention):
                for own in part.parameters(recurse=False):
                    nn.init.trunc_normal_(
                        own, 0.0, sizes.spread, -2 * sizes.spread, 2 * sizes.spread, generator=generator
                    )

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: Seeds | None = None,
        places: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers. With a `Carried` as state, what it remembers is read too, and a new one leaves.

        It has for each layer what entered it for the pieces before (B, M, D), and how many of a row are real (B,), the
        last ones.
        """
        if state is None and batch.permutation is None:
            return super().forward(batch, None, seeds, places)
        if self.training and state is not None and not self.sizes.memory:
            raise SettingsError(
                "rows that go on need a bound to what is remembered of them; say how many pieces, such as memory = 128 "
                "under [model], or choose an objective whose rows stand alone"
            )
        memory = Carried() if state is None else state
        assert isinstance(memory, Carried), "the state of another encoder"
        layout, asking = self._laid_over(batch, memory, places)
        seeds = seeds if self.training else None
        values = drop(self.embed(batch, layout), seeds.of(0) if seeds else None, self.sizes.dropout)
        found = self._streams(values, layout, seeds, (memory, asking))
        kept = None if state is None else self._remembered(found, batch, memory)
        if asking is None:
            return Encoded(tuple(found), self.summed(found[-1][self.summaries(layout)]), layout, kept)
        found[-1] = found[-1][asking.wanted.order]
        return Encoded(tuple(found), None, layout, kept, places)

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the pieces alone. Where they stand, layers find out."""
        return self.looked_up(batch, layout)[0]

    def laid(self, batch: Batch) -> RelativeLayout:
        """Return how a batch is computed; refuse what cannot be read."""
        return self._relative(super().laid(batch), batch, 0)

    def summaries(self, layout: Layout) -> torch.Tensor:
        """Return (B,): the last piece of each row."""
        return layout.starts + layout.lengths - 1

    def set_dropout(self, rate: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        super().set_dropout(rate)
        for part in self.modules():
            if isinstance(part, RelativeAttention):
                part.dropout = rate

    def _relative(self, layout: Layout, batch: Batch, num_remembered: int) -> RelativeLayout:
        segments = batch.segments.flatten()
        segments = segments if layout.index is None else segments[layout.index]
        widest = max(group.length for group in layout.groups)
        waves = waves_of(widest, num_remembered, self.pieces.weight)
        return RelativeLayout(
            layout.groups, layout.starts, layout.lengths, layout.index, layout.shape, segments, waves
        )  # fmt: skip

    def _laid_over(
        self, batch: Batch, memory: Carried, places: torch.Tensor | None
    ) -> tuple[RelativeLayout, Asking | None]:
        """Return how a batch is computed in its own shape, behind a memory, and what the second stream asks, if any."""
        if memory.layers and memory.num_rows != len(batch.ids):
            raise InputError(
                f"the memory is of {memory.num_rows} rows, but the batch has {len(batch.ids)}; let rows continue "
                f"those of the batch before, in the same order"
            )
        earlier = _earlier(batch)
        reads = self.own_reads if batch.reads is None else batch.reads
        if batch.permutation is not None or (isinstance(reads, str) and reads == "both"):
            reads = earlier  # a mask keeps the batch in its shape
        layout = super().laid(replace(batch, reads=reads))
        (group,) = layout.groups
        real = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
        layout = replace(layout, groups=(_behind(group, memory),))
        relative = self._relative(layout, batch, _num_remembered(memory))
        if batch.permutation is None:
            return relative, None
        assert places is not None, "a permutation is for places to predict"
        mask = _closed(earlier & real[:, None])[:, None]  # the second stream does not read its own piece
        wanted = lined_up(layout, places, places // layout.shape[1])
        return relative, Asking(wanted, (_behind(replace(group, mask=mask), memory),))

    def _streams(
        self,
        values: torch.Tensor,
        layout: RelativeLayout,
        seeds: Seeds | None,
        told: tuple[Carried, Asking | None],
    ) -> list[torch.Tensor]:
        """Return what enters the first layer and what leaves each: (N, D), or (R, D) where the second stream ends."""
        memory, asking = told
        found = [values]
        asked = values.new_empty(0)
        if asking is not None:
            asked = self.blank[0].expand(len(asking.wanted.lined), -1)
            asked = drop(asked, seeds.of(_SECOND_STREAM) if seeds else None, self.sizes.dropout)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, RelativeLayer)
            here = replace(layout, memory=memory.layers[number][0] if memory.layers else None)
            own = _six(seeds, number) if seeds else None
            if asking is None:
                found.append(self._passed(layer, found[-1], here, own[:3] if own else None))
            elif number == len(self.layers) - 1:
                found.append(self._passed(layer.second_stream, found[-1], asked, here, asking, own))
            else:
                both = self._passed(layer.streams, found[-1], asked, here, asking, own)  # type: ignore[arg-type]
                values, asked = both
                found.append(values)
        return found

    def _remembered(self, found: Sequence[torch.Tensor], batch: Batch, memory: Carried) -> Carried:
        """Return what is carried on: the last pieces of each row, those of the old memory and of the batch."""
        rows, width = batch.ids.shape
        before = _num_remembered(memory)
        size = min(self.sizes.memory or before + width, before + width)
        lengths = batch.lengths + memory.layers[0][1] if memory.layers else batch.lengths
        # Real pieces of a row end at before + its length; they become the end of the new memory.
        ends = (before + batch.lengths)[:, None]
        index = (ends - size + torch.arange(size, device=ends.device)).clamp(min=0)[..., None]  # (B, size, 1)
        kept = []
        for number, values in enumerate(found[:-1]):
            all_values = values.detach().view(rows, width, -1)
            if memory.layers:
                all_values = torch.cat([memory.layers[number][0], all_values], 1)
            kept.append(all_values.gather(1, index.expand(-1, -1, all_values.shape[2])))
        real = lengths.clamp(max=size)
        return Carried(memory.length + width, tuple((values, real) for values in kept))


def _six(seeds: Seeds, number: int) -> tuple[torch.Tensor, ...]:
    """Return the seeds of a layer: three of the first stream, three of the second."""
    return tuple(seeds.of(first + 3 * number + place) for first in (0, _SECOND_STREAM) for place in (1, 2, 3))


def _earlier(batch: Batch) -> torch.Tensor:
    """Return (B, T, T): whether a place is told the piece of another one before its own is asked. A place that is not
    asked is told all others that are not."""
    if batch.permutation is None:
        return torch.ones(1, batch.ids.shape[1], batch.ids.shape[1], dtype=torch.bool, device=batch.ids.device)
    told = batch.permutation
    return told[:, None, :] < told.clamp(min=1)[..., None]


def _closed(allowed: torch.Tensor) -> torch.Tensor:
    """Return what is added to scores: 0 where reading is allowed, minus infinity elsewhere."""
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def _num_remembered(memory: Carried) -> int:
    return memory.layers[0][0].shape[1] if memory.layers else 0


def _behind(group: Group, memory: Carried) -> Group:
    """Return the group with a mask that reaches over the memory too: (B, 1, 1 or T, M + T)."""
    if not memory.layers:
        return group
    values, lengths = memory.layers[0]
    numbers = torch.arange(values.shape[1], device=lengths.device)
    remembered = _closed(numbers >= values.shape[1] - lengths[:, None])[:, None, None]  # (B, 1, 1, M)
    mask = group.mask
    if mask is None:
        mask = remembered.new_zeros(group.count, 1, 1, group.length)
    return replace(group, mask=torch.cat([remembered.expand(-1, -1, mask.shape[2], -1), mask], -1))


CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "width": "d_model",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "inner": "d_inner",
    "activation": "ff_activation",
    "dropout": "dropout",
    "norm_eps": "layer_norm_eps",
    "spread": "initializer_range",
}
# Settings that would change the numbers, and the only value of each that is computed here.
ONLY: dict[str, Any] = {
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
_POSITIONS = "n_positions"
_OWN: dict[str, Any] = {"segments": 3, "family": "xlnet"}  # the third is that of <cls>

HEADS: dict[str, NameTable] = {
    "permuted": {"bias": ("lm_loss.bias",)},
    "rows": with_ends({"score": ("logits_proj",)}),
    "choices": with_ends({"score": ("logits_proj",)}),
    "places": bert.HEADS["places"],
    "spans": bert.HEADS["spans"],
}
# Beside heads for whole rows what sums them up is called a part of the head.
MOVED = {kind: {"transformer.pooler.": "sequence_summary.summary."} for kind in ("rows", "choices")}
COPIES = {"lm_loss.weight": "transformer.word_embedding.weight"}
CLASS_ENDS = {"spans": "ForQuestionAnsweringSimple"}
_ATTENTION = {
    "query": "q", "key": "k", "value": "v", "out": "o", "distance": "r", "content_bias": "r_w_bias",
    "distance_bias": "r_r_bias", "segment_bias": "r_s_bias", "segments": "seg_embed",
}  # fmt: skip
_LAYER = {
    "attention_norm": ("rel_attn.layer_norm",),
    "inner": ("ff.layer_1",),
    "outer": ("ff.layer_2",),
    "norm": ("ff.layer_norm",),
}


def released(name: str, vocabulary: int) -> XlnetSizes:
    """Return BERT's sizes by name, which are those of the released XLNets."""
    usual = BertSizes.released(name, vocabulary)
    return XlnetSizes(vocabulary, usual.width, usual.num_layers, usual.num_heads, usual.inner, **_OWN)


def sizes_of(config: Mapping[str, Any]) -> XlnetSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_only(config, ONLY)
    found = bert.read_sizes(config, CONFIG_KEYS)
    if config.get("d_head") not in (None, found["width"] // found["num_heads"]):
        raise SettingsError(f"d_head is {config['d_head']}, but should be d_model / n_head; choose another model")
    numbers = {"positions": config.get(_POSITIONS, 512), "memory": config.get("mem_len") or 0}
    for key, number in numbers.items():
        if not isinstance(number, int) or number < 0:
            raise SettingsError(f"{key} should be a whole number, but is {number!r}; bring the model's own config.json")
    return XlnetSizes(**found, **numbers, attention_dropout=found["dropout"], **_OWN)


def config_of(sizes: XlnetSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as XLNetLMHeadModel."""
    told = {key: getattr(sizes, name) for name, key in CONFIG_KEYS.items()}
    own = {_POSITIONS: sizes.positions, "mem_len": sizes.memory or None}
    return {"model_type": "xlnet", "architectures": list(architectures), **told, **own}


def names_of(sizes: XlnetSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's."""
    names = {
        "pieces.weight": ("transformer.word_embedding.weight",),
        "blank": ("transformer.mask_emb",),
        **with_ends({"pooler": ("transformer.pooler",)}),
    }
    for number in range(sizes.num_layers):
        here, there = f"layers.{number}.", f"transformer.layer.{number}."
        names |= {f"{here}attention.{ours}": (f"{there}rel_attn.{one}",) for ours, one in _ATTENTION.items()}
        names |= with_ends({here + ours: (there + one,) for ours, (one,) in _LAYER.items()})
    return names
