"""What the task `answer` returns: the answer to a question, and the next best ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bertworks.display.bars import bars_html


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """The passage's characters from `start` to `end`, exclusive, and the probability of that answer."""

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPrediction:
    """The answer, `passage[start:end]`; no answer is "" from 0 to 0. `runners_up` are the next best, best first.

    `null_odds` is the score of no answer minus that of the best span; above the task's threshold there is no answer.
    """

    id: str
    text: str
    start: int
    end: int
    probability: float
    runners_up: tuple[AnswerSpan, ...]
    null_odds: float

    @property
    def best_text(self) -> str:
        """The best span, even if the prediction is no answer."""
        return self.text or self.runners_up[0].text

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "runners_up": [asdict(span) for span in self.runners_up]}

    def _repr_html_(self) -> str:
        spans = ((span.text or "no answer", span.probability) for span in self.runners_up)
        return bars_html(self.text or "no answer", [(self.text or "no answer", self.probability), *spans])

    def __repr__(self) -> str:
        return (
            f"AnswerPrediction({self.text!r}, start={self.start}, end={self.end}, probability={self.probability:.3f})"
        )
