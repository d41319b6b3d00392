"""Bytes of an unknown encoding in, text out: UTF-8, UTF-16, GB18030 or cp1252, decided from a file's first bytes."""

from __future__ import annotations

import codecs
import re

from bertworks.errors import InputError
from bertworks.text.document import Counts

HEAD_BYTES = 2**20

# First bytes of files that users pass by mistake, and what to do about each.
_SIGNATURES = (
    (b"\x1f\x8b", "gzip data; give it a name that ends in .gz, or unpack it first"),
    (b"BZh9", "bzip2 data; give it a name that ends in .bz2, or unpack it first"),
    (b"\xfd7zXZ\x00", "xz data; give it a name that ends in .xz, or unpack it first"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data; give it a name that ends in .zst, or unpack it first"),
    (b"PK\x03\x04", "a zip archive; give it a name that ends in .zip if text is inside, or convert it to text"),
    (b"PAR1", "a Parquet file; give it a name that ends in .parquet"),
    (b"%PDF-", "a PDF file; convert it to text first"),
)
# Bytes that hardly ever occur in text, in any encoding that we support.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a\x1b"))
_MAX_CONTROL_RATIO = 0.005

# In real GB18030 text nearly all high bytes form pairs of GB 2312, both bytes high. In single-byte western encodings
# they occur alone between ASCII letters.
_GB_PAIRS = re.compile(rb"(?:[\xa1-\xf7][\xa1-\xfe])+")
_HIGH_BYTES = bytes(range(128, 256))
_MIN_PAIR_RATIO = 0.8


def non_text_reason(head: bytes) -> str:
    """Return what a file is if it is not text, and what to do about it; "" for text."""
    for signature, reason in _SIGNATURES:
        if head.startswith(signature):
            return reason
    num_controls = len(head) - len(head.translate(None, _CONTROLS))
    if num_controls > _MAX_CONTROL_RATIO * len(head):
        return "binary, not text; convert it to text or leave it out"
    return ""


def detect_encoding(head: bytes) -> str:
    """Decide the encoding of a file from its first bytes: "utf-8", "gb18030" or "cp1252"."""
    if is_valid_prefix(head, "utf-8"):
        return "utf-8"
    # A truncated character at the end must not count as an invalid line.
    lines = [line for line in head[: head.rfind(b"\n") + 1 or len(head)].split(b"\n") if not line.isascii()]
    num_utf8 = sum(is_valid_prefix(line, "utf-8") for line in lines)
    if 2 * num_utf8 > len(lines):
        return "utf-8"
    num_gb = sum(is_likely_gb18030(line) for line in lines)
    return "gb18030" if 2 * num_gb > len(lines) else "cp1252"


def is_valid_prefix(data: bytes, encoding: str) -> bool:
    """Return whether the bytes are valid in the encoding; the last character may be truncated."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(data, final=False)
    except UnicodeDecodeError:
        return False
    return True


def is_likely_gb18030(line: bytes) -> bool:
    """Return whether bytes that are not UTF-8 decode as GB18030 and look like Chinese."""
    num_high = len(line) - len(line.translate(None, _HIGH_BYTES))
    num_paired = len(line) - len(_GB_PAIRS.sub(b"", line))
    return num_paired >= _MIN_PAIR_RATIO * num_high and is_valid_prefix(line, "gb18030")


def decode(data: bytes, encoding: str, name: str, counts: Counts) -> str:
    """Decode bytes of a file; lines that are invalid in its encoding are decoded one by one and counted."""
    if data.count(b"\0") > _MAX_CONTROL_RATIO * len(data):
        raise InputError(f"{name} is text at its start but binary further on; remove that part or leave it out")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\n".join([_decode_line(line, encoding, counts) for line in data.split(b"\n")])
    else:
        if encoding != "utf-8":
            counts[f"lines decoded as {encoding}"] += text.count("\n") + (not text.endswith("\n"))
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _decode_line(line: bytes, encoding: str, counts: Counts) -> str:
    if line.isascii():
        return line.decode("ascii")
    encoding_name = "UTF-8" if encoding == "utf-8" else encoding
    for candidate in (encoding, "utf-8", "gb18030", "cp1252"):
        if candidate == "gb18030" != encoding and not is_likely_gb18030(line):
            continue
        try:
            text = line.decode(candidate)
        except UnicodeDecodeError:
            continue
        if candidate != encoding:
            counts[f"lines decoded as {candidate}: not valid {encoding_name}"] += 1
        elif encoding != "utf-8":
            counts[f"lines decoded as {encoding}"] += 1
        return text
    # cp1252 leaves five bytes undefined; Latin-1 defines every byte, so nothing is lost.
    counts[f"lines decoded as latin-1: not valid {encoding_name}"] += 1
    return line.decode("latin-1")


def complete_characters_length(data: bytes, encoding: str) -> int:
    """Return the length of the longest prefix of whole characters: where data may be split."""
    if encoding == "gb18030":
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        decoder.decode(data)
        return len(data) - len(decoder.getstate()[0])
    if encoding == "utf-8":
        start = len(data) - 1
        while start > len(data) - 4 and 0x80 <= data[start] < 0xC0:
            start -= 1
        if data[start] >= 0xC0 and not _is_complete(data[start:]):
            return start
    return len(data)


def _is_complete(character: bytes) -> bool:
    try:
        character.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True
