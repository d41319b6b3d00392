"""Wikipedia XML dumps: one document per article; redirects and pages outside the main namespace are skipped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from bertworks.errors import InputError
from bertworks.text.chunks import FileChunk
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format
from bertworks.text.formats.wiki_markup import prose

PAGE_START = b"<page>"

_TITLE = re.compile(r"<title>(.*?)</title>", re.S)
_NAMESPACE = re.compile(r"<ns>\s*(-?\d+)\s*</ns>")
_TEXT_START = re.compile(r"<text\b[^>]*>")
_REDIRECT = re.compile(r"\s*#(?:redirect|重定向|重新導向)", re.I)


def _find_boundary(data: bytes, start: int, chunk: FileChunk) -> int | None:
    page = data.find(PAGE_START, start)
    return page if page >= 0 else None


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    for page in _pages(chunk.decode(counts), chunk.name):
        title = _TITLE.search(page)
        name = f"{chunk.name}#{html.unescape(title[1]) if title else '?'}"
        markup = _article(page, counts)
        if markup is None:
            continue
        if text := prose(markup, counts):
            yield RawDocument(text, name, chunk.lines)
        else:
            counts["wiki pages skipped: no running text"] += 1


def _pages(text: str, name: str) -> Iterator[str]:
    start = text.find("<page>")
    while start >= 0:
        end = text.find("</page>", start)
        if end < 0:
            raise InputError(f"{name} ends inside a page: the dump is truncated; download it again")
        yield text[start:end]
        start = text.find("<page>", end)


def _article(page: str, counts: Counts) -> str | None:
    """Return the markup of the latest revision of an article; None for other pages."""
    namespace = _NAMESPACE.search(page)
    if namespace and namespace[1] != "0":
        counts["wiki pages skipped: not an article"] += 1
        return None
    # The latest revision is the last one; "<" is always escaped in its text.
    start = _TEXT_START.search(page, max(page.rfind("<text"), 0))
    has_text = start is not None and not start[0].endswith("/>")
    markup = html.unescape(page[start.end() : page.rfind("</text>")]) if start and has_text else ""
    if "<redirect" in page or _REDIRECT.match(markup):
        counts["wiki pages skipped: redirect"] += 1
        return None
    return markup


def _prepare(head: bytes, chunk: FileChunk) -> FileChunk:
    if b"<mediawiki" not in head and PAGE_START not in head:
        raise InputError(f"{chunk.name} is XML but not a MediaWiki dump; convert it to text, or use --format plain")
    return chunk


WIKIPEDIA = Format(
    name="wikipedia",
    extensions=(".xml",),
    read=_read,
    find_boundary=_find_boundary,
    prepare=_prepare,
    whole_records=True,
)
