"""The files of a TensorFlow 1 checkpoint in, its arrays by TensorFlow's names out, without TensorFlow.

A checkpoint is a table of entries (`<prefix>.index`) and files of raw data (`<prefix>.data-00000-of-00001`, …). The
table has the format of LevelDB: blocks of sorted, prefix-compressed keys, each followed by a checksum. Since version
1.2, TensorFlow does not compress blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.errors import FolderError, InputError
from bertworks.models.crc32c import masked_crc32c
from bertworks.models.tf1_slices import FULL, Extent, join_slices, slice_key
from bertworks.protobuf import fields_of, messages_of, numbers_of, read_varint
from bertworks.reading import unreadable_reason

Array = npt.NDArray[np.generic]

MAGIC = 0xDB4775248B80FB57
FOOTER = 48  # two block handles padded to 40 bytes, and the magic number
TRAILER = 5  # compression type and checksum of a block
LONGEST_KEY = 2**12  # the name of a tensor; keys share prefixes, so that longer ones could fill the memory
# TensorFlow's number of a type -> its numpy dtype on disk. bfloat16 (14) is the upper half of a float32.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The location of a tensor. The data of a partitioned one is in the entries of its `slices`."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[tuple[Extent, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorflowCheckpoint:
    """A checkpoint whose table was read and whose data files were checked for length. Data is read on access.

    `slice_entries` are those of the slices of partitioned tensors, by key.
    """

    prefix: Path
    num_shards: int
    entries: dict[str, Entry]
    slice_entries: dict[bytes, Entry] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def tensor(self, name: str) -> Array:
        """Read a tensor through a memory map, verify its checksum, and return a copy; a partitioned one is joined."""
        if name not in self.entries:
            raise InputError(f"{self.prefix} has no tensor '{name}'; see .shapes for the {len(self.entries)} it has")
        entry = self.entries[name]
        if not entry.slices:
            return self._read(name, entry)
        keys = {extents: slice_key(name, extents) for extents in entry.slices}
        try:
            parts = ((extents, self._read(name, self.slice_entries[key])) for extents, key in keys.items())
            return join_slices(entry.shape, parts)
        except (KeyError, ValueError) as error:
            reason = "a slice is missing" if isinstance(error, KeyError) else str(error)
            raise FolderError(
                f"{self.prefix}: tensor '{name}' is stored in slices, but {reason}; download the checkpoint again"
            ) from None

    def _read(self, name: str, entry: Entry) -> Array:
        if entry.dtype not in DTYPES:
            raise FolderError(
                f"{self.prefix}: tensor '{name}' has the non-numeric type {entry.dtype}, which cannot be read without "
                f"TensorFlow"
            )
        path = shard_path(self.prefix, entry.shard, self.num_shards)
        try:
            raw = np.memmap(path, np.uint8, "r", entry.offset, (entry.size,)) if entry.size else np.zeros(0, np.uint8)
        except OSError as error:
            raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from None
        if masked_crc32c(raw) != entry.crc:
            raise FolderError(
                f"{path}: the bytes of tensor '{name}' do not match their checksum; download the file again"
            )
        values: Array = raw.view(DTYPES[entry.dtype])
        if entry.dtype == BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return np.array(values).reshape(entry.shape)


def read_checkpoint(prefix: Path) -> TensorflowCheckpoint:
    """Read the table of the checkpoint `prefix` (a path without .index) and check the lengths of its data files."""
    index = prefix.with_name(prefix.name + ".index")
    if not index.is_file():
        raise InputError(f"there is no {index}; give the path of a TensorFlow checkpoint without its .index")
    records = dict(_read_table(index))
    try:
        header = numbers_of(records.pop(b""))
        # Keys of slices begin with a zero byte; the partitioned tensor has an entry, too.
        entries = {key.decode(): _entry(value) for key, value in records.items() if not key.startswith(b"\0")}
        slice_entries = {key: _entry(value) for key, value in records.items() if key.startswith(b"\0")}
    except (KeyError, IndexError, ValueError) as error:
        raise FolderError(f"{index} is a table, but not that of a TensorFlow checkpoint: {error!r}") from error
    if header.get(2, 0) != 0:
        raise FolderError(f"{index} was written on a big-endian machine; save it again on a little-endian one")
    checkpoint = TensorflowCheckpoint(prefix, header.get(1, 1), entries, slice_entries)
    _check_sizes(checkpoint)
    return checkpoint


def shard_path(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def find_checkpoint(folder_or_prefix: Path) -> Path:
    """Return the prefix of a checkpoint, given its folder, its prefix or one of its files."""
    if not folder_or_prefix.is_dir():
        return folder_or_prefix.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", folder_or_prefix.name))
    names = sorted(path.name.removesuffix(".index") for path in folder_or_prefix.glob("*.index"))
    if not names:
        raise InputError(f"{folder_or_prefix} has no TensorFlow checkpoint: no file there ends in .index")
    latest = _latest(folder_or_prefix)
    if len(names) > 1 and latest not in names:
        raise InputError(
            f"{folder_or_prefix} has {len(names)} checkpoints ({', '.join(names)}); give the path of one, without "
            f".index"
        )
    return folder_or_prefix / (latest if latest in names else names[0])


def _latest(folder: Path) -> str:
    """Return the latest checkpoint by TensorFlow's text file `checkpoint`, or ""."""
    file = folder / "checkpoint"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    match = re.search(r'^model_checkpoint_path:\s*"(?:.*/)?([^"/]+)"', text, re.MULTILINE)
    return match[1] if match else ""


def _check_sizes(checkpoint: TensorflowCheckpoint) -> None:
    """Refuse missing or truncated data files, and entries whose size does not fit their shape."""
    lengths = []
    for shard in range(checkpoint.num_shards):
        path = shard_path(checkpoint.prefix, shard, checkpoint.num_shards)
        if not path.is_file():
            raise FolderError(
                f"{path} is missing: the checkpoint has {checkpoint.num_shards} data files; copy all of them"
            )
        lengths.append(path.stat().st_size)
    slice_entries = {repr(key): entry for key, entry in checkpoint.slice_entries.items()}
    entries = {**{name: entry for name, entry in checkpoint.entries.items() if not entry.slices}, **slice_entries}
    readable = {name: entry for name, entry in entries.items() if entry.dtype in DTYPES}
    for name, entry in readable.items():
        expected_size = math.prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize
        if entry.size != expected_size or entry.shard >= len(lengths):
            raise FolderError(
                f"{checkpoint.prefix}.index says that tensor '{name}' of shape {entry.shape} takes {entry.size} bytes "
                f"in data file {entry.shard}, which does not fit; download the checkpoint again"
            )
        if entry.offset + entry.size > lengths[entry.shard]:
            path = shard_path(checkpoint.prefix, entry.shard, checkpoint.num_shards)
            raise FolderError(
                f"{path} is truncated: tensor '{name}' ends at byte {entry.offset + entry.size}, the file at byte "
                f"{lengths[entry.shard]}; download it again"
            )
    if sum(entry.size for entry in readable.values()) > sum(lengths):
        raise FolderError(f"{checkpoint.prefix}.index names more bytes than its data files have; download them again")


def _read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a LevelDB table; the checksum of each block is verified."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        pointer = "; it is a Git LFS pointer, run: git lfs pull" if data.startswith(b"version https://git-lfs") else ""
        raise FolderError(f"{path} is not the index of a TensorFlow checkpoint, or it is truncated{pointer}")
    try:
        _, offset = _handle(data, len(data) - FOOTER)  # the first handle is that of the filter block, which is empty
        (start, size), _ = _handle(data, offset)
        last_end = 0
        for _, value in _records(_block(data, start, size)):
            (start, size), _ = _handle(value, 0)
            if start < last_end:
                raise ValueError(f"the block at byte {start} overlaps the one before it")
            last_end = start + size
            yield from _records(_block(data, start, size))
    except (IndexError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); download it again") from error


def _block(data: bytes, start: int, size: int) -> bytes:
    """Return one block without its trailer."""
    end = start + size
    if end + TRAILER > len(data):
        raise ValueError(f"the block at byte {start} exceeds the file")
    if masked_crc32c(data[start : end + 1]) != int.from_bytes(data[end + 1 : end + TRAILER], "little"):
        raise ValueError(f"the block at byte {start} does not match its checksum")
    if data[end] != 0:
        raise ValueError(f"the block at byte {start} is compressed, as by TensorFlow before 1.2")
    return data[start:end]


def _records(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; it ends with a list of restart points and the length of that list."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    key, offset = b"", 0
    while offset < end:
        num_shared, offset = read_varint(block, offset)
        num_added, offset = read_varint(block, offset)
        size, offset = read_varint(block, offset)
        key = key[:num_shared] + block[offset : offset + num_added]
        if len(key) > LONGEST_KEY:
            raise ValueError(f"a name has {len(key):,} bytes")
        offset += num_added
        yield key, block[offset : offset + size]
        offset += size


def _handle(data: bytes, offset: int) -> tuple[tuple[int, int], int]:
    """Read a block handle; return the start and size of the block, and the offset behind the handle."""
    start, offset = read_varint(data, offset)
    size, offset = read_varint(data, offset)
    return (start, size), offset


def _entry(data: bytes) -> Entry:
    """Read a BundleEntryProto: 1 type, 2 shape, 3 shard, 4 offset, 5 size, 6 checksum, 7 slices."""
    numbers, messages = numbers_of(data), messages_of(data)
    return Entry(
        dtype=numbers.get(1, 0),
        shape=_shape(messages.get(2, b"")),
        shard=numbers.get(3, 0),
        offset=numbers.get(4, 0),
        size=numbers.get(5, 0),
        crc=numbers.get(6, 0),
        slices=tuple(_extents(value) for number, value in fields_of(data) if number == 7 and isinstance(value, bytes)),
    )


def _extents(data: bytes) -> tuple[Extent, ...]:
    """Read a TensorSliceProto: field 1, repeated, is an extent: 1 its start, 2 its length; without one it is full."""
    extents = [numbers_of(value) for number, value in fields_of(data) if number == 1 and isinstance(value, bytes)]
    return tuple((extent.get(1, 0), extent.get(2, FULL)) for extent in extents)


def _shape(data: bytes) -> tuple[int, ...]:
    """Read a TensorShapeProto: field 2, repeated, is a dimension, whose field 1 is its size."""
    dimensions = [value for number, value in fields_of(data) if number == 2 and isinstance(value, bytes)]
    return tuple(numbers_of(dimension).get(1, 0) for dimension in dimensions)
