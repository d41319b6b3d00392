"""Find duplicates across a whole corpus in bounded memory: fingerprints of every unit in, what to drop out.

A unit writes the fingerprints of its documents and long lines, sorted. They are then compared one range of values at
a time, each range small enough for memory, so that a corpus of any size needs the same. Of equal documents the first
in source order stays; of a long line that occurs more often than allowed, the first too. So the outcome depends on the
text alone, not on who read it when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.disk import atomic_write
from bertworks.text.document import Document

# A line is long from so many bytes of UTF-8 on: about 60 English letters or 20 Chinese characters. "Yes." is not.
LONG_LINE_BYTES = 60
# Fingerprints compared at once: about 40 MB of memory.
_MAX_COMPARED = 1_000_000
_WHOLE_DOCUMENT = 0xFFFFFFFF

_FINGERPRINT = np.dtype([("value", "<u8"), ("document", "<u4"), ("line", "<u4")])
_DROP = np.dtype([("unit", "<u4"), ("document", "<u4"), ("line", "<u4")])


def fingerprint(text: str) -> int:
    """Return 64 bits that stand for a text. Two different texts share one with probability 2^-64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def lines_of(document: Document) -> Iterator[tuple[int, int, str]]:
    """Yield (first sentence, sentence behind the last, text) of each line of a document."""
    first = 0
    for place, sentence in enumerate(document.sentences, 1):
        if sentence.endswith("\n") or place == len(document.sentences):
            yield first, place, "".join(document.sentences[first:place]) if place - first > 1 else sentence
            first = place


def long_lines(document: Document) -> Iterator[tuple[int, int, str]]:
    """Yield (number, fingerprint, text) of each line that is long enough to be no accident when it comes again."""
    for number, (_, _, text) in enumerate(lines_of(document)):
        # Few characters cannot be many bytes: most short lines need not be encoded to be known as short.
        if len(text) * 3 >= LONG_LINE_BYTES and len(text.encode()) >= LONG_LINE_BYTES:
            yield number, fingerprint(text.rstrip()), text


def write_fingerprints(path: Path, documents: Sequence[Document], texts: Sequence[str]) -> None:
    """Write the sorted fingerprints of a unit's documents and long lines; `line` is _WHOLE_DOCUMENT for a document."""
    rows: list[tuple[int, int, int]] = []
    for number, (document, whole) in enumerate(zip(documents, texts, strict=True)):
        rows.append((fingerprint(whole), number, _WHOLE_DOCUMENT))
        rows += [(value, number, line) for line, value, _ in long_lines(document)]
    array = np.array(rows, dtype=_FINGERPRINT)
    array.sort(order=("value", "document", "line"))
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def find_duplicates(fingerprints: Sequence[Path], folder: Path, max_repeats: int) -> int:
    """Compare the fingerprints of all units (in source order) and write what to drop to `folder`, range by range.

    Of a long line that occurs more than `max_repeats` times the first copy stays; with 0 all of them do. Return how
    many whole documents are copies.
    """
    num_copies = 0
    total = sum(len(np.load(path, mmap_mode="r")) for path in fingerprints)
    num_ranges = 1 << max(0, (total // _MAX_COMPARED).bit_length())
    edges = np.array([number * (2**64 // num_ranges) for number in range(1, num_ranges)], dtype=np.uint64)
    bounds = [_bounds(path, edges) for path in fingerprints]
    for number in range(num_ranges):
        # Opened again for each range: a large corpus has more units than a process may hold files open.
        parts = [
            np.array(np.load(path, mmap_mode="r")[bound[number] : bound[number + 1]])
            for path, bound in zip(fingerprints, bounds, strict=True)
        ]
        units = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) for part in parts])
        drops = _drops_of(np.concatenate(parts) if parts else np.zeros(0, _FINGERPRINT), units, max_repeats)
        with atomic_write(folder / f"drops-{number:05d}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, drops, allow_pickle=False)
        num_copies += int((drops["line"] == _WHOLE_DOCUMENT).sum())
    return num_copies


def _bounds(path: Path, edges: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return where each range of values begins in a unit's fingerprints, and where the last one ends."""
    array = np.load(path, mmap_mode="r")
    return np.concatenate(([0], np.searchsorted(array["value"], edges), [len(array)]))


def _drops_of(rows: npt.NDArray[np.void], units: npt.NDArray[np.uint32], max_repeats: int) -> npt.NDArray[np.void]:
    """Return the copies to drop among rows that share a range of values."""
    is_document = rows["line"] == _WHOLE_DOCUMENT
    dropped = [
        _later_copies(rows, units, np.flatnonzero(is_document), 1),
        _later_copies(rows, units, np.flatnonzero(~is_document), max_repeats or len(rows)),
    ]
    chosen = np.concatenate(dropped)
    drops = np.empty(len(chosen), dtype=_DROP)
    drops["unit"] = units[chosen]
    drops["document"] = rows["document"][chosen]
    drops["line"] = rows["line"][chosen]
    drops.sort(order=("unit", "document", "line"))
    return drops


def _later_copies(
    rows: npt.NDArray[np.void], units: npt.NDArray[np.uint32], indices: npt.NDArray[np.intp], max_copies: int
) -> npt.NDArray[np.intp]:
    """Return all but the first of each group of equal values that has more than `allowed` members."""
    values = rows["value"][indices]
    order = np.lexsort((rows["line"][indices], rows["document"][indices], units[indices], values))
    values = values[order]
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])) if len(values) else [])
    sizes = np.diff(np.append(starts, len(values)))
    drop = np.repeat(sizes > max_copies, sizes)
    drop[starts] = False
    return indices[order[drop]]


def drops_of_unit(folder: Path, unit: int) -> tuple[set[int], set[tuple[int, int]]]:
    """Return what a unit is to drop: whole documents, and (document, line) pairs."""
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
