"""Permutation language modeling: an Example in, its unchanged input_ids, positions to predict and their order out."""

from __future__ import annotations

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample, Masker, MaskSettings
from bertworks.vocabulary.tokenizer import Tokenizer


class Permuter:
    """Samples the positions to predict and a factorization order of them, as in XLNet; nothing is masked.

    Only the last positions of an order are predicted, 1 / K of all: that is `mask_prob`, with K = 6 in the paper. The
    order of the positions before them does not matter: they are visible from the start.
    """

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings = MaskSettings()) -> None:
        self._masker = Masker(tokenizer, settings)

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        """Return the example with its targets, by position."""
        positions = self._masker.sample_positions(example, generator)
        permutation = np.zeros(len(example), dtype=np.int32)
        permutation[positions] = generator.permutation(len(positions)) + 1
        return MaskedExample(example.input_ids, positions.astype(np.int32), example.input_ids[positions], permutation)
