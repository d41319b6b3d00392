"""The layout and the output of an encoder: a Batch in, a BatchLayout out; hidden states in, an Encoded out.

B sequences, T positions, N tokens that are computed, D hidden size, H heads, C source sequences of S positions. The
last layer is needed for M tokens, R with padding: the pooled token of each sequence, and those at P positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch

from bertworks.sampling.batch import Batch


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Consecutive sequences of a batch whose attention is computed together: `length` positions each.

    `start` is the index of the first token. Two terms are added to the attention scores: `mask` (num_sequences, 1, 1 or
    length, length), which is None where all tokens attend to all, and `bias` (1, heads, length, length), which encoders
    with relative positions learn.

    With local attention a token attends to few positions to each side. `reach` is their number in long sequences,
    which have a mask and are computed in blocks; in shorter ones it is part of the mask.
    """

    start: int
    num_sequences: int
    length: int
    mask: torch.Tensor | None = None
    bias: torch.Tensor | None = field(default=None, kw_only=True)
    reach: int | None = field(default=None, kw_only=True)

    @property
    def tokens(self) -> slice:
        """The tokens of the group among the N."""
        return slice(self.start, self.start + self.num_sequences * self.length)


@dataclass(frozen=True, slots=True)
class CrossAttentionCache:
    """The keys and values of C source sequences of S positions, which a decoder attends to.

    A decoder may have several sequences for each source, as in beam search; those of one source are consecutive.

    keys_values   for each layer of the decoder the keys and the values, each (C, H, S, D / H)
    mask          (C, 1, 1, S) added to the attention scores, or None without padding
    """

    keys_values: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    mask: torch.Tensor | None

    def select_sequences(self, indices: torch.Tensor) -> CrossAttentionCache:
        """Return the cache of some sources."""
        keys_values = tuple((keys[indices], values[indices]) for keys, values in self.keys_values)
        return CrossAttentionCache(keys_values, None if self.mask is None else self.mask[indices])


@dataclass(frozen=True, slots=True)
class AttentionPadding:
    """The sequences of a batch padded to a few lengths, for attention alone: few large operations instead of many.

    groups   the padded sequences that are attended together; their indices count the R padded rows
    index    (R,) the token of each padded row; the first one of the sequence for padding, which is masked
    order    (N,) the padded row of each token
    """

    groups: tuple[SequenceGroup, ...]
    index: torch.Tensor
    order: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """How the tokens of a batch are arranged in the (N, D) tensor that the layers compute.

    groups         the sequences whose attention is computed together
    starts         (B,) index of the first token of each sequence
    lengths        (B,) number of tokens of each sequence
    index          (N,) the position of each token (sequence * T + position); None where N = B * T, padding included
    shape          (B, T)
    num_cached     number of earlier tokens of each sequence, whose keys and values are cached
    source_cache   the source that a decoder attends to
    padding        for attention in bf16, where there are several groups
    num_repeated   how often the last token is repeated at the end of the N, so that N takes few values
    pooled_lengths (B,) `lengths` without the tokens at the end that are not pooled, if there may be any
    """

    groups: tuple[SequenceGroup, ...]
    starts: torch.Tensor
    lengths: torch.Tensor
    index: torch.Tensor | None
    shape: tuple[int, int]
    num_cached: int = 0
    source_cache: CrossAttentionCache | None = None
    padding: AttentionPadding | None = None
    num_repeated: int = 0
    pooled_lengths: torch.Tensor | None = None

    @staticmethod
    def padded(batch: Batch, mask: torch.Tensor | None = None, num_cached: int = 0) -> BatchLayout:
        """Return the layout that computes every position of a batch, padding included."""
        num_sequences, length = batch.input_ids.shape
        return BatchLayout(
            groups=(SequenceGroup(0, num_sequences, length, mask),),
            starts=torch.arange(num_sequences, device=batch.input_ids.device) * length,
            lengths=batch.lengths,
            index=None,
            shape=(num_sequences, length),
            num_cached=num_cached,
        )

    def token_indices(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the token indices of positions (sequence * T + position)."""
        if self.index is None:
            return positions
        length = self.shape[1]
        return self.starts[positions // length] + positions % length

    def join_groups(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Return (N, D) from the values of each group."""
        if self.num_repeated:
            values = [*values, values[-1][-1:].expand(self.num_repeated, -1)]
        return values[0] if len(values) == 1 else torch.cat(values)


@dataclass(frozen=True, slots=True)
class EncoderState:
    """What an encoder keeps of the tokens it has read, for tokens that continue them.

    length   number of positions of each sequence that were read
    layers   two tensors a layer, with a row for each sequence; empty before the first token. A Transformer: keys and
             values, each (B, H, length, D / H). An LSTM: output and cell state, each (B, cells). XLNet: the memory, the
             inputs of the layer at the last positions (B, positions, D), and how many of these are tokens (B,)
    """

    length: int = 0
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    @property
    def num_sequences(self) -> int:
        return len(self.layers[0][0]) if self.layers else 0

    def slice_sequences(self, first: int, num_sequences: int) -> EncoderState:
        """Return the state of some consecutive sequences."""
        span = slice(first, first + num_sequences)
        return EncoderState(self.length, tuple((a[span], b[span]) for a, b in self.layers))

    def to(self, device: torch.device) -> EncoderState:
        """Return the state on a device."""
        return EncoderState(self.length, tuple((a.to(device), b.to(device)) for a, b in self.layers))

    @staticmethod
    def concat(states: Sequence[EncoderState]) -> EncoderState:
        """Concatenate the states of several batches of the same length."""
        layers = [
            [torch.cat([state.layers[index][side] for state in states]) for side in (0, 1)]
            for index in range(len(states[0].layers))
        ]
        return EncoderState(states[0].length, tuple((a, b) for a, b in layers))


@dataclass(frozen=True, slots=True)
class OutputPositions:
    """The tokens whose last layer is needed: the pooled one of each sequence, then those at the requested positions.

    token_indices    (M,) their indices among the N tokens
    padded_indices   (R,) the same ordered by sequence, each sequence of a group padded to the longest of the group
    counts           for each group the number of tokens of a sequence in `padded_indices`
    order            (M,) where each of `token_indices` is in `padded_indices`
    """

    token_indices: torch.Tensor
    padded_indices: torch.Tensor
    counts: tuple[int, ...]
    order: torch.Tensor


def select_output_positions(
    layout: BatchLayout, pooled_positions: torch.Tensor, positions: torch.Tensor
) -> OutputPositions:
    """Select the pooled token of each sequence (B,) and the given positions (sequence * T + position)."""
    num_sequences, length = layout.shape
    sequences = torch.cat([torch.arange(num_sequences, device=positions.device), positions // length])
    return pad_output_positions(layout, torch.cat([pooled_positions, layout.token_indices(positions)]), sequences)


def pad_output_positions(
    layout: BatchLayout, token_indices: torch.Tensor, sequence_indices: torch.Tensor
) -> OutputPositions:
    """Return the padded arrangement of tokens (M,), given the sequence of each (M,)."""
    device = sequence_indices.device
    by_sequence = torch.argsort(sequence_indices, stable=True)
    num_tokens = torch.bincount(sequence_indices, minlength=layout.shape[0])  # (B,)
    firsts = torch.cumsum(num_tokens, 0) - num_tokens
    slots = torch.empty_like(sequence_indices)  # (M,) the rank of each token in its sequence
    slots[by_sequence] = torch.arange(len(sequence_indices), device=device) - firsts[sequence_indices[by_sequence]]
    counts, starts, start, sequence = [], [], 0, 0
    for group in layout.groups:
        count = int(num_tokens[sequence : sequence + group.num_sequences].max())
        counts.append(count)
        starts.append(start + count * torch.arange(group.num_sequences, device=device))
        start += count * group.num_sequences
        sequence += group.num_sequences
    order = torch.cat(starts)[sequence_indices] + slots
    # The padding is the first token of the sequence, whose output is ignored.
    padded = torch.repeat_interleave(layout.starts, _repeats(layout, counts))
    return OutputPositions(token_indices, padded.index_copy(0, order, token_indices), tuple(counts), order)


def _repeats(layout: BatchLayout, counts: list[int]) -> torch.Tensor:
    """Return (B,): the number of tokens of each sequence in `padded_indices`, given that of each group."""
    repeats = [count for group, count in zip(layout.groups, counts, strict=True) for _ in range(group.num_sequences)]
    return torch.tensor(repeats, device=layout.starts.device)


# The ratio of tokens in a batch from which on it is computed with its padding.
_NEARLY_FULL = 0.9


def create_layout(batch: Batch, attention: str | torch.Tensor = "bidirectional") -> BatchLayout:
    """Choose the layout of a batch.

    A nearly full batch is computed with its padding in training, where few large operations are faster and a compiled
    layer always gets the same shapes. Otherwise padding is left out, and consecutive sequences of equal length are
    attended together without a mask.
    """
    num_sequences, length = batch.input_ids.shape
    lengths = batch.lengths.tolist()
    is_inference = torch.is_inference_mode_enabled() and batch.input_ids.device.type == "cpu"
    min_tokens = (1.0 if is_inference else _NEARLY_FULL) * num_sequences * length
    if not isinstance(attention, str) or attention != "bidirectional" or sum(lengths) >= min_tokens:
        return BatchLayout.padded(batch, create_attention_mask(batch, attention))
    groups, start = [], 0
    for group_length, count in _runs(lengths):
        groups.append(SequenceGroup(start, count, group_length))
        start += count * group_length
    positions = torch.arange(length, device=batch.input_ids.device)
    return BatchLayout(
        groups=tuple(groups),
        starts=torch.cumsum(batch.lengths, 0) - batch.lengths,
        lengths=batch.lengths,
        index=torch.nonzero((positions < batch.lengths[:, None]).flatten()).flatten(),
        shape=(num_sequences, length),
    )


# oneDNN prepares every operation for its shape, which takes as long as computing a small one. So that shapes repeat, a
# packed batch has a multiple of so many tokens, and attention sequences of a multiple of so many positions.
_TOKENS_STEP = 64
_LENGTH_STEP, _MIN_LENGTH = 32, 16


def round_shapes(layout: BatchLayout) -> BatchLayout:
    """Return a layout for inference whose shapes repeat from batch to batch: the last token of a packed batch is
    repeated, and the sequences are padded for attention."""
    if layout.index is None or len(layout.groups) == 1:
        return layout
    num_repeated = -len(layout.index) % _TOKENS_STEP
    order, padding_index, groups = [], [], []
    start = first = 0
    lengths = layout.lengths
    padded_lengths = torch.where(lengths <= _MIN_LENGTH, _MIN_LENGTH, -(-lengths // _LENGTH_STEP) * _LENGTH_STEP)
    for length, num_sequences in _runs(padded_lengths.tolist()):
        sequences = slice(first, first := first + num_sequences)
        positions = torch.arange(length)
        is_token = positions < lengths[sequences, None]  # (C, T)
        padding_index.append((layout.starts[sequences, None] + positions * is_token).flatten())
        order.append(start + torch.nonzero(is_token.flatten()).flatten())
        mask = torch.zeros(num_sequences, 1, 1, length).masked_fill_(~is_token[:, None, None], float("-inf"))
        groups.append(SequenceGroup(start, num_sequences, length, mask))
        start += num_sequences * length
    order.append(order[-1][-1:].expand(num_repeated))
    return replace(
        layout,
        index=torch.cat([layout.index, layout.index[-1:].expand(num_repeated)]),
        padding=AttentionPadding(tuple(groups), torch.cat(padding_index), torch.cat(order)),
        num_repeated=num_repeated,
    )


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return each run of equal values as the value and its count."""
    return [(value, len(list(run))) for value, run in groupby(values)]


def create_layout_with_cache(batch: Batch, num_cached: int) -> BatchLayout:
    """Return the layout of full sequences with causal attention to themselves and to `num_cached` earlier tokens."""
    length = batch.input_ids.shape[1]
    positions = torch.arange(num_cached + length, device=batch.input_ids.device)
    is_future = positions > positions[num_cached:, None]  # (T, num_cached + T)
    mask = torch.zeros(1, 1, *is_future.shape, device=positions.device).masked_fill_(is_future, float("-inf"))
    return BatchLayout.padded(batch, mask, num_cached)


def create_attention_mask(batch: Batch, attention: str | torch.Tensor) -> torch.Tensor | None:
    """Return the additive mask (B, 1, 1 or T, T): 0, or -inf where attention is not allowed; None if it all is.

    A position that may attend to nothing (padding under some masks) attends to itself, so that no softmax is empty.
    """
    length = batch.input_ids.shape[1]
    positions = torch.arange(length, device=batch.input_ids.device)
    is_token = positions < batch.lengths[:, None]  # (B, T)
    if isinstance(attention, str) and attention == "bidirectional":
        if bool(is_token.all()):
            return None
        is_allowed = is_token[:, None, None, :]
    else:
        mask = attention if isinstance(attention, torch.Tensor) else (positions <= positions[:, None])[None]
        is_allowed = (mask & is_token[:, None, :]) | torch.eye(length, dtype=torch.bool, device=positions.device)
        is_allowed = is_allowed[:, None]
    return torch.zeros(is_allowed.shape, device=positions.device).masked_fill_(~is_allowed, float("-inf"))


def create_local_mask(
    mask: torch.Tensor, query_positions: torch.Tensor, key_positions: torch.Tensor, reach: int
) -> torch.Tensor:
    """Return an additive mask that also leaves out keys more than `reach` positions from the query; all broadcast.

    A position that may attend to nothing (in padding) attends to itself.
    """
    distances = (query_positions - key_positions).abs()
    is_allowed = ((distances <= reach) & (mask == 0)) | (distances == 0)
    return torch.zeros(is_allowed.shape, device=mask.device).masked_fill_(~is_allowed, float("-inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The output of an encoder.

    hidden_states   of all layers, the embeddings first, each (N, D). Where only some `positions` were requested, the
                    last one is (P, D), in their order
    pooled          (B, D) the pooled output
    state           for sequences that continue these
    positions       (P,) the positions of the last layer (sequence * T + position); None: all
    """

    hidden_states: tuple[torch.Tensor, ...]
    pooled: torch.Tensor | None
    layout: BatchLayout
    state: object | None = None
    positions: torch.Tensor | None = None

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self.hidden_states[-1]

    @property
    def starts(self) -> list[int]:
        """The index of the first token of each sequence among the N tokens."""
        starts: list[int] = self.layout.starts.tolist()
        return starts

    def gather(self, positions: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return (P, D): a layer at the given positions (sequence * T + position)."""
        if self._is_partial(layer):
            assert positions is self.positions, "the last layer was computed at other positions"
            return self.last_hidden_state
        return self.hidden_states[layer][self.layout.token_indices(positions)]

    def to_padded(self, layer: int = -1) -> torch.Tensor:
        """Return (B, T, D): a layer in the shape of the batch, zero at padding."""
        num_sequences, length = self.layout.shape
        values = self.hidden_states[layer]
        assert not self._is_partial(layer), "the last layer was computed at some positions only"
        if self.layout.index is None:
            is_padding = torch.arange(length, device=values.device) >= self.layout.lengths[:, None]  # (B, T)
            return values.view(num_sequences, length, -1).masked_fill(is_padding[..., None], 0.0)
        padded = values.new_zeros(num_sequences * length, values.shape[1])
        return padded.index_copy(0, self.layout.index, values).view(num_sequences, length, -1)

    def _is_partial(self, layer: int) -> bool:
        return self.positions is not None and layer in (-1, len(self.hidden_states) - 1)
