"""Hide pieces: an Example in, its ids with some places hidden, those places and their true pieces out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError
from bertworks.sampling.example import Example
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """What is hidden and how. The defaults are the paper's.

    rate          share of the pieces that are to be predicted
    mask_rate     of those, the share that becomes [MASK]
    random_rate   of those, the share that becomes a random piece; the rest stays as it is
    whole_words   hide all pieces of a word or none
    max_places    at most so many places of one example; 0 for no limit
    max_ngram     hide runs of up to so many words (without whole_words: pieces), of n with probability in proportion
                  to 1 / n, as ALBERT does with 3
    """

    mask_prob: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    whole_words: bool = False
    max_predictions: int = 0
    max_ngram: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.mask_prob <= 1 or self.mask_replace_prob < 0 or self.random_replace_prob < 0:
            raise SettingsError(
                f"masking rates lie in 0..1; got {self.mask_prob}, {self.mask_replace_prob}, {self.random_replace_prob}"
            )
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            raise SettingsError(
                f"mask_rate and random_rate add up to {self.mask_replace_prob + self.random_replace_prob}; at most 1"
            )
        if self.max_predictions < 0:
            raise SettingsError(f"max_places is {self.max_predictions}; give a positive number, or 0 for no limit")
        if self.max_ngram < 1:
            raise SettingsError(f"max_ngram is {self.max_ngram}; give 1 for single words, or more for runs of them")


@dataclass(frozen=True, slots=True)
class MaskedExample:
    """`ids` as the model sees them; `places` in ascending order; `targets`, the true pieces there.

    `permutation`, where a row is told in an order of its own: 0 what is known, then 1, 2, … the places.
    """

    input_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    permutation: npt.NDArray[np.int32] | None = None


class Masker:
    """Hides pieces of examples of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings = MaskSettings()) -> None:
        self.settings = settings
        self._mask = tokenizer.specials.mask
        # A random piece is any ordinary one: a special or unused piece would never occur in text.
        self._ordinary = np.array(
            [
                number
                for number, piece in enumerate(tokenizer.tokens)
                if number not in tokenizer.specials.ids and not piece.startswith("[unused")
            ],
            dtype=np.int32,
        )

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        """Return the example with places hidden: at least one, and as near to the rate as whole words allow."""
        places = self.sample_positions(example, generator)
        targets = example.input_ids[places]
        ids = example.input_ids.copy()
        draws = generator.random(len(places))
        masked = draws < self.settings.mask_replace_prob
        random = ~masked & (draws < self.settings.mask_replace_prob + self.settings.random_replace_prob)
        ids[places[masked]] = self._mask
        ids[places[random]] = self._ordinary[generator.integers(0, len(self._ordinary), int(random.sum()))]
        return MaskedExample(ids, places.astype(np.int32), targets)

    def sample_positions(self, example: Example, generator: np.random.Generator) -> npt.NDArray[np.intp]:
        """Return the places to predict, in ascending order."""
        ordinary = np.flatnonzero(~example.is_special)
        wanted = max(1, round(self.settings.mask_prob * len(ordinary)))
        if self.settings.max_predictions:
            wanted = min(wanted, self.settings.max_predictions)
        if self.settings.whole_words or self.settings.max_ngram > 1:
            places = np.concatenate(self._runs(example, ordinary, wanted, generator))
        else:
            places = generator.choice(ordinary, size=wanted, replace=False, shuffle=False)
        places.sort()
        return places

    def _runs(
        self, example: Example, ordinary: npt.NDArray[np.intp], num_to_mask: int, generator: np.random.Generator
    ) -> list[npt.NDArray[np.intp]]:
        """Return runs of places. They are taken in random order, and what does not fit is shortened or passed over; if
        nothing fits (one long word is all there is), a part of the first word is taken."""
        whole = self.settings.whole_words
        starts = np.flatnonzero(example.word_starts[ordinary]) if whole else np.arange(len(ordinary))
        bounds = np.append(starts, len(ordinary)).tolist()
        # A run ends where something else than the next word follows: a separator.
        joins = np.append(np.diff(ordinary)[starts[1:] - 1] == 1, False).tolist()
        order = generator.permutation(len(starts)).tolist()
        free = [True] * len(starts)
        chosen, left = [], num_to_mask
        for first, num_words in zip(order, self._run_lengths(len(order), generator), strict=True):
            last = first
            while last - first + 1 < num_words and joins[last] and free[last + 1]:
                last += 1
            while last > first and bounds[last + 1] - bounds[first] > left:
                last -= 1
            if free[first] and bounds[last + 1] - bounds[first] <= left:
                chosen.append(ordinary[bounds[first] : bounds[last + 1]])
                free[first : last + 1] = [False] * (last - first + 1)
                left -= len(chosen[-1])
                if not left:
                    break
        return chosen or [ordinary[bounds[order[0]] :][:num_to_mask]]

    def _run_lengths(self, count: int, generator: np.random.Generator) -> list[int]:
        """Return how many words each of so many runs is to have."""
        if self.settings.max_ngram == 1:
            return [1] * count
        shares = 1 / np.arange(1, self.settings.max_ngram + 1)
        return (1 + generator.choice(len(shares), size=count, p=shares / shares.sum())).tolist()
