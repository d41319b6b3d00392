"""Ask for the next piece: an Example in, its ids as they are, the places that something follows and what it is out."""

from __future__ import annotations

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample


class NextTokenTargets:
    """Hides nothing: each place is asked what follows it, which a model that reads to the left cannot see."""

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        """Return the example with its questions; it draws nothing."""
        behind = [] if example.next_token is None else [example.next_token]
        targets = np.append(example.input_ids[1:], np.array(behind, dtype=np.int32))
        return MaskedExample(example.input_ids, np.arange(len(targets), dtype=np.int32), targets)
