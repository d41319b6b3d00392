"""A plain or compressed file in, a stream of its decompressed bytes out; read errors become InputError."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

import zstandard

from bertworks.errors import InputError
from bertworks.reading import unreadable_reason
from bertworks.text.object_stores import is_address, open_object

_CHUNK = 2**16


class SupportsRead(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _ZstdReader:
    """Decompress Zstandard frames. The reader of the `zstandard` package does not report truncated files."""

    def __init__(self, raw: SupportsRead) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._unused_data = b""
        self._in_frame = False

    def read(self, size: int, /) -> bytes:
        while True:
            data = self._unused_data or self._raw.read(2**14)
            self._unused_data = b""
            if not data:
                if self._in_frame:
                    raise EOFError("ends inside a frame")
                return b""
            decompressed: bytes = self._frame.decompress(data)
            self._in_frame = not self._frame.eof
            if self._frame.eof:
                self._unused_data = self._frame.unused_data
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            if decompressed:
                return decompressed


def _gzip(raw: IO[bytes]) -> SupportsRead:
    return gzip.GzipFile(fileobj=raw, mode="rb")


COMPRESSIONS: dict[str, Callable[[IO[bytes]], SupportsRead]] = {
    ".gz": _gzip,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _ZstdReader,
}

_DECOMPRESSION_ERRORS = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
_READ_ERRORS = (OSError, RuntimeError, ValueError, OverflowError, MemoryError, struct.error, *_DECOMPRESSION_ERRORS)


class ByteStream:
    """Bytes that are read once from start to end, with `peek`; read errors become InputErrors that name the file."""

    def __init__(self, stream: SupportsRead, name: str) -> None:
        self.name = name
        self._read = stream.read
        self._buffer = bytearray()
        self.num_bom_bytes = 0
        self._decoder: codecs.IncrementalDecoder | None = None

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them; fewer only at the end."""
        self._fill(size)
        return bytes(self._buffer[:size])

    def read(self, size: int, /) -> bytes:
        self._fill(size)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def drop_byte_order_mark(self) -> None:
        """Drop a UTF-8 byte order mark; after a UTF-16 one, transcode the rest to UTF-8."""
        if self.peek(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            self._decoder = codecs.getincrementaldecoder("utf-16")()
            start, self._buffer = bytes(self._buffer), bytearray()
            self._buffer += self._transcode(start)
        elif self.peek(3) == codecs.BOM_UTF8:
            self.num_bom_bytes = len(self.read(3))

    @property
    def is_transcoded(self) -> bool:
        return self._decoder is not None

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            try:
                data = self._read(max(_CHUNK, size - len(self._buffer)))
            except _READ_ERRORS as error:
                raise InputError(_error_message(self.name, error)) from error
            if not data:
                self._buffer += self._transcode(b"", final=True)
                return
            self._buffer += self._transcode(data)

    def _transcode(self, data: bytes, final: bool = False) -> bytes:
        if self._decoder is None:
            return data
        try:
            return self._decoder.decode(data, final).encode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.name} starts as UTF-16 but is not valid UTF-16 ({error.reason}); convert it to UTF-8"
            ) from error


class RawStream(io.RawIOBase):
    """A ByteStream as a raw file object, for io.BufferedReader and io.TextIOWrapper."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _error_message(name: str, error: Exception) -> str:
    if isinstance(error, EOFError):
        return f"{name} is truncated: its compressed data ends too early; copy or download it again"
    if isinstance(error, RuntimeError):
        return f"{name} cannot be unpacked ({error}); unpack it by hand and give the text"
    if isinstance(error, OSError) and error.errno:
        return f"{name} cannot be read: {unreadable_reason(error)}"
    return f"{name} is damaged: {error}; copy or download it again"


def compression_of(name: str) -> str:
    """Return the compression suffix of a file name, or ""."""
    suffix = Path(name).suffix.lower()
    return suffix if suffix in COMPRESSIONS else ""


def open_raw(path: str, name: str) -> IO[bytes]:
    """Open a local file or an object of a store for reading bytes, without decompression."""
    if is_address(path):
        return open_object(path)
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InputError(_error_message(name, error)) from error


def decompress(raw: IO[bytes], name: str) -> ByteStream:
    """Return the decompressed bytes of an open file, by the suffix of its name."""
    suffix = compression_of(name)
    return ByteStream(COMPRESSIONS[suffix](raw) if suffix else raw, name)
