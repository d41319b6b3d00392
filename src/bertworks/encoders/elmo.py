"""ELMo: a Batch of words in, an Encoded out. A character CNN over the spelling of words, then a bidirectional LSTM LM.

A word is embedded by convolutions over its symbols (the bytes of its characters, or the strokes of Chinese ones) and
highway layers; with strokes an embedding of the word is added. Layers of LSTMs with projections follow, half of each
reading forward and half backward without seeing each other, so that one half predicts the next word and the other the
previous one. The second layer has a residual connection. Unlike in the release, cells are not clipped, and the state
is not carried from sequence to sequence. A word that is not in the vocabulary is embedded by its spelling, plus the
embedding of the unknown token if words have embeddings. transformers has no ELMo, so the tensor names are ours.

B sequences, T positions, N words, U distinct ones, C symbols of a word, D hidden size, P = D / 2 projection size of
one direction, V vocabulary, F filters, E symbol embedding size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.config import MAX_SIZE, EncoderConfig
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.family import Family
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.memory import FLOAT_BYTES, ActivationBytes
from bertworks.errors import SettingsError, show_value
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.spelling import NUM_SYMBOLS, PADDING, SPELLINGS, check_spelling, spell_vocabulary, spell_word
from bertworks.vocabulary.tokenizer import Tokenizer

# torch warns once that it computes these LSTMs without oneDNN, which is expected.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")

# How the language model head computes its softmax in training (`objectives.large_softmax`).
SOFTMAX_KINDS = ("adaptive", "sampled", "full")
# The gates of highway layers are initialized nearly closed, so that values pass unchanged at first.
_GATE_BIAS = -2.0

# For memory estimates: values that an LSTM saves for each token and cell (four gates, the cell, its output and the
# matmul input), symbols of the longest word of a batch, and the ratio of unique words among its words.
_CELL_VALUES, _WORD_SYMBOLS, _UNIQUE_WORD_RATIO = 7, 16, 0.5
# What a config.json may ask for at most.
_MAX_WORD_SYMBOLS, _MAX_FILTERS = 1_000, 100


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(EncoderConfig):
    """The config.json of an ELMo. The defaults and the preset "base" are the paper's.

    lstm_size              number of cells of an LSTM
    spelling               what the convolution reads: characters, strokes, shuffled-strokes; words: nothing
    max_symbols_per_word   symbols of a word that are read, including begin and end
    filters                (width, number of filters) of each convolution
    softmax_kind           the softmax of the language model head: adaptive, sampled or full
    """

    model_type: ClassVar[str] = "elmo"
    target_ratio: ClassVar[float] = 1.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"hidden_size": 128, "filters": ((1, 16), (2, 16), (3, 32), (4, 64))},
        "mini": {"hidden_size": 256, "filters": ((1, 32), (2, 32), (3, 64), (4, 64), (5, 64))},
        "small": {"hidden_size": 512, "filters": ((1, 32), (2, 32), (3, 64), (4, 128), (5, 128), (6, 128))},
        "base": {"hidden_size": 1_024},
    }
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "intermediate_size": ("lstm_size",),
        "dropout_prob": ("hidden_dropout_prob",),
    }

    vocab_size: int = 30_522
    hidden_size: int = 1_024
    num_hidden_layers: int = 2
    lstm_size: int = 4_096
    max_length: int = 512
    hidden_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    spelling: str = "characters"
    max_symbols_per_word: int = 50
    symbol_embedding_size: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1_024))
    num_highway_layers: int = field(default=2, metadata={"minimum": 0})
    softmax_kind: str = SOFTMAX_KINDS[0]

    def __post_init__(self) -> None:
        check_spelling(self.spelling)
        if self.softmax_kind not in SOFTMAX_KINDS:
            raise SettingsError(
                f"there is no softmax_kind '{self.softmax_kind}'; choose one of: {', '.join(SOFTMAX_KINDS)}"
            )
        if self.hidden_size % 2:
            raise SettingsError(
                f"a hidden size of {self.hidden_size} cannot be divided between two directions; choose an even one"
            )
        if self.max_symbols_per_word > _MAX_WORD_SYMBOLS:
            raise SettingsError(
                f"max_symbols_per_word is {self.max_symbols_per_word:,}; it must be at most {_MAX_WORD_SYMBOLS:,}"
            )
        if self.lstm_size <= self.projection_size:
            raise SettingsError(
                f"{self.lstm_size} LSTM cells cannot be projected to {self.projection_size} values; choose more cells"
            )
        if not 0 < len(self.filters) <= _MAX_FILTERS or not all(map(_is_filter, self.filters)):
            raise SettingsError(
                f"filters should be pairs of a width and a number, such as [[1, 32], [2, 64]], but are "
                f"{show_value(self.filters)}"
            )

    @property
    def projection_size(self) -> int:
        return self.hidden_size // 2

    @property
    def feed_forward_size(self) -> int:
        return self.lstm_size

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """Two LSTMs per layer, and before them the character convolutions over the unique words of a batch."""
        layer = FLOAT_BYTES * (2 * _CELL_VALUES * self.lstm_size + 4 * self.hidden_size)
        num_filters = sum(count for _, count in self.filters) if self.spelling != "words" else 0
        convolutions = FLOAT_BYTES * 3 * num_filters * min(_WORD_SYMBOLS, self.max_symbols_per_word)
        return ActivationBytes(
            layer=layer,
            last_layer=layer,
            gradients=FLOAT_BYTES * 10 * self.lstm_size,
            embeddings=math.ceil(_UNIQUE_WORD_RATIO * convolutions) + FLOAT_BYTES * 4 * self.hidden_size,
        )

    @property
    def has_word_embeddings(self) -> bool:
        """Whether a word has an embedding besides that of its spelling."""
        return self.spelling != "characters"


def _is_filter(pair: object) -> bool:
    """Whether a part of `filters` is a width and a number of filters."""
    if not isinstance(pair, tuple) or list(map(type, pair)) != [int, int]:
        return False
    return 0 < pair[0] <= _MAX_WORD_SYMBOLS and 0 < pair[1] <= MAX_SIZE


class Highway(nn.Module):
    """A highway layer: gate * relu(transform(x)) + (1 - gate) * x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.transform(x)) + (1 - gate) * x


class SpellingEncoder(nn.Module):
    """The character CNN: symbols (U, C) in, word vectors (U, P) out, independent of padding."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        num_filters = sum(count for _, count in config.filters)
        self.symbol_embeddings = nn.Embedding(NUM_SYMBOLS, config.symbol_embedding_size)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.symbol_embedding_size, count, width) for width, count in config.filters
        )
        self.highways = nn.ModuleList(Highway(num_filters) for _ in range(config.num_highway_layers))
        self.projection = nn.Linear(num_filters, config.projection_size)
        self.max_filter_width = max(width for width, _ in config.filters)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        lengths = (symbols != PADDING).sum(1)  # (U,)
        max_length = max(self.max_filter_width, int(lengths.max()))
        symbols = F.pad(symbols[:, :max_length], (0, max(0, max_length - symbols.shape[1])))
        x = self.symbol_embeddings(symbols.long()) * (symbols != PADDING)[..., None]  # (U, C, E)
        x = torch.cat([self._max_pool(part, x.transpose(1, 2), lengths) for part in self.convolutions], 1)  # (U, F)
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)

    @staticmethod
    def _max_pool(convolution: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return (U, number of filters): the maximum of each filter over the symbols of a word (U, E, C)."""
        activations = convolution(x)  # (U, filters, positions)
        num_positions = activations.shape[2]
        # A word that is shorter than the filter has one position, with padding.
        num_valid = (lengths - (x.shape[2] - num_positions)).clamp(min=1)
        is_padding = torch.arange(num_positions, device=x.device) >= num_valid[:, None]
        return F.relu(activations.masked_fill(is_padding[:, None], -math.inf).amax(2))


class BiLmLayer(nn.Module):
    """A forward and a backward LSTM with projections: (B, T, D) in, forward | backward (B, T, D) out."""

    def __init__(self, projection_size: int, lstm_size: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(projection_size, lstm_size, proj_size=projection_size, batch_first=True)
        self.backward_lstm = nn.LSTM(projection_size, lstm_size, proj_size=projection_size, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        forward_input, backward_input = x.chunk(2, -1)
        backward = self.backward_lstm(_reverse_sequences(backward_input, lengths))[0]
        forward = self.forward_lstm(forward_input.contiguous())[0]
        return torch.cat([forward, _reverse_sequences(backward, lengths)], -1)


def _reverse_sequences(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return (B, T, P) with each sequence reversed; padding stays at the end."""
    positions = torch.arange(x.shape[1], device=x.device)
    index = lengths[:, None] - 1 - positions  # (B, T)
    index = torch.where(index < 0, positions, index)
    return x.gather(1, index[..., None].expand_as(x))


class Elmo(Encoder):
    """The encoder of ELMo. The buffer `spelling` (V, C) holds the symbols of each word of the vocabulary."""

    config: ElmoConfig
    spelling: torch.Tensor
    supported_attention = ("bidirectional",)
    has_half_precision = False

    def __init__(self, config: ElmoConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        if config.has_word_embeddings:
            self.token_embeddings = nn.Embedding(config.vocab_size, config.projection_size)
        self.spelling_encoder = SpellingEncoder(config) if SPELLINGS[config.spelling] else None
        self.reads_characters = self.spelling_encoder is not None
        if self.spelling_encoder is not None:
            empty = torch.zeros(config.vocab_size, config.max_symbols_per_word, dtype=torch.uint8)
            self.register_buffer("spelling", empty)
        self.layers = nn.ModuleList(
            BiLmLayer(config.projection_size, config.lstm_size) for _ in range(config.num_hidden_layers)
        )
        _init_weights(self, generator)

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Store the spelling of the words of a vocabulary."""
        if self.spelling_encoder is not None:
            table = spell_vocabulary(tokenizer, self.config.spelling, self.config.max_symbols_per_word)
            self.spelling[: len(table)] = torch.from_numpy(table)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): the vector of each word, once for each direction."""
        input_ids = batch.input_ids.flatten()
        word_ids, index = torch.unique(
            input_ids if layout.index is None else input_ids[layout.index], return_inverse=True
        )
        vectors = self._embed_words(word_ids)  # each distinct word once
        if batch.unknown and self.spelling_encoder is not None:
            positions = torch.tensor(list(batch.unknown), device=input_ids.device)
            words = {word: number for number, word in enumerate(dict.fromkeys(batch.unknown.values()))}
            word_numbers = torch.tensor([words[word] for word in batch.unknown.values()], device=input_ids.device)
            index[layout.token_indices(positions)] = len(vectors) + word_numbers
            unknown_ids = input_ids[positions[:1]].expand(len(words))
            vectors = torch.cat([vectors, self._embed_words(unknown_ids, self._encode_symbols(list(words)))])
        vectors = F.embedding(index, vectors)
        return torch.cat([vectors, vectors], 1)

    def _encode_symbols(self, words: Sequence[str]) -> torch.Tensor:
        """Return (U, C): the symbols of words."""
        table = np.stack([spell_word(word, self.config.spelling, self.config.max_symbols_per_word) for word in words])
        return torch.from_numpy(table).to(self.device)

    def _embed_words(self, input_ids: torch.Tensor, symbols: torch.Tensor | None = None) -> torch.Tensor:
        """Return (U, P): the vectors of words, spelled as in the vocabulary unless `symbols` (U, C) are given."""
        return torch.stack(tuple(self._word_components(input_ids, symbols).values())).sum(0)

    def _word_components(self, input_ids: torch.Tensor, symbols: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        components = {"token": self.token_embeddings(input_ids)} if self.config.has_word_embeddings else {}
        if self.spelling_encoder is not None:
            components["spelling"] = self.spelling_encoder(self.spelling[input_ids] if symbols is None else symbols)
        return components

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the vectors that are summed for the words of one sequence (T,), each (T, P), by name."""
        return self._word_components(input_ids)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Run the layers on word vectors (N, D)."""
        seeds = seeds if self.training else None
        all_states = [hidden_states]
        x = _add_padding(hidden_states, layout)  # (B, T, D)
        for index, layer in enumerate(self.layers):
            inputs = dropout(x, seeds.seed_for(index) if seeds else None, self.config.hidden_dropout_prob)
            outputs = self._run_layer(layer, inputs, layout.lengths)
            x = x + outputs if index else outputs
            all_states.append(_remove_padding(x, layout))
        pooled = self._pool_directions(all_states[-1], layout)
        if positions is not None:
            all_states[-1] = all_states[-1][layout.token_indices(positions)]
        return Encoded(hidden_states=tuple(all_states), pooled=pooled, layout=layout, positions=positions)

    def _pool_directions(self, last_hidden_state: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return (B, D): the forward direction at the last word and the backward direction at the first."""
        size = self.config.projection_size
        ends = layout.starts + layout.lengths - 1
        return torch.cat([last_hidden_state[ends, :size], last_hidden_state[layout.starts, size:]], 1)


def _add_padding(x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return (B, T, D) from (N, D)."""
    num_sequences, length = layout.shape
    if layout.index is None:
        return x.view(num_sequences, length, -1)
    padded = x.new_zeros(num_sequences * length, x.shape[1]).index_copy(0, layout.index, x)
    return padded.view(num_sequences, length, -1)


def _remove_padding(x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return (N, D) from (B, T, D)."""
    flat = x.flatten(0, 1)
    return flat if layout.index is None else flat[layout.index]


def _init_weights(encoder: Elmo, generator: torch.Generator | None) -> None:
    """Initialize linear layers and convolutions by their number of inputs, and forget gates open."""
    for module in encoder.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            bound = math.sqrt(3 / module.weight[0].numel())
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -1.0, 1.0, generator=generator)
        elif isinstance(module, nn.LSTM):
            _init_lstm(module, generator)
    for module in encoder.modules():
        if isinstance(module, Highway):
            nn.init.constant_(module.gate.bias, _GATE_BIAS)


def _init_lstm(lstm: nn.LSTM, generator: torch.Generator | None) -> None:
    for name, values in lstm.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(values)
        else:
            bound = 1 / math.sqrt(values.shape[1])
            nn.init.uniform_(values, -bound, bound, generator=generator)
        if name.startswith("bias_ih"):
            with torch.no_grad():  # torch's order of gates: input, forget, cell, output
                values[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0


def tensor_names(config: ElmoConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> its name in a folder."""
    with torch.device("meta"):
        state = Elmo(config).state_dict()
    return {name: (f"elmo.{name}",) for name in state}


FAMILY = Family(
    config_class=ElmoConfig,
    build=Elmo,
    tensor_names=tensor_names,
    class_prefix="Elmo",
    has_token_types=False,
    prefix="elmo.",
    learning_rate=3e-5,
    heads={
        "bilm": {
            name: (f"bilm_head.{name}",)
            for name in ("head.weight", "tail.0.0.weight", "tail.0.1.weight", "tail.1.0.weight", "tail.1.1.weight")
        },
        "bilm-table": {name: (f"bilm_head.{name}",) for name in ("weight", "bias")},
        **{kind: bert.HEADS[kind] for kind in ("sequence", "tokens", "choices", "spans")},
    },
)
