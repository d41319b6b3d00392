"""Attributions as HTML: escaped text, one colour per sign, opacity by size, and a page that loads nothing."""

import html
import re

import numpy as np

from bertworks.display.explanations import explanation_html
from bertworks.inference.explanation import Explanation, TextAttribution
from bertworks.reports.explanation import explanation_page

TEXT = TextAttribution(
    title="text",
    text="Greatness <& good>, bad!",
    tokens=("great", "##ness", "good", "bad"),
    offsets=((0, 5), (5, 9), (13, 17), (20, 23)),
    begins_word=(True, False, True, True),
    weights=np.array([1.0, 2.0, 0.5, -1.5]),
)
EXPLANATION = Explanation(target="'liked'", texts=(TEXT,), output=2.0, baseline_output=0.0, num_steps=32)


def test_html_escapes_the_text_and_colours_words_by_sign_and_size():
    block = explanation_html(EXPLANATION)
    text = re.sub(r"<[^>]*>", "", block.split("</b>")[1].split("</p>")[0])
    assert html.unescape(text) == " Greatness <& good>, bad!"
    assert re.findall(r"rgba\((\d+), \d+, \d+, ([\d.]+)\)[^>]*title=\"([^\"]+)\"", block) == [
        ("58", "0.550", "+3.0000"),
        ("58", "0.092", "+0.5000"),
        ("255", "0.275", "-1.5000"),
    ]
    assert not re.search(r"[^-]color:|<script|<link|src=|href=", block)  # the text keeps the colour of the page


def test_the_page_is_standalone_and_escapes_its_title():
    page = explanation_page(EXPLANATION)
    assert page.startswith("<!doctype html>")
    assert explanation_html(EXPLANATION) in page
    assert "<title>&#x27;liked&#x27;</title>" in page
    assert not re.search(r"<script|<link|src=|href=", page)
