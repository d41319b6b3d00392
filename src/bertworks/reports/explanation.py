"""An explained prediction as a page: an Explanation in, standalone HTML out."""

from __future__ import annotations

from html import escape

from bertworks.display.explanations import explanation_html
from bertworks.inference.explanation import Explanation

_STYLE = "body { font: 1rem/1.5 sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }"


def explanation_page(explanation: Explanation) -> str:
    """Return a standalone page that follows the reader's light or dark color scheme."""
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    head += f"<title>{escape(explanation.target)}</title><style>{_STYLE}</style>"
    body = explanation_html(explanation)
    return f"<!doctype html>\n<html>\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n"
