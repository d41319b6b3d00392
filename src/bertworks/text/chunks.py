"""FileChunk: a file with text or a part of one, with what a worker needs to read it."""

from __future__ import annotations

from dataclasses import dataclass

from bertworks.text.decoding import decode
from bertworks.text.document import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChunk:
    """A file or a part of one. Listing a source yields one chunk per file; splitting replaces it by smaller ones.

    kind         how it is read: a key of `readers.READERS`, or "pipe" for standard input and named pipes
    path         absolute path or address; `name` is the path relative to the source, for messages
    num_bytes    size on disk, for progress; `text_bytes` is the estimated size of its text, for grouping
    is_explicit  the user named this very file, so an empty or binary one is an error; otherwise it is skipped
    format, field, lines, encoding, header
                 how to parse it: detected once from the first bytes of the file, equal for all of its chunks; the
                 header (the first record of CSV and TSV, with its line end) is not part of any chunk's data
    data         the bytes themselves, if they were read from a stream by the main process
    offset       the first byte of the chunk in its file
    first_line   the number of its first line, or 0 if the lines before it were not counted
    """

    path: str
    name: str
    num_bytes: int
    kind: str = "file"
    is_explicit: bool = False
    text_bytes: int = 0
    skip_reason: str = ""
    format: str = ""
    field: str = ""
    lines: str = ""
    encoding: str = ""
    header: bytes = b""
    data: bytes = b""
    offset: int = 0
    first_line: int = 1
    row_group: int = 0
    starts_inside_document: bool = False
    ends_inside_document: bool = False

    def decode(self, counts: Counts) -> str:
        """Return the text of `data` with "\\n" as the only line end."""
        return decode(self.data, self.encoding, self.name, counts)

    def location(self, line: int) -> str:
        """Name a line of this chunk (counted from 0) for people: "notes.txt:3041".

        If the lines before the chunk were not counted it is "notes.txt@4194304:17", line 17 after that byte.
        """
        if self.first_line:
            return f"{self.name}:{self.first_line + line}"
        return f"{self.name}@{self.offset}:{line + 1}"
