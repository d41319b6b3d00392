"""Ask for the next piece: an Example in, its ids as they are, all places but the last and what follows each out."""

from __future__ import annotations

import numpy as np

from bertworks.examples.example import Example
from bertworks.examples.masking import Hidden


class NextPieces:
    """Hides nothing: each place is asked what follows it, which a model that reads to the left cannot see."""

    def hide(self, example: Example, generator: np.random.Generator) -> Hidden:
        """Return the example with its questions; it draws nothing."""
        places = np.arange(len(example) - 1, dtype=np.int32)
        return Hidden(example.ids, places, example.ids[1:])
