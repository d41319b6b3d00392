"""A shard of tokens: flat arrays written to a file and read again, each range of tokens on access.

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
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from bertworks.disk import write_bytes
from bertworks.errors import FolderError
from bertworks.integrity.hashing import CHANGED, MISSING, FileProblem, hash_range, problem_of
from bertworks.integrity.verified_files import FileIdentity, verified_files

SPLITS = ("train", "held-out")
REGIONS = ("pairable", "single_sentence")

_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}
_ARRAYS = ("input_ids", "word_starts", "sentence_ends", "document_ends")
_ADVICE = "run `bertworks prepare --verify` on its folder"


@dataclass(frozen=True, slots=True)
class Region:
    """The size of a region: consecutive documents of one shard."""

    tokens: int = 0
    sentences: int = 0
    documents: int = 0


class StoredArray:
    """An array in the file of a shard: a slice of it is read on access."""

    def __init__(self, file: _ShardFile, dtype: np.dtype[Any], start: int, count: int) -> None:
        self._file, self.dtype, self._start, self._count = file, dtype, start, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: slice) -> npt.NDArray[Any]:
        start, stop, step = key.indices(self._count)
        assert step == 1, "consecutive elements only"
        item_size = self.dtype.itemsize
        data = self._file.read(self._start + start * item_size, max(0, stop - start) * item_size)
        return np.frombuffer(data, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """The arrays of a shard, in memory; those of a file read its tokens on access.

    Values are converted to the dtype of an array before `searchsorted`; numpy would otherwise copy the whole array.
    """

    input_ids: npt.NDArray[np.integer] | StoredArray
    word_starts: npt.NDArray[np.uint8] | StoredArray
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
        input_ids, start = self.input_ids[:], 0
        for end in self.sentence_ends.tolist():
            yield input_ids[start:end]
            start = end


def write_shard(path: Path, arrays: ShardArrays) -> None:
    """Write a shard; the same arrays always give the same bytes."""
    write_bytes(path, save({name: np.ascontiguousarray(getattr(arrays, name)) for name in _ARRAYS}))


def open_shard(path: Path, sha256: str | None = None) -> ShardArrays:
    """Open a shard whose file has the given hash, if it is known.

    The ends of sentences and documents are read at once, about 0.2 MB; the tokens are read on access.
    """
    file = _ShardFile(path, sha256)
    try:
        header_size = int.from_bytes(file.read(0, 8), "little")
        if header_size > file.size - 8:
            raise ValueError(f"a header of {header_size} bytes")
        header = json.loads(file.read(8, header_size))
        arrays = {name: _find_array(file, header[name], 8 + header_size) for name in _ARRAYS}
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); {_ADVICE}") from None
    return ShardArrays(
        input_ids=arrays["input_ids"],
        word_starts=arrays["word_starts"],
        sentence_ends=arrays["sentence_ends"][:],
        document_ends=arrays["document_ends"][:],
    )


def _find_array(file: _ShardFile, entry: Any, data_start: int) -> StoredArray:
    """Return an array of a safetensors file by its entry in the header."""
    start, end = (int(offset) for offset in entry["data_offsets"])
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    if not 0 <= start <= end <= file.size - data_start or (end - start) % dtype.itemsize:
        raise ValueError(f"an array from byte {start} to {end} of {file.size - data_start}")
    return StoredArray(file, dtype, data_start + start, (end - start) // dtype.itemsize)


class _ShardFile:
    """The open file of a shard. Its content is verified when it is opened, and again if the file changes.

    Ranges are read instead of memory-mapped: a mapped page of a file that was truncated, or of a disk that fails, kills
    the process, while a read that is too short is an error.
    """

    def __init__(self, path: Path, sha256: str | None) -> None:
        self._path, self._sha256 = path, sha256
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise FolderError(problem_message(path, problem_of(path.name, error))) from None
        weakref.finalize(self, os.close, self._descriptor)
        self._verify()

    @property
    def size(self) -> int:
        return self._identity.size

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on."""
        try:
            if FileIdentity.of(os.fstat(self._descriptor)) != self._identity:
                self._verify()
            data = os.pread(self._descriptor, size, start)
        except OSError as error:
            raise FolderError(problem_message(self._path, problem_of(self._path.name, error))) from None
        if len(data) < size:
            raise FolderError(f"{self._path} is damaged: it ends before byte {start + size}; {_ADVICE}")
        return data

    def _verify(self) -> None:
        """Compare the file with its hash, unless it is remembered as verified."""
        try:
            self._identity = FileIdentity.of(os.fstat(self._descriptor))
            if self._sha256 is None:
                return
            memory, is_settled = verified_files(self._path.parent), self._identity.is_settled()
            if memory.contains(self._path.name, self._identity, self._sha256):
                return
            is_equal = hash_range(self._descriptor) == self._sha256
        except OSError as error:
            raise FolderError(problem_message(self._path, problem_of(self._path.name, error))) from None
        if not is_equal:
            raise FolderError(problem_message(self._path, FileProblem(self._path.name, CHANGED)))
        if is_settled:
            memory.add(self._path.name, self._identity, self._sha256)


def problem_message(path: Path, problem: FileProblem) -> str:
    """Return the message for a shard that is missing, cannot be read, or differs from its hash in the manifest."""
    if problem.kind == MISSING:
        return f"{path} is missing; {_ADVICE}"
    if problem.kind == CHANGED:
        return (
            f"{path} is damaged or was changed: its sha256 is not the one in {path.parent / 'manifest.json'}; find all "
            f"such files with `bertworks prepare --verify` and prepare the corpus again"
        )
    return f"{path} cannot be read: {problem.detail}"
