"""Token attributions as HTML: an explanation in, a block for a report or a notebook out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Protocol

# Blue is positive and orange negative, a pair that colour-blind readers tell apart. The colours are translucent and the
# text keeps the page's own colour, so it stays readable on a light and on a dark page.
POSITIVE, NEGATIVE = "58, 134, 255", "255, 122, 26"
_MAX_OPACITY = 0.55


class TitledText(Protocol):
    """A text with its title."""

    @property
    def title(self) -> str: ...


class WeightedTexts(Protocol):
    """What is drawn: an Explanation."""

    def headline(self) -> str: ...
    def remarks(self) -> list[str]: ...
    def levels(self) -> Iterator[tuple[TitledText, list[tuple[str, int, float]]]]:
        """Yield each text in spans: the characters, a level, and the weight."""
        ...


def explanation_html(explanation: WeightedTexts) -> str:
    """Return a `<div>`: one paragraph per text, each word with a background by its attribution."""
    texts = [(text.title, spans) for text, spans in explanation.levels()]
    max_weight = max((abs(weight) for _, spans in texts for _, _, weight in spans), default=0.0)
    lines = ['<div class="explanation">', f"<p>{escape(explanation.headline())}</p>"]
    for title, spans in texts:
        words = "".join(_word_span(span, weight, max_weight) for span, _, weight in spans)
        lines.append(f'<p style="line-height: 1.8"><b>{escape(title)}:</b> {words}</p>')
    return "\n".join([*lines, *_paragraphs(explanation.remarks()), "</div>"])


def _paragraphs(remarks: Iterable[str]) -> Iterator[str]:
    return (f"<p>{escape(remark)}</p>" for remark in remarks)


def _word_span(text: str, weight: float, max_weight: float) -> str:
    if not weight or not max_weight:
        return escape(text)
    opacity = _MAX_OPACITY * abs(weight) / max_weight
    color = POSITIVE if weight > 0 else NEGATIVE
    style = f"background: rgba({color}, {opacity:.3f}); border-radius: 0.2em"
    return f'<span style="{style}" title="{weight:+.4f}">{escape(text)}</span>'
