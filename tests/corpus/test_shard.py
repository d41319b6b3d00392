"""A shard of tokens: round trip through its file, lookups, and errors for files that are or become damaged."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from damage import flip_bit
from hypothesis import given
from hypothesis import strategies as st

from bertworks.corpus.shard import ShardArrays, open_shard, write_shard
from bertworks.disk import sha256
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
    shard = open_shard(path)
    for name in ("input_ids", "word_starts", "sentence_ends", "document_ends"):
        assert getattr(shard, name).dtype == getattr(SHARD, name).dtype
        assert getattr(shard, name)[:].tolist() == getattr(SHARD, name).tolist()


def test_writing_a_shard_is_deterministic(path: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "again", SHARD)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_large_vocabularies_use_four_bytes_per_token(tmp_path: Path) -> None:
    input_ids = np.array([70_000, 119_546], dtype=np.uint32)
    ends = np.array([2], dtype=np.uint32)
    write_shard(
        tmp_path / "wide", ShardArrays(input_ids, np.packbits([True, True]), ends, np.array([1], dtype=np.uint32))
    )
    assert open_shard(tmp_path / "wide").input_ids[:].tolist() == [70_000, 119_546]


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
        open_shard(path)


@pytest.mark.parametrize(
    "content", [b"text, not a shard, and rather long", (2).to_bytes(8, "little") + b"[]" + b"x" * 9]
)
def test_file_that_is_not_a_shard_is_an_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged"):
        open_shard(path)


def test_missing_shard_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"gone\.safetensors is missing; run `bertworks prepare --verify`"):
        open_shard(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("position", [0, 9, 60, -27, -1])
def test_a_shard_with_another_hash_is_an_error_that_names_it(path: Path, position: int) -> None:
    expected = sha256(path)
    assert open_shard(path, expected).input_ids[3:5].tolist() == [103, 104]
    flip_bit(path, position)
    with pytest.raises(FolderError) as caught:
        open_shard(path, expected)
    assert str(caught.value) == (
        f"{path} is damaged or was changed: its sha256 is not the one in {path.parent}/manifest.json; find all such "
        "files with `bertworks prepare --verify` and prepare the corpus again"
    )


@pytest.mark.parametrize("is_hash_known", [True, False])
def test_a_shard_truncated_under_a_running_process_is_an_error_and_no_signal(path: Path, is_hash_known: bool) -> None:
    shard = open_shard(path, sha256(path) if is_hash_known else None)
    os.truncate(path, 10)
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged.*prepare --verify"):
        shard.input_ids[0:3]
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged"):
        shard.unpack_word_starts(0, 3)
    assert shard.sentence_at(4) == 1


def test_a_shard_overwritten_under_a_running_process_is_an_error(path: Path) -> None:
    shard = open_shard(path, sha256(path))
    data = bytearray(path.read_bytes())
    data[data.index(b"\x64\x00\x65\x00")] = 0x70  # the token 100
    path.write_bytes(data)
    os.utime(path, (1, 1))
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged or was changed"):
        shard.input_ids[0:3]


def test_a_shard_overwritten_with_its_old_time_is_an_error(path: Path) -> None:
    shard, status = open_shard(path, sha256(path)), path.stat()
    time.sleep(0.05)  # the change time counts in a few milliseconds
    flip_bit(path, -1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FolderError, match=r"000000\.safetensors is damaged or was changed"):
        shard.input_ids[0:3]


def test_a_shard_that_was_only_touched_or_replaced_is_read_on(path: Path) -> None:
    shard = open_shard(path, sha256(path))
    os.utime(path, (1, 1))
    assert shard.input_ids[0:3].tolist() == [100, 101, 102]
    write_shard(path.parent / "other", replace(SHARD, input_ids=INPUT_IDS + np.uint16(7)))
    (path.parent / "other").replace(path)  # the open file is still the old one
    assert shard.input_ids[0:3].tolist() == [100, 101, 102]


def test_slices_of_a_stored_array_are_those_of_a_list(path: Path) -> None:
    stored = open_shard(path).input_ids
    assert len(stored) == 13
    for key in (slice(None), slice(2, 5), slice(11, 40), slice(5, 5), slice(7, 3), slice(13, None)):
        assert stored[key].tolist() == INPUT_IDS.tolist()[key]


def test_open_shards_close_their_files(path: Path) -> None:
    for _ in range(10):
        open_shard(path)
    assert path.resolve() not in {entry.resolve() for entry in Path("/proc/self/fd").iterdir()}
