"""A corpus of numbered words: its shape in, its text out; every token id identifies its document and sentence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.corpus.corpus import Corpus
from bertworks.text.cleaning import CleanSettings
from bertworks.text.sources import ReadSettings

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNUSED = tuple(f"[unused{number}]" for number in range(5))
NUM_WORDS = 10_000
FIRST_WORD = len(SPECIALS) + len(UNUSED)  # the id of the word w0
KEEP_ALL = CleanSettings(min_characters=1, max_symbol_ratio=1.0)
SENTENCE_PER_LINE = ReadSettings(lines="sentences")

# The sentence lengths of each document: [[3, 2], [4]] is w0 w1 w2 / w3 w4, then w5 w6 w7 w8.
Shape = Sequence[Sequence[int]]


@dataclass(frozen=True)
class NumberedCorpus:
    """A corpus whose token number k is the word wk."""

    corpus: Corpus
    shape: Shape

    @property
    def document_of(self) -> npt.NDArray[np.intp]:
        return np.repeat(np.arange(len(self.shape)), [sum(lengths) for lengths in self.shape])

    @property
    def sentence_of(self) -> npt.NDArray[np.intp]:
        lengths = [length for document in self.shape for length in document]
        return np.repeat(np.arange(len(lengths)), lengths)


def numbered_text(shape: Shape) -> str:
    """Return one sentence per line, with an empty line between documents."""
    numbers = itertools.count()
    return "\n\n".join(
        "\n".join(" ".join(f"w{next(numbers)}" for _ in range(length)) for length in document) for document in shape
    )
