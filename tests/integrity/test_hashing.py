"""Hashes of files: by hand and by blocks, differences found wherever they are, and what is read again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from damage import flip_bit

from bertworks.integrity import hashing
from bertworks.integrity.hashing import (
    CHANGED,
    MISSING,
    UNREADABLE,
    FileHash,
    FileProblem,
    FileVerification,
    find_problems,
    hash_file,
    hash_range,
    is_file_name,
)

# echo -n abc | sha256sum
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "BLOCK_BYTES", 4)
    monkeypatch.setattr(hashing, "_READ_BYTES", 2)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_hash_of_a_small_file_has_no_blocks(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    assert hash_file(tmp_path / "a") == FileHash(ABC, 3)
    assert hash_file(tmp_path / "a").to_json() == {"size": 3, "sha256": ABC}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("data", [b"abcdefgh", b"abcdefghi"])
def test_the_hash_of_a_large_file_has_that_of_each_block(tmp_path: Path, data: bytes):
    (tmp_path / "a").write_bytes(data)
    blocks = tuple(sha256_of(data[start : start + 4]) for start in range(0, len(data), 4))
    recorded = hash_file(tmp_path / "a")
    assert recorded == FileHash(sha256_of(data), len(data), 4, blocks)
    assert FileHash.from_json(recorded.to_json()) == recorded


def test_a_range_of_an_open_file_is_hashed(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"xxabcxx")
    with (tmp_path / "a").open("rb") as file:
        assert hash_range(file.fileno(), 2, 3) == ABC
        assert hash_range(file.fileno()) == sha256_of(b"xxabcxx")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("position", range(11))
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, position: int):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"some bytes.")
    hashes = {name: hash_file(tmp_path / name) for name in ("a", "b")}
    assert find_problems(tmp_path, hashes) == []
    flip_bit(tmp_path / "b", position)
    assert find_problems(tmp_path, hashes) == [FileProblem("b", CHANGED)]
    assert find_problems(tmp_path, {name: FileHash(entry.sha256) for name, entry in hashes.items()}) == [
        FileProblem("b", CHANGED)
    ]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("data", [b"some bytes", b"some bytes..", b""])
def test_a_file_of_another_size_is_found(tmp_path: Path, data: bytes):
    (tmp_path / "a").write_bytes(b"some bytes.")
    hashes = {"a": hash_file(tmp_path / "a")}
    (tmp_path / "a").write_bytes(data)
    assert find_problems(tmp_path, hashes) == [FileProblem("a", CHANGED)]


def test_problems_are_in_the_order_of_the_hashes(tmp_path: Path):
    hashes = {name: FileHash(ABC) for name in ("c", "folder", "b", "a")}
    (tmp_path / "a").write_bytes(b"other")
    (tmp_path / "b").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    problems = find_problems(tmp_path, hashes)
    assert [(problem.name, problem.kind) for problem in problems] == [
        ("c", MISSING),
        ("folder", UNREADABLE),
        ("a", CHANGED),
    ]


def test_a_verified_file_is_not_read_again_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.integrity.verified_files._TIME_RESOLUTION_NS", -(2**62))
    (tmp_path / "a").write_bytes(b"abc")
    hashes, reads = {"a": FileHash(ABC)}, []

    def count_reads(descriptor: int, start: int = 0, size: int | None = None) -> str:
        reads.append(start)
        return hash_range(descriptor, start, size)

    monkeypatch.setattr(hashing, "hash_range", count_reads)
    for _ in range(3):
        assert find_problems(tmp_path, hashes) == []
    assert len(reads) == 1
    assert find_problems(tmp_path, hashes, use_memory=False) == []
    assert len(reads) == 2
    (tmp_path / "b").write_bytes(b"abd")
    (tmp_path / "b").replace(tmp_path / "a")  # another inode
    assert find_problems(tmp_path, hashes) == [FileProblem("a", CHANGED)]
    assert len(reads) == 3


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path):
    """It could be changed within the resolution of its times."""
    (tmp_path / "a").write_bytes(b"abc")
    status = (tmp_path / "a").stat()
    assert find_problems(tmp_path, {"a": FileHash(ABC)}) == []
    (tmp_path / "a").write_bytes(b"abd")
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert find_problems(tmp_path, {"a": FileHash(ABC)}) == [FileProblem("a", CHANGED)]


def test_files_are_verified_in_the_background(tmp_path: Path):
    for number in range(50):
        (tmp_path / str(number)).write_bytes(b"abc")
    verification = FileVerification(tmp_path, {str(number): FileHash(ABC) for number in range(51)})
    assert verification.wait(60)
    assert verification.num_verified == 50
    assert [problem.name for problem in verification.problems] == ["50"]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"sha256": ABC},
        {"size": 3},
        {"size": "3", "sha256": ABC},
        {"size": True, "sha256": ABC},
        {"size": -1, "sha256": ABC},
        {"size": 3, "sha256": ABC.upper()},
        {"size": 3, "sha256": ABC[:-1]},
        {"size": 9, "sha256": ABC, "blocks": [ABC, ABC], "block_bytes": 4},
        {"size": 9, "sha256": ABC, "blocks": [ABC, ABC, 1], "block_bytes": 4},
        {"size": 9, "sha256": ABC, "blocks": [ABC], "block_bytes": 0},
        {"size": 9, "sha256": ABC, "blocks": ABC},
    ],
)
def test_an_invalid_hash_is_refused(entry: object):
    with pytest.raises(ValueError, match=r"it needs|must be|do not have"):
        FileHash.from_json(entry)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("config.json", True),
        ("1_Pooling/config.json", True),
        ("词.txt", True),
        ("a..b", True),
        ("", False),
        (".", False),
        ("..", False),
        ("../config.json", False),
        ("a/../../b", False),
        ("/etc/passwd", False),
        ("a//b", False),
        ("a\\b", False),
        ("C:file", False),
        ("a\0b", False),
        (3, False),
        (None, False),
    ],
)
def test_names_of_files_stay_inside_their_folder(name: object, expected: bool):
    assert is_file_name(name) is expected
