"""The files of a TensorFlow 1 checkpoint in, its arrays out, by TensorFlow's names.

No TensorFlow is needed. A checkpoint is a table of entries (`<prefix>.index`) and one or more files of raw numbers
(`<prefix>.data-00000-of-00001`). The table is LevelDB's: sorted keys in blocks, each key stored as what it adds to the
one before, each block followed by a checksum. TensorFlow has never written these blocks compressed since 1.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.errors import FolderError, InputError
from bertworks.models.crc32c import masked_crc32c

Array = npt.NDArray[np.generic]

MAGIC = 0xDB4775248B80FB57
FOOTER = 48  # two handles padded to 40 bytes, and the magic number
TRAILER = 5  # how a block is compressed, and its checksum
# TensorFlow's number for a type -> how it lies on disk. bfloat16 (14) is the upper half of a float32.
DTYPES = {
    1: "<f4",
    2: "<f8",
    3: "<i4",
    4: "|u1",
    5: "<i2",
    6: "|i1",
    9: "<i8",
    10: "|b1",
    14: "<u2",
    17: "<u2",
    19: "<f2",
    22: "<u4",
    23: "<u8",
}
BFLOAT16 = 14


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies, as the table says. `sliced` ones lie elsewhere, in parts."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    is_sliced: bool


@dataclass(frozen=True, slots=True)
class TensorflowCheckpoint:
    """A checkpoint whose table was read and whose data files are long enough. Numbers are read when asked for."""

    prefix: Path
    num_shards: int
    entries: dict[str, Entry]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def tensor(self, name: str) -> Array:
        """Read one tensor through a memory map, check its checksum, and return a copy of its own."""
        if name not in self.entries:
            raise InputError(f"{self.prefix} has no tensor '{name}'; .shapes lists the {len(self.entries)} it has")
        entry = self.entries[name]
        if entry.is_sliced or entry.dtype not in DTYPES:
            what = (
                "is stored in slices" if entry.is_sliced else f"is of TensorFlow's type {entry.dtype}, not of numbers"
            )
            raise FolderError(f"{self.prefix}: tensor '{name}' {what}, which cannot be read without TensorFlow")
        path = shard_path(self.prefix, entry.shard, self.num_shards)
        raw = np.memmap(path, np.uint8, "r", entry.offset, (entry.size,)) if entry.size else np.zeros(0, np.uint8)
        if masked_crc32c(raw) != entry.crc:
            raise FolderError(
                f"{path}: the bytes of tensor '{name}' do not match their checksum; download the file again"
            )
        values: Array = raw.view(DTYPES[entry.dtype])
        if entry.dtype == BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return np.array(values).reshape(entry.shape)


def read_checkpoint(prefix: Path) -> TensorflowCheckpoint:
    """Read the table of the checkpoint `prefix` (a path without .index) and check that its data files hold it all."""
    index = prefix.with_name(prefix.name + ".index")
    if not index.is_file():
        raise InputError(f"there is no {index}; give the path of a TensorFlow checkpoint without its .index")
    records = dict(_read_table(index))
    try:
        header = _numbers(records.pop(b""))
        # A part of a sliced tensor has a key that begins with a zero byte; the whole has an entry of its own.
        entries = {key.decode(): _entry(value) for key, value in records.items() if not key.startswith(b"\0")}
    except (KeyError, IndexError, ValueError) as error:
        raise FolderError(f"{index} is a table, but not that of a TensorFlow checkpoint: {error!r}") from error
    if header.get(2, 0) != 0:
        raise FolderError(f"{index} was written on a big-endian machine; save it again on a common one")
    checkpoint = TensorflowCheckpoint(prefix, header.get(1, 1), entries)
    _check_sizes(checkpoint)
    return checkpoint


def shard_path(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def find_checkpoint(folder_or_prefix: Path) -> Path:
    """Return the prefix of the one checkpoint that `place` means: a folder, a prefix, or a file of a checkpoint."""
    if not folder_or_prefix.is_dir():
        return folder_or_prefix.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", folder_or_prefix.name))
    names = sorted(path.name.removesuffix(".index") for path in folder_or_prefix.glob("*.index"))
    if not names:
        raise InputError(f"{folder_or_prefix} has no TensorFlow checkpoint: no file there ends in .index")
    latest = _latest(folder_or_prefix)
    if len(names) > 1 and latest not in names:
        raise InputError(
            f"{folder_or_prefix} has {len(names)} checkpoints ({', '.join(names)}); give the path of one, without .index"
        )
    return folder_or_prefix / (latest if latest in names else names[0])


def _latest(folder: Path) -> str:
    """The checkpoint that TensorFlow's own note, a file called `checkpoint`, names as the latest."""
    note = folder / "checkpoint"
    text = note.read_text(encoding="utf-8", errors="replace") if note.is_file() else ""
    found = re.search(r'^model_checkpoint_path:\s*"(?:.*/)?([^"/]+)"', text, re.MULTILINE)
    return found[1] if found else ""


def _check_sizes(checkpoint: TensorflowCheckpoint) -> None:
    """Refuse a checkpoint with a missing or short data file, or an entry whose size is not that of its shape."""
    lengths = []
    for shard in range(checkpoint.num_shards):
        path = shard_path(checkpoint.prefix, shard, checkpoint.num_shards)
        if not path.is_file():
            raise FolderError(
                f"{path} is missing: the checkpoint has {checkpoint.num_shards} data files; bring them all"
            )
        lengths.append(path.stat().st_size)
    for name, entry in checkpoint.entries.items():
        if entry.is_sliced or entry.dtype not in DTYPES:
            continue
        expected = math.prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize
        if entry.size != expected or entry.shard >= len(lengths):
            raise FolderError(
                f"{checkpoint.prefix}.index says that tensor '{name}' of shape {entry.shape} takes {entry.size} bytes "
                f"in data file {entry.shard}, which cannot be; download the checkpoint again"
            )
        if entry.offset + entry.size > lengths[entry.shard]:
            path = shard_path(checkpoint.prefix, entry.shard, checkpoint.num_shards)
            raise FolderError(
                f"{path} is cut short: tensor '{name}' ends at byte {entry.offset + entry.size}, the file at byte "
                f"{lengths[entry.shard]}; download it again"
            )


def _read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a LevelDB table, each block checked by its checksum."""
    data = path.read_bytes()
    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        pointer = "; it is a Git LFS pointer, run: git lfs pull" if data.startswith(b"version https://git-lfs") else ""
        raise FolderError(f"{path} is not the index of a TensorFlow checkpoint, or its end is cut off{pointer}")
    try:
        _, at = _handle(data, len(data) - FOOTER)  # the first handle leads to a table of filters, always empty here
        (start, size), _ = _handle(data, at)
        for _, value in _records(_block(data, start, size)):
            (start, size), _ = _handle(value, 0)
            yield from _records(_block(data, start, size))
    except (IndexError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); download it again") from error


def _block(data: bytes, start: int, size: int) -> bytes:
    """Return one block without its trailer."""
    end = start + size
    if end + TRAILER > len(data):
        raise ValueError(f"a block at byte {start} runs over the end")
    if masked_crc32c(data[start : end + 1]) != int.from_bytes(data[end + 1 : end + TRAILER], "little"):
        raise ValueError(f"the block at byte {start} does not match its checksum")
    if data[end] != 0:
        raise ValueError(f"the block at byte {start} is compressed, as only TensorFlow before 1.2 did")
    return data[start:end]


def _records(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; at its end lies a list of restarts, for searching, and its length."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        added, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + added]
        at += added
        yield key, block[at : at + size]
        at += size


def _handle(data: bytes, offset: int) -> tuple[tuple[int, int], int]:
    """Read where a block lies: its start and size; and where the reading ended."""
    start, offset = _varint(data, offset)
    size, offset = _varint(data, offset)
    return (start, size), offset


def _entry(data: bytes) -> Entry:
    """Read a BundleEntryProto: 1 type, 2 shape, 3 shard, 4 offset, 5 size, 6 checksum, 7 slices."""
    numbers, messages = _numbers(data), _messages(data)
    return Entry(
        dtype=numbers.get(1, 0),
        shape=_shape(messages.get(2, b"")),
        shard=numbers.get(3, 0),
        offset=numbers.get(4, 0),
        size=numbers.get(5, 0),
        crc=numbers.get(6, 0),
        is_sliced=7 in messages,
    )


def _shape(data: bytes) -> tuple[int, ...]:
    """Read a TensorShapeProto: field 2, repeated, is a dimension, whose field 1 is its size."""
    dimensions = [value for number, value in _fields(data) if number == 2 and isinstance(value, bytes)]
    return tuple(_numbers(dimension).get(1, 0) for dimension in dimensions)


def _numbers(data: bytes) -> dict[int, int]:
    return {number: value for number, value in _fields(data) if isinstance(value, int)}


def _messages(data: bytes) -> dict[int, bytes]:
    return {number: value for number, value in _fields(data) if isinstance(value, bytes)}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the numbers and values of a protobuf message's fields; a value is a number or the bytes of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field of kind {kind}")
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(data):
            raise ValueError("a field runs over the end")
        raw = data[at : at + size]
        yield key >> 3, raw if kind == 2 else int.from_bytes(raw, "little")
        at += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; return it and where the reading ended."""
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset += 1
        if byte < 128:
            return value, offset
        shift += 7
