"""The inside of a model for a text: an encoder and a text in, its hidden states or attention weights out.

T tokens, special ones included; L layers, H heads, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.display.heatmaps import attention_html
from bertworks.encoders.encoder import Encoder
from bertworks.errors import InputError
from bertworks.sampling.batch import collate_sequences
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextAttention:
    """The tokens of a text and the attention weights between them, (L, H, T, T): from each query to each key."""

    tokens: tuple[str, ...]
    weights: Floats

    def head(self, layer: int, head: int) -> Floats:
        """Return the attention weights (T, T) of one head; both indices count from 0."""
        num_layers, num_heads = self.weights.shape[:2]
        if not (0 <= layer < num_layers and 0 <= head < num_heads):
            raise InputError(
                f"there is no head {head} in layer {layer}; layers are from 0 to {num_layers - 1}, and heads from 0 to "
                f"{num_heads - 1}"
            )
        values: Floats = self.weights[layer, head]
        return values

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "weights": self.weights.tolist()}

    def _repr_html_(self) -> str:
        return attention_html(self.tokens, self.weights)

    def __repr__(self) -> str:
        num_layers, num_heads, length, _ = self.weights.shape
        return f"TextAttention({num_layers} layers, {num_heads} heads, {length} tokens: {' '.join(self.tokens)})"


@torch.inference_mode()
def hidden_states_of(encoder: Encoder, tokenizer: Tokenizer, text: str, pair: str | None = None) -> tuple[Floats, ...]:
    """Return the embeddings of the tokens and the output of each layer, (T, D) each: L + 1 arrays."""
    encoding = _encode(encoder, tokenizer, text, pair)
    encoder.eval()
    batch = collate_sequences([encoding], tokenizer.specials.pad).to(encoder.device)
    layers = encoder(batch).hidden_states
    return tuple(layer[: len(encoding)].float().cpu().numpy() for layer in layers)


@torch.inference_mode()
def attention_of(encoder: Encoder, tokenizer: Tokenizer, text: str, pair: str | None = None) -> TextAttention:
    """Return the attention weights of all layers and heads."""
    encoding = _encode(encoder, tokenizer, text, pair)
    encoder.eval()
    batch = collate_sequences([encoding], tokenizer.specials.pad).to(encoder.device)
    layers = encoder.attention_weights(batch, range(encoder.config.num_hidden_layers))
    return TextAttention(encoding.tokens, np.stack([layer[0].float().cpu().numpy() for layer in layers]))


def _encode(encoder: Encoder, tokenizer: Tokenizer, text: str, pair: str | None) -> Encoding:
    encoding = tokenizer.encode(text, pair)
    if len(encoding) > encoder.config.max_length:
        raise InputError(
            f"the text has {len(encoding)} tokens, but the model reads at most {encoder.config.max_length}; shorten it"
        )
    return encoding
