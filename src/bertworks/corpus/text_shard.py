"""A shard of clean text: documents written to a JSON Lines file and read again, one document per line."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertworks.disk import write_bytes
from bertworks.errors import FolderError
from bertworks.reading import parse_json, unreadable_reason
from bertworks.text.document import Document


class SplitDocument(NamedTuple):
    """A document and the split it belongs to."""

    document: Document
    split: str


def write_text(path: Path, documents: Iterable[SplitDocument]) -> None:
    """Write one {"source", "split", "sentences"} per line; the concatenated sentences are the document."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    lines = [
        encode({"source": document.source, "split": split, "sentences": document.sentences})
        for document, split in documents
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def read_text(path: Path, sha256: str | None = None) -> Iterator[SplitDocument]:
    """Yield the documents of a shard in order. If its hash is given, it is compared before the first document."""
    advice = "run `bertworks prepare --verify` on its folder"
    try:
        file = path.open("rb")
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    with file:
        lines: Iterable[bytes] = file
        if sha256 is not None:
            data = file.read()
            if hashlib.sha256(data).hexdigest() != sha256:
                raise FolderError(
                    f"{path} is damaged or was changed: its sha256 is not the one in the manifest of the corpus; "
                    f"{advice}, then prepare it again"
                )
            lines = io.BytesIO(data)
        for number, line in enumerate(lines, 1):
            try:
                record = parse_json(line)
                document = SplitDocument(Document(tuple(record["sentences"]), record["source"]), record["split"])
            except (ValueError, KeyError, TypeError) as error:
                raise FolderError(f"{path}, line {number}, is damaged ({error}); {advice}") from None
            yield document
