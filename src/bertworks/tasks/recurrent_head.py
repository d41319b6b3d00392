"""Recurrent heads on a frozen encoder: its chosen layers and a Batch in, outputs out, as the plain heads give them.

The paper trains a two-layer BiLSTM on features to tag (section 5.3); rows and spans have their counterparts here. What
is padding is never computed. Where places are asked, only the stretch of a row from the first of them to the last is
read: its features have seen the rest of the row already.

B rows of T places; N pieces that are read, at most M of a row; L layers, D width, W recurrent width of one direction,
P places that are asked, C outputs, Q pieces of the longest question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from bertworks.embeddings.strategies import WeightedLayers, strategy_of
from bertworks.encoders.dropout import drop
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import BertSizes, initialise
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.tasks.heads import PlaceHead, SpanHead, SummaryHead

# The first number of the places where these heads drop values; plain heads have one place, an encoder counts from 0.
_FIRST_PLACE = 10_001
# What stands before the names of these heads' tensors in a model folder: nobody else has such parts.
PREFIX = "bertworks.head."


@dataclass(frozen=True, slots=True)
class RecurrentSettings:
    """Which layers of the encoder are features, how wide an LSTM is each way (0: as the encoder), and whether the
    encoder is frozen or learns with the head."""

    strategy: str
    width: int = 0
    freezes: bool = True

    def __post_init__(self) -> None:
        strategy_of(self.strategy)
        if self.width < 0:
            raise SettingsError(f"a recurrent width of {self.width} cannot be; give 0 (the encoder's) or more")


@dataclass(frozen=True, slots=True)
class Reading:
    """Which places of each row are read, and how they lie when all rows follow one another without padding.

    counts   (B,) how many places of a row, and `starts` (B,) where the first of them lies among the N
    firsts   (B,) the place in its row of each row's first one
    places   (N,) counted through the batch: row * T + place
    spread   (N,) counted through rows of M places: row * M + place
    """

    counts: torch.Tensor
    starts: torch.Tensor
    firsts: torch.Tensor
    places: torch.Tensor
    spread: torch.Tensor
    shape: tuple[int, int]

    def padded(self, values: torch.Tensor, filler: float = 0.0) -> torch.Tensor:
        """Return (B, M, D): values (N, D) in rows, filled up at the right."""
        rows, most = self.shape
        empty = values.new_full((rows * most, values.shape[1]), filler)
        return empty.index_copy(0, self.spread, values).view(rows, most, -1)

    @property
    def backwards(self) -> Reading:
        """The same places, each row laid from its last to its first."""
        most = self.shape[1]
        rows = self.spread // most
        return replace(self, spread=2 * most * rows + self.counts[rows] - 1 - self.spread)

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        """Return (N, D): values (B, M, D) without what is padding."""
        return values.flatten(0, 1).index_select(0, self.spread)


def reading_of(batch: Batch) -> Reading:
    """Return whole rows, or where places are asked, of each row the stretch from the first to the last of them."""
    rows, width = batch.ids.shape
    if batch.places is None:
        firsts, counts = torch.zeros_like(batch.lengths), batch.lengths
    else:
        owners, own = batch.places // width, batch.places % width
        firsts = torch.full_like(batch.lengths, width).scatter_reduce(0, owners, own, "amin")
        lasts = torch.full_like(batch.lengths, -1).scatter_reduce(0, owners, own, "amax")
        silent = lasts < 0  # a row in the middle of a very long word: one place is read, and nothing is asked
        firsts = firsts.masked_fill(silent, 0)
        counts = (lasts - firsts + 1).masked_fill(silent, 1)
    numbers = torch.arange(rows, device=counts.device).repeat_interleave(counts)  # (N,) the row of each
    starts = counts.cumsum(0) - counts
    offsets = torch.arange(len(numbers), device=counts.device) - starts[numbers]
    most = int(counts.max())
    places = numbers * width + firsts[numbers] + offsets
    return Reading(counts, starts, firsts, places, numbers * most + offsets, (rows, most))


class BothWays(nn.Module):
    """One layer of a BiLSTM, of which padding changes nothing: (N, D) in, (N, 2W) out.

    Both of its LSTMs meet padding only behind the last piece of a row. That takes two thirds of the time of torch's
    packed sequences on short rows, and a sixth on rows of 256, where those make a graph of every single place.
    """

    def __init__(self, width: int, recurrent_width: int) -> None:
        super().__init__()
        self.ahead = nn.LSTM(width, recurrent_width, batch_first=True)
        self.back = nn.LSTM(width, recurrent_width, batch_first=True)

    def forward(self, values: torch.Tensor, reading: Reading) -> torch.Tensor:
        ways = ((self.ahead, reading), (self.back, reading.backwards))
        return torch.cat([own.gathered(lstm(own.padded(values))[0]) for lstm, own in ways], 1)


@dataclass(frozen=True, slots=True)
class Drops:
    """Drops values at one rate, at each place of a head by a seed of its own; nothing without seeds."""

    seeds: Seeds | None
    rate: float

    def at(self, place: int, values: torch.Tensor) -> torch.Tensor:
        return drop(values, None if self.seeds is None else self.seeds.of(_FIRST_PLACE + place), self.rate)


class Tagging(nn.Module):
    """The paper's: two layers of a BiLSTM, then one product at the places that are asked: (P, C)."""

    def __init__(self, width: int, recurrent_width: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BothWays(width, recurrent_width)
        self.second = BothWays(2 * recurrent_width, recurrent_width)
        self.score = nn.Linear(2 * recurrent_width, num_outputs)

    def forward(self, features: torch.Tensor, reading: Reading, batch: Batch, drops: Drops) -> torch.Tensor:
        assert batch.places is not None
        values = drops.at(0, self.first(features, reading))
        values = drops.at(1, self.second(values, reading))  # (N, 2W)
        width = batch.ids.shape[1]
        rows = batch.places // width
        asked = reading.starts[rows] + batch.places % width - reading.firsts[rows]  # (P,)
        return self.score(values.index_select(0, asked))


class Pooled(nn.Module):
    """A BiLSTM, the greatest and the mean of what it says of a row's pieces, then one product: (B, C)."""

    def __init__(self, width: int, recurrent_width: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BothWays(width, recurrent_width)
        self.score = nn.Linear(4 * recurrent_width, num_outputs)

    def forward(self, features: torch.Tensor, reading: Reading, batch: Batch, drops: Drops) -> torch.Tensor:
        values = self.first(features, reading)  # (N, 2W)
        greatest = reading.padded(values, -math.inf).amax(1)  # (B, 2W)
        mean = reading.padded(values).sum(1) / reading.counts[:, None]
        return self.score(drops.at(0, torch.cat([greatest, mean], 1)))


class Pointing(nn.Module):
    """A BiLSTM over the row, attention between passage and question, a second BiLSTM, and two pointers: (B, T, 2).

    The attention is that of BiDAF: every place reads the question by its likeness to each of its pieces, and the piece
    of the passage that is most like any of the question is told to all. The question is the first segment with its
    special pieces, so that the first place, which means "no answer", is scored like any other.
    """

    def __init__(self, width: int, recurrent_width: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BothWays(width, recurrent_width)
        self.likeness = nn.Parameter(torch.empty(3, 2 * recurrent_width))  # of the place, the question, their product
        self.second = BothWays(8 * recurrent_width, recurrent_width)
        self.score = nn.Linear(10 * recurrent_width, num_outputs)

    def forward(self, features: torch.Tensor, reading: Reading, batch: Batch, drops: Drops) -> torch.Tensor:
        values = reading.padded(drops.at(0, self.first(features, reading)))  # (B, M, 2W)
        mixed = reading.gathered(self._attended(values, reading, batch.segments))  # (N, 8W)
        again = self.second(drops.at(1, mixed), reading)
        scores = self.score(drops.at(2, torch.cat([mixed, again], 1)))  # (N, 2)
        spread = scores.new_full((batch.ids.numel(), 2), -math.inf)
        return spread.index_copy(0, reading.places, scores).view(*batch.ids.shape, 2)

    def _attended(self, values: torch.Tensor, reading: Reading, segments: torch.Tensor) -> torch.Tensor:
        """Return (B, M, 8W): each place, what it reads in the question, and both with the place multiplied."""
        most = values.shape[1]
        real = torch.arange(most, device=values.device) < reading.counts[:, None]  # (B, M)
        in_passage = real & (segments[:, :most] != 0)
        num_asking = (real & ~in_passage).sum(1)  # (B,) the question comes first
        question = values[:, : int(num_asking.max())]  # (B, Q, 2W)
        in_question = torch.arange(question.shape[1], device=values.device) < num_asking[:, None]
        of_place, of_question, of_both = self.likeness
        alike = (values * of_both) @ question.transpose(1, 2)  # (B, M, Q)
        alike = alike + (values @ of_place)[:, :, None] + (question @ of_question)[:, None]
        alike = alike.masked_fill(~in_question[:, None], -math.inf)
        read = torch.softmax(alike, 2) @ question  # (B, M, 2W)
        shares = torch.softmax(alike.amax(2).masked_fill(~in_passage, -math.inf), 1)  # (B, M)
        told = shares[:, None] @ values  # (B, 1, 2W)
        return torch.cat([values, read, values * read, values * told], 2)


class RecurrentHead(nn.Module):
    """The head of a task on the features of an encoder. Where layers are summed, the weights are learned."""

    def __init__(self, settings: RecurrentSettings, sizes: BertSizes, body: nn.Module) -> None:
        super().__init__()
        self.settings = settings
        self.dropout = sizes.dropout
        self.strategy = strategy_of(settings.strategy)
        own = sizes.widths[self.strategy.span]
        self.num_layers, self.layer_width = len(own), own[-1]
        self.weighted = WeightedLayers(self.num_layers) if self.strategy.sums else None
        self.body = body

    def forward(self, encoded: Encoded, batch: Batch, seeds: Seeds | None = None) -> torch.Tensor:
        """Return the outputs from what the encoder made of the batch."""
        return self.answer(self.taken(encoded, reading_of(batch)), batch, seeds)

    def taken(self, encoded: Encoded, reading: Reading) -> torch.Tensor:
        """Return (N, L, D): the chosen layers of the pieces that are read. This is what may be kept."""
        index = encoded.layout.pieces_at(reading.places)
        return torch.stack([layer.index_select(0, index) for layer in self.strategy.picked(encoded.layers)], 1)

    def answer(self, taken: torch.Tensor, batch: Batch, seeds: Seeds | None = None) -> torch.Tensor:
        """Return the outputs from what `taken` returned for the same rows, now or long ago."""
        layers = taken.unbind(1)
        features = self.strategy.join(layers) if self.weighted is None else self.weighted(layers)
        return self.body(features, reading_of(batch), batch, Drops(seeds if self.training else None, self.dropout))

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Our tensors -> their names in a model folder."""
        return {name: (PREFIX + name,) for name in self.state_dict()}


# For each plain head its counterpart: from the width of features, the recurrent width and how many outputs there are.
BODIES: dict[type[nn.Module], Callable[[int, int, int], nn.Module]] = {
    PlaceHead: Tagging,
    SummaryHead: Pooled,
    SpanHead: Pointing,
}


def recurrent_head(
    plain: nn.Module, sizes: BertSizes, settings: RecurrentSettings, generator: torch.Generator | None
) -> RecurrentHead:
    """Return the counterpart of a task's plain head, its weights drawn; refuse an encoder with too few layers."""
    strategy = strategy_of(settings.strategy)
    strategy.check(sizes.widths)
    assert isinstance(plain, PlaceHead | SummaryHead | SpanHead)
    width = settings.width or sizes.width
    body = BODIES[type(plain)](strategy.width(sizes.widths), width, plain.score.out_features)
    head = RecurrentHead(replace(settings, width=width), sizes, body)
    initialise(head, sizes.spread, generator)
    for part in head.modules():
        if isinstance(part, nn.LSTM):
            _draw(part, generator)
        if isinstance(part, Pointing):
            nn.init.normal_(part.likeness, 0.0, 1 / math.sqrt(part.likeness.shape[1]), generator=generator)
    return head


def _draw(lstm: nn.LSTM, generator: torch.Generator | None) -> None:
    """Draw the weights as torch does, but from our generator; a gate that forgets begins open, so that it remembers."""
    bound = 1 / math.sqrt(lstm.hidden_size)
    for name, values in lstm.named_parameters():
        if name.startswith("weight"):
            nn.init.uniform_(values, -bound, bound, generator=generator)
        else:
            nn.init.zeros_(values)
        if name.startswith("bias_ih"):
            with torch.no_grad():  # the gates of torch: in, forget, cell, out
                values[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0
