"""Why a model said something: weights of pieces in, weights of words, a line of text out.

P pieces of a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# By how much the weights may miss the difference that they explain: this share of the sum of their sizes, or this
# much, which is the noise of single precision.
TOLERANCE = 0.01
NOISE = 1e-4

# A word has one, two or three marks above these shares of the largest weight of a word.
_LEVELS = (1 / 9, 1 / 3, 2 / 3)


@dataclass(frozen=True, slots=True)
class WordAttribution:
    """A word where it stands in its text, from character `start` to before `end`; its weight is its pieces' sum."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True, slots=True)
class TextAttribution:
    """One of the texts that were read: `title` says what it is; all other fields have one element a piece."""

    title: str
    text: str
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    begins_word: tuple[bool, ...]
    weights: Floats

    @property
    def words(self) -> tuple[WordAttribution, ...]:
        found: list[WordAttribution] = []
        for (start, end), begins, weight in zip(self.offsets, self.begins_word, self.weights.tolist(), strict=True):
            if begins or not found:
                found.append(WordAttribution(start, end, weight))
            else:
                last = found[-1]
                found[-1] = WordAttribution(last.start, max(last.end, end), last.weight + weight)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which pieces drove an output. `output` is the score of the target less the mean score of what else could be.

    `baseline_output` is that of the same rows with every piece masked, and the weights sum to the difference of the
    two, but for `gap`. `elsewhere` is the weight of pieces that were read but are not shown: the document around a
    sentence. `num_cut` pieces were left out because the model's rule says so.
    """

    target: str
    texts: tuple[TextAttribution, ...]
    output: float
    baseline_output: float
    num_steps: int
    context_weight: float = 0.0
    num_truncated: int = 0

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(piece for text in self.texts for piece in text.tokens)

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """Where each piece stands, in its own text."""
        return tuple(offset for text in self.texts for offset in text.offsets)

    @property
    def weights(self) -> Floats:
        return np.concatenate([text.weights for text in self.texts])

    @property
    def convergence_delta(self) -> float:
        """By how much the weights miss the difference of the outputs: 0 if there were infinitely many steps."""
        return float(self.weights.sum()) + self.context_weight - (self.output - self.baseline_output)

    @property
    def is_complete(self) -> bool:
        """Whether the weights explain all of the difference, within the tolerance."""
        return is_converged(self.convergence_delta, float(np.abs(self.weights).sum()) + abs(self.context_weight))

    def levels(self) -> Iterator[tuple[TextAttribution, list[tuple[str, int, float]]]]:
        """Yield each text in stretches: what is written there, how strong it is from -3 to 3, and its weight.

        The stretches join to the whole text; what lies between words has no strength.
        """
        largest = max((abs(word.weight) for text in self.texts for word in text.words), default=0.0)
        for text in self.texts:
            stretches, at = [], 0
            for word in text.words:
                start, end = max(at, word.start), max(at, word.end)
                if start > at:
                    stretches.append((text.text[at:start], 0, 0.0))
                stretches.append((text.text[start:end], _level(word.weight, largest), word.weight))
                at = end
            stretches.append((text.text[at:], 0, 0.0))
            yield text, [stretch for stretch in stretches if stretch[0]]

    def to_text(self) -> str:
        """Return lines with marks behind the words that count: good[+++] speaks for the target, bad[--] against it."""
        lines = [self.headline()]
        for text, stretches in self.levels():
            marked = "".join(f"{part}[{marks(level)}]" if level else part for part, level, _ in stretches)
            lines.append(f"{text.title}: {marked}")
        return "\n".join([*lines, *self.remarks()])

    def to_dict(self) -> dict[str, Any]:
        texts = [
            {
                "title": text.title,
                "text": text.text,
                "words": [
                    {
                        "word": text.text[word.start : word.end],
                        "start": word.start,
                        "end": word.end,
                        "weight": word.weight,
                    }
                    for word in text.words
                ],
                "pieces": [
                    {"piece": piece, "start": start, "end": end, "weight": weight}
                    for piece, (start, end), weight in zip(
                        text.tokens, text.offsets, text.weights.tolist(), strict=True
                    )
                ],
            }
            for text in self.texts
        ]
        told = {"target": self.target, "output": self.output, "baseline_output": self.baseline_output, "texts": texts}
        return {
            **told,
            "elsewhere": self.context_weight,
            "gap": self.convergence_delta,
            "steps": self.num_steps,
            "cut": self.num_truncated,
        }

    def headline(self) -> str:
        return f"{self.target}: {self.output:+.3f}, and {self.baseline_output:+.3f} with every word masked"

    def remarks(self) -> list[str]:
        """Return what a reader of the picture has to know besides."""
        found = []
        if self.context_weight:
            found.append(f"the document around the sentence adds {self.context_weight:+.3f}")
        if self.num_truncated:
            found.append(f"{self.num_truncated:,} pieces were cut off by the model's window rule, and not read")
        if not self.is_complete:
            found.append(
                f"after {self.num_steps:,} steps the weights still miss the difference by {self.convergence_delta:+.3f}"
            )
        return found


def is_converged(delta: float, size: float) -> bool:
    """Whether weights whose sizes sum to `size` explain a difference well enough if they miss it by `gap`."""
    return abs(delta) <= max(TOLERANCE * size, NOISE)


def marks(level: int) -> str:
    """Return the strength of a word as one to three signs."""
    return ("+" if level > 0 else "-") * abs(level)


def _level(weight: float, largest: float) -> int:
    if not largest:
        return 0
    level = sum(abs(weight) / largest > share for share in _LEVELS)
    return level if weight > 0 else -level
