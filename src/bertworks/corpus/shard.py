"""One shard of pieces: flat arrays to a file and back, memory-mapped.

A shard is a safetensors file of four arrays:
  ids            one integer a piece
  word_starts    one bit a piece, packed: does a word begin here?
  sentence_ends  where each sentence ends among the pieces
  document_ends  where each document ends among the sentences
Its documents stand in regions, in this order: for each split, first those of several sentences ("paired", which can
give a pair), then those of a single one ("lone").
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from bertworks.disk import write_bytes
from bertworks.errors import FolderError

SPLITS = ("train", "held-out")

_TYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}


@dataclass(frozen=True, slots=True)
class Region:
    """A run of documents of one shard: the counts of what is in it."""

    tokens: int = 0
    sentences: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """The arrays of a shard, in memory or mapped from its file.

    Searches ask with the arrays' own type: for any other number numpy would first copy the whole array.
    """

    input_ids: npt.NDArray[np.integer]
    word_starts: npt.NDArray[np.uint8]
    sentence_ends: npt.NDArray[np.uint32]
    document_ends: npt.NDArray[np.uint32]

    def document_span(self, sentence: int) -> tuple[int, int]:
        """Return the first sentence of the document that `sentence` is in, and the first behind it."""
        document = int(self.document_ends.searchsorted(np.uint32(sentence), side="right"))
        return self.first_sentence(document), int(self.document_ends[document])

    def document_at(self, token: int) -> int:
        """Return the document that holds `piece`."""
        return int(self.document_ends.searchsorted(np.uint32(self.sentence_at(token)), side="right"))

    def first_sentence(self, document: int) -> int:
        """Return the first sentence of `document`, or the one behind all of them."""
        return int(self.document_ends[document - 1]) if document else 0

    def sentence_at(self, token: int) -> int:
        """Return the sentence that holds `piece`."""
        return int(self.sentence_ends.searchsorted(np.uint32(token), side="right"))

    def sentence_from(self, token: int) -> int:
        """Return the first sentence that begins at `piece` or behind it."""
        return int(self.sentence_ends.searchsorted(np.uint32(token))) + 1 if token else 0

    def first_token(self, sentence: int) -> int:
        """Return the first piece of `sentence`."""
        return int(self.sentence_ends[sentence - 1]) if sentence else 0

    def unpack_word_starts(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return the word starts of the pieces `start` to `stop`, unpacked."""
        first = start // 8
        bits = np.unpackbits(self.word_starts[first : (stop + 7) // 8])
        return bits[start - 8 * first : stop - 8 * first].view(np.bool_)

    def sentences(self) -> Iterator[npt.NDArray[np.integer]]:
        """Yield the pieces of each sentence."""
        start = 0
        for end in self.sentence_ends.tolist():
            yield self.input_ids[start:end]
            start = end


def write_shard(path: Path, arrays: ShardArrays) -> None:
    """Write a shard; the same arrays always give the same bytes."""
    names = ("input_ids", "word_starts", "sentence_ends", "document_ends")
    write_bytes(path, save({name: np.ascontiguousarray(getattr(arrays, name)) for name in names}))


def map_shard(path: Path) -> ShardArrays:
    """Open a shard without reading it: its arrays are views of the mapped file."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} cannot be opened ({error}); run `bertworks prepare --verify` on its folder"
        ) from None
    try:
        header_size = int.from_bytes(mapped[:8], "little")
        header = json.loads(mapped[8 : 8 + header_size])
        arrays = {}
        for name in ("input_ids", "word_starts", "sentence_ends", "document_ends"):
            start, end = header[name]["data_offsets"]
            dtype = np.dtype(_TYPES[header[name]["dtype"]])
            count = (end - start) // dtype.itemsize
            arrays[name] = np.frombuffer(mapped, dtype=dtype, count=count, offset=8 + header_size + start)
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); run `bertworks prepare --verify` on its folder") from None
    return ShardArrays(**arrays)
