"""Recurrent heads on a frozen encoder: its layers and a Batch in, outputs out, in the shape of the plain heads.

The paper trains a two-layer BiLSTM on features for tagging (section 5.3); classification and spans have counterparts
here. Padding is never computed. Where positions are predicted, only the stretch of a sequence from the first to the
last of them is read: its features depend on the rest of the sequence already.

B sequences of T positions; N tokens that are read, at most M of a sequence; L layers, D hidden size, W hidden size of
an LSTM in one direction, P target positions, C outputs, Q tokens of the longest question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from bertworks.embeddings.strategies import get_strategy
from bertworks.embeddings.weighted_layers import WeightedLayers
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.encoder import init_weights
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.tasks.heads import PooledHead, PositionHead, SpanHead

# Index of the first dropout of these heads; plain heads have one, those of an encoder count from 0.
_FIRST_DROPOUT_INDEX = 10_001
# Prefix of tensor names in a model folder for heads that transformers does not have.
PREFIX = "bertworks.head."
_MAX_HIDDEN_SIZE = 2**13


@dataclass(frozen=True, slots=True)
class RecurrentSettings:
    """The strategy that selects the encoder's layers, the LSTM's hidden size per direction (0: the encoder's), and
    whether the encoder is frozen or trained with the head."""

    strategy: str
    hidden_size: int = 0
    freeze_encoder: bool = True

    def __post_init__(self) -> None:
        get_strategy(self.strategy)
        if not 0 <= self.hidden_size <= _MAX_HIDDEN_SIZE:
            raise SettingsError(
                f"hidden_size is {self.hidden_size}; give 0 (the encoder's) or more, at most {_MAX_HIDDEN_SIZE:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePacking:
    """Which positions of each sequence are read, and where they are in the packed batch without padding.

    lengths            (B,) how many positions of a sequence are read
    starts             (B,) the index of the first of them among the N
    first_positions    (B,) its position in the sequence
    positions          (N,) sequence * T + position
    padded_positions   (N,) the same in sequences of M positions: sequence * M + position
    shape              (B, M)
    """

    lengths: torch.Tensor
    starts: torch.Tensor
    first_positions: torch.Tensor
    positions: torch.Tensor
    padded_positions: torch.Tensor
    shape: tuple[int, int]

    def pad(self, values: torch.Tensor, filler: float = 0.0) -> torch.Tensor:
        """Return values (N, D) as (B, M, D), padded at the right."""
        num_sequences, max_length = self.shape
        empty = values.new_full((num_sequences * max_length, values.shape[1]), filler)
        return empty.index_copy(0, self.padded_positions, values).view(num_sequences, max_length, -1)

    @property
    def backward_order(self) -> SequencePacking:
        """The same positions, each sequence reversed."""
        max_length = self.shape[1]
        sequences = self.padded_positions // max_length
        reversed_positions = 2 * max_length * sequences + self.lengths[sequences] - 1 - self.padded_positions
        return replace(self, padded_positions=reversed_positions)

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """Return values (B, M, D) without padding as (N, D)."""
        return values.flatten(0, 1).index_select(0, self.padded_positions)


def packing_of(batch: Batch) -> SequencePacking:
    """Return whole sequences, or where positions are predicted, the stretch from the first to the last of them."""
    num_sequences, length = batch.input_ids.shape
    if batch.positions is None:
        firsts, counts = torch.zeros_like(batch.lengths), batch.lengths
    else:
        owners, own_positions = batch.positions // length, batch.positions % length
        firsts = torch.full_like(batch.lengths, length).scatter_reduce(0, owners, own_positions, "amin")
        lasts = torch.full_like(batch.lengths, -1).scatter_reduce(0, owners, own_positions, "amax")
        is_empty = lasts < 0  # a window inside a very long word predicts nothing: one position is read anyway
        firsts = firsts.masked_fill(is_empty, 0)
        counts = (lasts - firsts + 1).masked_fill(is_empty, 1)
    sequences = torch.arange(num_sequences, device=counts.device).repeat_interleave(counts)  # (N,)
    starts = counts.cumsum(0) - counts
    offsets = torch.arange(len(sequences), device=counts.device) - starts[sequences]
    max_length = int(counts.max())
    return SequencePacking(
        lengths=counts,
        starts=starts,
        first_positions=firsts,
        positions=sequences * length + firsts[sequences] + offsets,
        padded_positions=sequences * max_length + offsets,
        shape=(num_sequences, max_length),
    )


class BiLstmLayer(nn.Module):
    """One BiLSTM layer, unaffected by padding: (N, D) in, (N, 2W) out.

    Both LSTMs have padding only after the last token of a sequence. That takes two thirds of the time of torch's packed
    sequences on short sequences, and a sixth at length 256, where torch builds a graph of every time step.
    """

    def __init__(self, input_size: int, recurrent_hidden_size: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(input_size, recurrent_hidden_size, batch_first=True)
        self.backward_lstm = nn.LSTM(input_size, recurrent_hidden_size, batch_first=True)

    def forward(self, values: torch.Tensor, packing: SequencePacking) -> torch.Tensor:
        directions = ((self.forward_lstm, packing), (self.backward_lstm, packing.backward_order))
        return torch.cat([order.unpad(lstm(order.pad(values))[0]) for lstm, order in directions], 1)


@dataclass(frozen=True, slots=True)
class HeadDropout:
    """Dropout with its own seed at each point of a head; none without seeds."""

    seeds: DropoutSeeds | None
    dropout_prob: float

    def apply(self, index: int, values: torch.Tensor) -> torch.Tensor:
        return dropout(
            values, None if self.seeds is None else self.seeds.seed_for(_FIRST_DROPOUT_INDEX + index), self.dropout_prob
        )


class BiLstmTagger(nn.Module):
    """The paper's two-layer BiLSTM, then a linear layer at the target positions: (P, C)."""

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
        length = batch.input_ids.shape[1]
        sequences = batch.positions // length
        indices = packing.starts[sequences] + batch.positions % length - packing.first_positions[sequences]  # (P,)
        return self.score(values.index_select(0, indices))


class BiLstmPooler(nn.Module):
    """A BiLSTM, max and mean pooling over its outputs, then a linear layer: (B, C)."""

    def __init__(self, input_size: int, recurrent_hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BiLstmLayer(input_size, recurrent_hidden_size)
        self.score = nn.Linear(4 * recurrent_hidden_size, num_outputs)

    def forward(
        self, features: torch.Tensor, packing: SequencePacking, batch: Batch, head_dropout: HeadDropout
    ) -> torch.Tensor:
        values = self.first(features, packing)  # (N, 2W)
        maximum = packing.pad(values, -math.inf).amax(1)  # (B, 2W)
        mean = packing.pad(values).sum(1) / packing.lengths[:, None]
        return self.score(head_dropout.apply(0, torch.cat([maximum, mean], 1)))


class BiLstmPointer(nn.Module):
    """A BiLSTM, attention between passage and question, a second BiLSTM, and start and end scores: (B, T, 2).

    The attention is BiDAF's: every position attends to the question's tokens, and the passage is attended to by the
    maximum similarity of its tokens to the question. The question is segment A with its special tokens, so that the
    first position, which means "no answer", is scored like any other.
    """

    def __init__(self, input_size: int, recurrent_hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.first = BiLstmLayer(input_size, recurrent_hidden_size)
        # Weights of the position, of the question's token, and of their product.
        self.similarity_weights = nn.Parameter(torch.empty(3, 2 * recurrent_hidden_size))
        self.second = BiLstmLayer(8 * recurrent_hidden_size, recurrent_hidden_size)
        self.score = nn.Linear(10 * recurrent_hidden_size, num_outputs)

    def forward(
        self, features: torch.Tensor, packing: SequencePacking, batch: Batch, head_dropout: HeadDropout
    ) -> torch.Tensor:
        assert batch.pair_starts is not None
        values = packing.pad(head_dropout.apply(0, self.first(features, packing)))  # (B, M, 2W)
        attended = packing.unpad(self._attend(values, packing, batch.pair_starts))  # (N, 8W)
        modelled = self.second(head_dropout.apply(1, attended), packing)
        scores = self.score(head_dropout.apply(2, torch.cat([attended, modelled], 1)))  # (N, 2)
        padded = scores.new_full((batch.input_ids.numel(), 2), -math.inf)
        return padded.index_copy(0, packing.positions, scores).view(*batch.input_ids.shape, 2)

    def _attend(self, values: torch.Tensor, packing: SequencePacking, passage_starts: torch.Tensor) -> torch.Tensor:
        """Return (B, M, 8W): each position, its question vector, and its products with that and the passage vector."""
        max_length = values.shape[1]
        positions = torch.arange(max_length, device=values.device)
        in_passage = (positions >= passage_starts[:, None]) & (positions < packing.lengths[:, None])  # (B, M)
        question = values[:, : int(passage_starts.max())]  # (B, Q, 2W)
        in_question = positions[: question.shape[1]] < passage_starts[:, None]
        position_weight, question_weight, product_weight = self.similarity_weights
        similarity = (values * product_weight) @ question.transpose(1, 2)  # (B, M, Q)
        similarity = similarity + (values @ position_weight)[:, :, None] + (question @ question_weight)[:, None]
        similarity = similarity.masked_fill(~in_question[:, None], -math.inf)
        question_vectors = torch.softmax(similarity, 2) @ question  # (B, M, 2W)
        attention_weights = torch.softmax(similarity.amax(2).masked_fill(~in_passage, -math.inf), 1)  # (B, M)
        passage_vector = attention_weights[:, None] @ values  # (B, 1, 2W)
        return torch.cat([values, question_vectors, values * question_vectors, values * passage_vector], 2)


class RecurrentHead(nn.Module):
    """The head of a task on an encoder's features. Where layers are summed, their weights are trained."""

    def __init__(self, settings: RecurrentSettings, config: EncoderConfig, body: nn.Module) -> None:
        super().__init__()
        self.settings = settings
        self.dropout = config.hidden_dropout_prob
        self.strategy = get_strategy(settings.strategy)
        layer_sizes = config.hidden_sizes[self.strategy.span]
        self.num_layers, self.layer_hidden_size = len(layer_sizes), layer_sizes[-1]
        self.weighted_layers = WeightedLayers(self.num_layers) if self.strategy.is_sum else None
        self.body = body

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        """Return the outputs of an encoded batch."""
        return self.forward_layers(self.select_layers(encoded, packing_of(batch)), batch, seeds)

    def select_layers(self, encoded: Encoded, packing: SequencePacking) -> torch.Tensor:
        """Return (N, L, D): the selected layers of the tokens that are read. This is what may be cached."""
        index = encoded.layout.token_indices(packing.positions)
        return torch.stack([layer.index_select(0, index) for layer in self.strategy.select(encoded.hidden_states)], 1)

    def forward_layers(
        self, layer_outputs: torch.Tensor, batch: Batch, seeds: DropoutSeeds | None = None
    ) -> torch.Tensor:
        """Return the outputs from what `select_layers` returned for the same sequences."""
        layers = layer_outputs.unbind(1)
        features = self.strategy.combine(layers) if self.weighted_layers is None else self.weighted_layers(layers)
        return self.body(
            features, packing_of(batch), batch, HeadDropout(seeds if self.training else None, self.dropout)
        )

    @property
    def tensor_names(self) -> Mapping[str, tuple[str, ...]]:
        """The tensors -> their names in a model folder."""
        return {name: (PREFIX + name,) for name in self.state_dict()}


# Plain head -> its recurrent counterpart, built from the sizes of features and LSTM and the number of outputs.
BODIES: dict[type[nn.Module], Callable[[int, int, int], nn.Module]] = {
    PositionHead: BiLstmTagger,
    PooledHead: BiLstmPooler,
    SpanHead: BiLstmPointer,
}


def recurrent_head(
    base_head: nn.Module, config: EncoderConfig, settings: RecurrentSettings, generator: torch.Generator | None
) -> RecurrentHead:
    """Return the recurrent counterpart of a task's plain head, with initialized weights."""
    strategy = get_strategy(settings.strategy)
    strategy.check(config.hidden_sizes)
    if type(base_head) not in BODIES:
        raise SettingsError(
            f"{type(base_head).__name__} has no recurrent counterpart; leave feature_layers and head out"
        )
    hidden_size = settings.hidden_size or config.hidden_size
    num_outputs: int = base_head.score.out_features  # type: ignore[union-attr,assignment]
    body = BODIES[type(base_head)](strategy.output_size(config.hidden_sizes), hidden_size, num_outputs)
    head = RecurrentHead(replace(settings, hidden_size=hidden_size), config, body)
    init_weights(head, config.initializer_range, generator)
    for part in head.modules():
        if isinstance(part, nn.LSTM):
            _init_lstm(part, generator)
        if isinstance(part, BiLstmPointer):
            nn.init.normal_(
                part.similarity_weights, 0.0, 1 / math.sqrt(part.similarity_weights.shape[1]), generator=generator
            )
    return head


def _init_lstm(lstm: nn.LSTM, generator: torch.Generator | None) -> None:
    """Initialize as torch does, but from our generator, and with a forget gate bias of 1."""
    bound = 1 / math.sqrt(lstm.hidden_size)
    for name, values in lstm.named_parameters():
        if name.startswith("weight"):
            nn.init.uniform_(values, -bound, bound, generator=generator)
        else:
            nn.init.zeros_(values)
        if name.startswith("bias_ih"):
            with torch.no_grad():  # torch's order of gates: input, forget, cell, output
                values[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0
