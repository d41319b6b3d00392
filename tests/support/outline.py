"""The outline of a page: HTML in, its text, tags and attributes out."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "path", "br"}


class Outline(HTMLParser):
    """Collects the text, tags and attributes of a page, and checks that tags are nested correctly."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID or (tag == "path" and not (self.get_starttag_text() or "").endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words += f" {data}"


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    parser.words = " ".join(parser.words.split())
    return parser
