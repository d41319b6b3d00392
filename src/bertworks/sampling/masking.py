"""Masking: an Example in, its input_ids with some tokens masked, their positions and true ids out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError
from bertworks.sampling.example import Example
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSettings:
    """How tokens are masked. The defaults are the paper's.

    mask_prob             ratio of the tokens to predict
    mask_replace_prob     of those, the ratio replaced by [MASK]
    random_replace_prob   of those, the ratio replaced by a random token; the others are left unchanged
    whole_words           mask all tokens of a word or none
    max_predictions       limit of predictions per example; 0 for no limit
    max_ngram             mask runs of up to n words (without whole_words: tokens), with probability proportional to
                          1 / n, as ALBERT does with 3
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
                f"mask_prob, mask_replace_prob and random_replace_prob must lie in 0..1 (mask_prob above 0); they are"
                f" {self.mask_prob}, {self.mask_replace_prob} and {self.random_replace_prob}"
            )
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            raise SettingsError(
                "mask_replace_prob + random_replace_prob must be at most 1; it is"
                f" {self.mask_replace_prob + self.random_replace_prob}"
            )
        if self.max_predictions < 0:
            raise SettingsError(f"max_predictions = {self.max_predictions}: must be positive, or 0 for no limit")
        if self.max_ngram < 1:
            raise SettingsError(f"max_ngram = {self.max_ngram}: must be 1 (single words) or more")


@dataclass(frozen=True, slots=True)
class MaskedExample:
    """The input of a model and its targets.

    input_ids     (T,) with masked tokens replaced
    positions     (P,) the positions to predict, ascending
    targets       (P,) the true token ids there
    permutation   (T,) the factorization order, if any: 0 for visible tokens, then 1, 2, … for the positions to predict
    """

    input_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    permutation: npt.NDArray[np.int32] | None = None


class Masker:
    """Masks tokens of examples."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskSettings = MaskSettings()) -> None:
        self.settings = settings
        self._mask_id = tokenizer.mask_id
        # A random token is never special or unused: those do not occur in text.
        self._ordinary_ids = np.array(
            [
                token_id
                for token_id, token in enumerate(tokenizer.tokens)
                if token_id not in tokenizer.specials.ids and not token.startswith("[unused")
            ],
            dtype=np.int32,
        )

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        """Mask at least one token that is not special, if there is any, and as close to `mask_prob` as whole words
        allow."""
        positions = self.sample_positions(example, generator)
        targets = example.input_ids[positions]
        input_ids = example.input_ids.copy()
        draws = generator.random(len(positions))
        is_mask = draws < self.settings.mask_replace_prob
        is_random = ~is_mask & (draws < self.settings.mask_replace_prob + self.settings.random_replace_prob)
        input_ids[positions[is_mask]] = self._mask_id
        random_indices = generator.integers(0, len(self._ordinary_ids), int(is_random.sum()))
        input_ids[positions[is_random]] = self._ordinary_ids[random_indices]
        return MaskedExample(input_ids, positions.astype(np.int32), targets)

    def sample_positions(self, example: Example, generator: np.random.Generator) -> npt.NDArray[np.intp]:
        """Sample the positions to predict, in ascending order."""
        candidates = np.flatnonzero(~example.is_special)
        if not len(candidates):
            return candidates
        num_to_mask = max(1, round(self.settings.mask_prob * len(candidates)))
        if self.settings.max_predictions:
            num_to_mask = min(num_to_mask, self.settings.max_predictions)
        if self.settings.whole_words or self.settings.max_ngram > 1:
            positions = np.concatenate(self._runs(example, candidates, num_to_mask, generator))
        else:
            positions = generator.choice(candidates, size=num_to_mask, replace=False, shuffle=False)
        positions.sort()
        return positions

    def _runs(
        self, example: Example, candidates: npt.NDArray[np.intp], num_to_mask: int, generator: np.random.Generator
    ) -> list[npt.NDArray[np.intp]]:
        """Sample runs of positions: whole words, or n-grams of them.

        Runs are taken in random order; one that does not fit is shortened or skipped. If none fits (the example is one
        long word), a part of the first word is taken.
        """
        whole_words = self.settings.whole_words
        starts = np.flatnonzero(example.word_starts[candidates]) if whole_words else np.arange(len(candidates))
        bounds = np.append(starts, len(candidates)).tolist()
        # A run does not cross a special token.
        has_neighbor = np.append(np.diff(candidates)[starts[1:] - 1] == 1, False).tolist()
        order = generator.permutation(len(starts)).tolist()
        is_free = [True] * len(starts)
        runs, num_left = [], num_to_mask
        for first, num_words in zip(order, self._run_lengths(len(order), generator), strict=True):
            last = first
            while last - first + 1 < num_words and has_neighbor[last] and is_free[last + 1]:
                last += 1
            while last > first and bounds[last + 1] - bounds[first] > num_left:
                last -= 1
            if is_free[first] and bounds[last + 1] - bounds[first] <= num_left:
                runs.append(candidates[bounds[first] : bounds[last + 1]])
                is_free[first : last + 1] = [False] * (last - first + 1)
                num_left -= len(runs[-1])
                if not num_left:
                    break
        return runs or [candidates[bounds[order[0]] :][:num_to_mask]]

    def _run_lengths(self, count: int, generator: np.random.Generator) -> list[int]:
        """Sample the number of words of each of `count` runs."""
        if self.settings.max_ngram == 1:
            return [1] * count
        weights = 1 / np.arange(1, self.settings.max_ngram + 1)
        return (1 + generator.choice(len(weights), size=count, p=weights / weights.sum())).tolist()
