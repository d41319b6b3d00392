"""Ask for the next piece: an Example in, its ids as they are, the places that something follows and what it is out."""

from __future__ import annotations

import numpy as np

from bertworks.sampling.example import Example
from bertworks.sampling.masking import Hidden


class NextPieces:
    """Hides nothing: each place is asked what follows it, which a model that reads to the left cannot see."""

    def hide(self, example: Example, generator: np.random.Generator) -> Hidden:
        """Return the example with its questions; it draws nothing."""
        behind = [] if example.behind is None else [example.behind]
        targets = np.append(example.ids[1:], np.array(behind, dtype=np.int32))
        return Hidden(example.ids, np.arange(len(targets), dtype=np.int32), targets)
