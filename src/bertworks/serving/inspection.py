"""What a model sees: a text in; its pieces, the embeddings that are summed there, and who reads whom out.

T places, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertworks.encoders.stack import Encoder
from bertworks.errors import InputError
from bertworks.sampling.batch import collate_sequences
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

# How many components of each embedding are shown.
_NUM_SHOWN_COMPONENTS = 16


@dataclass(frozen=True, slots=True)
class TruncatedEncoding:
    """The places of an encoding that a model can read; `num_cut` pieces are beyond them."""

    encoding: Encoding
    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    num_truncated: int

    @property
    def unknown(self) -> Mapping[int, str]:
        return {place: word for place, word in self.encoding.unknown.items() if place < len(self.input_ids)}


def tokenize_text(tokenizer: Tokenizer, text: str, pair: str | None) -> tuple[Encoding, dict[str, Any]]:
    """Return a text or a pair as pieces, and the same as JSON has it, each piece with the text it stands for."""
    encoding = tokenizer.encode(text, pair)
    is_second, texts = False, []
    for place, offset in enumerate(encoding.offsets):
        # The second text begins behind the separator, whatever the segments say: RoBERTa knows none.
        is_second = is_second or (pair is not None and place > 0 and offset is None)
        texts.append("" if offset is None else (pair or "" if is_second else text)[slice(*offset)])
    told = {
        "pieces": encoding.tokens,
        "ids": encoding.input_ids,
        "segments": encoding.token_type_ids,
        "positions": encoding.position_ids,
        "offsets": encoding.offsets,
        "texts": texts,
    }
    return encoding, told


def truncate_encoding(encoding: Encoding, encoder: Encoder) -> TruncatedEncoding:
    """Return as much of an encoding as the model has positions for."""
    room = encoder.config.max_position_embeddings
    return TruncatedEncoding(
        encoding, encoding.input_ids[:room], encoding.token_type_ids[:room], max(0, len(encoding) - room)
    )


@torch.inference_mode()
def embeddings(encoder: Encoder, sequence: TruncatedEncoding) -> dict[str, Any]:
    """Return how long the embeddings of each place are, and the first of their components."""
    device = encoder.device
    parts = encoder.embedding_components(
        torch.tensor(sequence.input_ids, device=device), torch.tensor(sequence.token_type_ids, device=device)
    )
    parts["sum"] = torch.stack(tuple(parts.values())).sum(0)
    return {
        "norms": {name: values.norm(dim=1).tolist() for name, values in parts.items()},
        "sample": {name: values[:, :_NUM_SHOWN_COMPONENTS].tolist() for name, values in parts.items()},
    }


@dataclass(frozen=True, slots=True)
class AttentionQuery:
    """Which links are wanted: so many of the strongest, of one layer and head or of all."""

    num_links: int
    layer: int | None = None
    head: int | None = None

    def check(self, num_layers: int, num_heads: int) -> None:
        for what, number, count in (("layer", self.layer, num_layers), ("head", self.head, num_heads)):
            if number is not None and not 0 <= number < count:
                raise InputError(f"there is no {what} {number}; this model has {count}, counted from 0")


@torch.inference_mode()
def attention(encoder: Encoder, sequence: TruncatedEncoding, pad: int, query: AttentionQuery) -> dict[str, Any]:
    """Return the strongest links [layer, head, from, to, weight]: how much place `from` reads of place `to`."""
    num_layers, num_heads = encoder.config.num_hidden_layers, encoder.config.num_attention_heads
    query.check(num_layers, num_heads)
    batch = collate_sequences([sequence], pad).to(encoder.device)
    heads = slice(None) if query.head is None else slice(query.head, query.head + 1)
    links: list[list[float]] = []
    numbers = range(num_layers) if query.layer is None else (query.layer,)
    for number, shares in zip(numbers, encoder.attention_weights(batch, numbers), strict=True):
        links += _strongest_links(shares[0, heads], query.num_links, number, query.head or 0)
    links.sort(key=lambda link: -link[4])
    return {
        "pieces": sequence.encoding.tokens[: len(sequence.input_ids)],
        "segments": sequence.token_type_ids,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "links": links[: query.num_links],
        "cut": sequence.num_truncated,
    }


def _strongest_links(attention_weights: torch.Tensor, count: int, layer: int, first_head: int) -> list[list[float]]:
    """Return the strongest links among shares (H, T, T)."""
    best = attention_weights.flatten().topk(min(count, attention_weights.numel()))
    heads, reader, read = np.unravel_index(best.indices.cpu().numpy(), tuple(attention_weights.shape))
    parts = zip((heads + first_head).tolist(), reader.tolist(), read.tolist(), best.values.tolist(), strict=True)
    return [[layer, head, start, end, weight] for head, start, end, weight in parts]
