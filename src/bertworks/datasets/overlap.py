"""Train/test overlap: the texts of train and of dev or test in; how many of the latter are also in train out.

A text is a tuple of its parts (one, or the two of a pair); case and white space are ignored. Memory is 8 bytes per text
of train, and a few examples.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

# Texts looked up in one vectorized search.
_BLOCK = 1_024


@dataclass(frozen=True, slots=True)
class Overlap:
    """`count` of `total` texts are also in train; `examples` are the first of them, without duplicates."""

    count: int
    total: int
    examples: tuple[tuple[str, ...], ...]


def overlap(train_texts: Iterable[tuple[str, ...]], other: Iterable[tuple[str, ...]], max_examples: int = 5) -> Overlap:
    """Count the texts of `other` that are in train. Empty texts count in `total` only."""
    train_fingerprints = np.frombuffer(_fingerprints(train_texts), dtype=np.uint64)
    train_fingerprints.sort()  # in place, without a copy
    count = total = 0
    examples: dict[int, tuple[str, ...]] = {}
    for block in _blocks(other):
        total += len(block)
        fingerprints = np.array([_fingerprint(text) for text in block], dtype=np.uint64)
        indices = np.searchsorted(train_fingerprints, fingerprints)
        for text, fingerprint, index in zip(block, fingerprints, indices, strict=True):
            if (
                index == len(train_fingerprints)
                or train_fingerprints[index] != fingerprint
                or not any(part.strip() for part in text)
            ):
                continue
            count += 1
            if len(examples) < max_examples:
                examples.setdefault(int(fingerprint), text)
    return Overlap(count, total, tuple(examples.values()))


def _fingerprints(texts: Iterable[tuple[str, ...]]) -> array[int]:
    return array("Q", (_fingerprint(text) for text in texts))


def _fingerprint(text: tuple[str, ...]) -> int:
    """Return a 64-bit hash; the chance that a million texts collide with a million others is 1 in 18 million."""
    # Parts contain no white space but single spaces, so none can contain the separator.
    normalized = "\x1f".join(" ".join(part.casefold().split()) for part in text)
    # JSON may contain a lone surrogate, which UTF-8 cannot encode.
    return int.from_bytes(
        hashlib.blake2b(normalized.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def _blocks(texts: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    remaining = iter(texts)
    while block := list(islice(remaining, _BLOCK)):
        yield block
