"""AWD-LSTM, the language model of ULMFiT: a Batch in, an Encoded out. Stacked LSTMs that read from left to right.

The first input and the last output have the size of the token embeddings, which also are the output layer; the layers
between are larger. Dropout masks are the same for a whole pass: of tokens of the vocabulary, of the values of a
sequence at all positions, of recurrent weights. The state can be carried to the next batch. The pooled output is a
projection of the last output, the maximum and the mean. transformers has no such model, so the tensor names are ours.

B sequences, T positions, N tokens, D hidden size, I input size of a layer, H its LSTM cells, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.dropout import dropout, dropout_mask
from bertworks.encoders.encoded import BatchLayout, Encoded, EncoderState
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.memory import FLOAT_BYTES, ActivationBytes
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

# The paper's other dropout probabilities as ratios of that of outputs (0.4): of inputs, between layers, of tokens of
# the vocabulary, of recurrent weights.
_INPUT_RATIO, _HIDDEN_RATIO, _EMBEDDING_RATIO, _WEIGHT_RATIO = 1.0, 0.75, 0.125, 1.25
# The indices of seeds: of token dropout, of the BPTT boundaries, of inputs, of outputs; those of layers follow.
_EMBEDDING_SEED, _BPTT_SEED, _INPUT_SEED, _OUTPUT_SEED, _LAYER_SEEDS = range(5)

LstmState = tuple[torch.Tensor, torch.Tensor]

# Values that oneDNN's fused LSTM saves for each token and cell (measured): four gates, the cell, its output, copies.
_CELL_VALUES = 12


@dataclass(frozen=True, kw_only=True)
class AwdLstmConfig(EncoderConfig):
    """The config.json of an AWD-LSTM. The sizes of the defaults and of the preset "base" are the paper's.

    lstm_size             number of cells of all layers but the last, which has hidden_size
    hidden_dropout_prob   of outputs, 0.4 in the paper; the other probabilities are in proportion
    bptt_length           in a sequence without a carried state gradients reach back at most this many positions
    pooler_size           size of the pooled output
    """

    model_type: ClassVar[str] = "awd-lstm"
    target_ratio: ClassVar[float] = 1.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"hidden_size": 100, "intermediate_size": 288},
        "mini": {"hidden_size": 200, "intermediate_size": 576},
        "small": {"hidden_size": 300, "intermediate_size": 864},
        "base": {"hidden_size": 400, "intermediate_size": 1_150},
    }
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "intermediate_size": ("lstm_size",),
        "dropout_prob": ("hidden_dropout_prob",),
    }

    vocab_size: int = 30_522
    num_hidden_layers: int = 3
    hidden_size: int = 400
    lstm_size: int = 1_150
    hidden_dropout_prob: float = 0.1
    max_length: int = 512
    initializer_range: float = 0.05
    bptt_length: int = 80
    pooler_size: int = 50

    def __post_init__(self) -> None:
        if self.hidden_dropout_prob * _WEIGHT_RATIO >= 1:
            raise SettingsError(
                f"hidden_dropout_prob is {self.hidden_dropout_prob}, but recurrent weights are dropped with "
                f"{_WEIGHT_RATIO} times that probability, which must be below 1"
            )

    @property
    def feed_forward_size(self) -> int:
        return self.lstm_size

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """Bytes of the gates, cells and inputs of the LSTMs."""
        layer = FLOAT_BYTES * (_CELL_VALUES * self.lstm_size + 2 * self.hidden_size)
        return ActivationBytes(layer, layer, FLOAT_BYTES * 5 * self.lstm_size, FLOAT_BYTES * 4 * self.hidden_size)

    @property
    def pooled_size(self) -> int:
        return self.pooler_size

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, *[self.lstm_size] * (self.num_hidden_layers - 1), self.hidden_size)


class WeightDropLstm(nn.Module):
    """An LSTM with dropout of the recurrent weights: (B, T, I) and a state in, (B, T, H) and the last state out."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))  # gates: input, forget, cell, output
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))

    def forward(
        self,
        x: torch.Tensor,
        state: LstmState | None,
        bptt_lengths: Sequence[int],
        seed: torch.Tensor | None,
        dropout_prob: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Read parts of these lengths one after another; gradients do not cross their boundaries."""
        weights = [self.weight_ih, dropout(self.weight_hh, seed, dropout_prob), self.bias, torch.zeros_like(self.bias)]
        if state is None:
            zeros = x.new_zeros(len(x), self.weight_hh.shape[1])
            state = (zeros, zeros)
        outputs = []
        for part in torch.split(x, list(bptt_lengths), 1):
            detached = [values.detach()[None] for values in state]  # each (1, B, H)
            output, hidden, cells = torch.lstm(part, detached, weights, True, 1, 0.0, self.training, False, True)
            outputs.append(output)
            state = (hidden[0], cells[0])
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0], *state


class AwdLstm(Encoder):
    """The encoder of ULMFiT."""

    config: AwdLstmConfig
    supported_attention = ("causal",)
    has_half_precision = False

    def __init__(self, config: AwdLstmConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            WeightDropLstm(input_size, output_size) for input_size, output_size in pairwise(config.hidden_sizes)
        )
        self.pooler = nn.Linear(3 * config.hidden_size, config.pooler_size)
        _init_weights(self, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
        sparse_grad: bool = False,
    ) -> Encoded:
        """Return all hidden states. With an `EncoderState`, the sequences continue those that it was computed from, and
        a new one is returned."""
        assert state is None or isinstance(state, EncoderState), "the state of another encoder"
        layout = self.create_layout(batch)
        if state is not None and int(batch.lengths.min()) < batch.input_ids.shape[1]:
            raise InputError(
                "sequences that are continued must be of equal length; batch sequences of other lengths separately"
            )
        embeddings = self.embed(batch, layout, sparse_grad)
        if self.training and seeds is not None:
            seed = seeds.seed_for(_EMBEDDING_SEED)
            embeddings = embeddings * self._embedding_dropout_scale(batch.input_ids.flatten(), seed)
        return self._run_lstms(embeddings, layout, seeds, positions, state)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Run the layers on embedded tokens (N, D)."""
        return self._run_lstms(hidden_states, layout, seeds, positions, None)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): the token embeddings."""
        return self.lookup_embeddings(batch, layout, sparse_grad)[0]

    def create_layout(self, batch: Batch) -> BatchLayout:
        """Return the padded layout; padding follows the tokens, which do not see it."""
        self.resolve_attention(batch)
        return BatchLayout.padded(batch)

    @property
    def max_cached_length(self) -> float:
        return math.inf

    def _embedding_dropout_scale(self, input_ids: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        """Return (N, 1): the factor of each token's embedding, the same wherever a token occurs."""
        dropout_prob = self.config.hidden_dropout_prob * _EMBEDDING_RATIO
        mask = dropout_mask(torch.Size((self.config.vocab_size,)), seed, dropout_prob)
        return (mask[input_ids].float() / (1 - dropout_prob))[:, None]

    def _run_lstms(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None,
        positions: torch.Tensor | None,
        state: EncoderState | None,
    ) -> Encoded:
        seeds, dropout_prob = (seeds if self.training else None), self.config.hidden_dropout_prob
        length = layout.shape[1]
        bptt_lengths = [length] if state is not None else self._bptt_lengths(length, seeds)
        x = hidden_states.view(*layout.shape, -1)  # (B, T, D)
        x = _variational_dropout(x, seeds, _INPUT_SEED, dropout_prob * _INPUT_RATIO)
        all_states, lstm_states = [x.flatten(0, 1)], []
        for index, layer in enumerate(self.layers):
            lstm_state = state.layers[index] if state is not None and state.layers else None
            seed_index = _LAYER_SEEDS + 2 * index
            weight_seed = seeds.seed_for(seed_index) if seeds else None
            x, hidden, cells = self._run_layer(
                layer, x, lstm_state, bptt_lengths, weight_seed, dropout_prob * _WEIGHT_RATIO
            )  # (B, T, H)
            lstm_states.append((hidden.detach(), cells.detach()))
            if index == len(self.layers) - 1:
                x = _variational_dropout(x, seeds, _OUTPUT_SEED, dropout_prob)
            else:
                x = _variational_dropout(x, seeds, seed_index + 1, dropout_prob * _HIDDEN_RATIO)
            all_states.append(x.flatten(0, 1))
        pooled = torch.tanh(self.pooler(_concat_pooling(x, layout.lengths)))
        if positions is not None:
            all_states[-1] = all_states[-1][positions]
        new_state = None if state is None else EncoderState(state.length + length, tuple(lstm_states))
        return Encoded(
            hidden_states=tuple(all_states), pooled=pooled, layout=layout, state=new_state, positions=positions
        )

    def _bptt_lengths(self, length: int, seeds: DropoutSeeds | None) -> list[int]:
        """Return the lengths of the parts for truncated BPTT; in training the boundaries change with every pass."""
        size = self.config.bptt_length
        if seeds is None or length <= size:
            return [length]
        first = 1 + int(seeds.seed_for(_BPTT_SEED)) % size
        ends = [*range(first, length, size), length]
        return [stop - start for start, stop in pairwise([0, *ends])]


def _variational_dropout(
    x: torch.Tensor, seeds: DropoutSeeds | None, seed_index: int, dropout_prob: float
) -> torch.Tensor:
    """Drop values of (B, T, D) at all positions of a sequence alike."""
    if seeds is None or not dropout_prob:
        return x
    mask = dropout_mask(torch.Size((len(x), 1, x.shape[2])), seeds.seed_for(seed_index), dropout_prob)
    return x * (mask.to(x.dtype) * (1 / (1 - dropout_prob)))


def _concat_pooling(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return (B, 3D): the last output, the maximum and the mean of sequences (B, T, D)."""
    is_padding = (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]  # (B, T, 1)
    last = x[torch.arange(len(x), device=x.device), lengths - 1]
    mean = x.masked_fill(is_padding, 0.0).sum(1) / lengths[:, None]
    return torch.cat([last, x.masked_fill(is_padding, -math.inf).amax(1), mean], 1)


def _init_weights(encoder: AwdLstm, generator: torch.Generator | None) -> None:
    """Initialize as the release does, except for the biases of the forget gates, which are 1."""
    init_weights(encoder, encoder.config.initializer_range, generator)
    nn.init.uniform_(encoder.token_embeddings.weight, -0.1, 0.1, generator=generator)
    for layer in encoder.layers:
        assert isinstance(layer, WeightDropLstm)
        num_cells = layer.weight_hh.shape[1]
        bound = 1 / math.sqrt(num_cells)
        for weights in (layer.weight_ih, layer.weight_hh):
            nn.init.uniform_(weights, -bound, bound, generator=generator)
        nn.init.zeros_(layer.bias)
        with torch.no_grad():
            layer.bias[num_cells : 2 * num_cells] = 1.0


def tensor_names(config: AwdLstmConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> its name in a folder."""
    layers = [
        f"layers.{index}.{part}"
        for index in range(config.num_hidden_layers)
        for part in ("weight_ih", "weight_hh", "bias")
    ]
    names = ("token_embeddings.weight", *layers, "pooler.weight", "pooler.bias")
    return {name: (f"awd_lstm.{name}",) for name in names}


FAMILY = Family(
    config_class=AwdLstmConfig,
    build=AwdLstm,
    tensor_names=tensor_names,
    class_prefix="AwdLstm",
    has_token_types=False,
    prefix="awd_lstm.",
    optional_prefixes=("awd_lstm.pooler.",),
    # The output layer is the token embeddings, without a bias.
    heads={"causal": {}, **{kind: bert.HEADS[kind] for kind in ("sequence", "tokens", "choices", "spans")}},
    can_carry_state=True,
    learning_rate=1e-2,
)
