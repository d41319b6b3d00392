"""Portions of vectors in, files on disk out: memory-mapped .npy, or Parquet or JSON Lines made of it at the end.

While a run goes on, its arrays grow in a folder of parts beside the place that was asked for. After each portion they
are flushed, and then one small file tells how far they count. A killed run is taken up there; whatever was written
beyond it is cut off, so the result is the same to the byte.

N rows of vectors, D their width.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import explain_os_error, read_json, write_json
from bertworks.embeddings.formats import FORMATS, LOCK, PROGRESS, VectorRun
from bertworks.embeddings.vectors import VectorBatch
from bertworks.errors import FolderError, InputError
from bertworks.text.document import Counts

# A header of fixed length, so that it can be written again when the number of rows is known.
_HEADER = 128


class GrowingArray:
    """A standard .npy file of rows of one shape, to which rows are added at the end."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], num_rows: int) -> None:
        """Open the array and cut it to its first `num_rows` rows, or make it if there are none."""
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._row_bytes = self._dtype.itemsize * int(np.prod(shape))
        self._num_rows = num_rows
        self._file = path.open("r+b" if num_rows else "w+b")
        size = _HEADER + num_rows * self._row_bytes
        if num_rows and os.fstat(self._file.fileno()).st_size < size:
            self._file.close()
            raise FolderError(
                f"{path} is shorter than its run recorded; remove the folder {path.parent} and begin anew"
            )
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, values: npt.NDArray[Any]) -> None:
        assert values.shape[1:] == self._shape
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        self._num_rows += len(values)

    def flush(self) -> None:
        """Write the header for what is there, and wait until all of it is on disk."""
        told = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._num_rows, *self._shape)}
        text = f"{told!r}".ljust(_HEADER - 11) + "\n"
        self._file.seek(0)
        self._file.write(np.lib.format.magic(1, 0) + (_HEADER - 10).to_bytes(2, "little") + text.encode())
        self._file.seek(0, os.SEEK_END)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where vectors go and in which shape. `identity` is all that decides their values: another one is another run."""

    output: Path
    vector_size: int
    unit: str
    half: bool
    format: str
    identity: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        return {"unit": self.unit, "width": self.vector_size, "half": self.half, **self.identity}

    @property
    def parts_folder(self) -> Path:
        return self.output.with_name(f".{self.output.name}.parts")


class VectorStore:
    """A run's vectors on their way to disk. Use it as a context; `resumed` texts were there when it was opened."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.num_texts = self.num_rows = 0
        self._hash = hashlib.sha256()  # of the texts that were read so far
        self._saved_hash = self._hash.hexdigest()
        with _explain_errors(settings.output), contextlib.ExitStack() as opened:
            settings.parts_folder.mkdir(parents=True, exist_ok=True)
            opened.enter_context(_lock(settings.parts_folder))
            self._resume()
            self._arrays = self._open(opened)
            self._exit_stack = opened.pop_all()
        self.num_resumed = self.num_texts

    def __enter__(self) -> VectorStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()
        if not self.num_texts:  # nothing worth taking up
            shutil.rmtree(self.settings.parts_folder, ignore_errors=True)

    def remaining(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts that are still to do; refused if those that are done are no longer the same."""
        source = iter(texts)
        for text in islice(source, self.num_resumed):
            self._hash_text(text)
        if self._hash.hexdigest() != self._saved_hash:
            raise InputError(
                f"the first {self.num_resumed:,} texts are no longer those that were begun with; bring them back, or "
                f"remove {self.settings.parts_folder} to begin anew"
            )
        for text in source:
            self._hash_text(text)
            yield text

    def append(self, portion: VectorBatch) -> None:
        """Add the vectors of all texts that were taken from `remaining` since the last portion, and record it."""
        with _explain_errors(self.settings.output):
            self._arrays["vectors"].append(portion.vectors)
            if self.settings.unit != "texts":
                self._arrays["index"].append(self.num_rows + np.cumsum(portion.num_rows))
                self._arrays["offsets"].append(portion.offsets)
            for array in self._arrays.values():
                array.flush()
        self.num_texts += portion.num_texts
        self.num_rows += len(portion.vectors)
        self.counts.update(portion.counts)
        write_json(self.settings.parts_folder / PROGRESS, self._metadata())

    def finish(self) -> None:
        """Bring what is there into its format and to its place, and remove the parts."""
        with _explain_errors(self.settings.output):
            for array in self._arrays.values():
                array.flush()
            FORMATS[self.settings.format](VectorRun(self.settings.parts_folder, self.settings.output, self._metadata()))

    def _metadata(self) -> dict[str, Any]:
        done = {"texts": self.num_texts, "rows": self.num_rows, "texts_sha256": self._hash.hexdigest()}
        return {**self.settings.metadata, **done, "counts": dict(self.counts)}

    def _resume(self) -> None:
        """Go on where the record says that a run of these settings stood."""
        parts = self.settings.parts_folder
        if not (parts / PROGRESS).is_file() or not (parts / "vectors.npy").is_file():
            return  # without vectors it was killed after they were brought to their place
        found = read_json(parts / PROGRESS, "the record of a run")
        for name, value in self.settings.metadata.items():
            if found.get(name) != value:
                raise FolderError(
                    f"{parts} was begun with another {name.replace('_', ' ')} ({found.get(name)}, now {value}); run "
                    f"the command that began it, choose another --out, or remove that folder"
                )
        self.num_texts, self.num_rows = found["texts"], found["rows"]
        self.counts = Counts(found["counts"])
        self._saved_hash = found["texts_sha256"]

    def _open(self, exit_stack: contextlib.ExitStack) -> dict[str, GrowingArray]:
        kind = np.float16 if self.settings.half else np.float32
        shapes: dict[str, tuple[npt.DTypeLike, tuple[int, ...], int]] = {
            "vectors": (kind, (self.settings.vector_size,), self.num_rows)
        }
        if self.settings.unit != "texts":
            shapes["offsets"] = (np.int64, (2,), self.num_rows)
            shapes["index"] = (np.int64, (), self.num_texts and self.num_texts + 1)
        arrays = {}
        for name, (dtype, shape, num_rows) in shapes.items():
            arrays[name] = GrowingArray(self.settings.parts_folder / f"{name}.npy", dtype, shape, num_rows)
            exit_stack.callback(arrays[name].close)
        if "index" in arrays and not self.num_texts:
            arrays["index"].append(np.zeros(1, dtype=np.int64))
        return arrays

    def _hash_text(self, text: str) -> None:
        data = text.encode(errors="surrogatepass")
        self._hash.update(len(data).to_bytes(8, "little") + data)


def hash_texts(texts: Iterable[str]) -> tuple[int, str]:
    """Return how many texts there are and the hash of all of them, as a store records it."""
    found = hashlib.sha256()
    count = 0
    for text in texts:
        data = text.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
        count += 1
    return count, found.hexdigest()


def _lock(parts_folder: Path) -> IO[bytes]:
    """Keep a second run of the same --out away for as long as the file is open; a killed run holds nothing."""
    lock = (parts_folder / LOCK).open("wb")
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FolderError(f"another run is writing to {parts_folder}; wait for it, or choose another --out") from None
    return lock


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error
