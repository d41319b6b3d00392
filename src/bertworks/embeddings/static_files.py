"""Word vectors on disk: our folder, and the files of word2vec and GloVe, both ways.

A folder is a model folder of the family "static": the words are the vocabulary in `tokenizer.json`, the most frequent
first, and `model.safetensors` has their table. The files of others:
  word2vec          a line "V D"; then a line for each word: it, a space, D numbers
  word2vec-binary   a line "V D"; then for each word: it, a space, D little-endian float32, and perhaps a line break
  glove             a line for each word: it, a space, D numbers; no first line

V words, D the width.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bertworks.disk import atomic_write, read_json
from bertworks.embeddings.static import StaticVectors, Table
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.text.compression import ByteStream, RawStream, decompress, open_raw

METADATA_FILE = "bertworks.json"
_TABLE = "static.pieces.weight"
_HEADER = re.compile(rb"(\d+) (\d+) *\r?\n")
_SPACE = re.compile(r"\s")
# A word longer than this, in bytes, is no word: the file is something else.
_MAX_WORD_BYTES = 2**12
_HINT = "name a folder of `bertworks vectors train`, or a file of word2vec or GloVe"


def read_vectors(path: Path) -> StaticVectors:
    """Read a folder of ours or a file of others, packed or not (.gz, .bz2, .xz, .zst); its format is found out."""
    if path.is_dir():
        return _read_folder(path)
    with open_raw(str(path), str(path)) as raw, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # what numpy says of a row that holds no number
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        lines = _VectorFileReader(stream, path.name)
        start = stream.peek(2**16)
        header = _HEADER.match(start)
        if header is None:
            return lines.read_glove()
        size = (int(header[1]), int(header[2]))
        stream.read(header.end())
        return lines.read_text(size) if _is_text(start[header.end() :], size[1]) else lines.read_binary(size)


def write_vectors(path: Path, vectors: StaticVectors, format: str) -> None:  # noqa: A002
    """Write vectors as one of FORMATS."""
    if format not in FORMATS:
        raise SettingsError(f"format '{format}' is unknown; choose one of: {', '.join(FORMATS)}")
    if format != "folder":
        for number, word in enumerate(vectors.words, 1):
            if not word or _SPACE.search(word):
                raise InputError(f"word {number}, '{word}', is empty or holds a space, which {format} cannot write")
        if path.is_dir():
            raise FolderError(f"{path} is a folder, but {format} is a file; choose another name with --out")
    FORMATS[format](path, vectors)


def check_folder(folder: Path) -> None:
    """Refuse a place that already holds something, before hours of work."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} already holds something; choose an empty or new folder with --out")


# ---------------------------------------------------------------- our folder


def _read_folder(folder: Path) -> StaticVectors:
    """Read a folder without its model: those who look words up need not wait for torch."""
    config = read_json(folder / "config.json", "a folder of word vectors (see `bertworks vectors train`)")
    if not isinstance(config, dict) or config.get("model_type") != "static":
        raise FolderError(f"{folder} holds no word vectors; {_HINT}")
    try:
        with safe_open(folder / "model.safetensors", "np") as file:
            table = file.get_tensor(_TABLE)
        vocabulary = json.loads((folder / "tokenizer.json").read_bytes())
        numbers: dict[str, int] = vocabulary["model"]["vocab"]
        num_special = len(vocabulary["added_tokens"])  # which come first
        facts = json.loads((folder / METADATA_FILE).read_bytes())
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise FolderError(f"{folder} is damaged ({error}); train it again, or copy it again") from error
    words = sorted(numbers, key=numbers.__getitem__)[num_special:]
    if table.ndim != 2 or table.dtype != np.float32 or len(words) + num_special != len(table):
        raise FolderError(f"{folder} is damaged: {len(words)} words, but a table of {table.shape}; copy it again")
    return StaticVectors(words, table[num_special:], facts)


def _write_folder(folder: Path, vectors: StaticVectors) -> None:
    from bertworks.embeddings.static_model import write_static_model  # with torch

    check_folder(folder)
    write_static_model(folder, vectors)


# ---------------------------------------------------------------- reading files of others


def _is_text(start: bytes, vector_size: int) -> bool:
    """Tell whether the first row behind the header is text: a word and `width` numbers on a line."""
    line = start.split(b"\n", 1)[0]
    try:
        return len([float(number) for number in line.rstrip().split(b" ")[-vector_size:]]) == vector_size
    except ValueError:
        return False


class _VectorFileReader:
    """Reads the rows of a file, whatever its format, and says where something is wrong."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._words: dict[str, int] = {}
        self._num_duplicates = 0

    def read_glove(self) -> StaticVectors:
        lines = self._lines(1)
        try:
            start = next(lines)
        except StopIteration:
            raise InputError(f"{self._name} is empty; {_HINT}") from None
        width = len(start[1].rstrip().split(" ")) - 1
        if width < 1:
            raise InputError(f"{self._name}, line {start[0]}: no numbers behind the word; {_HINT}")
        rows = [np.empty((0, width), dtype=np.float32)]
        block = np.empty((4096, width), dtype=np.float32)
        for number, line in chain([start], lines):
            at = len(self._words) % len(block)
            if self._parse_line(line, block[at], number) and at == len(block) - 1:
                rows.append(block.copy())
        rows.append(block[: len(self._words) % len(block)])
        return self._finish(np.concatenate(rows))

    def read_text(self, size: tuple[int, int]) -> StaticVectors:
        table = self._allocate(size)
        number = 1
        for number, line in self._lines(2):
            if number - 1 > size[0]:
                raise InputError(f"{self._name}, line {number}: the first line promised {size[0]} words; mend it")
            self._parse_line(line, table[len(self._words)], number)
        if number - 1 != size[0]:
            raise InputError(f"{self._name} ends after {number - 1} of {size[0]} words; copy or download it again")
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
            raise InputError(f"{self._name} has no word {number} of {num_words}, or is no file of vectors; {_HINT}")
        return self._stream.read(end + 1)[:-1].lstrip(b"\n").decode(errors="replace")

    def _allocate(self, size: tuple[int, int]) -> Table:
        try:
            return np.empty(size, dtype=np.float32)
        except (MemoryError, ValueError):
            raise InputError(f"{self._name} promises {size[0]} words of width {size[1]}: too many; mend it") from None

    def _lines(self, first: int) -> Iterator[tuple[int, str]]:
        """Yield the lines that are left with their numbers. Only \\n ends one: a word may hold other breaks."""
        reader = io.BufferedReader(RawStream(self._stream), 2**20)
        for number, line in enumerate(reader, first):
            yield number, line.decode(errors="replace").rstrip("\r\n")

    def _parse_line(self, line: str, row: Table, number: int) -> bool:
        """Put the numbers of a line into `row`; return False for a word that was there already."""
        # Some words of released vectors hold spaces, so that a line is cut from its end.
        word, *numbers = line.rstrip().rsplit(" ", len(row))
        try:
            row[:] = _parse_numbers(" ".join(numbers), len(row))
        except ValueError:
            raise InputError(
                f"{self._name}, line {number}: not a word and {len(row)} numbers; mend or remove it, or {_HINT}"
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
            raise InputError(f"{self._name}: the vector of '{list(self._words)[row]}' is not finite; mend or remove it")
        counts = {"words left out: met before": self._num_duplicates} if self._num_duplicates else {}
        return StaticVectors(tuple(self._words), table, {"read_from": self._name, "counts": counts})


def _parse_numbers(text: str, vector_size: int) -> Table:
    try:
        numbers = np.fromstring(text, dtype=np.float32, sep=" ")
    except DeprecationWarning as error:
        raise ValueError(text) from error
    if len(numbers) != vector_size:
        raise ValueError(text)
    return numbers


# ---------------------------------------------------------------- writing files for others


def _write_lines(path: Path, vectors: StaticVectors, header: str) -> None:
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(header)
        for word, row in zip(vectors.words, vectors.table, strict=True):
            # numpy writes the fewest digits that read back as the same number
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
