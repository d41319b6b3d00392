"""Tell a row in an order of its own: an Example in, its ids as they are, the places told last and their order out."""

from __future__ import annotations

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample, Masker, MaskSettings
from bertworks.vocabulary.tokenizer import Tokenizer


class Permuter:
    """Draws which places come last and in which order, as XLNet does; nothing is masked.

    Only the last places of an order are predicted, 1 / K of all: that is the rate of the settings, K = 6 in the paper.
    Those before them are told from the beginning, in whatever order: it makes no difference to the last ones.
    """

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings = MaskSettings()) -> None:
        self._masker = Masker(tokenizer, settings)

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        """Return the example with its questions, in the order of their places."""
        places = self._masker.sample_positions(example, generator)
        permutation = np.zeros(len(example), dtype=np.int32)
        permutation[places] = generator.permutation(len(places)) + 1
        return MaskedExample(example.input_ids, places.astype(np.int32), example.input_ids[places], permutation)
