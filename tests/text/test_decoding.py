"""Detection and decoding of encodings, by examples."""

from __future__ import annotations

import pytest

from bertworks.errors import InputError
from bertworks.text.decoding import complete_characters_length, decode, detect_encoding, non_text_reason
from bertworks.text.document import Counts

CHINESE = "今天天气很好，我们去公园玩。\n第二行也是中文。\n"
FRENCH = "Où est le café ? C’est très élevé.\nÀ bientôt, garçon.\n"


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"plain ascii\n", "utf-8"),
        (CHINESE.encode(), "utf-8"),
        (CHINESE.encode()[:-2], "utf-8"),
        (CHINESE.encode("gb18030"), "gb18030"),
        (FRENCH.encode("cp1252"), "cp1252"),
        (FRENCH.encode() * 3 + "garçon\n".encode("cp1252"), "utf-8"),
    ],
)
def test_encoding_is_detected_from_the_first_bytes(data: bytes, encoding: str) -> None:
    assert detect_encoding(data) == encoding


def test_lines_in_other_encodings_are_decoded_separately_and_counted() -> None:
    counts = Counts()
    data = "é\r\n".encode() + "garçon\n".encode("cp1252") + "中文很好\n".encode("gb18030") + b"a\x81\xe9b"
    assert decode(data, "utf-8", "a.txt", counts) == "é\ngarçon\n中文很好\na\x81éb"
    assert counts == {
        "lines decoded as cp1252: not valid UTF-8": 1,
        "lines decoded as gb18030: not valid UTF-8": 1,
        "lines decoded as latin-1: not valid UTF-8": 1,
    }


def test_lines_of_a_gb18030_file_are_counted() -> None:
    counts = Counts()
    assert decode(CHINESE.encode("gb18030"), "gb18030", "a.txt", counts) == CHINESE
    assert counts == {"lines decoded as gb18030": 2}


def test_binary_data_after_text_is_an_error() -> None:
    with pytest.raises(InputError, match=r"^a\.txt is text at its start but binary further on"):
        decode(b"text" + bytes(100), "utf-8", "a.txt", Counts())


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (bytes(range(256)), "binary, not text"),
        (b"\x1f\x8b\x08rest", "gzip data"),
        (b"%PDF-1.7\n", "a PDF file"),
        (b"words\twith\r\nlines\x0c", ""),
        (CHINESE.encode("gb18030"), ""),
    ],
)
def test_reason_why_a_file_is_not_text(head: bytes, reason: str) -> None:
    assert non_text_reason(head).startswith(reason)
    assert bool(non_text_reason(head)) == bool(reason)


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_prefix_of_complete_characters(encoding: str) -> None:
    data = "a中😀é文".encode(encoding)
    for size in range(1, len(data) + 1):
        assert data[: complete_characters_length(data[:size], encoding)].decode(encoding) is not None
        assert size - complete_characters_length(data[:size], encoding) <= 3
    assert complete_characters_length(data, encoding) == len(data)
