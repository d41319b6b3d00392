"""Next-token prediction: an Example in, its unchanged input_ids and the next token of each position as targets out."""

from __future__ import annotations

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample


class NextTokenTargets:
    """Masks nothing: the target of each position is the next token, which causal attention cannot see."""

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        """Return the example with its targets; no randomness is used."""
        last = [] if example.next_token is None else [example.next_token]
        targets = np.append(example.input_ids[1:], np.array(last, dtype=np.int32))
        return MaskedExample(example.input_ids, np.arange(len(targets), dtype=np.int32), targets)
