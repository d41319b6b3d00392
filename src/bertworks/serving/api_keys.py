"""API keys: a file of keys in, their SHA-256 digests out, read again whenever the file changes."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path

from bertworks.errors import InputError

_MIN_KEY_LENGTH = 16
# Seconds between two looks at the file, and for which it must have stayed the same.
_CHECK_SECONDS = 1.0

_logger = logging.getLogger("bertworks.serving")


class KeyFile:
    """The keys of a file. A changed file is used once it has stayed the same for a second, so never half-written.

    If it has become unreadable or invalid, the keys in use stay valid, and a warning is logged once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests, self._version = _read_keys(path)
        self._next_version = self._version
        self._check_time = time.monotonic() + _CHECK_SECONDS

    def digests(self) -> tuple[bytes, ...]:
        """Return the digests of the current keys, after a look at the file at most once a second."""
        now = time.monotonic()
        if now >= self._check_time:
            self._check_time = now + _CHECK_SECONDS
            self._refresh()
        return self._digests

    def _refresh(self) -> None:
        version = _version_of(self._path)
        # A key that was removed long ago must not pass because this is the first look since then.
        is_settled = version == self._next_version or _age(version) >= _CHECK_SECONDS
        self._next_version = version
        if version == self._version or not is_settled:
            return
        self._version = version  # also of an invalid file, so that it is reported once
        try:
            self._digests, self._version = _read_keys(self._path)
        except InputError as error:
            _logger.warning("the API keys stay as they were: %s", error)
        else:
            _logger.info("%s has changed; its %d API keys are used from now on", self._path, len(self._digests))


def _read_keys(path: Path) -> tuple[tuple[bytes, ...], tuple[int, ...] | None]:
    """Return the digests of the keys and the version of the file that they were read from."""
    try:
        with path.open(encoding="utf-8") as file:
            version = _version(os.fstat(file.fileno()))
            keys = [line.strip() for line in file.read().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the API keys in {path} cannot be read ({error}); write one per line") from None
    is_valid = keys and all(len(key) >= _MIN_KEY_LENGTH and key.isascii() and key.isprintable() for key in keys)
    if not is_valid:
        raise InputError(
            f"{path} must hold API keys, one per line, each of at least {_MIN_KEY_LENGTH} printable ASCII "
            f"characters; generate one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys), version


def _version_of(path: Path) -> tuple[int, ...] | None:
    try:
        return _version(path.stat())
    except OSError:
        return None


def _age(version: tuple[int, ...] | None) -> float:
    """Return the seconds since the last change of a file; 0 if there is none."""
    return 0.0 if version is None else time.time() - version[0] / 1e9


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_size, status.st_ino
