"""Token attributions as HTML: an Explanation in, a block for a report or a whole page out."""

from __future__ import annotations

from html import escape

from bertworks.inference.explanation import Explanation

# Blue is positive and orange negative, a pair that colour-blind readers tell apart. The colours are translucent and the
# text keeps the page's own colour, so it stays readable on a light and on a dark page.
_COLORS = {True: "58, 134, 255", False: "255, 122, 26"}
_MAX_OPACITY = 0.55
_STYLE = "body { font: 1rem/1.5 sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }"


def explanation_html(explanation: Explanation) -> str:
    """Return a `<div>`: one paragraph per text, each word with a background by its attribution."""
    max_weight = max((abs(word.weight) for text in explanation.texts for word in text.words), default=0.0)
    lines = ['<div class="explanation">', f"<p>{escape(explanation.headline())}</p>"]
    for text, spans in explanation.levels():
        words = "".join(_word_span(span, weight, max_weight) for span, _, weight in spans)
        lines.append(f'<p style="line-height: 1.8"><b>{escape(text.title)}:</b> {words}</p>')
    return "\n".join([*lines, *(f"<p>{escape(remark)}</p>" for remark in explanation.remarks()), "</div>"])


def explanation_page(explanation: Explanation) -> str:
    """Return a standalone page that follows the reader's light or dark color scheme."""
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    head += f"<title>{escape(explanation.target)}</title><style>{_STYLE}</style>"
    body = explanation_html(explanation)
    return f"<!doctype html>\n<html>\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n"


def _word_span(text: str, weight: float, max_weight: float) -> str:
    if not weight or not max_weight:
        return escape(text)
    opacity = _MAX_OPACITY * abs(weight) / max_weight
    style = f"background: rgba({_COLORS[weight > 0]}, {opacity:.3f}); border-radius: 0.2em"
    return f'<span style="{style}" title="{weight:+.4f}">{escape(text)}</span>'
