"""Text in object stores: an address such as s3://bucket/texts in, its Files and their bytes out, by way of fsspec.

fsspec knows many stores by the beginning of an address (s3, gs, hdfs, http, file, memory); most need a package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import IO, Any, TypeVar

from bertworks.errors import BertworksError, InputError, MissingDependencyError
from bertworks.text.files import File

_GLOB_SIGNS = "*["
# The packages of the stores for which there is an extra.
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}

Result = TypeVar("Result")


def is_address(path: str) -> bool:
    """Tell whether a path is the address of a store."""
    return "://" in path


def list_files(address: str) -> list[File]:
    """Return the visible files that an address stands for: one, those of a folder and below, or those of a glob."""
    store, root = store_of(address)
    return _translate_errors(address, lambda: _files(store, root.rstrip("/"), address))


def open_object(address: str) -> IO[bytes]:
    """Open the bytes of a stored file; any part of it can be read without the rest."""
    store, path = store_of(address)
    raw: IO[bytes] = _translate_errors(address, lambda: store.open(path, "rb"))
    return raw


def stamp(address: str) -> str:
    """Return what changes when a stored file does: its version, or else its size and time."""
    store, path = store_of(address)
    return str(_translate_errors(address, lambda: store.ukey(path)))


def store_of(address: str) -> tuple[Any, str]:
    """Return the store behind an address, with the methods that fsspec gives to all, and the path there."""
    import fsspec

    scheme = address.partition("://")[0]
    try:
        store, root = _translate_errors(address, lambda: fsspec.url_to_fs(address))
    except ImportError as error:
        if scheme not in _EXTRAS:
            raise InputError(f"{address} cannot be read: {error}") from None
        raise MissingDependencyError(*_EXTRAS[scheme], f"reading {scheme}:// addresses") from None
    return store, str(root)


def _files(store: Any, root: str, address: str) -> list[File]:
    if any(sign in root for sign in _GLOB_SIGNS):
        parts = PurePosixPath(root).parts
        fixed = next(number for number, part in enumerate(parts) if any(sign in part for sign in _GLOB_SIGNS))
        base, found, named = str(PurePosixPath(*parts[:fixed])), store.glob(root, detail=True), True
    elif store.isdir(root):
        base, found, named = root, store.find(root, detail=True), False
    elif store.exists(root):
        base, found, named = str(PurePosixPath(root).parent), {root: store.info(root)}, True
    else:
        raise InputError(f"{address} does not exist; check the address")
    files = []
    for path, told in found.items():
        name = path.removeprefix(base).lstrip("/")
        if told["type"] == "file" and not any(part.startswith(".") for part in PurePosixPath(name).parts):
            files.append(File(store.unstrip_protocol(path), name, int(told["size"]), named))
    if not files:
        raise InputError(f"{address} holds no files; give a file, a folder or a glob with text in it")
    for file in files:
        if named and not file.size:
            raise InputError(f"{file.name} is empty; fill it or leave it out")
    return sorted(files, key=lambda file: file.name)


def _translate_errors(address: str, call: Callable[[], Result]) -> Result:
    """Do something with a store; each has errors of its own, and all become one sentence."""
    try:
        return call()
    except (BertworksError, ImportError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{address} cannot be read: {reason}; check the address, and whether this machine may read there"
        ) from error
