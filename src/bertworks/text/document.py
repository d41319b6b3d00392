"""What the text package yields: RawDocuments from the readers, clean Documents from `cleaning`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# What happened to the text: "documents dropped: too short" -> how many. Every stage adds to the same Counts; whatever
# is truncated, skipped or replaced is counted here, so that nothing is dropped silently.
Counts = Counter[str]


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A document as read from a file, not yet cleaned or split into sentences.

    `source` is its location: "emma.md", "dump.xml.bz2#Anarchism", "notes.txt:3041". `lines`, one of LINE_MEANINGS,
    is decided once for a whole file.
    """

    text: str
    source: str
    lines: str = "paragraphs"


# The meaning of line breaks: each line is a sentence and is not split further; each line is a paragraph; or lines are
# hard-wrapped, and an empty line ends a paragraph.
LINE_MEANINGS = ("sentences", "paragraphs", "wrapped")


@dataclass(frozen=True, slots=True)
class Document:
    """A clean document: its sentences in order, each with its trailing white space, and its location.

    A sentence ends with " " before the next one, with "\\n" at the end of a line or paragraph, and with nothing where
    the next one follows directly, as in Chinese. So `text` is exactly the clean document.
    """

    sentences: tuple[str, ...]
    source: str

    @property
    def text(self) -> str:
        """The clean document."""
        return "".join(self.sentences)
