"""The memory of verified files: what it recognizes, and that it may be damaged, missing or read-only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bertworks.integrity.verified_files import FileIdentity, VerifiedFiles, verified_files

IDENTITY = FileIdentity(size=5, modified_ns=10, changed_ns=20, inode=7)
DIGEST = "ab" * 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bertworks" / "verified"


def remember(folder: Path) -> None:
    memory = VerifiedFiles(folder)
    memory.add("a", IDENTITY, DIGEST)
    memory.save()


def test_a_file_is_remembered_for_the_next_process_by_identity_and_hash(cache: Path, tmp_path: Path):
    remember(tmp_path)
    memory = VerifiedFiles(tmp_path)
    assert memory.contains("a", IDENTITY, DIGEST)
    for name, value in IDENTITY._asdict().items():
        assert not memory.contains("a", IDENTITY._replace(**{name: value + 1}), DIGEST)
    assert not memory.contains("a", IDENTITY, "cd" * 32)
    assert not memory.contains("b", IDENTITY, DIGEST)
    assert not VerifiedFiles(tmp_path / "other").contains("a", IDENTITY, DIGEST)


def test_the_identity_of_a_file_is_its_size_times_and_inode(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12345")
    status = (tmp_path / "a").stat()
    identity = FileIdentity.of(status)
    assert identity == (5, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    after = FileIdentity.of((tmp_path / "a").stat())
    assert after.modified_ns == identity.modified_ns
    assert after.changed_ns >= identity.changed_ns


def test_a_file_that_was_just_written_is_not_settled(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12345")
    assert not FileIdentity.of((tmp_path / "a").stat()).is_settled()
    assert IDENTITY.is_settled()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 3}', '{"a": [1, 2]}', '{"a": [1, 2, 3, "x", "y"]}', "\0"])
def test_a_damaged_memory_counts_as_empty_and_is_replaced(cache: Path, tmp_path: Path, content: str):
    remember(tmp_path)
    (file,) = cache.iterdir()
    file.write_text(content)
    assert not VerifiedFiles(tmp_path).contains("a", IDENTITY, DIGEST)
    remember(tmp_path)
    assert VerifiedFiles(tmp_path).contains("a", IDENTITY, DIGEST)
    assert json.loads(file.read_text()) == {"a": [5, 10, 20, 7, DIGEST]}


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember(tmp_path)
    assert not VerifiedFiles(tmp_path).contains("a", IDENTITY, DIGEST)


def test_without_the_variable_the_cache_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    remember(tmp_path)
    assert len(list((tmp_path / ".cache" / "bertworks" / "verified").iterdir())) == 1


def test_only_the_newest_folders_are_remembered(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.integrity.verified_files._MAX_FOLDERS", 2)
    for name in ("one", "two"):
        remember(tmp_path / name)
        for file in cache.iterdir():
            os.utime(file, ns=(0, file.stat().st_mtime_ns // 2))  # the first is halved twice
    remember(tmp_path / "three")
    assert not VerifiedFiles(tmp_path / "one").contains("a", IDENTITY, DIGEST)
    assert VerifiedFiles(tmp_path / "two").contains("a", IDENTITY, DIGEST)
    assert VerifiedFiles(tmp_path / "three").contains("a", IDENTITY, DIGEST)


def test_the_threads_of_a_process_share_the_memory_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert verified_files(Path()) is verified_files(tmp_path)
