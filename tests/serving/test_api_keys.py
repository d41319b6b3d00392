"""API keys that are read again when their file changes: rotation, half-written, invalid and missing files."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from bertworks.errors import InputError
from bertworks.serving import api_keys
from bertworks.serving.api_keys import KeyFile

OLD, NEW = "an-old-key-of-32-letters", "a-new-key-of-32-letters"


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def write(self, path: Path, text: str) -> None:
        """Replace a file as it should be done: by a rename; it is of now."""
        path.with_suffix(".new").write_text(text)
        os.utime(path.with_suffix(".new"), (self.time(), self.time()))
        path.with_suffix(".new").replace(path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(api_keys, "time", clock)
    return clock


@pytest.fixture
def path(tmp_path: Path, clock: Clock) -> Path:
    path = tmp_path / "keys"
    clock.write(path, f"{OLD}\n")
    return path


def digests(*keys: str) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


def after(clock: Clock, key_file: KeyFile, *seconds: float) -> list[tuple[bytes, ...]]:
    """Return the digests after each of several pauses."""
    results = []
    for pause in seconds:
        clock.now += pause
        results.append(key_file.digests())
    return results


def test_a_changed_file_is_used_once_it_has_stayed_the_same_for_a_second(clock, path):
    key_file = KeyFile(path)
    clock.now += 0.5
    clock.write(path, f"{OLD}\n{NEW}\n")
    assert after(clock, key_file, 0.4, 0.2, 0.5, 0.6) == [digests(OLD)] * 3 + [digests(OLD, NEW)]
    clock.now += 0.5
    clock.write(path, f"{NEW}\n")
    assert after(clock, key_file, 0.6, 1.1) == [digests(OLD, NEW), digests(NEW)]


def test_a_file_that_is_still_being_written_is_not_used(clock, path):
    key_file = KeyFile(path)
    for length in range(4, len(NEW) + 1, 4):
        clock.now += 1.0
        clock.write(path, NEW[:length])
        assert after(clock, key_file, 0.1) == [digests(OLD)]
    clock.write(path, NEW)
    assert after(clock, key_file, 1.1, 1.1)[-1] == digests(NEW)


def test_a_file_that_changed_long_ago_is_used_at_the_first_look(clock, path):
    key_file = KeyFile(path)
    clock.now += 10
    clock.write(path, f"{NEW}\n")
    assert after(clock, key_file, 3_600.0) == [digests(NEW)]  # no request in the meantime


def test_a_file_of_the_same_size_and_time_is_recognized_by_its_inode(clock, path):
    key_file = KeyFile(path)
    status = path.stat()
    clock.write(path, f"{OLD[::-1]}\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert after(clock, key_file, 1.1, 1.1)[-1] == digests(OLD[::-1])


@pytest.mark.parametrize("text", ["", "short\n", "ключ-который-длиннее-16\n"])
def test_an_invalid_file_keeps_the_keys_and_is_reported_once(text, clock, path, caplog):
    key_file = KeyFile(path)
    clock.write(path, text)
    assert after(clock, key_file, 1.1, 1.1, 1.1, 1.1) == [digests(OLD)] * 4
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "stay as they were" in record.getMessage()
    assert "one per line" in record.getMessage()
    clock.write(path, f"{NEW}\n")
    assert after(clock, key_file, 1.1, 1.1)[-1] == digests(NEW)


def test_a_deleted_file_keeps_the_keys_until_it_is_there_again(clock, path, caplog):
    key_file = KeyFile(path)
    path.unlink()
    assert after(clock, key_file, 1.1, 1.1, 1.1) == [digests(OLD)] * 3
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1
    clock.write(path, NEW)
    assert after(clock, key_file, 1.1, 1.1)[-1] == digests(NEW)


def test_the_file_is_looked_at_once_a_second_and_read_only_if_it_has_changed(clock, path, monkeypatch):
    key_file, looks = KeyFile(path), []
    version_of = api_keys._version_of
    monkeypatch.setattr(api_keys, "_version_of", lambda path: looks.append(clock.now) or version_of(path))
    monkeypatch.setattr(api_keys, "_read_keys", None)  # would fail
    after(clock, key_file, *[0.1] * 35)
    assert len(looks) == 3


def test_the_first_file_must_be_valid(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        KeyFile(tmp_path / "none")
