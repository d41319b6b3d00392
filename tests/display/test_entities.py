"""Entities in their text: escaped, in order, one color per type."""

import re

from bertworks.display.entities import entities_html
from bertworks.tasks.tag_labels import EntitySpan


def span(text: str, word: str, label: str) -> EntitySpan:
    start = text.index(word)
    return EntitySpan(start=start, end=start + len(word), label=label, text=word, probability=0.5)


def test_entities_are_marked_in_their_text():
    text = "John & Mary in Paris <3"
    html = entities_html(text, [span(text, "Paris", "LOC"), span(text, "John", "PER"), span(text, "Mary", "PER")])
    assert re.sub(r"<[^>]*>", "", html) == "John PER &amp; Mary PER in Paris LOC &lt;3"
    colors = re.findall(r"rgba\((.*?), 0.3\)", html)
    assert colors[0] == colors[1] != colors[2]
    assert html.count('title="0.500"') == 3


def test_a_text_without_entities_is_shown_as_it_is():
    assert entities_html("a < b", []) == '<div class="entities" style="line-height: 1.9">a &lt; b</div>'
