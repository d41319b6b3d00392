"""What a model sees: a text in; its pieces, the embeddings that are summed there, and who reads whom out.

T places, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertworks.encoders.stack import Stack
from bertworks.errors import InputError
from bertworks.sampling.batch import batch_of_rows
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

# How many components of each embedding are shown.
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Row:
    """The places of an encoding that a model can read; `num_cut` pieces are beyond them."""

    encoding: Encoding
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    num_cut: int

    @property
    def unknown(self) -> Mapping[int, str]:
        return {place: word for place, word in self.encoding.unknown.items() if place < len(self.ids)}


def tokenized(tokenizer: Tokenizer, text: str, pair: str | None) -> tuple[Encoding, dict[str, Any]]:
    """Return a text or a pair as pieces, and the same as JSON has it, each piece with the text it stands for."""
    encoding = tokenizer.encode(text, pair)
    is_second, texts = False, []
    for place, offset in enumerate(encoding.offsets):
        # The second text begins behind the separator, whatever the segments say: RoBERTa knows none.
        is_second = is_second or (pair is not None and place > 0 and offset is None)
        texts.append("" if offset is None else (pair or "" if is_second else text)[slice(*offset)])
    told = {
        "pieces": encoding.pieces,
        "ids": encoding.ids,
        "segments": encoding.segments,
        "positions": encoding.positions,
        "offsets": encoding.offsets,
        "texts": texts,
    }
    return encoding, told


def readable(encoding: Encoding, encoder: Stack) -> Row:
    """Return as much of an encoding as the model has positions for."""
    room = encoder.sizes.positions
    return Row(encoding, encoding.ids[:room], encoding.segments[:room], max(0, len(encoding) - room))


@torch.inference_mode()
def embeddings(encoder: Stack, row: Row) -> dict[str, Any]:
    """Return how long the embeddings of each place are, and the first of their components."""
    device = encoder.device
    parts = encoder.tables(torch.tensor(row.ids, device=device), torch.tensor(row.segments, device=device))
    parts["sum"] = torch.stack(tuple(parts.values())).sum(0)
    return {
        "norms": {name: values.norm(dim=1).tolist() for name, values in parts.items()},
        "sample": {name: values[:, :_SHOWN].tolist() for name, values in parts.items()},
    }


@dataclass(frozen=True, slots=True)
class Look:
    """Which links are wanted: so many of the strongest, of one layer and head or of all."""

    strongest: int
    layer: int | None = None
    head: int | None = None

    def check(self, num_layers: int, num_heads: int) -> None:
        for what, number, count in (("layer", self.layer, num_layers), ("head", self.head, num_heads)):
            if number is not None and not 0 <= number < count:
                raise InputError(f"there is no {what} {number}; this model has {count}, counted from 0")


@torch.inference_mode()
def attention(encoder: Stack, row: Row, pad: int, look: Look) -> dict[str, Any]:
    """Return the strongest links [layer, head, from, to, weight]: how much place `from` reads of place `to`."""
    num_layers, num_heads = encoder.sizes.num_layers, encoder.sizes.num_heads
    look.check(num_layers, num_heads)
    batch = batch_of_rows([row], pad).to(encoder.device)
    heads = slice(None) if look.head is None else slice(look.head, look.head + 1)
    links: list[list[float]] = []
    numbers = range(num_layers) if look.layer is None else (look.layer,)
    for number, shares in zip(numbers, encoder.shares(batch, numbers), strict=True):
        links += _strongest(shares[0, heads], look.strongest, number, look.head or 0)
    links.sort(key=lambda link: -link[4])
    return {
        "pieces": row.encoding.pieces[: len(row.ids)],
        "segments": row.segments,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "links": links[: look.strongest],
        "cut": row.num_cut,
    }


def _strongest(shares: torch.Tensor, count: int, layer: int, first_head: int) -> list[list[float]]:
    """Return the strongest links among shares (H, T, T)."""
    best = shares.flatten().topk(min(count, shares.numel()))
    heads, reader, read = np.unravel_index(best.indices.cpu().numpy(), tuple(shares.shape))
    parts = zip((heads + first_head).tolist(), reader.tolist(), read.tolist(), best.values.tolist(), strict=True)
    return [[layer, head, start, end, weight] for head, start, end, weight in parts]
