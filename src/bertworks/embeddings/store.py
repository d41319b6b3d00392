"""The vector store: batches of vectors in, files on disk out: memory-mapped .npy, converted at the end if necessary.

During a run its arrays grow in a folder of parts next to the output. After each batch they are flushed, and then a
small file records their valid length. A killed run resumes there; what was written beyond it is truncated, so the
result is the same to the byte.

N vectors, D vector size.
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
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import explain_os_error, read_json, remove_dead_temporaries, remove_entry, write_json
from bertworks.embeddings.formats import FORMATS, MANIFEST, PROGRESS, VectorRun, sidecar_path, with_current_names
from bertworks.embeddings.vectors import VectorBatch
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.folder_lock import lock_output
from bertworks.settings import convert_value
from bertworks.text.document import Counts

_PROGRESS_TYPES: dict[str, Any] = {"texts": int, "rows": int, "texts_sha256": str, "counts": dict[str, int]}
# The header has a fixed length, so that it can be rewritten when the number of rows is known.
_HEADER = 128


class GrowingArray:
    """A standard .npy file to which rows can be appended."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], num_rows: int) -> None:
        """Open the array and truncate it to `num_rows` rows; create it if that is 0."""
        self._path = path
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._row_bytes = self._dtype.itemsize * int(np.prod(shape))
        self._num_rows = num_rows
        self._file = path.open("r+b" if num_rows else "w+b")
        size = _HEADER + num_rows * self._row_bytes
        if num_rows and os.fstat(self._file.fileno()).st_size < size:
            self._file.close()
            raise FolderError(
                f"{path} is shorter than its run recorded; remove the folder {path.parent} and start again"
            )
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, values: npt.NDArray[Any]) -> None:
        assert values.shape[1:] == self._shape
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        self._num_rows += len(values)

    def flush(self) -> None:
        """Write the header for the current number of rows, and sync to disk."""
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._num_rows, *self._shape)}
        header = f"{fields!r}".ljust(_HEADER - 11) + "\n"
        self._file.seek(0)
        self._file.write(np.lib.format.magic(1, 0) + (_HEADER - 10).to_bytes(2, "little") + header.encode())
        self._file.seek(0, os.SEEK_END)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:  # what a full disk did not take is written again
            raise explain_os_error(error, self._path) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The output and its format. `identity` is what determines the values; a resumed run must have the same."""

    output: Path
    vector_size: int
    unit: str
    half: bool
    format: str
    identity: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        return {"unit": self.unit, "vector_size": self.vector_size, "half": self.half, **self.identity}

    @property
    def parts_folder(self) -> Path:
        return self.output.with_name(f".{self.output.name}.parts")


class VectorStore:
    """The vectors of a run on disk. A context manager; `num_resumed` texts were done when it was opened."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.num_texts = self.num_rows = 0
        self._hash = hashlib.sha256()  # of the texts so far
        self._saved_hash = self._hash.hexdigest()
        with _explain_errors(settings.output), contextlib.ExitStack() as stack:
            stack.enter_context(lock_output(settings.output))
            remove_dead_temporaries(sidecar_path(settings.output))
            settings.parts_folder.mkdir(parents=True, exist_ok=True)
            self._resume()
            stack.callback(self._remove_empty_parts)
            self._arrays = self._open(stack)
            self._remove_other_files()
            self._exit_stack = stack.pop_all()
        self.num_resumed = self.num_texts

    def __enter__(self) -> VectorStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def remaining(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts after the resumed ones; raise an InputError if those have changed."""
        stream = iter(texts)
        for text in islice(stream, self.num_resumed):
            _update_hash(self._hash, text)
        if self._hash.hexdigest() != self._saved_hash:
            raise InputError(
                f"the first {self.num_resumed:,} texts have changed since the run was started; restore them, or remove "
                f"{self.settings.parts_folder} to start again"
            )
        for text in stream:
            _update_hash(self._hash, text)
            yield text

    def append(self, batch: VectorBatch) -> None:
        """Append the vectors of all texts taken from `remaining` since the last call, and record the progress."""
        with _explain_errors(self.settings.output):
            self._arrays["vectors"].append(batch.vectors)
            if self.settings.unit != "texts":
                self._arrays["index"].append(self.num_rows + np.cumsum(batch.num_rows))
                self._arrays["offsets"].append(batch.offsets)
            for array in self._arrays.values():
                array.flush()
        self.num_texts += batch.num_texts
        self.num_rows += len(batch.vectors)
        self.counts.update(batch.counts)
        write_json(self.settings.parts_folder / PROGRESS, self._metadata())

    def finish(self) -> None:
        """Convert the arrays to the output format, move them to the output path, and remove the parts."""
        with _explain_errors(self.settings.output):
            for array in self._arrays.values():
                array.flush()
            FORMATS[self.settings.format](VectorRun(self.settings.parts_folder, self.settings.output, self._metadata()))

    def _metadata(self) -> dict[str, Any]:
        progress = {"texts": self.num_texts, "rows": self.num_rows, "texts_sha256": self._hash.hexdigest()}
        return {**self.settings.metadata, **progress, "counts": dict(self.counts)}

    def _remove_empty_parts(self) -> None:
        if not self.num_texts:  # nothing to resume
            shutil.rmtree(self.settings.parts_folder, ignore_errors=True)

    def _remove_other_files(self) -> None:
        """Remove what killed runs left in the parts, such as temporary files: the parts may become the output."""
        names = {PROGRESS, *(f"{name}.npy" for name in self._arrays)}
        for path in self.settings.parts_folder.iterdir():
            if path.name not in names:
                remove_entry(path)

    def _resume(self) -> None:
        """Restore the recorded progress of a run with these settings, if there is one."""
        parts = self.settings.parts_folder
        if not (parts / "vectors.npy").is_file():
            return  # nothing was written, or the run was killed after the vectors were moved to the output
        if not (parts / PROGRESS).is_file():
            if not (parts / MANIFEST).is_file():
                return
            (parts / MANIFEST).replace(parts / PROGRESS)  # the run was killed before it could move its parts
        progress = _read_progress(parts / PROGRESS)
        for name, value in self.settings.metadata.items():
            if progress.get(name) != value:
                raise FolderError(
                    f"{parts} was started with another {name.replace('_', ' ')} ({progress.get(name)}, now {value}); "
                    f"use the same options, choose another --output, or remove that folder"
                )
        self.num_texts, self.num_rows = progress["texts"], progress["rows"]
        self.counts = Counts(progress["counts"])
        self._saved_hash = progress["texts_sha256"]

    def _open(self, exit_stack: contextlib.ExitStack) -> dict[str, GrowingArray]:
        vector_dtype = np.float16 if self.settings.half else np.float32
        specs: dict[str, tuple[npt.DTypeLike, tuple[int, ...], int]] = {
            "vectors": (vector_dtype, (self.settings.vector_size,), self.num_rows)
        }
        if self.settings.unit != "texts":
            specs["offsets"] = (np.int64, (2,), self.num_rows)
            specs["index"] = (np.int64, (), self.num_texts and self.num_texts + 1)
        arrays = {}
        for name, (dtype, shape, num_rows) in specs.items():
            arrays[name] = GrowingArray(self.settings.parts_folder / f"{name}.npy", dtype, shape, num_rows)
            exit_stack.callback(arrays[name].close)
        if "index" in arrays and not self.num_texts:
            arrays["index"].append(np.zeros(1, dtype=np.int64))
        return arrays


def _read_progress(path: Path) -> dict[str, Any]:
    """Return the recorded progress of a run, with the types that `append` writes."""
    progress = read_json(path, "the progress of a run")
    try:
        for name, kind in _PROGRESS_TYPES.items():
            convert_value(kind, progress[name], name)
        if min(progress["texts"], progress["rows"]) < 0:
            raise ValueError("a negative number")
    except (KeyError, TypeError, ValueError, SettingsError) as error:
        raise FolderError(f"{path} is damaged ({error}); remove the folder {path.parent} and start again") from None
    return with_current_names(dict(progress))


def hash_texts(texts: Iterable[str]) -> tuple[int, str]:
    """Return the number of texts and the hash of all of them, as a store records it."""
    texts_hash = hashlib.sha256()
    count = 0
    for text in texts:
        _update_hash(texts_hash, text)
        count += 1
    return count, texts_hash.hexdigest()


def _update_hash(texts_hash: hashlib._Hash, text: str) -> None:
    data = text.encode(errors="surrogatepass")
    texts_hash.update(len(data).to_bytes(8, "little") + data)


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error
