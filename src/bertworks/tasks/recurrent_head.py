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

from bertworks.embeddings.strategies import WeightedLayers, get_strategy
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, initialise
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.tasks.heads import PooledHead, PositionHead, SpanHead

# The first number of the places where these heads drop values; plain heads have one place, an encoder counts from 0.
_FIRST_DROPOUT_INDEX = 10_001
# What stands before the names of these heads' tensors in a model folder: nobody else has such parts.
PREFIX = "bertworks.head."


@dataclass(frozen=True, slots=True)
class RecurrentSettings:
    """Which layers of the encoder are features, how wide an LSTM is each way (0: as the encoder), and whether the
    encoder is frozen or learns with the head."""

    strategy: str
    hidden_size: int = 0
    freeze_encoder: bool = True

    def __post_init__(self) -> None:
        get_strategy(self.strategy)
        if self.hidden_size < 0:
            raise SettingsError(f"a recurrent width of {self.hidden_size} cannot be; give 0 (the encoder's) or more")


@dataclass(frozen=True, slots=True)
class SequencePacking:
    """Which places of each row are read, and how they lie when all rows follow one another without padding.

    counts   (B,) how many places of a row, and `starts` (B,) where the first of them lies among the N
    firsts   (B,) the place in its row of each row's first one
    places   (N,) counted through the batch: row * T + place
    spread   (N,) counted through rows of M places: row * M + place
    """

    lengths: torch.Tensor
    starts: torch.Tensor
    first_positions: torch.Tensor
    positions: torch.Tensor
    padded_positions: torch.Tensor
    shape: tuple[int, int]

    def pad(self, values: torch.Tensor, filler: float = 0.0) -> torch.Tensor:
        """Return (B, M, D): values (N, D) in rows, filled up at the right."""
        rows, most = self.shape
        empty = values.new_full((rows * most, values.shape[1]), filler)
        return empty.index_copy(0, self.padded_positions, values).view(rows, most, -1)

    @property
    def backward_order(self) -> SequencePacking:
        """The same places, each row laid from its last to its first."""
        most = self.shape[1]
        rows = self.padded_positions // most
        return replace(self, padded_positions=2 * most * rows + self.lengths[rows] - 1 - self.padded_positions)

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """Return (N, D): values (B, M, D) without what is padding."""
        return values.flatten(0, 1).index_select(0, self.padded_positions)


def packing_of(batch: Batch) -> SequencePacking:
    """Return whole rows, or where places are asked, of each row the stretch from the first to the last of them."""
    rows, width = batch.input_ids.shape
    if batch.positions is None:
        firsts, counts = torch.zeros_like(batch.lengths), batch.lengths
    else:
        owners, own = batch.positions // width, batch.positions % width
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
    return SequencePacking(counts, starts, firsts, places, numbers * most + offsets, (rows, most))


class BiLstmLayer(nn.Module):
    """One layer of a BiLSTM, of which padding changes nothing: (N, D) in, (N, 2W) out.

    Both of its LSTMs meet padding only behind the last piece of a row. That takes two thirds of the time of torch's
    packed sequences on short rows, and a sixth on rows of 256, where those make a graph of every single place.
    """

    def __init__(self, input_size: int, recurrent_hidden_size: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(input_size, recurrent_hidden_size, batch_first=True)
        self.backward_lstm = nn.LSTM(input_size, recurrent_hidden_size, batch_first=True)

    def forward(self, values: torch.Tensor, packing: SequencePacking) -> torch.Tensor:
        ways = ((self.forward_lstm, packing), (self.backward_lstm, packing.backward_order))
        return torch.cat([own.unpad(lstm(own.pad(values))[0]) for lstm, own in ways], 1)


@dataclass(frozen=True, slots=True)
class HeadDropout:
    """Drops values at one rate, at each place of a head by a seed of its own; nothing without seeds."""

    seeds: DropoutSeeds | None
    dropout_prob: float

    def apply(self, index: int, values: torch.Tensor) -> torch.Tensor:
        return dropout(
            values, None if self.seeds is None else self.seeds.seed_for(_FIRST_DROPOUT_INDEX + index), self.dropout_prob
        )


class BiLstmTagger(nn.Module):
    """The paper's: two layers of a BiLSTM, then one product at the places that are asked: (P, C)."""

    def __init__(self, input_size: int, recurrent_hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BiLstmLayer(input_size, recurrent_hidden_size)
        self.second = BiLstmLayer(2 * recurrent_hidden_size, recurrent_hidden_size)
        self.score = nn.Linear(2 * recurrent_hidden_size, num_outputs)

    def forward(
        self, features: torch.Tensor, packing: SequencePacking, batch: Batch, head_dropout: HeadDropout
    ) -> torch.Tensor:
        assert batch.positions is not None
        values = head_dropout.apply(0, self.first(features, packing))
        values = head_dropout.apply(1, self.second(values, packing))  # (N, 2W)
        width = batch.input_ids.shape[1]
        rows = batch.positions // width
        asked = packing.starts[rows] + batch.positions % width - packing.first_positions[rows]  # (P,)
        return self.score(values.index_select(0, asked))


class BiLstmPooler(nn.Module):
    """A BiLSTM, the greatest and the mean of what it says of a row's pieces, then one product: (B, C)."""

    def __init__(self, input_size: int, recurrent_hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BiLstmLayer(input_size, recurrent_hidden_size)
        self.score = nn.Linear(4 * recurrent_hidden_size, num_outputs)

    def forward(
        self, features: torch.Tensor, packing: SequencePacking, batch: Batch, head_dropout: HeadDropout
    ) -> torch.Tensor:
        values = self.first(features, packing)  # (N, 2W)
        greatest = packing.pad(values, -math.inf).amax(1)  # (B, 2W)
        mean = packing.pad(values).sum(1) / packing.lengths[:, None]
        return self.score(head_dropout.apply(0, torch.cat([greatest, mean], 1)))


class BiLstmPointer(nn.Module):
    """A BiLSTM over the row, attention between passage and question, a second BiLSTM, and two pointers: (B, T, 2).

    The attention is that of BiDAF: every place reads the question by its likeness to each of its pieces, and the piece
    of the passage that is most like any of the question is told to all. The question is the first segment with its
    special pieces, so that the first place, which means "no answer", is scored like any other.
    """

    def __init__(self, input_size: int, recurrent_hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BiLstmLayer(input_size, recurrent_hidden_size)
        self.similarity_weights = nn.Parameter(
            torch.empty(3, 2 * recurrent_hidden_size)
        )  # of the place, the question, their product
        self.second = BiLstmLayer(8 * recurrent_hidden_size, recurrent_hidden_size)
        self.score = nn.Linear(10 * recurrent_hidden_size, num_outputs)

    def forward(
        self, features: torch.Tensor, packing: SequencePacking, batch: Batch, head_dropout: HeadDropout
    ) -> torch.Tensor:
        values = packing.pad(head_dropout.apply(0, self.first(features, packing)))  # (B, M, 2W)
        mixed = packing.unpad(self._attend(values, packing, batch.token_type_ids))  # (N, 8W)
        again = self.second(head_dropout.apply(1, mixed), packing)
        scores = self.score(head_dropout.apply(2, torch.cat([mixed, again], 1)))  # (N, 2)
        spread = scores.new_full((batch.input_ids.numel(), 2), -math.inf)
        return spread.index_copy(0, packing.positions, scores).view(*batch.input_ids.shape, 2)

    def _attend(self, values: torch.Tensor, packing: SequencePacking, token_type_ids: torch.Tensor) -> torch.Tensor:
        """Return (B, M, 8W): each place, what it reads in the question, and both with the place multiplied."""
        most = values.shape[1]
        real = torch.arange(most, device=values.device) < packing.lengths[:, None]  # (B, M)
        in_passage = real & (token_type_ids[:, :most] != 0)
        num_asking = (real & ~in_passage).sum(1)  # (B,) the question comes first
        question = values[:, : int(num_asking.max())]  # (B, Q, 2W)
        in_question = torch.arange(question.shape[1], device=values.device) < num_asking[:, None]
        of_place, of_question, of_both = self.similarity_weights
        alike = (values * of_both) @ question.transpose(1, 2)  # (B, M, Q)
        alike = alike + (values @ of_place)[:, :, None] + (question @ of_question)[:, None]
        alike = alike.masked_fill(~in_question[:, None], -math.inf)
        read = torch.softmax(alike, 2) @ question  # (B, M, 2W)
        shares = torch.softmax(alike.amax(2).masked_fill(~in_passage, -math.inf), 1)  # (B, M)
        told = shares[:, None] @ values  # (B, 1, 2W)
        return torch.cat([values, read, values * read, values * told], 2)


class RecurrentHead(nn.Module):
    """The head of a task on the features of an encoder. Where layers are summed, the weights are learned."""

    def __init__(self, settings: RecurrentSettings, config: BertConfig, body: nn.Module) -> None:
        super().__init__()
        self.settings = settings
        self.dropout = config.hidden_dropout_prob
        self.strategy = get_strategy(settings.strategy)
        own = config.hidden_sizes[self.strategy.span]
        self.num_layers, self.layer_hidden_size = len(own), own[-1]
        self.weighted_layers = WeightedLayers(self.num_layers) if self.strategy.is_sum else None
        self.body = body

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        """Return the outputs from what the encoder made of the batch."""
        return self.forward_layers(self.select_layers(encoded, packing_of(batch)), batch, seeds)

    def select_layers(self, encoded: Encoded, packing: SequencePacking) -> torch.Tensor:
        """Return (N, L, D): the chosen layers of the pieces that are read. This is what may be kept."""
        index = encoded.layout.token_indices(packing.positions)
        return torch.stack([layer.index_select(0, index) for layer in self.strategy.select(encoded.hidden_states)], 1)

    def forward_layers(
        self, layer_outputs: torch.Tensor, batch: Batch, seeds: DropoutSeeds | None = None
    ) -> torch.Tensor:
        """Return the outputs from what `taken` returned for the same rows, now or long ago."""
        layers = layer_outputs.unbind(1)
        features = self.strategy.combine(layers) if self.weighted_layers is None else self.weighted_layers(layers)
        return self.body(
            features, packing_of(batch), batch, HeadDropout(seeds if self.training else None, self.dropout)
        )

    @property
    def tensor_names(self) -> Mapping[str, tuple[str, ...]]:
        """Our tensors -> their names in a model folder."""
        return {name: (PREFIX + name,) for name in self.state_dict()}


# For each plain head its counterpart: from the width of features, the recurrent width and how many outputs there are.
BODIES: dict[type[nn.Module], Callable[[int, int, int], nn.Module]] = {
    PositionHead: BiLstmTagger,
    PooledHead: BiLstmPooler,
    SpanHead: BiLstmPointer,
}


def recurrent_head(
    base_head: nn.Module, config: BertConfig, settings: RecurrentSettings, generator: torch.Generator | None
) -> RecurrentHead:
    """Return the counterpart of a task's plain head, its weights drawn; refuse an encoder with too few layers."""
    strategy = get_strategy(settings.strategy)
    strategy.check(config.hidden_sizes)
    assert isinstance(base_head, PositionHead | PooledHead | SpanHead)
    width = settings.hidden_size or config.hidden_size
    body = BODIES[type(base_head)](strategy.output_size(config.hidden_sizes), width, base_head.score.out_features)
    head = RecurrentHead(replace(settings, hidden_size=width), config, body)
    initialise(head, config.initializer_range, generator)
    for part in head.modules():
        if isinstance(part, nn.LSTM):
            _init_lstm(part, generator)
        if isinstance(part, BiLstmPointer):
            nn.init.normal_(
                part.similarity_weights, 0.0, 1 / math.sqrt(part.similarity_weights.shape[1]), generator=generator
            )
    return head


def _init_lstm(lstm: nn.LSTM, generator: torch.Generator | None) -> None:
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
