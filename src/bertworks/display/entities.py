"""A text with its entities in, the text with each entity marked and named out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

# The hues of the types, in the order in which they occur: far apart, and translucent on light and dark pages.
_COLORS = ("58, 134, 255", "255, 122, 26", "0, 168, 107", "214, 64, 159", "150, 110, 255", "200, 160, 0")


class MarkedSpan(Protocol):
    """An entity: an EntitySpan."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def probability(self) -> float: ...


def entities_html(text: str, spans: Sequence[MarkedSpan]) -> str:
    """Return a `<div>` with the text; an entity has a background by its type, its label and its probability."""
    colors: dict[str, str] = {}
    parts, position = [], 0
    for span in sorted(spans, key=lambda span: span.start):
        color = colors.setdefault(span.label, _COLORS[len(colors) % len(_COLORS)])
        parts += [escape(text[position : span.start]), _mark(text[span.start : span.end], span, color)]
        position = span.end
    parts.append(escape(text[position:]))
    return f'<div class="entities" style="line-height: 1.9">{"".join(parts)}</div>'


def _mark(text: str, span: MarkedSpan, color: str) -> str:
    style = f"background: rgba({color}, 0.3); color: inherit; border-radius: 0.2em; padding: 0 0.2em"
    label = f'<small style="font-weight: bold">{escape(span.label)}</small>'
    return f'<mark style="{style}" title="{span.probability:.3f}">{escape(text)} {label}</mark>'
