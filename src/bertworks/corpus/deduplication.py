"""Find duplicates across a whole corpus in bounded memory: sorted fingerprints of all units in, what to drop out.

Each unit writes the sorted fingerprints of its documents and long lines. They are compared one range of values at a
time, each small enough to fit in memory. Of equal documents the first in source order is kept; so is the first of a
long line that occurs too often. The result depends on the text alone, not on the order in which units were read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.disk import atomic_write
from bertworks.text.document import Document

# Minimum size of a long line in UTF-8: about 60 English letters or 20 Chinese characters.
LONG_LINE_BYTES = 60
# Number of fingerprints compared at once: about 40 MB of memory.
_MAX_COMPARED = 1_000_000
_WHOLE_DOCUMENT = 0xFFFFFFFF

_FINGERPRINT = np.dtype([("value", "<u8"), ("document", "<u4"), ("line", "<u4")])
_DROP = np.dtype([("unit", "<u4"), ("document", "<u4"), ("line", "<u4")])


def fingerprint(text: str) -> int:
    """Return a 64-bit hash of a text; two different texts collide with probability 2^-64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def lines_of(document: Document) -> Iterator[tuple[int, int, str]]:
    """Yield (first sentence, end sentence, text) of each line of a document."""
    first = 0
    for end, sentence in enumerate(document.sentences, 1):
        if sentence.endswith("\n") or end == len(document.sentences):
            yield first, end, "".join(document.sentences[first:end]) if end - first > 1 else sentence
            first = end


def long_lines(document: Document) -> Iterator[tuple[int, int, str]]:
    """Yield (index, fingerprint, text) of each long line: shorter ones repeat by chance."""
    for number, (_, _, text) in enumerate(lines_of(document)):
        # A cheap bound first, so that most short lines need not be encoded.
        if len(text) * 3 >= LONG_LINE_BYTES and len(text.encode()) >= LONG_LINE_BYTES:
            yield number, fingerprint(text.rstrip()), text


def write_fingerprints(path: Path, documents: Sequence[Document], texts: Sequence[str]) -> None:
    """Write the sorted fingerprints of the documents (with `line` = _WHOLE_DOCUMENT) and long lines of a unit."""
    rows: list[tuple[int, int, int]] = []
    for number, (document, text) in enumerate(zip(documents, texts, strict=True)):
        rows.append((fingerprint(text), number, _WHOLE_DOCUMENT))
        rows += [(value, number, line) for line, value, _ in long_lines(document)]
    array = np.array(rows, dtype=_FINGERPRINT)
    array.sort(order=("value", "document", "line"))
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def find_duplicates(fingerprints: Sequence[Path], folder: Path, max_repeats: int) -> int:
    """Compare the fingerprints of all units (in source order) and write what to drop to `folder`, range by range.

    Of a long line that occurs more than `max_repeats` times only the first copy is kept; 0 keeps all. Return the
    number of documents that are copies.
    """
    num_copies = 0
    total = sum(len(np.load(path, mmap_mode="r")) for path in fingerprints)
    num_ranges = 1 << max(0, (total // _MAX_COMPARED).bit_length())
    edges = np.array([number * (2**64 // num_ranges) for number in range(1, num_ranges)], dtype=np.uint64)
    bounds = [_bounds(path, edges) for path in fingerprints]
    for number in range(num_ranges):
        # Reopened for each range: a large corpus has more units than a process may have open files.
        parts = [
            np.array(np.load(path, mmap_mode="r")[bound[number] : bound[number + 1]])
            for path, bound in zip(fingerprints, bounds, strict=True)
        ]
        units = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) for part in parts])
        drops = _find_drops(np.concatenate(parts) if parts else np.zeros(0, _FINGERPRINT), units, max_repeats)
        with atomic_write(folder / f"drops-{number:05d}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, drops, allow_pickle=False)
        num_copies += int((drops["line"] == _WHOLE_DOCUMENT).sum())
    return num_copies


def _bounds(path: Path, edges: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the start of each range of values in the fingerprints of a unit, and the end of the last one."""
    array = np.load(path, mmap_mode="r")
    return np.concatenate(([0], np.searchsorted(array["value"], edges), [len(array)]))


def _find_drops(rows: npt.NDArray[np.void], units: npt.NDArray[np.uint32], max_repeats: int) -> npt.NDArray[np.void]:
    """Return the copies to drop among the fingerprints of one range of values."""
    is_document = rows["line"] == _WHOLE_DOCUMENT
    copies = [
        _later_copies(rows, units, np.flatnonzero(is_document), 1),
        _later_copies(rows, units, np.flatnonzero(~is_document), max_repeats or len(rows)),
    ]
    indices = np.concatenate(copies)
    drops = np.empty(len(indices), dtype=_DROP)
    drops["unit"] = units[indices]
    drops["document"] = rows["document"][indices]
    drops["line"] = rows["line"][indices]
    drops.sort(order=("unit", "document", "line"))
    return drops


def _later_copies(
    rows: npt.NDArray[np.void], units: npt.NDArray[np.uint32], indices: npt.NDArray[np.intp], max_copies: int
) -> npt.NDArray[np.intp]:
    """Return all but the first of each group of equal values with more than `max_copies` members."""
    values = rows["value"][indices]
    order = np.lexsort((rows["line"][indices], rows["document"][indices], units[indices], values))
    values = values[order]
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])) if len(values) else [])
    sizes = np.diff(np.append(starts, len(values)))
    drop = np.repeat(sizes > max_copies, sizes)
    drop[starts] = False
    return indices[order[drop]]


def drops_of_unit(folder: Path, unit: int) -> tuple[set[int], set[tuple[int, int]]]:
    """Return what to drop from a unit: whole documents, and (document, line) pairs."""
    documents: set[int] = set()
    lines: set[tuple[int, int]] = set()
    for path in sorted(folder.glob("drops-*.npy")):
        drops = np.load(path, mmap_mode="r")
        first, last = np.searchsorted(drops["unit"], [unit, unit + 1])
        for _, document, line in drops[first:last].tolist():
            if line == _WHOLE_DOCUMENT:
                documents.add(document)
            else:
                lines.add((document, line))
    return documents, lines
