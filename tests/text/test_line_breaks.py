"""The meaning of line breaks, detected in samples written by hand."""

from __future__ import annotations

import pytest

from bertworks.text.line_breaks import line_meaning

SENTENCES = "The cat sat down.\n“Where is Mr. Smith?”\nHe left (at once).\n\nA new document starts here.\n"
CHINESE_SENTENCES = "今天天气很好。\n“我们去哪里？”\n\n走吧！\n他说：走；\n"
PARAGRAPHS = (
    "The cat sat down. It slept. Nobody came to wake it up, and so it slept on.\nA title\nShort one. Two. Three.\n"
    "And a much longer paragraph that nobody wrapped, with several sentences in it. Here is one. Here is another one.\n"
)
WRAPPED = """It was a bright cold day in April, and all the clocks were
striking thirteen. He slipped quickly through the glass
doors of the house.

The hallway smelt of boiled cabbage and old rag mats. At
one end of it a coloured poster, too large for indoor use,
had been tacked to the wall.
"""
CHINESE_WRAPPED = """　　今天天气很好，我们一家人决定去城外的公园里面玩，
顺便看看那里的湖水和山上的红叶，孩子们都非常高兴，
一早就起来了。
"""


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (SENTENCES, "sentences"),
        (CHINESE_SENTENCES, "sentences"),
        (PARAGRAPHS, "paragraphs"),
        (WRAPPED, "wrapped"),
        (CHINESE_WRAPPED, "wrapped"),
        ("word\n" * 1000, "paragraphs"),
        ("One paragraph per line, which has two. Sentences.\n\n" * 9, "paragraphs"),
        ("", "paragraphs"),
        ("\n \n", "paragraphs"),
    ],
)
def test_line_meaning_is_detected(text: str, meaning: str) -> None:
    assert line_meaning(text) == meaning
