"""One shard of clean text: documents to a JSON Lines file and back, one document a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertworks.disk import write_bytes
from bertworks.errors import FolderError
from bertworks.text.document import Document


class SplitDocument(NamedTuple):
    """A document and the split it belongs to."""

    document: Document
    split: str


def write_text(path: Path, documents: Iterable[SplitDocument]) -> None:
    """Write {"source", "split", "sentences"} a line; the sentences put together are the document, spaces and all."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    lines = [
        encode({"source": document.source, "split": split, "sentences": document.sentences})
        for document, split in documents
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def read_text(path: Path) -> Iterator[SplitDocument]:
    """Yield the documents of a shard in order."""
    way_out = "run `bertworks prepare --verify` on its folder"
    try:
        file = path.open("rb")
    except OSError as error:
        raise FolderError(f"{path} cannot be opened ({error.strerror}); {way_out}") from None
    with file:
        for number, line in enumerate(file, 1):
            try:
                told = json.loads(line)
                document = SplitDocument(Document(tuple(told["sentences"]), told["source"]), told["split"])
            except (ValueError, KeyError, TypeError) as error:
                raise FolderError(f"{path}, line {number}, is damaged ({error}); {way_out}") from None
            yield document
