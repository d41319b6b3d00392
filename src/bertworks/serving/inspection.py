"""What a model computes from a text: a text in; its tokens, their embeddings and attention weights out.

T positions, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertworks.errors import InputError
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

if TYPE_CHECKING:
    import torch

    from bertworks.encoders.encoder import Encoder

# Number of components of each embedding in a response.
_NUM_SHOWN_COMPONENTS = 16


@dataclass(frozen=True, slots=True)
class TruncatedEncoding:
    """An encoding truncated to the model's positions; `num_truncated` tokens were dropped."""

    encoding: Encoding
    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    num_truncated: int

    @property
    def unknown(self) -> Mapping[int, str]:
        return {position: word for position, word in self.encoding.unknown.items() if position < len(self.input_ids)}


def tokenize_text(tokenizer: Tokenizer, text: str, pair: str | None) -> tuple[Encoding, dict[str, Any]]:
    """Tokenize a text or a pair; return the encoding and its JSON, in which each token has its characters."""
    encoding = tokenizer.encode(text, pair)
    is_second, texts = False, []
    for position, offset in enumerate(encoding.offsets):
        # The second text begins after the separator, whatever its token type ids: RoBERTa has none.
        is_second = is_second or (pair is not None and position > 0 and offset is None)
        texts.append("" if offset is None else (pair or "" if is_second else text)[slice(*offset)])
    fields = {
        "tokens": encoding.tokens,
        "input_ids": encoding.input_ids,
        "position_ids": encoding.position_ids,
        "token_type_ids": encoding.token_type_ids,
        "attention_mask": [1] * len(encoding),
        "offsets": encoding.offsets,
        "texts": texts,
    }
    return encoding, fields


def truncate_encoding(encoding: Encoding, encoder: Encoder) -> TruncatedEncoding:
    """Truncate an encoding to the positions of the model."""
    max_length = encoder.config.max_length
    return TruncatedEncoding(
        encoding,
        encoding.input_ids[:max_length],
        encoding.token_type_ids[:max_length],
        max(0, len(encoding) - max_length),
    )


def embeddings(encoder: Encoder, encoding: TruncatedEncoding) -> dict[str, Any]:
    """Return the norms and the first components of the embeddings that are summed at each position, and of the sum."""
    import torch

    device = encoder.device
    with torch.inference_mode():
        components = encoder.embedding_components(
            torch.tensor(encoding.input_ids, device=device), torch.tensor(encoding.token_type_ids, device=device)
        )
        components["sum"] = torch.stack(tuple(components.values())).sum(0)
        norms = {name: values.norm(dim=1).tolist() for name, values in components.items()}
    shown = {name: values[:, :_NUM_SHOWN_COMPONENTS].tolist() for name, values in components.items()}
    return {"embedding_norms": norms, "embedding_values": shown}


@dataclass(frozen=True, slots=True)
class AttentionQuery:
    """The number of attention weights to return, of one layer and head or of all."""

    top_k: int
    layer: int | None = None
    head: int | None = None

    def check(self, num_layers: int, num_heads: int) -> None:
        for name, index, count in (("layer", self.layer, num_layers), ("head", self.head, num_heads)):
            if index is not None and not 0 <= index < count:
                raise InputError(f"there is no {name} {index}; this model has {name}s 0 to {count - 1}")


def attention(encoder: Encoder, encoding: TruncatedEncoding, pad: int, query: AttentionQuery) -> dict[str, Any]:
    """Return the largest attention weights, each as [layer, head, query position, key position, weight]."""
    import torch

    from bertworks.sampling.batch import collate_sequences

    num_layers, num_heads = encoder.config.depth, encoder.config.layer_config.num_attention_heads
    query.check(num_layers, num_heads)
    batch = collate_sequences([encoding], pad).to(encoder.device)
    heads = slice(None) if query.head is None else slice(query.head, query.head + 1)
    entries: list[list[float]] = []
    layers = range(num_layers) if query.layer is None else (query.layer,)
    with torch.inference_mode():
        for layer, attention_weights in zip(layers, encoder.attention_weights(batch, layers), strict=True):
            entries += _largest_weights(attention_weights[0, heads], query.top_k, layer, query.head or 0)
    entries.sort(key=lambda entry: -entry[4])
    return {
        "tokens": encoding.encoding.tokens[: len(encoding.input_ids)],
        "token_type_ids": encoding.token_type_ids,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "attention_weights": entries[: query.top_k],
        "num_truncated": encoding.num_truncated,
    }


def _largest_weights(attention_weights: torch.Tensor, count: int, layer: int, first_head: int) -> list[list[float]]:
    """Return the largest of the attention weights (H, T, T) of a layer."""
    largest = attention_weights.flatten().topk(min(count, attention_weights.numel()))
    heads, queries, keys = np.unravel_index(largest.indices.cpu().numpy(), tuple(attention_weights.shape))
    entries = zip((heads + first_head).tolist(), queries.tolist(), keys.tolist(), largest.values.tolist(), strict=True)
    return [[layer, head, query, key, weight] for head, query, key, weight in entries]
