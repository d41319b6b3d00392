"""AWD-LSTM, the language model of ULMFiT: a Batch in, an Encoded out. LSTMs read pieces from the left, one on another.

The first and the last layer are as wide as the embeddings, which tell the next piece too; those between are wider. What
is dropped is dropped for a whole pass: pieces of the vocabulary, values of a row at all its places, weights between one
step and the next. The state that leaves the layers enters the next batch, where its rows go on. Three views sum a row
up: the last output, the largest and the mean, joined by one product. The tensors have names of our own, for
transformers has no such model.

B rows of T places, N pieces, D width, I values that enter a layer, H its cells, V pieces of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.dropout import drop, kept
from bertworks.encoders.encoded import Carried, Encoded, Group, Layout
from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

# Width and cells of the layers between; base is the paper's, the others are smaller. All have three layers.
RELEASED = {"tiny": (100, 288), "mini": (200, 576), "small": (300, 864), "base": (400, 1_150)}
# The paper's rates of dropout as shares of the one for outputs (0.4): of input values, between layers, of pieces of the
# vocabulary, of weights.
_INPUT, _BETWEEN, _PIECES, _WEIGHTS = 1.0, 0.75, 0.125, 1.25
# Where seeds of a pass are for: pieces, where stretches begin, inputs, outputs; those of layers come behind.
_PIECES_PLACE, _STRETCH_PLACE, _INPUT_PLACE, _OUTPUT_PLACE, _LAYER_PLACES = range(5)

State = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AwdLstmSizes(BertSizes):
    """What an AWD-LSTM is made of. `inner` counts the cells of all layers but the last, which has `width`; there is no
    table of `positions`, which are the longest rows that are read at once.

    `dropout` is the rate of outputs, 0.4 in the paper; the paper's other rates follow in proportion.
    stretch   in a row that stands alone slopes reach back so many places at most; from stretch to stretch only the
              state is carried
    pooled    how many values sum a row up
    """

    stretch: int = 80
    pooled: int = 50

    def __post_init__(self) -> None:
        BertSizes.__post_init__(self)
        if self.dropout * _WEIGHTS >= 1:
            raise SettingsError(
                f"a dropout of {self.dropout} would leave no weights: they are dropped at {_WEIGHTS} times that rate"
            )

    @property
    def summary_width(self) -> int:
        return self.pooled

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width, *[self.inner] * (self.num_layers - 1), self.width)


class WeightDroppedLstm(nn.Module):
    """An LSTM: values (B, T, I) and a state in, (B, T, H) and the state behind the last place out."""

    def __init__(self, given: int, cells: int) -> None:
        super().__init__()
        self.enter = nn.Parameter(torch.empty(4 * cells, given))  # four gates: in, forget, cell, out
        self.again = nn.Parameter(torch.empty(4 * cells, cells))  # what is dropped
        self.bias = nn.Parameter(torch.empty(4 * cells))

    def forward(
        self,
        values: torch.Tensor,
        state: State | None,
        stretches: Sequence[int],
        seed: torch.Tensor | None,
        rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Read stretches of so many places, one behind the other; slopes do not reach from one into another."""
        weights = [self.enter, drop(self.again, seed, rate), self.bias, torch.zeros_like(self.bias)]
        if state is None:
            begin = values.new_zeros(len(values), self.again.shape[1])
            state = (begin, begin)
        found = []
        for part in torch.split(values, list(stretches), 1):
            before = [one.detach()[None] for one in state]  # each (1, B, H)
            told, output, cells = torch.lstm(part, before, weights, True, 1, 0.0, self.training, False, True)
            found.append(told)
            state = (output[0], cells[0])
        return torch.cat(found, 1) if len(found) > 1 else found[0], *state


class AwdLstm(Stack):
    """The encoder of ULMFiT."""

    sizes: AwdLstmSizes
    reads = ("left",)

    def __init__(self, sizes: AwdLstmSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(WeightDroppedLstm(given, cells) for given, cells in pairwise(sizes.widths))
        self.pooler = nn.Linear(3 * sizes.width, sizes.pooled)
        _draw(self, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: Seeds | None = None,
        places: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers. With a `Carried` as state, rows go on behind what it was made of, and a new one leaves."""
        assert state is None or isinstance(state, Carried), "the state of another encoder"
        layout = self.laid(batch)
        if state is not None and int(batch.lengths.min()) < batch.ids.shape[1]:
            raise InputError("rows that go on are of equal length; give those that end in a batch of their own")
        values = self.embed(batch, layout)
        if self.training and seeds is not None:
            values = values * self._pieces_kept(batch.ids.flatten(), seeds.of(_PIECES_PLACE))
        return self._read(values, layout, seeds, places, state)

    def through(
        self, values: torch.Tensor, layout: Layout, seeds: Seeds | None = None, places: torch.Tensor | None = None
    ) -> Encoded:
        """Return what the layers make of embedded pieces (N, D)."""
        return self._read(values, layout, seeds, places, None)

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the pieces alone."""
        return self.looked_up(batch, layout)[0]

    def laid(self, batch: Batch) -> Layout:
        """Return how a batch is computed: in its own shape. What is padding stands behind what is read."""
        self.checked(batch)
        rows, width = batch.ids.shape
        starts = torch.arange(rows, device=batch.ids.device) * width
        return Layout((Group(0, rows, width),), starts, batch.lengths, None, (rows, width))

    @property
    def most_places(self) -> float:
        return math.inf

    def _pieces_kept(self, ids: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        """Return (N, 1): by what the embedding of each piece is multiplied; wherever a piece stands, by the same."""
        rate = self.sizes.dropout * _PIECES
        stays = kept(torch.Size((self.sizes.vocabulary,)), seed, rate)
        return (stays[ids] / (1 - rate))[:, None]

    def _read(
        self,
        values: torch.Tensor,
        layout: Layout,
        seeds: Seeds | None,
        places: torch.Tensor | None,
        state: Carried | None,
    ) -> Encoded:
        seeds, rate = (seeds if self.training else None), self.sizes.dropout
        stretches = [layout.shape[1]] if state is not None else self._stretches(layout.shape[1], seeds)
        current = values.view(*layout.shape, -1)  # (B, T, D)
        current = _dropped(current, seeds, _INPUT_PLACE, rate * _INPUT)
        found, left = [current.flatten(0, 1)], []
        for number, layer in enumerate(self.layers):
            begin = state.layers[number] if state is not None and state.layers else None
            place = _LAYER_PLACES + 2 * number
            own = (begin, stretches, seeds.of(place) if seeds else None, rate * _WEIGHTS)
            current, *after = self._passed(layer, current, *own)  # (B, T, H)
            left.append((after[0].detach(), after[1].detach()))
            is_last = number == len(self.layers) - 1
            current = _dropped(current, seeds, *((_OUTPUT_PLACE, rate) if is_last else (place + 1, rate * _BETWEEN)))
            found.append(current.flatten(0, 1))
        summary = torch.tanh(self.pooler(_three_views(current, layout.lengths)))
        if places is not None:
            found[-1] = found[-1][places]
        carried = None if state is None else Carried(state.length + layout.shape[1], tuple(left))
        return Encoded(tuple(found), summary, layout, carried, places)

    def _stretches(self, width: int, seeds: Seeds | None) -> list[int]:
        """Return in how long stretches a row is read. Where slopes are wanted, each pass cuts elsewhere."""
        size = self.sizes.stretch
        if seeds is None or width <= size:
            return [width]
        first = 1 + int(seeds.of(_STRETCH_PLACE)) % size
        ends = [*range(first, width, size), width]
        return [stop - start for start, stop in pairwise([0, *ends])]


def _dropped(values: torch.Tensor, seeds: Seeds | None, place: int, rate: float) -> torch.Tensor:
    """Return (B, T, W) with some values of a row set to zero at all its places, and the others scaled up."""
    if seeds is None or not rate:
        return values
    stays = kept(torch.Size((len(values), 1, values.shape[2])), seeds.of(place), rate)
    return values * (stays * (1 / (1 - rate))).to(values.dtype)


def _three_views(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return (B, 3D): of rows (B, T, D) the output at the last piece, the largest values and the means."""
    outside = (torch.arange(values.shape[1], device=values.device) >= lengths[:, None])[..., None]  # (B, T, 1)
    last = values[torch.arange(len(values), device=values.device), lengths - 1]
    mean = values.masked_fill(outside, 0.0).sum(1) / lengths[:, None]
    return torch.cat([last, values.masked_fill(outside, -math.inf).amax(1), mean], 1)


def _draw(encoder: AwdLstm, generator: torch.Generator | None) -> None:
    """Draw the weights as the release does; but a gate that forgets begins open."""
    initialise(encoder, encoder.sizes.spread, generator)
    nn.init.uniform_(encoder.pieces.weight, -0.1, 0.1, generator=generator)
    for layer in encoder.layers:
        assert isinstance(layer, WeightDroppedLstm)
        cells = layer.again.shape[1]
        for weights in (layer.enter, layer.again):
            nn.init.uniform_(weights, -1 / math.sqrt(cells), 1 / math.sqrt(cells), generator=generator)
        nn.init.zeros_(layer.bias)
        with torch.no_grad():
            layer.bias[cells : 2 * cells] = 1.0


CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "inner": "lstm_size",
    "dropout": "hidden_dropout_prob",
    "positions": "max_position_embeddings",
    "spread": "initializer_range",
}
_OWN_KEYS = {"stretch": "stretch_size", "pooled": "pooler_size"}
_OWN: dict[str, Any] = {"num_heads": 1, "segments": 1, "family": "awd-lstm"}
# The next piece is told by the table of pieces itself, without a bias.
HEADS: dict[str, NameTable] = {
    "next": {},
    **{kind: bert.HEADS[kind] for kind in ("rows", "places", "choices", "spans")},
}


def released(name: str, vocabulary: int) -> AwdLstmSizes:
    """Return one of the sizes by name."""
    if name not in RELEASED:
        raise SettingsError(f"there is no size '{name}' of an AWD-LSTM; choose one of: {', '.join(RELEASED)}")
    width, inner = RELEASED[name]
    return AwdLstmSizes(vocabulary, width, num_layers=3, inner=inner, spread=0.05, **_OWN)


def sizes_of(config: Mapping[str, Any]) -> AwdLstmSizes:
    """Return the sizes that a config.json states."""
    found = bert.read_sizes(config, CONFIG_KEYS)
    for name, key in _OWN_KEYS.items():
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise SettingsError(
                f"{key} should be a whole number above 0, but is {config.get(key)!r}; bring the model's"
            )
        found[name] = config[key]
    return AwdLstmSizes(**found, **_OWN, attention_dropout=found["dropout"])


def config_of(sizes: AwdLstmSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are our own, for transformers has none."""
    told = {key: getattr(sizes, name) for name, key in (CONFIG_KEYS | _OWN_KEYS).items()}
    return {"model_type": sizes.family, "architectures": list(architectures), **told}


def names_of(sizes: AwdLstmSizes) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> its name in a folder, which is the same behind the name of the family."""
    layers = [f"layers.{number}.{part}" for number in range(sizes.num_layers) for part in ("enter", "again", "bias")]
    return {name: (f"awd_lstm.{name}",) for name in ("pieces.weight", *layers, "pooler.weight", "pooler.bias")}
