"""An address in an object store such as s3://bucket/texts in, its files and their bytes out, through fsspec.

fsspec chooses the file system by the scheme of an address (s3, gs, hdfs, http, file, memory); most need a package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import IO, Any, TypeVar

from bertworks.errors import BertworksError, InputError, MissingDependencyError
from bertworks.text.chunks import FileChunk

_GLOB_CHARACTERS = "*["
# Scheme -> the package that fsspec needs, and our extra that installs it.
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}

Result = TypeVar("Result")


def is_address(path: str) -> bool:
    """Return whether a path is an address with a scheme."""
    return "://" in path


def list_files(address: str) -> list[FileChunk]:
    """Return the visible files of an address: one file, those of a folder and its subfolders, or those of a glob."""
    store, root = store_of(address)
    return _translate_errors(address, lambda: _list_files(store, root.rstrip("/"), address))


def open_object(address: str) -> IO[bytes]:
    """Open a stored file for random access."""
    store, path = store_of(address)
    raw: IO[bytes] = _translate_errors(address, lambda: store.open(path, "rb"))
    return raw


def stamp(address: str) -> str:
    """Return a string that changes with the content of a stored file: its version, or its size and time."""
    store, path = store_of(address)
    return str(_translate_errors(address, lambda: store.ukey(path)))


def store_of(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address and the path in it."""
    import fsspec

    scheme = address.partition("://")[0]
    try:
        store, root = _translate_errors(address, lambda: fsspec.url_to_fs(address))
    except ImportError as error:
        if scheme not in _EXTRAS:
            raise InputError(f"{address} cannot be read: {error}") from None
        raise MissingDependencyError(*_EXTRAS[scheme], f"reading {scheme}:// addresses") from None
    return store, str(root)


def _list_files(store: Any, root: str, address: str) -> list[FileChunk]:
    if any(character in root for character in _GLOB_CHARACTERS):
        parts = PurePosixPath(root).parts
        num_fixed = next(i for i, part in enumerate(parts) if any(character in part for character in _GLOB_CHARACTERS))
        base, listing, is_explicit = str(PurePosixPath(*parts[:num_fixed])), store.glob(root, detail=True), True
    elif store.isdir(root):
        base, listing, is_explicit = root, store.find(root, detail=True), False
    elif store.exists(root):
        base, listing, is_explicit = str(PurePosixPath(root).parent), {root: store.info(root)}, True
    else:
        raise InputError(f"{address} does not exist; check the address")
    files = []
    for path, info in listing.items():
        name = path.removeprefix(base).lstrip("/")
        if info["type"] == "file" and not any(part.startswith(".") for part in PurePosixPath(name).parts):
            full_path, size = store.unstrip_protocol(path), int(info["size"])
            files.append(FileChunk(path=full_path, name=name, num_bytes=size, is_explicit=is_explicit))
    if not files:
        raise InputError(f"{address} holds no files; give a file, a folder or a glob with text in it")
    for file in files:
        if file.is_explicit and not file.num_bytes:
            raise InputError(f"{file.name} is empty; fill it or leave it out")
    return sorted(files, key=lambda file: file.name)


def _translate_errors(address: str, call: Callable[[], Result]) -> Result:
    """Call a function of a store; its own exceptions become an InputError."""
    try:
        return call()
    except (BertworksError, ImportError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{address} cannot be read: {reason}; check the address and the permissions of this machine"
        ) from error
