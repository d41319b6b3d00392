"""A shard of tokens: flat arrays written to a file and memory-mapped again.

A shard is a safetensors file of four arrays:
  input_ids      one integer per token
  word_starts    one bit per token, packed: whether the token begins a word
  sentence_ends  the token index after the last token of each sentence
  document_ends  the sentence index after the last sentence of each document
Documents are sorted into regions: for each split, first those with several sentences ("pairable": they can yield a
sentence pair), then those with one ("single_sentence").
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
REGIONS = ("pairable", "single_sentence")

_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}


@dataclass(frozen=True, slots=True)
class Region:
    """The size of a region: consecutive documents of one shard."""

    tokens: int = 0
    sentences: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """The arrays of a shard, in memory or mapped from its file.

    Values are converted to the dtype of an array before `searchsorted`; numpy would otherwise copy the whole array.
    """

    input_ids: npt.NDArray[np.integer]
    word_starts: npt.NDArray[np.uint8]
    sentence_ends: npt.NDArray[np.uint32]
    document_ends: npt.NDArray[np.uint32]

    def document_span(self, sentence: int) -> tuple[int, int]:
        """Return (first, end): the range of sentences of the document that contains `sentence`."""
        document = int(self.document_ends.searchsorted(np.uint32(sentence), side="right"))
        return self.first_sentence(document), int(self.document_ends[document])

    def document_at(self, token: int) -> int:
        """Return the index of the document that contains `token`."""
        return int(self.document_ends.searchsorted(np.uint32(self.sentence_at(token)), side="right"))

    def first_sentence(self, document: int) -> int:
        """Return the first sentence of `document`; for the number of documents, the number of sentences."""
        return int(self.document_ends[document - 1]) if document else 0

    def sentence_at(self, token: int) -> int:
        """Return the index of the sentence that contains `token`."""
        return int(self.sentence_ends.searchsorted(np.uint32(token), side="right"))

    def sentence_from(self, token: int) -> int:
        """Return the first sentence that begins at `token` or later."""
        return int(self.sentence_ends.searchsorted(np.uint32(token))) + 1 if token else 0

    def first_token(self, sentence: int) -> int:
        """Return the index of the first token of `sentence`."""
        return int(self.sentence_ends[sentence - 1]) if sentence else 0

    def unpack_word_starts(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return the word starts of the tokens [start, stop) as booleans."""
        first_byte = start // 8
        bits = np.unpackbits(self.word_starts[first_byte : (stop + 7) // 8])
        return bits[start - 8 * first_byte : stop - 8 * first_byte].view(np.bool_)

    def sentences(self) -> Iterator[npt.NDArray[np.integer]]:
        """Yield the input ids of each sentence."""
        start = 0
        for end in self.sentence_ends.tolist():
            yield self.input_ids[start:end]
            start = end


def write_shard(path: Path, arrays: ShardArrays) -> None:
    """Write a shard; the same arrays always give the same bytes."""
    names = ("input_ids", "word_starts", "sentence_ends", "document_ends")
    write_bytes(path, save({name: np.ascontiguousarray(getattr(arrays, name)) for name in names}))


def map_shard(path: Path) -> ShardArrays:
    """Memory-map a shard: its arrays are views of the file."""
    try:
        with path.open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} cannot be opened ({error}); run `bertworks prepare --verify` on its folder"
        ) from None
    try:
        header_size = int.from_bytes(buffer[:8], "little")
        header = json.loads(buffer[8 : 8 + header_size])
        arrays = {}
        for name in ("input_ids", "word_starts", "sentence_ends", "document_ends"):
            start, end = header[name]["data_offsets"]
            dtype = np.dtype(_DTYPES[header[name]["dtype"]])
            count = (end - start) // dtype.itemsize
            arrays[name] = np.frombuffer(buffer, dtype=dtype, count=count, offset=8 + header_size + start)
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); run `bertworks prepare --verify` on its folder") from None
    return ShardArrays(**arrays)
