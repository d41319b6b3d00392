"""A Wikipedia XML dump in, one Passage an article out; redirects and pages outside the main namespace are skipped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from bertworks.errors import InputError
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import FileChunk, FileSpec, Format
from bertworks.text.formats.wiki_markup import prose

PAGE_START = b"<page>"

_TITLE = re.compile(r"<title>(.*?)</title>", re.S)
_NAMESPACE = re.compile(r"<ns>\s*(-?\d+)\s*</ns>")
_TEXT_START = re.compile(r"<text\b[^>]*>")
_REDIRECT = re.compile(r"\s*#(?:redirect|重定向|重新導向)", re.I)


def _find_boundary(data: bytes, at: int, spec: FileSpec) -> int | None:
    found = data.find(PAGE_START, at)
    return found if found >= 0 else None


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    for page in _pages(chunk.text(counts), chunk.spec.name):
        title = _TITLE.search(page)
        name = f"{chunk.spec.name}#{html.unescape(title[1]) if title else '?'}"
        markup = _article(page, counts)
        if markup is None:
            continue
        if words := prose(markup, counts):
            yield RawDocument(words, name, chunk.spec.lines)
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
    """The markup of an article's newest revision; None for other pages."""
    namespace = _NAMESPACE.search(page)
    if namespace and namespace[1] != "0":
        counts["wiki pages skipped: not an article"] += 1
        return None
    # The newest revision is the last; "<" never stands in its text as such.
    start = _TEXT_START.search(page, max(page.rfind("<text"), 0))
    has_text = start is not None and not start[0].endswith("/>")
    markup = html.unescape(page[start.end() : page.rfind("</text>")]) if start and has_text else ""
    if "<redirect" in page or _REDIRECT.match(markup):
        counts["wiki pages skipped: redirect"] += 1
        return None
    return markup


def _prepare(head: bytes, spec: FileSpec) -> FileSpec:
    if b"<mediawiki" not in head and PAGE_START not in head:
        raise InputError(f"{spec.name} is XML but not a MediaWiki dump; convert it to text, or use --format plain")
    return spec


WIKIPEDIA = Format("wikipedia", (".xml",), _read, _find_boundary, prepare=_prepare, whole_records=True)
