"""What flows out of the text room: raw passages from the readers, clean documents from the splitter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# What happened to the text on its way: "documents dropped: too short" -> how many. Every stage adds to one and hands
# it on; whatever is cut, skipped or replaced has a line here, so that nothing is dropped in silence.
Counts = Counter[str]


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document as a reader found it: lines joined by newlines, not yet cleaned or split into sentences.

    `source` names the place for people: "emma.md", "dump.xml.bz2#Anarchism", "notes.txt:3041".
    `lines` says what a line break means here; a reader decides it once for a whole file.
    """

    text: str
    source: str
    lines: str = "paragraphs"


# What a line break means: each line is a sentence and is not split further; each line is a paragraph; or lines were
# wrapped to a width, so that a paragraph runs on over them until an empty line.
LINE_MEANINGS = ("sentences", "paragraphs", "wrapped")


@dataclass(frozen=True, slots=True)
class Document:
    """A clean document: its sentences in order, each with the white space that follows it, and where it came from.

    A sentence ends with " " where a space stood behind it, with "\\n" where its line or paragraph ended, and with
    nothing where the next one follows at once, as in Chinese. So `text` restores the clean document exactly.
    """

    sentences: tuple[str, ...]
    source: str

    @property
    def text(self) -> str:
        return "".join(self.sentences)
