"""Static word vectors on disk: our model folder, and the formats of word2vec and GloVe, reading and writing.

A folder is a model folder of the family "static": the words are the vocabulary in `tokenizer.json`, the most frequent
first, and `model.safetensors` has their table. The other formats:
  word2vec          a line "V D"; then one line per word: the word, a space, D numbers
  word2vec-binary   a line "V D"; then for each word: the word, a space, D little-endian float32, an optional newline
  glove             one line per word: the word, a space, D numbers; no header

V words, D vector size.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bertworks.disk import atomic_write, is_vacant, read_json
from bertworks.embeddings.static import StaticVectors, Table
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.integrity.model_files import check_model_files
from bertworks.reading import unreadable_reason
from bertworks.text.compression import ByteStream, RawStream, decompress, open_raw

# `encoders.static.TABLE`, without its import of torch, and the name of older folders.
_TABLES = ("embedding.weight", "static.token_embeddings.weight")
_HEADER = re.compile(rb"(\d{1,12}) (\d{1,12}) *\r?\n")
_SPACE = re.compile(r"\s")
# A longer word, in bytes, means that the file is not a file of vectors.
_MAX_WORD_BYTES = 2**12
_MAX_VECTOR_SIZE = 2**16
_HINT = "give a folder of `bertworks word-vectors train`, or a file of word2vec or GloVe"


def read_vectors(path: str | Path) -> StaticVectors:
    """Read a folder, or a file in any format, compressed or not (.gz, .bz2, .xz, .zst); the format is detected."""
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    with open_raw(str(path), str(path)) as raw, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy's warning for a line without numbers
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        reader = _VectorFileReader(stream, path.name)
        start = stream.peek(2**16)
        header = _HEADER.match(start)
        if header is None:
            return reader.read_glove()
        size = (int(header[1]), int(header[2]))
        stream.read(header.end())
        return reader.read_text(size) if _is_text(start[header.end() :], size[1]) else reader.read_binary(size)


def write_vectors(path: str | Path, vectors: StaticVectors, format: str) -> None:  # noqa: A002
    """Write vectors in a format of FORMATS."""
    path = Path(path)
    if format not in FORMATS:
        raise SettingsError(f"format '{format}' is unknown; choose one of: {', '.join(FORMATS)}")
    if format != "folder":
        for number, word in enumerate(vectors.words, 1):
            if not word or _SPACE.search(word):
                raise InputError(
                    f"word {number}, '{word}', is empty or contains white space, which {format} cannot represent"
                )
        if path.is_dir():
            raise FolderError(f"{path} is a folder, but {format} is a file format; choose another path with --output")
    FORMATS[format](path, vectors)


def check_folder(folder: Path) -> None:
    """Raise a FolderError if the folder is not empty; called before long computations."""
    if not is_vacant(folder):
        raise FolderError(f"{folder} is not empty; choose an empty or new folder with --output")


# ---------------------------------------------------------------- our folder


def _read_folder(folder: Path) -> StaticVectors:
    """Read the table without building a model, so that word lookup does not import torch."""
    config = read_json(folder / "config.json", "a folder of word vectors (see `bertworks word-vectors train`)")
    if not isinstance(config, dict) or config.get("model_type") != "static":
        raise FolderError(f"{folder} contains no word vectors; {_HINT}")
    metadata = check_model_files(folder)
    vocabulary = read_json(folder / "tokenizer.json", "the vocabulary of word vectors")
    try:
        with safe_open(folder / "model.safetensors", "np") as file:
            stored = set(file.keys())
            table = file.get_tensor(next((name for name in _TABLES if name in stored), _TABLES[0]))
        token_to_id: dict[str, int] = vocabulary["model"]["vocab"]
        num_special = len(vocabulary["added_tokens"])  # which come first
        words = sorted(token_to_id, key=token_to_id.__getitem__)[num_special:]
    except OSError as error:
        raise FolderError(f"{folder} cannot be read: {unreadable_reason(error)}") from None
    except (AttributeError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise FolderError(f"{folder} is damaged ({error}); train or copy it again") from error
    if table.ndim != 2 or table.dtype != np.float32 or len(words) + num_special != len(table):
        raise FolderError(f"{folder} is damaged: {len(words)} words, but a table of {table.shape}; copy it again")
    return StaticVectors(words, table[num_special:], metadata)


def _write_folder(folder: Path, vectors: StaticVectors) -> None:
    from bertworks.embeddings.static_model import write_static_model  # imports torch

    check_folder(folder)
    write_static_model(folder, vectors)


# ---------------------------------------------------------------- reading other formats


def _is_text(start: bytes, vector_size: int) -> bool:
    """Whether the first entry after the header is text: a word and `vector_size` numbers on a line."""
    line = start.split(b"\n", 1)[0]
    try:
        return len([float(number) for number in line.rstrip().split(b" ")[-vector_size:]]) == vector_size
    except ValueError:
        return False


class _VectorFileReader:
    """Reads a file of vectors in any format; its errors name the line or the word."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._words: dict[str, int] = {}
        self._num_duplicates = 0

    def read_glove(self) -> StaticVectors:
        lines = self._lines(1)
        try:
            first_line = next(lines)
        except StopIteration:
            raise InputError(f"{self._name} is empty; {_HINT}") from None
        vector_size = len(first_line[1].rstrip().split(" ")) - 1
        if vector_size < 1:
            raise InputError(f"{self._name}, line {first_line[0]}: no numbers after the word; {_HINT}")
        blocks = [np.empty((0, vector_size), dtype=np.float32)]
        block = np.empty((4096, vector_size), dtype=np.float32)
        for line_number, line in chain([first_line], lines):
            row = len(self._words) % len(block)
            if self._parse_line(line, block[row], line_number) and row == len(block) - 1:
                blocks.append(block.copy())
        blocks.append(block[: len(self._words) % len(block)])
        return self._finish(np.concatenate(blocks))

    def read_text(self, size: tuple[int, int]) -> StaticVectors:
        table = self._allocate(size)
        line_number = 1
        for line_number, line in self._lines(2):
            if line_number - 1 > size[0]:
                raise InputError(f"{self._name}, line {line_number}: the header states {size[0]} words; correct it")
            self._parse_line(line, table[len(self._words)], line_number)
        if line_number - 1 != size[0]:
            raise InputError(f"{self._name} ends after {line_number - 1} of {size[0]} words; copy or download it again")
        return self._finish(table[: len(self._words)])

    def read_binary(self, size: tuple[int, int]) -> StaticVectors:
        table = self._allocate(size)
        num_bytes = 4 * size[1]
        for number in range(1, size[0] + 1):
            word = self._binary_word(number, size[0])
            data = self._stream.read(num_bytes)
            if len(data) < num_bytes:
                raise InputError(f"{self._name} ends in word {number} of {size[0]}; copy or download it again")
            if self._add_word(word):
                table[len(self._words) - 1] = np.frombuffer(data, dtype="<f4")
        return self._finish(table[: len(self._words)])

    def _binary_word(self, number: int, num_words: int) -> str:
        ahead = self._stream.peek(_MAX_WORD_BYTES)
        end = ahead.find(b" ", 1)
        if end < 0:
            raise InputError(f"{self._name} lacks word {number} of {num_words}, or is not a file of vectors; {_HINT}")
        return self._stream.read(end + 1)[:-1].lstrip(b"\n").decode(errors="replace")

    def _allocate(self, size: tuple[int, int]) -> Table:
        try:
            if size[1] > _MAX_VECTOR_SIZE:
                raise ValueError(size)
            return np.empty(size, dtype=np.float32)
        except (MemoryError, ValueError):
            raise InputError(
                f"{self._name} states {size[0]} vectors of size {size[1]}: too many; correct the header"
            ) from None

    def _lines(self, first: int) -> Iterator[tuple[int, str]]:
        """Yield the remaining lines with their numbers. Only \\n ends a line: words may contain other line breaks."""
        reader = io.BufferedReader(RawStream(self._stream), 2**20)
        for number, line in enumerate(reader, first):
            yield number, line.decode(errors="replace").rstrip("\r\n")

    def _parse_line(self, line: str, row: Table, number: int) -> bool:
        """Write the numbers of a line into `row`; return False if the word is a duplicate."""
        # Some words of released vectors contain spaces, so a line is split from its end.
        word, *numbers = line.rstrip().rsplit(" ", len(row))
        try:
            row[:] = _parse_numbers(" ".join(numbers), len(row))
        except ValueError:
            raise InputError(
                f"{self._name}, line {number}: not a word and {len(row)} numbers; correct or remove it, or {_HINT}"
            ) from None
        return self._add_word(word)

    def _add_word(self, word: str) -> bool:
        if word in self._words:
            self._num_duplicates += 1
            return False
        self._words[word] = len(self._words)
        return True

    def _finish(self, table: Table) -> StaticVectors:
        if not np.isfinite(table).all():
            row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise InputError(
                f"{self._name}: the vector of '{list(self._words)[row]}' is not finite; correct or remove it"
            )
        counts = {"words left out: duplicates": self._num_duplicates} if self._num_duplicates else {}
        return StaticVectors(tuple(self._words), table, {"read_from": self._name, "counts": counts})


def _parse_numbers(text: str, vector_size: int) -> Table:
    try:
        numbers = np.fromstring(text, dtype=np.float32, sep=" ")
    except DeprecationWarning as error:
        raise ValueError(text) from error
    if len(numbers) != vector_size:
        raise ValueError(text)
    return numbers


# ---------------------------------------------------------------- writing other formats


def _write_lines(path: Path, vectors: StaticVectors, header: str) -> None:
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(header)
        for word, row in zip(vectors.words, vectors.table, strict=True):
            # numpy writes the fewest digits that round-trip
            file.write(f"{word} {' '.join(row.astype(str))}\n")


def _write_word2vec(path: Path, vectors: StaticVectors) -> None:
    _write_lines(path, vectors, f"{len(vectors)} {vectors.vector_size}\n")


def _write_glove(path: Path, vectors: StaticVectors) -> None:
    _write_lines(path, vectors, "")


def _write_binary(path: Path, vectors: StaticVectors) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(vectors)} {vectors.vector_size}\n".encode())
        for word, row in zip(vectors.words, vectors.table.astype("<f4"), strict=True):
            file.write(word.encode() + b" " + row.tobytes() + b"\n")


FORMATS: dict[str, Callable[[Path, StaticVectors], None]] = {
    "folder": _write_folder,
    "word2vec": _write_word2vec,
    "word2vec-binary": _write_binary,
    "glove": _write_glove,
}
