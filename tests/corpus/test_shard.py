"""A shard of tokens: round trip through its file, lookups, and errors for damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.corpus.shard import ShardArrays, map_shard, write_shard
from bertworks.errors import FolderError

# Three documents: sentences of 3 and 2 tokens; of 4; of 1, 1 and 2.
INPUT_IDS = np.arange(100, 113, dtype=np.uint16)
WORD_STARTS = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], dtype=np.bool_)
SHARD = ShardArrays(
    input_ids=INPUT_IDS,
    word_starts=np.packbits(WORD_STARTS),
    sentence_ends=np.array([3, 5, 9, 10, 11, 13], dtype=np.uint32),
    document_ends=np.array([2, 3, 6], dtype=np.uint32),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_shard(tmp_path / "000000.safetensors", SHARD)
    return tmp_path / "000000.safetensors"


def test_shard_round_trip_keeps_arrays_and_dtypes(path: Path) -> None:
    shard = map_shard(path)
    for name in ("input_ids", "word_starts", "sentence_ends", "document_ends"):
        assert getattr(shard, name).dtype == getattr(SHARD, name).dtype
        assert getattr(shard, name).tolist() == getattr(SHARD, name).tolist()


def test_writing_a_shard_is_deterministic(path: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "again", SHARD)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_large_vocabularies_use_four_bytes_per_token(tmp_path: Path) -> None:
    input_ids = np.array([70_000, 119_546], dtype=np.uint32)
    ends = np.array([2], dtype=np.uint32)
    write_shard(
        tmp_path / "wide", ShardArrays(input_ids, np.packbits([True, True]), ends, np.array([1], dtype=np.uint32))
    )
    assert map_shard(tmp_path / "wide").input_ids.tolist() == [70_000, 119_546]


def test_sentence_at_a_token() -> None:
    assert [SHARD.sentence_at(token) for token in range(13)] == [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 5, 5]
    assert SHARD.sentence_at(13) == 6
    assert SHARD.sentence_at(1_000_000) == 6


def test_first_sentence_from_a_token_on() -> None:
    assert [SHARD.sentence_from(token) for token in range(13)] == [0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 6]


def test_document_span_and_first_token_of_a_sentence() -> None:
    assert [SHARD.document_span(sentence) for sentence in range(6)] == [(0, 2), (0, 2), (2, 3), (3, 6), (3, 6), (3, 6)]
    assert [SHARD.first_token(sentence) for sentence in range(7)] == [0, 3, 5, 9, 10, 11, 13]


def test_sentences_are_yielded_in_order() -> None:
    sentences = [sentence.tolist() for sentence in SHARD.sentences()]
    assert sentences == [[100, 101, 102], [103, 104], [105, 106, 107, 108], [109], [110], [111, 112]]


@given(data=st.data(), flags=st.lists(st.booleans(), min_size=1, max_size=60))
def test_word_starts_of_any_range_are_unpacked(data: st.DataObject, flags: list[bool]) -> None:
    start = data.draw(st.integers(0, len(flags)))
    stop = data.draw(st.integers(start, len(flags)))
    ends = np.array([len(flags)], dtype=np.uint32)
    shard = ShardArrays(np.zeros(len(flags), np.uint16), np.packbits(flags), ends, np.array([1], dtype=np.uint32))
    assert shard.unpack_word_starts(start, stop).tolist() == flags[start:stop]


@pytest.mark.parametrize("num_bytes", [0, 5, 40, -1])
def test_truncated_shard_is_an_error(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(FolderError, match=r"000000\.safetensors .*prepare --verify"):
        map_shard(path)


@pytest.mark.parametrize(
    "content", [b"text, not a shard, and rather long", (2).to_bytes(8, "little") + b"[]" + b"x" * 9]
)
def test_file_that_is_not_a_shard_is_an_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged"):
        map_shard(path)


def test_missing_shard_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"gone\.safetensors cannot be opened"):
        map_shard(tmp_path / "gone.safetensors")
