"""BERT: a Batch in, an Encoded out. Two-way Transformer layers over summed piece, position and segment embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from bertworks.encoders.dropping import drop
from bertworks.encoders.encoded import Encoded, Layout, layout_of, wanted_of
from bertworks.encoders.layers import ACTIVATIONS, Attention, Layer, LayerSizes, Seeds
from bertworks.errors import InputError, SettingsError
from bertworks.examples.batch import Batch

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
    """What a BERT is made of. The defaults are the paper's Base."""

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

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise SettingsError(f"width {self.width} cannot be divided among {self.num_heads} heads; choose a multiple")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SettingsError(f"there is no activation '{self.activation}'; choose one of: {known}")

    @classmethod
    def released(cls, name: str, vocabulary: int) -> BertSizes:
        """Return one of the released sizes by name."""
        if name not in RELEASED:
            raise SettingsError(f"there is no size '{name}'; choose one of: {', '.join(RELEASED)}")
        num_layers, width, num_heads = RELEASED[name]
        return cls(vocabulary, width, num_layers, num_heads, 4 * width)

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


class Bert(nn.Module):
    """The encoder of BERT, with its pooler. In training mode it drops values, and then needs a step's seeds.

    With `recomputes` a layer keeps only what entered it, and the rest is computed again on the way back: less memory,
    a third more time. With `adds_rows` the pieces that were read add their rows to a gradient of the table that comes
    whole from elsewhere, instead of making a table of their own, mostly zeros.
    """

    reads = ("both", "left", "given")

    def __init__(self, sizes: BertSizes, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.recomputes = False
        self.adds_rows = False
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.segments = nn.Embedding(sizes.segments, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)
        self.layers = nn.ModuleList(Layer(sizes.layer) for _ in range(sizes.num_layers))
        self.pooler = nn.Linear(sizes.width, sizes.width)
        initialise(self, sizes.spread, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: Seeds | None = None,
        places: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers and the pooled first piece. `seeds` are for dropout, and only used in training mode.

        Who looks at the last layer at some places only names them (row * T + place; none for the summary alone): what
        the last layer makes of all others is then not computed.
        """
        self._check(batch)
        layout = layout_of(batch)
        return self.through(self.embed(batch, layout), layout, seeds, places)

    def through(
        self, values: torch.Tensor, layout: Layout, seeds: Seeds | None = None, places: torch.Tensor | None = None
    ) -> Encoded:
        """Return what the layers make of embedded pieces (N, D), such as those between two texts."""
        seeds = seeds if self.training else None
        values = drop(values, seeds.of(0) if seeds else None, self.sizes.dropout)
        found = [values]
        wanted = None if places is None else wanted_of(layout, places)
        for number, layer in enumerate(self.layers):
            own = tuple(seeds.of(3 * number + place) for place in (1, 2, 3)) if seeds else None
            if wanted is not None and number == len(self.layers) - 1:
                values = self._passed(layer.at, values, layout, own, wanted)
            else:
                values = self._passed(layer, values, layout, own)
            found.append(values)
        if wanted is None:
            firsts = values[layout.starts]
        else:
            firsts, found[-1] = values.split([len(layout.starts), len(values) - len(layout.starts)])
        summary = torch.tanh(self.pooler(firsts))  # (B, D)
        return Encoded(tuple(found), summary, layout, places=places)

    def _passed(self, layer: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """Return what a layer makes of values; where memory is dear, to be computed again on the way back."""
        if self.recomputes and torch.is_grad_enabled():  # what is dropped follows from the seeds: the same again
            return checkpoint(layer, *given, use_reentrant=False, preserve_rng_state=False)
        return layer(*given)

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the three embeddings of each piece, summed and normalised."""
        width = batch.ids.shape[1]
        ids, segments = batch.ids.flatten(), batch.segments.flatten()
        if layout.index is None:
            positions = self.positions.weight[:width].repeat(batch.ids.shape[0], 1)
        else:
            ids, segments = ids[layout.index], segments[layout.index]
            positions = self.positions(layout.index % width)
        pieces = F.embedding(ids, self.pieces.weight, sparse=self.adds_rows)
        return self.norm(pieces + positions + self.segments(segments))

    def set_dropout(self, rate: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        self.sizes = replace(self.sizes, dropout=rate, attention_dropout=rate)
        for part in self.modules():
            if isinstance(part, Layer | Attention):
                part.dropout = rate

    def _check(self, batch: Batch) -> None:
        if batch.ids.shape[1] > self.sizes.positions:
            raise InputError(
                f"a row of {batch.ids.shape[1]} places is longer than the {self.sizes.positions} positions of this "
                f"model; cut the text into windows, or choose a shorter length"
            )
        if int(batch.lengths.min()) < 1:
            raise InputError("a row without a single piece cannot be read; an empty text still has [CLS] and [SEP]")


def initialise(module: nn.Module, spread: float, generator: torch.Generator | None) -> None:
    """Draw weights from a normal distribution cut at two standard deviations; biases 0, norms 1. As in the release."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, 0.0, spread, -2 * spread, 2 * spread, generator=generator)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)


# Hugging Face's key in config.json for each size. Whole numbers have to be there; for the others both sides assume the
# same where a key is left out.
CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "spread": "initializer_range",
}
# Settings that would change the numbers, and the only value of each that is computed here.
ONLY: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": {},
}


def sizes_of(config: Mapping[str, Any]) -> BertSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    for key, value in ONLY.items():
        if config.get(key) not in (None, value):
            raise SettingsError(f"{key} is {config[key]!r}, but only {value!r} is supported; choose another model")
    found = {}
    for part in fields(BertSizes):
        key = CONFIG_KEYS[part.name]
        value = config.get(key, None if isinstance(part.default, int) else part.default)
        if not _fits(value, part.default):
            wanted = _WANTED[type(part.default)]
            raise SettingsError(f"{key} should be {wanted}, but is {value!r}; bring the model's own config.json")
        found[part.name] = value
    return BertSizes(**found)


_WANTED = {int: "a whole number above 0", float: "a number from 0 to below 1", str: "a name"}


def _fits(value: object, default: object) -> bool:
    """Whether a setting is of the kind of its default, and in the range of that kind."""
    if isinstance(value, bool):
        return False
    if isinstance(default, str):
        return isinstance(value, str)
    if isinstance(default, int):
        return isinstance(value, int) and value > 0
    return isinstance(value, int | float) and 0 <= value < 1


def config_of(sizes: BertSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as BertForPreTraining."""
    told = {key: getattr(sizes, name) for name, key in CONFIG_KEYS.items()}
    return {"model_type": "bert", "architectures": list(architectures), **told}


# Our name of each tensor and Hugging Face's. Where they have several, ours is theirs, one under the other: their query,
# key and value are three products, ours is one.
NAMES: dict[str, tuple[str, ...]] = {
    "pieces.weight": ("bert.embeddings.word_embeddings.weight",),
    "positions.weight": ("bert.embeddings.position_embeddings.weight",),
    "segments.weight": ("bert.embeddings.token_type_embeddings.weight",),
    "norm.weight": ("bert.embeddings.LayerNorm.weight",),
    "norm.bias": ("bert.embeddings.LayerNorm.bias",),
    "pooler.weight": ("bert.pooler.dense.weight",),
    "pooler.bias": ("bert.pooler.dense.bias",),
}
# The parts of a layer, each with a weight and a bias: below "layers.N." here, "bert.encoder.layer.N." there.
LAYER_NAMES = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "inner": ("intermediate.dense",),
    "outer": ("output.dense",),
    "norm": ("output.LayerNorm",),
}


def names_of(sizes: BertSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    names = dict(NAMES)
    for number in range(sizes.num_layers):
        for ours, theirs in LAYER_NAMES.items():
            for end in ("weight", "bias"):
                there = tuple(f"bert.encoder.layer.{number}.{part}.{end}" for part in theirs)
                names[f"layers.{number}.{ours}.{end}"] = there
    return names
