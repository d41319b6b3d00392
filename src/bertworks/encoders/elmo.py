"""ELMo: a Batch of words in, an Encoded out. Words are read by their writing, then rows by LSTMs both ways.

A word becomes a vector by a convolution over its symbols (the bytes of its characters, or the strokes of Chinese ones)
and highway layers; with strokes a vector of the word itself is added. Layers of LSTMs with projections follow, half of
each reading ahead and half back; the halves know nothing of one another, so that one can be asked what follows and the
other what went before. The second layer adds what entered it. Unlike in the release, cells are not clipped, and a row
begins without a memory of the last. A word outside the vocabulary is read by its writing, and where words have vectors
of their own, with that of all unknown ones. The tensors have names of our own, for transformers has no ELMo.

B rows of T places, N words, U different ones, C symbols of a word, D width, P = D / 2 width of one half, V words of the
vocabulary, F filters, E width of a symbol.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.spelling import NUM_SYMBOLS, PADDING, SPELLINGS, check_spelling, spell_vocabulary, spell_word
from bertworks.vocabulary.tokenizer import Tokenizer

# torch says once that it computes these LSTMs by itself; that is known.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")

# Width, and how many filters of each width read the symbols of a word. Base is the paper's; the others are smaller.
PRESETS: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "tiny": (128, ((1, 16), (2, 16), (3, 32), (4, 64))),
    "mini": (256, ((1, 32), (2, 32), (3, 64), (4, 64), (5, 64))),
    "small": (512, ((1, 32), (2, 32), (3, 64), (4, 128), (5, 128), (6, 128))),
    "base": (1024, ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))),
}
# What words are told by in pretraining (`objectives.softmaxes`): what learning over a large vocabulary costs.
SOFTMAX_KINDS = ("adaptive", "sampled", "full")
# A gate of a highway begins nearly closed, so that values first pass as they are.
_GATE_BIAS = -2.0


@dataclass(frozen=True, slots=True)
class ElmoConfig(BertConfig):
    """What an ELMo is made of. `inner` counts the cells of an LSTM, `positions` the places of the longest row.

    spelling       what the convolution reads: characters, strokes, shuffled-strokes; words: there is none
    word_symbols   of how many symbols of a word it takes notice, begin and end counted
    filters        (symbols they see, how many there are)
    scoring        how its head tells words: adaptive, sampled or full
    """

    spelling: str = "characters"
    max_symbols_per_word: int = 50
    symbol_embedding_size: int = 16
    filters: tuple[tuple[int, int], ...] = PRESETS["base"][1]
    num_highway_layers: int = 2
    softmax_kind: str = SOFTMAX_KINDS[0]

    def __post_init__(self) -> None:
        check_spelling(self.spelling)
        if self.softmax_kind not in SOFTMAX_KINDS:
            raise SettingsError(f"there is no scoring '{self.softmax_kind}'; choose one of: {', '.join(SOFTMAX_KINDS)}")
        if self.hidden_size % 2:
            raise SettingsError(
                f"width {self.hidden_size} cannot be divided between two ways of reading; choose an even one"
            )
        if self.intermediate_size <= self.projection_size:
            raise SettingsError(
                f"{self.intermediate_size} cells cannot be projected to {self.projection_size} values; choose more cells"
            )

    @property
    def projection_size(self) -> int:
        return self.hidden_size // 2

    @property
    def has_word_embeddings(self) -> bool:
        """Whether a word has a vector of its own besides what its writing says."""
        return self.spelling != "characters"


class Highway(nn.Module):
    """Something new, or what came in, or a share of both: a gate decides, for each value."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        share = torch.sigmoid(self.gate(values))
        return share * F.relu(self.transform(values)) + (1 - share) * values


class SpellingEncoder(nn.Module):
    """Words by their writing: symbols (U, C) in, vectors (U, P) out. What is padding changes nothing."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        num_filters = sum(count for _, count in config.filters)
        self.symbol_embeddings = nn.Embedding(NUM_SYMBOLS, config.symbol_embedding_size)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.symbol_embedding_size, count, seen) for seen, count in config.filters
        )
        self.highways = nn.ModuleList(Highway(num_filters) for _ in range(config.num_highway_layers))
        self.projection = nn.Linear(num_filters, config.projection_size)
        self.max_filter_width = max(seen for seen, _ in config.filters)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        lengths = (symbols != PADDING).sum(1)  # (U,)
        most = max(self.max_filter_width, int(lengths.max()))
        symbols = F.pad(symbols[:, :most], (0, max(0, most - symbols.shape[1])))
        values = self.symbol_embeddings(symbols.long()) * (symbols != PADDING)[..., None]  # (U, C, E)
        values = torch.cat(
            [self._max_pool(part, values.transpose(1, 2), lengths) for part in self.convolutions], 1
        )  # (U, F)
        for highway in self.highways:
            values = highway(values)
        return self.projection(values)

    @staticmethod
    def _max_pool(convolution: nn.Module, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return (U, filters of one width): the most that each filter finds anywhere in a word (U, E, C)."""
        found = convolution(values)  # (U, filters, places)
        num_places = found.shape[2]
        inside = (lengths - (values.shape[2] - num_places)).clamp(min=1)  # a short word has one place, filled up
        outside = torch.arange(num_places, device=values.device) >= inside[:, None]
        return F.relu(found.masked_fill(outside[:, None], -math.inf).amax(2))


class BiLmLayer(nn.Module):
    """Two LSTMs with projections, of which padding changes nothing: (B, T, D) in, what is read ahead | back out."""

    def __init__(self, projection_size: int, num_cells: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(projection_size, num_cells, proj_size=projection_size, batch_first=True)
        self.backward_lstm = nn.LSTM(projection_size, num_cells, proj_size=projection_size, batch_first=True)

    def forward(self, hidden_states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        ahead, back = hidden_states.chunk(2, -1)
        told = self.backward_lstm(_reverse_sequences(back, lengths))[0]
        return torch.cat([self.forward_lstm(ahead.contiguous())[0], _reverse_sequences(told, lengths)], -1)


def _reverse_sequences(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return (B, T, P) with each row from its last place to its first; padding stays behind it."""
    places = torch.arange(values.shape[1], device=values.device)
    index = lengths[:, None] - 1 - places  # (B, T)
    index = torch.where(index < 0, places, index)
    return values.gather(1, index[..., None].expand_as(values))


class Elmo(Encoder):
    """The encoder of ELMo. `spelling` (V, C) is how each word of the vocabulary is written."""

    config: ElmoConfig
    spelling: torch.Tensor
    supported_attention = ("bidirectional",)

    def __init__(self, config: ElmoConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        if config.has_word_embeddings:
            self.token_embeddings = nn.Embedding(config.vocab_size, config.projection_size)
        self.spelling_encoder = SpellingEncoder(config) if SPELLINGS[config.spelling] else None
        if self.spelling_encoder is not None:
            empty = torch.zeros(config.vocab_size, config.max_symbols_per_word, dtype=torch.uint8)
            self.register_buffer("spelling", empty)
        self.layers = nn.ModuleList(
            BiLmLayer(config.projection_size, config.intermediate_size) for _ in range(config.num_hidden_layers)
        )
        _init_weights(self, generator)

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Learn how the words are written."""
        if self.spelling_encoder is not None:
            table = spell_vocabulary(tokenizer, self.config.spelling, self.config.max_symbols_per_word)
            self.spelling[: len(table)] = torch.from_numpy(table)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): the vector of each word, once for each way of reading."""
        ids = batch.input_ids.flatten()
        numbers, where = torch.unique(ids if layout.index is None else ids[layout.index], return_inverse=True)
        vectors = self._embed_words(numbers)  # each different word is read once
        if batch.unknown and self.spelling_encoder is not None:
            places = torch.tensor(list(batch.unknown), device=ids.device)
            written = {word: number for number, word in enumerate(dict.fromkeys(batch.unknown.values()))}
            which = torch.tensor([written[word] for word in batch.unknown.values()], device=ids.device)
            where[layout.token_indices(places)] = len(vectors) + which
            unknown = ids[places[:1]].expand(len(written))
            vectors = torch.cat([vectors, self._embed_words(unknown, self._encode_symbols(list(written)))])
        vectors = F.embedding(where, vectors)
        return torch.cat([vectors, vectors], 1)

    def _encode_symbols(self, words: Sequence[str]) -> torch.Tensor:
        """Return (U, C): how words are written, in symbols."""
        table = np.stack([spell_word(word, self.config.spelling, self.config.max_symbols_per_word) for word in words])
        return torch.from_numpy(table).to(self.device)

    def _embed_words(self, input_ids: torch.Tensor, symbols: torch.Tensor | None = None) -> torch.Tensor:
        """Return (U, P): the vectors of words, written as the vocabulary has them unless `symbols` (U, C) are given."""
        return torch.stack(tuple(self._word_components(input_ids, symbols).values())).sum(0)

    def _word_components(self, input_ids: torch.Tensor, symbols: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        parts = {"token": self.token_embeddings(input_ids)} if self.config.has_word_embeddings else {}
        if self.spelling_encoder is not None:
            parts["spelling"] = self.spelling_encoder(self.spelling[input_ids] if symbols is None else symbols)
        return parts

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the vectors that are summed for the words of one row (T,), each (T, P), by what they tell."""
        return self._word_components(input_ids)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return what the layers make of the words' vectors (N, D)."""
        seeds = seeds if self.training else None
        found = [hidden_states]
        current = _add_padding(hidden_states, layout)  # (B, T, D)
        for number, layer in enumerate(self.layers):
            given = dropout(current, seeds.seed_for(number) if seeds else None, self.config.hidden_dropout_prob)
            read = self._run_layer(layer, given, layout.lengths)
            current = current + read if number else read
            found.append(_remove_padding(current, layout))
        summary = self._pool_directions(found[-1], layout)
        if positions is not None:
            found[-1] = found[-1][layout.token_indices(positions)]
        return Encoded(tuple(found), summary, layout, positions=positions)

    def _pool_directions(self, last_hidden_state: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return (B, D): what has read the whole row: ahead at its last word, back at its first."""
        half = self.config.projection_size
        return torch.cat(
            [last_hidden_state[layout.starts + layout.lengths - 1, :half], last_hidden_state[layout.starts, half:]], 1
        )


def _add_padding(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    rows, width = layout.shape
    if layout.index is None:
        return values.view(rows, width, -1)
    return values.new_zeros(rows * width, values.shape[1]).index_copy(0, layout.index, values).view(rows, width, -1)


def _remove_padding(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    flat = values.flatten(0, 1)
    return flat if layout.index is None else flat[layout.index]


def _init_weights(encoder: Elmo, generator: torch.Generator | None) -> None:
    """Draw the weights: products and filters by the number of their inputs; a gate that forgets begins open."""
    for part in encoder.modules():
        if isinstance(part, nn.Linear | nn.Conv1d):
            bound = math.sqrt(3 / part.weight[0].numel())
            nn.init.uniform_(part.weight, -bound, bound, generator=generator)
            assert part.bias is not None
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.uniform_(part.weight, -1.0, 1.0, generator=generator)
        elif isinstance(part, nn.LSTM):
            _init_lstm(part, generator)
    for part in encoder.modules():
        if isinstance(part, Highway):
            nn.init.constant_(part.gate.bias, _GATE_BIAS)


def _init_lstm(lstm: nn.LSTM, generator: torch.Generator | None) -> None:
    for name, values in lstm.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(values)
        else:
            bound = 1 / math.sqrt(values.shape[1])
            nn.init.uniform_(values, -bound, bound, generator=generator)
        if name.startswith("bias_ih"):
            with torch.no_grad():  # the gates of torch: in, forget, cell, out
                values[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0


CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "intermediate_size": "lstm_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "initializer_range": "initializer_range",
}
_FAMILY_KEYS = ("spelling", "max_symbols_per_word", "symbol_embedding_size", "filters", "num_highway_layers")
_FAMILY_CONFIG: dict[str, Any] = {"num_attention_heads": 1, "type_vocab_size": 1, "model_type": "elmo"}
HEADS: dict[str, NameTable] = {
    "bilm": {
        name: (f"bilm_head.{name}",)
        for name in ("head.weight", "tail.0.0.weight", "tail.0.1.weight", "tail.1.0.weight", "tail.1.1.weight")
    },
    "bilm-table": {name: (f"bilm_head.{name}",) for name in ("weight", "bias")},
    "sequence": bert.HEADS["sequence"],
    "tokens": bert.HEADS["tokens"],
    "choices": bert.HEADS["choices"],
    "spans": bert.HEADS["spans"],
}


def config_from_preset(name: str, vocab_size: int) -> ElmoConfig:
    """Return one of the sizes by name."""
    if name not in PRESETS:
        raise SettingsError(f"there is no size '{name}' of ELMo; choose one of: {', '.join(PRESETS)}")
    width, filters = PRESETS[name]
    return ElmoConfig(
        vocab_size, width, num_hidden_layers=2, intermediate_size=4 * width, filters=filters, **_FAMILY_CONFIG
    )


def config_from_dict(config_dict: Mapping[str, Any]) -> ElmoConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    found = bert.read_config_fields(config_dict, CONFIG_KEYS)
    missing = [key for key in _FAMILY_KEYS if key not in config_dict]
    if missing:
        raise SettingsError(f"{missing[0]} is missing; bring the model's own config.json")
    own = {key: config_dict[key] for key in _FAMILY_KEYS}
    try:
        own["filters"] = tuple((int(seen), int(count)) for seen, count in own["filters"])
    except (TypeError, ValueError):
        raise SettingsError(f"filters should be pairs of whole numbers, but are {own['filters']!r}") from None
    own["softmax_kind"] = config_dict.get("softmax_kind", SOFTMAX_KINDS[0])  # older folders do not say
    return ElmoConfig(**found, **own, **_FAMILY_CONFIG, attention_probs_dropout_prob=found["hidden_dropout_prob"])


def config_to_dict(config: ElmoConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are our own, for transformers has none."""
    told = asdict(config)
    return {
        "model_type": "elmo",
        "architectures": list(architectures),
        **{key: told[name] for name, key in CONFIG_KEYS.items()},
        **{key: told[key] for key in _FAMILY_KEYS},
        "filters": [list(pair) for pair in config.filters],
        "softmax_kind": config.softmax_kind,
    }


def tensor_names(config: ElmoConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> its name in a folder, which is the same behind the name of the family."""
    with torch.device("meta"):
        state = Elmo(config).state_dict()
    return {name: (f"elmo.{name}",) for name in state}
