"""The texts of train and of dev or test in; out, how many of the latter also stand in train, and which.

A text is a tuple of its parts (one, or the two of a pair). Case and white space make no difference. Of train 8 bytes a
text are kept, of the other side nothing but a few examples.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

# Texts looked up at once: enough to make the search fast, few enough to hold.
_BLOCK = 1_024


@dataclass(frozen=True, slots=True)
class Overlap:
    """`count` of `total` texts also stand in train; `examples` are the first of them, each once, as they came."""

    count: int
    total: int
    examples: tuple[tuple[str, ...], ...]


def overlap(train_texts: Iterable[tuple[str, ...]], other: Iterable[tuple[str, ...]], max_examples: int = 5) -> Overlap:
    """Count the texts of `other` that stand in train. Empty texts are no leak and are counted in `total` only."""
    known = np.frombuffer(_fingerprints(train_texts), dtype=np.uint64)
    known.sort()  # in place, inside the array it looks at
    count = total = 0
    examples: dict[int, tuple[str, ...]] = {}
    for block in _blocks(other):
        total += len(block)
        fingerprints = np.array([_fingerprint(text) for text in block], dtype=np.uint64)
        places = np.searchsorted(known, fingerprints)
        for text, fingerprint, place in zip(block, fingerprints, places, strict=True):
            if place == len(known) or known[place] != fingerprint or not any(part.strip() for part in text):
                continue
            count += 1
            if len(examples) < max_examples:
                examples.setdefault(int(fingerprint), text)
    return Overlap(count, total, tuple(examples.values()))


def _fingerprints(texts: Iterable[tuple[str, ...]]) -> array[int]:
    return array("Q", (_fingerprint(text) for text in texts))


def _fingerprint(text: tuple[str, ...]) -> int:
    """Return 64 bits that stand for a text. That any of a million meets one of a million by chance: 1 in 18 million."""
    # White space is gone from the parts but for single spaces, so no part can hold the sign that divides them.
    same = "\x1f".join(" ".join(part.casefold().split()) for part in text)
    # JSON can hold half of a surrogate pair, which plain UTF-8 refuses.
    return int.from_bytes(hashlib.blake2b(same.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _blocks(texts: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    rest = iter(texts)
    while block := list(islice(rest, _BLOCK)):
        yield block
