"""Hide pieces: an Example in, its ids with some places hidden, those places and their true pieces out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError
from bertworks.examples.example import Example
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """What is hidden and how. The defaults are the paper's.

    rate          share of the pieces that are to be predicted
    mask_rate     of those, the share that becomes [MASK]
    random_rate   of those, the share that becomes a random piece; the rest stays as it is
    whole_words   hide all pieces of a word or none
    max_places    at most so many places of one example; 0 for no limit
    """

    rate: float = 0.15
    mask_rate: float = 0.8
    random_rate: float = 0.1
    whole_words: bool = False
    max_places: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1 or self.mask_rate < 0 or self.random_rate < 0:
            raise SettingsError(f"masking rates lie in 0..1; got {self.rate}, {self.mask_rate}, {self.random_rate}")
        if self.mask_rate + self.random_rate > 1 + 1e-9:
            raise SettingsError(f"mask_rate and random_rate add up to {self.mask_rate + self.random_rate}; at most 1")
        if self.max_places < 0:
            raise SettingsError(f"max_places is {self.max_places}; give a positive number, or 0 for no limit")


@dataclass(frozen=True, slots=True)
class Hidden:
    """`ids` as the model sees them; `places` in ascending order; `targets`, the true pieces there."""

    ids: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]


class Masker:
    """Hides pieces of examples of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings = MaskSettings()) -> None:
        self.settings = settings
        self._mask = tokenizer.specials.mask
        # A random piece is any ordinary one: a special or unused piece would never occur in text.
        self._ordinary = np.array(
            [
                number
                for number, piece in enumerate(tokenizer.pieces)
                if number not in tokenizer.specials.ids and not piece.startswith("[unused")
            ],
            dtype=np.int32,
        )

    def hide(self, example: Example, generator: np.random.Generator) -> Hidden:
        """Return the example with places hidden: at least one, and as near to the rate as whole words allow."""
        ordinary = np.flatnonzero(~example.is_special)
        wanted = max(1, round(self.settings.rate * len(ordinary)))
        if self.settings.max_places:
            wanted = min(wanted, self.settings.max_places)
        if self.settings.whole_words:
            places = _whole_words(example, ordinary, wanted, generator)
        else:
            places = generator.choice(ordinary, size=wanted, replace=False, shuffle=False)
        places.sort()
        targets = example.ids[places]
        ids = example.ids.copy()
        draws = generator.random(len(places))
        masked = draws < self.settings.mask_rate
        random = ~masked & (draws < self.settings.mask_rate + self.settings.random_rate)
        ids[places[masked]] = self._mask
        ids[places[random]] = self._ordinary[generator.integers(0, len(self._ordinary), int(random.sum()))]
        return Hidden(ids, places.astype(np.int32), targets)


def _whole_words(
    example: Example, ordinary: npt.NDArray[np.intp], wanted: int, generator: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Take words in random order while they fit; if none fits (one long word is all there is), a part of the first."""
    begins = example.word_starts[ordinary]
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(ordinary)))
    order = generator.permutation(len(starts))
    chosen = []
    left = wanted
    for word in order.tolist():
        if lengths[word] <= left:
            chosen.append(ordinary[starts[word] : starts[word] + lengths[word]])
            left -= int(lengths[word])
            if not left:
                break
    if not chosen:
        first = starts[order[0]]
        chosen.append(ordinary[first : first + wanted])
    return np.concatenate(chosen)
