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
from bertworks.encoders.dropout import dropout, dropout_mask
from bertworks.encoders.encoded import BatchLayout, Encoded, EncoderState, SequenceGroup
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch

# Width and cells of the layers between; base is the paper's, the others are smaller. All have three layers.
PRESETS = {"tiny": (100, 288), "mini": (200, 576), "small": (300, 864), "base": (400, 1_150)}
# The paper's rates of dropout as shares of the one for outputs (0.4): of input values, between layers, of pieces of the
# vocabulary, of weights.
_INPUT_RATIO, _HIDDEN_RATIO, _EMBEDDING_RATIO, _WEIGHT_RATIO = 1.0, 0.75, 0.125, 1.25
# Where seeds of a pass are for: pieces, where stretches begin, inputs, outputs; those of layers come behind.
_EMBEDDING_SEED, _BPTT_SEED, _INPUT_SEED, _OUTPUT_SEED, _LAYER_SEEDS = range(5)

LstmState = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AwdLstmConfig(BertConfig):
    """What an AWD-LSTM is made of. `inner` counts the cells of all layers but the last, which has `width`; there is no
    table of `positions`, which are the longest rows that are read at once.

    `dropout` is the rate of outputs, 0.4 in the paper; the paper's other rates follow in proportion.
    stretch   in a row that stands alone slopes reach back so many places at most; from stretch to stretch only the
              state is carried
    pooled    how many values sum a row up
    """

    bptt_length: int = 80
    pooler_size: int = 50

    def __post_init__(self) -> None:
        BertConfig.__post_init__(self)
        if self.hidden_dropout_prob * _WEIGHT_RATIO >= 1:
            raise SettingsError(
                f"a dropout of {self.hidden_dropout_prob} would leave no weights: they are dropped at {_WEIGHT_RATIO} times that rate"
            )

    @property
    def pooled_size(self) -> int:
        return self.pooler_size

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, *[self.intermediate_size] * (self.num_hidden_layers - 1), self.hidden_size)


class WeightDropLstm(nn.Module):
    """An LSTM: values (B, T, I) and a state in, (B, T, H) and the state behind the last place out."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))  # four gates: in, forget, cell, out
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))  # what is dropped
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))

    def forward(
        self,
        values: torch.Tensor,
        state: LstmState | None,
        bptt_lengths: Sequence[int],
        seed: torch.Tensor | None,
        dropout_prob: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Read stretches of so many places, one behind the other; slopes do not reach from one into another."""
        weights = [self.weight_ih, dropout(self.weight_hh, seed, dropout_prob), self.bias, torch.zeros_like(self.bias)]
        if state is None:
            begin = values.new_zeros(len(values), self.weight_hh.shape[1])
            state = (begin, begin)
        found = []
        for part in torch.split(values, list(bptt_lengths), 1):
            before = [one.detach()[None] for one in state]  # each (1, B, H)
            told, output, cells = torch.lstm(part, before, weights, True, 1, 0.0, self.training, False, True)
            found.append(told)
            state = (output[0], cells[0])
        return torch.cat(found, 1) if len(found) > 1 else found[0], *state


class AwdLstm(Encoder):
    """The encoder of ULMFiT."""

    config: AwdLstmConfig
    supported_attention = ("causal",)

    def __init__(self, config: AwdLstmConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(WeightDropLstm(given, cells) for given, cells in pairwise(config.hidden_sizes))
        self.pooler = nn.Linear(3 * config.hidden_size, config.pooler_size)
        _init_weights(self, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers. With a `Carried` as state, rows go on behind what it was made of, and a new one leaves."""
        assert state is None or isinstance(state, EncoderState), "the state of another encoder"
        layout = self.create_layout(batch)
        if state is not None and int(batch.lengths.min()) < batch.input_ids.shape[1]:
            raise InputError("rows that go on are of equal length; give those that end in a batch of their own")
        values = self.embed(batch, layout)
        if self.training and seeds is not None:
            values = values * self._embedding_dropout_scale(batch.input_ids.flatten(), seeds.seed_for(_EMBEDDING_SEED))
        return self._run_lstms(values, layout, seeds, positions, state)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return what the layers make of embedded pieces (N, D)."""
        return self._run_lstms(hidden_states, layout, seeds, positions, None)

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): the pieces alone."""
        return self.lookup_embeddings(batch, layout)[0]

    def create_layout(self, batch: Batch) -> BatchLayout:
        """Return how a batch is computed: in its own shape. What is padding stands behind what is read."""
        self.resolve_attention(batch)
        rows, width = batch.input_ids.shape
        starts = torch.arange(rows, device=batch.input_ids.device) * width
        return BatchLayout((SequenceGroup(0, rows, width),), starts, batch.lengths, None, (rows, width))

    @property
    def max_cached_length(self) -> float:
        return math.inf

    def _embedding_dropout_scale(self, input_ids: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        """Return (N, 1): by what the embedding of each piece is multiplied; wherever a piece stands, by the same."""
        rate = self.config.hidden_dropout_prob * _EMBEDDING_RATIO
        stays = dropout_mask(torch.Size((self.config.vocab_size,)), seed, rate)
        return (stays[input_ids] / (1 - rate))[:, None]

    def _run_lstms(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None,
        positions: torch.Tensor | None,
        state: EncoderState | None,
    ) -> Encoded:
        seeds, rate = (seeds if self.training else None), self.config.hidden_dropout_prob
        stretches = [layout.shape[1]] if state is not None else self._bptt_lengths(layout.shape[1], seeds)
        current = hidden_states.view(*layout.shape, -1)  # (B, T, D)
        current = _variational_dropout(current, seeds, _INPUT_SEED, rate * _INPUT_RATIO)
        found, left = [current.flatten(0, 1)], []
        for number, layer in enumerate(self.layers):
            begin = state.layers[number] if state is not None and state.layers else None
            place = _LAYER_SEEDS + 2 * number
            own = (begin, stretches, seeds.seed_for(place) if seeds else None, rate * _WEIGHT_RATIO)
            current, *after = self._run_layer(layer, current, *own)  # (B, T, H)
            left.append((after[0].detach(), after[1].detach()))
            is_last = number == len(self.layers) - 1
            current = _variational_dropout(
                current, seeds, *((_OUTPUT_SEED, rate) if is_last else (place + 1, rate * _HIDDEN_RATIO))
            )
            found.append(current.flatten(0, 1))
        summary = torch.tanh(self.pooler(_concat_pooling(current, layout.lengths)))
        if positions is not None:
            found[-1] = found[-1][positions]
        carried = None if state is None else EncoderState(state.length + layout.shape[1], tuple(left))
        return Encoded(tuple(found), summary, layout, carried, positions)

    def _bptt_lengths(self, length: int, seeds: DropoutSeeds | None) -> list[int]:
        """Return in how long stretches a row is read. Where slopes are wanted, each pass cuts elsewhere."""
        size = self.config.bptt_length
        if seeds is None or length <= size:
            return [length]
        first = 1 + int(seeds.seed_for(_BPTT_SEED)) % size
        ends = [*range(first, length, size), length]
        return [stop - start for start, stop in pairwise([0, *ends])]


def _variational_dropout(
    values: torch.Tensor, seeds: DropoutSeeds | None, seed_index: int, dropout_prob: float
) -> torch.Tensor:
    """Return (B, T, W) with some values of a row set to zero at all its places, and the others scaled up."""
    if seeds is None or not dropout_prob:
        return values
    stays = dropout_mask(torch.Size((len(values), 1, values.shape[2])), seeds.seed_for(seed_index), dropout_prob)
    return values * (stays * (1 / (1 - dropout_prob))).to(values.dtype)


def _concat_pooling(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return (B, 3D): of rows (B, T, D) the output at the last piece, the largest values and the means."""
    outside = (torch.arange(values.shape[1], device=values.device) >= lengths[:, None])[..., None]  # (B, T, 1)
    last = values[torch.arange(len(values), device=values.device), lengths - 1]
    mean = values.masked_fill(outside, 0.0).sum(1) / lengths[:, None]
    return torch.cat([last, values.masked_fill(outside, -math.inf).amax(1), mean], 1)


def _init_weights(encoder: AwdLstm, generator: torch.Generator | None) -> None:
    """Draw the weights as the release does; but a gate that forgets begins open."""
    initialise(encoder, encoder.config.initializer_range, generator)
    nn.init.uniform_(encoder.token_embeddings.weight, -0.1, 0.1, generator=generator)
    for layer in encoder.layers:
        assert isinstance(layer, WeightDropLstm)
        cells = layer.weight_hh.shape[1]
        for weights in (layer.weight_ih, layer.weight_hh):
            nn.init.uniform_(weights, -1 / math.sqrt(cells), 1 / math.sqrt(cells), generator=generator)
        nn.init.zeros_(layer.bias)
        with torch.no_grad():
            layer.bias[cells : 2 * cells] = 1.0


CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "lstm_size",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "initializer_range",
}
_FAMILY_KEYS = {"bptt_length": "bptt_length", "pooler_size": "pooler_size"}
_FAMILY_CONFIG: dict[str, Any] = {"num_attention_heads": 1, "type_vocab_size": 1, "model_type": "awd-lstm"}
# The next piece is told by the table of pieces itself, without a bias.
HEADS: dict[str, NameTable] = {
    "causal": {},
    **{kind: bert.HEADS[kind] for kind in ("sequence", "tokens", "choices", "spans")},
}


def config_from_preset(name: str, vocab_size: int) -> AwdLstmConfig:
    """Return one of the sizes by name."""
    if name not in PRESETS:
        raise SettingsError(f"there is no size '{name}' of an AWD-LSTM; choose one of: {', '.join(PRESETS)}")
    width, inner = PRESETS[name]
    return AwdLstmConfig(
        vocab_size, width, num_hidden_layers=3, intermediate_size=inner, initializer_range=0.05, **_FAMILY_CONFIG
    )


def config_from_dict(config_dict: Mapping[str, Any]) -> AwdLstmConfig:
    """Return the sizes that a config.json states."""
    found = bert.read_config_fields(config_dict, CONFIG_KEYS)
    for name, key in _FAMILY_KEYS.items():
        if not isinstance(config_dict.get(key), int) or config_dict[key] < 1:
            raise SettingsError(
                f"{key} should be a whole number above 0, but is {config_dict.get(key)!r}; bring the model's"
            )
        found[name] = config_dict[key]
    return AwdLstmConfig(**found, **_FAMILY_CONFIG, attention_probs_dropout_prob=found["hidden_dropout_prob"])


def config_to_dict(config: AwdLstmConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are our own, for transformers has none."""
    told = {key: getattr(config, name) for name, key in (CONFIG_KEYS | _FAMILY_KEYS).items()}
    return {"model_type": config.model_type, "architectures": list(architectures), **told}


def tensor_names(config: AwdLstmConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> its name in a folder, which is the same behind the name of the family."""
    layers = [
        f"layers.{number}.{part}"
        for number in range(config.num_hidden_layers)
        for part in ("weight_ih", "weight_hh", "bias")
    ]
    return {
        name: (f"awd_lstm.{name}",) for name in ("token_embeddings.weight", *layers, "pooler.weight", "pooler.bias")
    }
