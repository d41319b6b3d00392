"""Output locks: the path of an output in, a lock out that one process holds; the lock of a dead process is taken over.

The lock file names its holder: pid, host, and when it took the lock. On one machine `flock` decides, which the kernel
releases when a process ends, however it ends; containers of one machine have its boot id in common. Not every shared
disk shows `flock` to other machines, and not every system has it; so a holder also touches its file every few seconds,
and elsewhere counts as dead when it has stopped doing that.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import importlib.util
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path

from bertworks.disk import LOCK, explain_os_error, remove_dead_temporaries, remove_leftovers
from bertworks.errors import FolderError

_HAS_FLOCK = importlib.util.find_spec("fcntl") is not None  # not on Windows
_TOUCH_SECONDS = 5.0
# Without a touch for so long, a holder on another machine is dead; at once, if its last touch is that old.
_SILENT_SECONDS, _OLD_SECONDS = 60.0, 600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of Linux
# flock is not supported by this file system.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock, its host, the time when it took the lock, and the boot id of its machine."""

    pid: int
    host: str
    started: str
    boot_id: str = ""  # unknown

    @classmethod
    def of_this_process(cls) -> LockHolder:
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(os.getpid(), platform.node(), started, _boot_id())


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder whose files are written in place; raise a FolderError if another process holds it.

    The folder is created, and removed again if nothing was written into it.
    """
    is_new = not folder.exists()
    try:
        with _hold(folder / LOCK, folder):
            _refuse_holder(_lock_beside(folder.resolve()), folder)
            remove_leftovers(folder)
            yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it holds something
                folder.rmdir()


def remove_dead_lock(folder: Path) -> None:
    """Remove the lock file that a killed run left in a folder; raise a FolderError if a process holds it."""
    if (folder / LOCK).exists():
        with lock_folder(folder):
            pass


@contextlib.contextmanager
def lock_output(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder that appears at `path` when it is complete: a hidden file beside it.

    For a folder that exists already, in a folder that is not writable (a mounted one), the lock is inside it.
    """
    real_path = path.resolve()
    is_inside = real_path.is_dir() and not (real_path.name and os.access(real_path.parent, os.W_OK))
    with _hold(real_path / LOCK if is_inside else _lock_beside(real_path), path):
        if not is_inside:
            _refuse_holder(real_path / LOCK, path)
        remove_dead_temporaries(path)
        yield


def find_holder(path: Path) -> LockHolder | None:
    """Return the process that is writing to a file or folder now; None if there is none. Nothing is written.

    A holder on another machine counts as long as it has touched its lock in the last minute.
    """
    for lock_file in (path / LOCK, _lock_beside(path.resolve())):
        try:
            with lock_file.open("rb", buffering=0) as file:
                holder, is_free = _read_holder(file), _flock(file, is_shared=True)
                age = time.time() - os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        if holder is not None and (is_free is False or (not _is_of_this_machine(holder) and age < _SILENT_SECONDS)):
            return holder
    return None


def _lock_beside(real_path: Path) -> Path:
    return real_path.parent / f".{real_path.name}{LOCK}"


def _refuse_holder(lock_file: Path, output: Path) -> None:
    """Raise a FolderError if a process holds the other lock of an output: each kind of command has one of the two.

    It is called while the own lock is held, so that of two commands that start at once never both succeed.
    """
    if lock_file.exists():
        with _hold(lock_file, output):
            pass


@contextlib.contextmanager
def _hold(lock_file: Path, output: Path) -> Iterator[None]:
    try:
        file = _acquire(lock_file, output)
    except OSError as error:
        raise explain_os_error(error, output) from error
    has_ended = threading.Event()
    thread = threading.Thread(target=_touch, args=(file, lock_file, has_ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        if not _HAS_FLOCK:
            file.close()  # Windows removes no open file
            lock_file.unlink(missing_ok=True)
        elif _is_open_at(file, lock_file):
            lock_file.unlink(missing_ok=True)  # before it is closed, so that nobody else has locked it
        file.close()


def _acquire(lock_file: Path, output: Path) -> FileIO:
    """Open and lock the file, and write this process into it; raise a FolderError if another one holds it."""
    while True:
        try:
            lock_file.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if not lock_file.parent.is_file():  # a link that leads nowhere; of a file, opening the lock in it says so
                raise
        try:
            file = lock_file.open("a+b", buffering=0)
        except FileNotFoundError:  # the folder was removed in between, by a run that wrote nothing
            continue
        try:
            is_free = _flock(file)
            if is_free is False or not _is_dead(_read_holder(file), is_free, lock_file):
                raise FolderError(_busy_message(_read_holder(file), lock_file, output))
            if _HAS_FLOCK and not _is_open_at(file, lock_file):
                file.close()  # its holder removed it in between
                continue
            _write_holder(file, lock_file)
        except BaseException:
            file.close()
            raise
        return file


def _flock(file: FileIO, is_shared: bool = False) -> bool | None:
    """Lock an open file; return whether that succeeded, or None where files cannot be locked."""
    if not _HAS_FLOCK:
        return None
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _is_dead(holder: LockHolder | None, is_free: bool | None, lock_file: Path) -> bool:
    """Return whether the holder in the file has ended; `is_free`: the file could be locked on this machine."""
    if holder is None or (is_free and _is_of_this_machine(holder)):
        return True
    last_touch = _last_touch(lock_file)
    if _disk_time(lock_file.parent) - last_touch > _OLD_SECONDS:
        return True
    deadline = time.monotonic() + _SILENT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(1.0, _SILENT_SECONDS / 10))
        if _last_touch(lock_file) != last_touch:
            return False
    return True


def _is_of_this_machine(holder: LockHolder) -> bool:
    return holder.host == platform.node() or "" != holder.boot_id == _boot_id()


@functools.cache
def _boot_id() -> str:
    """Return what all containers of a machine have in common until it is started again; empty if that is unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _disk_time(folder: Path) -> float:
    """Return the time by the clock of a disk, which is that of its server: the clocks of its hosts may be wrong."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.", suffix=".0.part") as file:
        return os.fstat(file.fileno()).st_mtime


def _last_touch(lock_file: Path) -> float:
    """Return the time of the last touch; the file is opened, because NFS then asks its server."""
    try:
        with lock_file.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:  # released
        return 0.0


def _read_holder(file: FileIO) -> LockHolder | None:
    """Return the holder in a lock file; None if there is none yet."""
    file.seek(0)
    try:
        content = json.loads(file.read())
        names = [field.name for field in fields(LockHolder)]  # another version may write more
        return LockHolder(**{name: content[name] for name in names if name in content})
    except (ValueError, TypeError):
        return None


def _write_holder(file: FileIO, lock_file: Path) -> None:
    """Write this process into its lock file; where that fails, as on a full disk, there is no lock file."""
    try:
        file.truncate(0)
        file.write(json.dumps(asdict(LockHolder.of_this_process())).encode())
    except OSError:
        lock_file.unlink(missing_ok=True)
        raise


def _busy_message(holder: LockHolder | None, lock_file: Path, output: Path) -> str:
    name = "" if holder is None else f" (process {holder.pid} on {holder.host}, since {holder.started})"
    message = f"another run is writing to {output}{name}; wait for it, or choose another --output"
    if holder is None or holder.host == platform.node():
        return message
    return f"{message}; if it does not run on {holder.host} any more, remove {lock_file}"


def _is_open_at(file: FileIO, path: Path) -> bool:
    """Return whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _touch(file: FileIO, lock_file: Path, has_ended: threading.Event) -> None:
    """Update the time of the lock file until the lock is released."""
    target = file.fileno() if os.utime in os.supports_fd else lock_file
    while not has_ended.wait(_TOUCH_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(target)
