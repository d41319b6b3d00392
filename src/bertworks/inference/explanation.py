"""An explained prediction: attributions of tokens in, attributions of words, plain text and JSON out.

P tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.display.explanations import explanation_html

Floats = npt.NDArray[np.float64]

# How far the sum of the weights may be from the difference that they explain: this fraction of the sum of their
# absolute values, or this much, the noise of single precision.
TOLERANCE = 0.01
NOISE = 1e-4

# A word gets one, two or three marks above these fractions of the largest word weight.
_LEVELS = (1 / 9, 1 / 3, 2 / 3)


@dataclass(frozen=True, slots=True)
class WordAttribution:
    """A word, from character `start` to `end`, exclusive; its weight is the sum over its tokens."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAttribution:
    """One of the model's input texts, with its title; the other fields have one element per token."""

    title: str
    text: str
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    begins_word: tuple[bool, ...]
    weights: Floats

    @property
    def words(self) -> tuple[WordAttribution, ...]:
        words: list[WordAttribution] = []
        for (start, end), begins_word, weight in zip(
            self.offsets, self.begins_word, self.weights.tolist(), strict=True
        ):
            if begins_word or not words:
                words.append(WordAttribution(start, end, weight))
            else:
                last = words[-1]
                words[-1] = WordAttribution(last.start, max(last.end, end), last.weight + weight)
        return tuple(words)

    def to_dict(self) -> dict[str, Any]:
        words = [
            {
                "word": self.text[word.start : word.end],
                "start": word.start,
                "end": word.end,
                "weight": word.weight,
            }
            for word in self.words
        ]
        tokens = [
            {"token": token, "start": start, "end": end, "weight": weight}
            for token, (start, end), weight in zip(self.tokens, self.offsets, self.weights.tolist(), strict=True)
        ]
        return {"title": self.title, "text": self.text, "words": words, "tokens": tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Which tokens drove an output.

    output            the score of the target minus the mean score of the alternatives
    baseline_output   the same with every token masked; the weights sum to the difference of the two
    context_weight    the weight of tokens that are not shown: the document around a sentence
    num_truncated     tokens that the window rule dropped
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
        return tuple(token for text in self.texts for token in text.tokens)

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """The offsets of each token in its own text."""
        return tuple(offset for text in self.texts for offset in text.offsets)

    @property
    def weights(self) -> Floats:
        return np.concatenate([text.weights for text in self.texts])

    @property
    def convergence_delta(self) -> float:
        """The sum of the weights minus the difference of the outputs: 0 in the limit of many steps."""
        return float(self.weights.sum()) + self.context_weight - (self.output - self.baseline_output)

    @property
    def is_complete(self) -> bool:
        """Whether the weights sum to the difference of the outputs, within the tolerance."""
        return is_converged(self.convergence_delta, float(np.abs(self.weights).sum()) + abs(self.context_weight))

    def levels(self) -> Iterator[tuple[TextAttribution, list[tuple[str, int, float]]]]:
        """Yield each text in spans: the characters, a level from -3 to 3, and the weight.

        The spans join to the whole text; what is between words has level 0.
        """
        max_weight = max((abs(word.weight) for text in self.texts for word in text.words), default=0.0)
        for text in self.texts:
            spans, position = [], 0
            for word in text.words:
                start, end = max(position, word.start), max(position, word.end)
                if start > position:
                    spans.append((text.text[position:start], 0, 0.0))
                spans.append((text.text[start:end], _level(word.weight, max_weight), word.weight))
                position = end
            spans.append((text.text[position:], 0, 0.0))
            yield text, [span for span in spans if span[0]]

    def to_text(self) -> str:
        """Return lines with marked words: good[+++] speaks for the target, bad[--] against it."""
        lines = [self.headline()]
        for text, spans in self.levels():
            marked = "".join(f"{part}[{marks(level)}]" if level else part for part, level, _ in spans)
            lines.append(f"{text.title}: {marked}")
        return "\n".join([*lines, *self.remarks()])

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "output": self.output,
            "baseline_output": self.baseline_output,
            "texts": [text.to_dict() for text in self.texts],
            "context_weight": self.context_weight,
            "convergence_delta": self.convergence_delta,
            "num_steps": self.num_steps,
            "num_truncated": self.num_truncated,
        }

    def _repr_html_(self) -> str:
        return explanation_html(self)

    def __repr__(self) -> str:
        return f"Explanation({self.to_text()!r})"

    def __str__(self) -> str:
        return self.to_text()

    def headline(self) -> str:
        return f"{self.target}: {self.output:+.3f}, and {self.baseline_output:+.3f} with every word masked"

    def remarks(self) -> list[str]:
        """Return what qualifies the weights, a sentence each."""
        remarks = []
        if self.context_weight:
            remarks.append(f"the document around the sentence adds {self.context_weight:+.3f}")
        if self.num_truncated:
            remarks.append(f"{self.num_truncated:,} tokens were truncated by the model's window rule")
        if not self.is_complete:
            remarks.append(f"after {self.num_steps:,} steps the convergence delta is {self.convergence_delta:+.3f}")
        return remarks


def is_converged(delta: float, size: float) -> bool:
    """Whether a convergence delta is within tolerance, for weights whose absolute values sum to `size`."""
    return abs(delta) <= max(TOLERANCE * size, NOISE)


def marks(level: int) -> str:
    """Return a level as one to three signs."""
    return ("+" if level > 0 else "-") * abs(level)


def _level(weight: float, max_weight: float) -> int:
    if not max_weight:
        return 0
    level = sum(abs(weight) / max_weight > threshold for threshold in _LEVELS)
    return level if weight > 0 else -level
