"""A shard of pieces comes back from its file as it went in, and a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.corpus.shard import ShardArrays, map_shard, write_shard
from bertworks.errors import FolderError

# Three documents: sentences of 3 and 2 pieces; of 4; of 1, 1 and 2.
IDS = np.arange(100, 113, dtype=np.uint16)
WORD_STARTS = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], dtype=np.bool_)
SHARD = ShardArrays(
    input_ids=IDS,
    word_starts=np.packbits(WORD_STARTS),
    sentence_ends=np.array([3, 5, 9, 10, 11, 13], dtype=np.uint32),
    document_ends=np.array([2, 3, 6], dtype=np.uint32),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_shard(tmp_path / "000000.safetensors", SHARD)
    return tmp_path / "000000.safetensors"


def test_a_shard_comes_back_as_it_went_in(path: Path) -> None:
    mapped = map_shard(path)
    for name in ("ids", "word_starts", "sentence_ends", "document_ends"):
        assert getattr(mapped, name).dtype == getattr(SHARD, name).dtype
        assert getattr(mapped, name).tolist() == getattr(SHARD, name).tolist()


def test_the_same_arrays_give_the_same_bytes(path: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "again", SHARD)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_large_vocabularies_take_four_bytes_a_piece(tmp_path: Path) -> None:
    ids = np.array([70_000, 119_546], dtype=np.uint32)
    ends = np.array([2], dtype=np.uint32)
    write_shard(tmp_path / "wide", ShardArrays(ids, np.packbits([True, True]), ends, np.array([1], dtype=np.uint32)))
    assert map_shard(tmp_path / "wide").input_ids.tolist() == [70_000, 119_546]


def test_every_piece_finds_its_sentence() -> None:
    assert [SHARD.sentence_at(piece) for piece in range(13)] == [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 5, 5]
    assert SHARD.sentence_at(13) == 6
    assert SHARD.sentence_at(1_000_000) == 6


def test_the_first_sentence_from_a_piece_on_begins_there_or_behind() -> None:
    assert [SHARD.sentence_from(piece) for piece in range(13)] == [0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 6]


def test_every_sentence_finds_its_document_and_start() -> None:
    assert [SHARD.document_span(sentence) for sentence in range(6)] == [(0, 2), (0, 2), (2, 3), (3, 6), (3, 6), (3, 6)]
    assert [SHARD.first_token(sentence) for sentence in range(7)] == [0, 3, 5, 9, 10, 11, 13]


def test_sentences_come_one_by_one() -> None:
    lengths = [sentence.tolist() for sentence in SHARD.sentences()]
    assert lengths == [[100, 101, 102], [103, 104], [105, 106, 107, 108], [109], [110], [111, 112]]


@given(data=st.data(), flags=st.lists(st.booleans(), min_size=1, max_size=60))
def test_word_starts_are_unpacked_from_any_piece_to_any_other(data: st.DataObject, flags: list[bool]) -> None:
    start = data.draw(st.integers(0, len(flags)))
    stop = data.draw(st.integers(start, len(flags)))
    ends = np.array([len(flags)], dtype=np.uint32)
    shard = ShardArrays(np.zeros(len(flags), np.uint16), np.packbits(flags), ends, np.array([1], dtype=np.uint32))
    assert shard.unpack_word_starts(start, stop).tolist() == flags[start:stop]


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_shard_that_was_cut_off_is_named(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FolderError, match=r"000000\.safetensors .*prepare --verify"):
        map_shard(path)


@pytest.mark.parametrize(
    "content", [b"text, not pieces, and rather long", (2).to_bytes(8, "little") + b"[]" + b"x" * 9]
)
def test_a_file_that_is_no_shard_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged"):
        map_shard(path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"gone\.safetensors cannot be opened"):
        map_shard(tmp_path / "gone.safetensors")
