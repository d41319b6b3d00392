"""Atomic writes: every file and folder is written under a temporary name, flushed to disk, and then renamed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from bertworks.errors import FolderError, SettingsError
from bertworks.reading import check_regular, parse_json, unreadable_reason

# The lock of a folder is a file of this name in it, or with this ending beside it (see `folder_lock`).
LOCK = ".lock"
# The URL of an object store after a conversion to Path, which collapses "//" into "/".
_STORE_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")
# numpy's error for a file that it could not write to its end has no errno.
_NUMPY_SHORT_WRITE = re.compile(r"requested and \d+ written")
# The names of temporary files and folders: that of a host and a process, or a hash, precedes the ending.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]+\.part")
# Constants of Linux' renameat2.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_FREE_SPACE = "free some space and run the same command again, it will resume"


def check_on_disk(folder: Path) -> None:
    """Refuse the URL of an object store, such as s3://bucket/corpus, as an output folder."""
    if _STORE_URL.match(str(folder)):
        raise SettingsError(
            f"{folder} is the URL of an object store; name a folder of a (shared) file system, or mount the store: the "
            f"files are memory-mapped when they are read"
        )


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; if the block succeeds, flush the file and rename it to `path`.

    On any error `path` is unchanged. A full disk or missing permissions become a FolderError of one sentence.
    """
    temporary = path.with_name(_temporary_name(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush_file(temporary)
        temporary.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(path: Path, obsolete: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to write into; if the block succeeds, flush all files and rename it to `path`.

    If `path` is a folder that holds something, the new files replace those of the same name there, and other files
    stay, but for those in `obsolete`. On any error `path` is unchanged, and the staged folder is removed; that of a
    killed process is removed by the next one.
    """
    name = _temporary_name(path)
    staged = path / name if _must_stage_inside(path) else path.with_name(name)
    with _explain_staging(staged, path):
        try:
            if path.is_dir() and not os.access(path, os.W_OK):  # it could be exchanged, but is meant to stay
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            remove_dead_temporaries(staged.parent / path.name)
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(parents=True)
            yield staged
            _flush_tree(staged)
            _replace_entries(staged, path, obsolete)
            flush_folder(staged.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


@contextlib.contextmanager
def resumable_folder(path: Path, part: str, identity: str) -> Iterator[Path]:
    """Like `staged_folder` for a `path` that does not exist, but one `part` of it, a path inside, outlives an error.

    A later call with the same `identity`, a hexadecimal hash of all that the part depends on, finds the part in its
    folder. Everything else that earlier calls left is removed first, so the caller must hold the lock of `path`.
    """
    name = path.name.lstrip(".")
    staged = path.with_name(f".{name}.{identity}.part")
    with _explain_staging(staged, path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for entry in path.parent.iterdir():
                if entry != staged and re.fullmatch(rf"\.{re.escape(name)}(\.[0-9a-f]+)?\.part", entry.name):
                    remove_entry(entry)
            _remove_all_but(staged, part)
            staged.mkdir(exist_ok=True)
            yield staged
            _flush_tree(staged)
            staged.rename(path)
            flush_folder(path.parent)
        finally:
            _remove_all_but(staged, part)


def replace_folder(source: Path, target: Path) -> None:
    """Rename a complete folder to `target`, in the place of the folder there; after a crash, never a part of either."""
    old = target.with_name(f".{target.name.lstrip('.')}.old")
    remove_entry(old)
    if target.exists():
        target.rename(old)
    source.rename(target)
    flush_folder(target.parent)
    remove_entry(old)


def remove_entry(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed commands left in a folder; the caller must hold its lock.

    Folders inside may have locks of their own: of what is in them, only the files of ended processes are removed.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if _TEMPORARY.fullmatch(name) and (Path(parent) == folder or _is_of_ended_process(name)):
                remove_entry(Path(parent, name))


def is_vacant(path: Path) -> bool:
    """Return whether there is nothing at `path`, or only a folder with what killed commands of ours left in it."""
    if not path.is_dir():
        return not path.exists()
    return all(entry.name == LOCK or _TEMPORARY.fullmatch(entry.name) for entry in path.iterdir())


def _must_stage_inside(path: Path) -> bool:
    """Return whether `path` is a folder that no other can be renamed to: mounted, or the working folder."""
    if not path.is_dir():
        return False
    is_renamable = os.name == "posix" and path.name not in ("", "..") and not path.is_mount()
    return not is_renamable or path.is_symlink() or not os.access(path.absolute().parent, os.W_OK)


@contextlib.contextmanager
def _explain_staging(staged: Path, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error
    except FolderError as error:  # the caller knows `path`, not the staged folder
        raise FolderError(str(error).replace(str(staged), str(path))) from error


def remove_dead_temporaries(path: Path) -> None:
    """Remove the temporary files and folders for `path`, beside it, whose processes of this host have ended."""
    for entry in path.parent.iterdir() if path.parent.is_dir() else ():
        if _is_of_ended_process(entry.name, re.escape(path.name.lstrip("."))):
            remove_entry(entry)


def _is_of_ended_process(temporary: str, name: str = ".+") -> bool:
    """Return whether this is a temporary file of a process of this host that has ended; `name` is an expression."""
    match = re.fullmatch(rf"\.{name}\.{re.escape(platform.node())}\.(\d+)\.part", temporary)
    return match is not None and not _is_running(int(match[1]))


def _is_running(pid: int) -> bool:
    if os.name != "posix":
        return True  # there, signal 0 is no question
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _remove_all_but(folder: Path, part: str) -> None:
    """Remove everything in a folder but one path inside, and the folder, too, if it does not have that."""
    if not folder.is_dir():
        return
    if not (folder / part).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    name, _, rest = part.partition("/")
    for entry in folder.iterdir():
        if entry.name != name:
            remove_entry(entry)
    if rest:
        _remove_all_but(folder / name, rest)


def _temporary_name(path: Path) -> str:
    # With the host name: on a shared disk, a process of a lost node may still write the file that is being redone.
    return f".{path.name.lstrip('.')}.{platform.node()}.{os.getpid()}.part"


def _flush_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            flush_folder(path)
        else:
            _flush_file(path)
    flush_folder(folder)


def _flush_file(path: Path) -> None:
    # A file that was copied from a read-only one cannot be opened for writing; only Windows needs that.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_entries(source: Path, target: Path, obsolete: Collection[str]) -> None:
    """Move the entries of a folder to `target`, without the obsolete ones there; at once, where the system can exchange
    two folders."""
    new_names = {entry.name for entry in source.iterdir()}
    if source.parent != target and not (target.is_dir() and any(target.iterdir())):
        source.rename(target)
        return
    if source.parent != target:
        _link_missing_entries(target, source, obsolete)
        _copy_ownership(target, source)
        _flush_folders(source)
        if _exchange(source, target):
            return
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            shutil.rmtree(target / entry.name, ignore_errors=True)
        entry.replace(target / entry.name)
    for name in obsolete:
        if name not in new_names:
            remove_entry(target / name)


def _link_missing_entries(source: Path, target: Path, obsolete: Collection[str]) -> None:
    """Give `target` the entries of `source` that it lacks: the same files, or copies where there are no hard links."""
    for entry in source.iterdir():
        copy = target / entry.name
        if copy.exists() or copy.is_symlink() or entry.name in obsolete:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, copy, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(entry, copy)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
        if not Path(target).is_symlink():
            _flush_file(Path(target))


def _copy_ownership(source: Path, target: Path) -> None:
    """Give a folder the permissions of another one, and its owner where this process may do that."""
    status = source.stat()
    if os.name == "posix":
        with contextlib.suppress(PermissionError):  # only root gives files away
            os.chown(target, status.st_uid, status.st_gid)
    shutil.copystat(source, target)


def _flush_folders(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            flush_folder(path)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return whether the system can do that."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    return renameat2 is not None and renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) == 0


def explain_os_error(error: OSError, path: Path) -> FolderError:
    """Turn an OSError of writing `path` into one sentence that says what to do."""
    folder = path.absolute().parent
    reasons = {
        errno.ENOSPC: f"no space left on the disk of {folder}; {_FREE_SPACE}",
        errno.EDQUOT: f"no space left in the quota on the disk of {folder}; {_FREE_SPACE}",
        errno.EACCES: "writing there is not allowed; choose another folder with --output or change its permissions",
        errno.EPERM: "writing there is not allowed; choose another folder with --output or change its permissions",
        errno.EROFS: "that file system is read-only; choose another folder with --output",
        errno.ENOTDIR: "a part of that path is a file, not a folder; choose another folder with --output",
        errno.EEXIST: "a file of that name is in the way; choose another folder with --output",
        errno.ENAMETOOLONG: "that name is too long, or leaves no room for a temporary name; choose a shorter --output",
    }
    number = errno.ENOSPC if _NUMPY_SHORT_WRITE.search(str(error)) else error.errno or 0
    reason = reasons.get(number, f"{error.strerror or error}; check the disk and run the same command again")
    return FolderError(f"cannot write {path}: {reason}")


def as_os_error(error: Exception) -> OSError:
    """Return the OSError behind an error of a library of another language, which has the errno only in its message."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]) if number else errno.EIO, str(error))


def check_space(path: Path, num_bytes: int) -> None:
    """Raise a FolderError if a new file of this size has no space: some libraries do not say why they cannot write."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        elif shutil.disk_usage(path.parent).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.unlink()


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with the keys in the given order and a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, description: str) -> Any:
    """Return the JSON in `path`; `description` says in errors what the file should be, e.g. "a model folder"."""
    try:
        check_regular(path)
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} has no {path.name}: it is not, or not yet, {description}") from None
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    except ValueError as error:
        raise FolderError(f"{path} cannot be read as {description}: {error}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_folder(folder: Path) -> None:
    """Make a rename durable. Some systems cannot open folders; they flush them by themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
