"""Output formats of vectors: finished arrays in, a .npy, Parquet or JSON Lines file, or a folder of .npy files out.

N vectors, D vector size, B vectors of a block.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.choices import POOLING_ALIASES
from bertworks.disk import atomic_write, flush_folder, read_json, replace_folder, write_json
from bertworks.errors import FolderError, MissingDependencyError

MANIFEST = "manifest.json"
# In the folder of parts of a run, what is complete there.
PROGRESS = "progress.json"
# Vectors converted to another format at a time.
_BLOCK = 4_096


@dataclass(frozen=True, slots=True)
class VectorRun:
    """The folder with the arrays of a run, the output path, and the metadata of the run."""

    parts_folder: Path
    output: Path
    metadata: dict[str, Any]

    @property
    def has_offsets(self) -> bool:
        return bool(self.metadata["unit"] != "texts")


def sidecar_path(output: Path) -> Path:
    """Return the path of the metadata of a file of vectors: its model, its texts."""
    return output.with_name(output.name + ".json")


def read_metadata(output: Path) -> dict[str, Any] | None:
    """Return the metadata of vectors on disk, or None if there are none."""
    path = output / MANIFEST if output.is_dir() else sidecar_path(output)
    if not path.is_file():
        return None
    metadata = read_json(path, "the metadata of vectors")
    return with_current_names(metadata) if isinstance(metadata, dict) and "unit" in metadata else None


def with_current_names(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata of vectors with the pooling of texts by its current name, whichever version wrote them."""
    kinds = metadata.get("pooling")
    if metadata.get("unit") != "texts" or not isinstance(kinds, list):
        return metadata
    return {**metadata, "pooling": [POOLING_ALIASES.get(str(kind), kind) for kind in kinds]}


def load_mapped(path: Path) -> npt.NDArray[Any]:
    """Memory-map a .npy file; an empty array cannot be mapped and is read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        return np.load(path, allow_pickle=False)


def check_output(output: Path, unit: str, format: str) -> None:  # noqa: A002
    """Raise an error if the output path or format cannot be written; called before long computations."""
    if format == "parquet":
        _pyarrow()
    makes_folder = format == "npy" and unit != "texts"
    if (
        makes_folder
        and output.exists()
        and (not output.is_dir() or (any(output.iterdir()) and read_metadata(output) is None))
    ):
        raise FolderError(
            f"{output} contains something other than vectors of {unit}; choose another path with --output"
        )
    if not makes_folder and output.is_dir():
        raise FolderError(
            f"{output} is a folder, but the output is a file of vectors; choose another path with --output"
        )


def _finish_npy(run: VectorRun) -> None:
    if not run.has_offsets:
        sidecar_path(run.output).unlink(missing_ok=True)
        (run.parts_folder / "vectors.npy").replace(run.output)
        _finish_file(run)
        return
    write_json(run.parts_folder / MANIFEST, run.metadata)
    (run.parts_folder / PROGRESS).unlink(missing_ok=True)
    replace_folder(run.parts_folder, run.output)


def _finish_file(run: VectorRun) -> None:
    # The metadata are removed first and written last: a crash never leaves them beside other vectors.
    flush_folder(run.output.parent)
    write_json(sidecar_path(run.output), run.metadata)
    shutil.rmtree(run.parts_folder)


def _finish_json_lines(run: VectorRun) -> None:
    sidecar_path(run.output).unlink(missing_ok=True)
    with atomic_write(run.output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for texts, offsets, vectors in _blocks(run):
            for row, (text, vector) in enumerate(zip(texts.tolist(), vectors, strict=True)):
                record = {"text": text}
                if run.has_offsets:
                    record |= {"start": int(offsets[row, 0]), "end": int(offsets[row, 1])}
                # numpy writes the fewest digits that round-trip
                file.write(f'{json.dumps(record)[:-1]}, "vector": [{", ".join(vector.astype(str))}]}}\n')
    _finish_file(run)


def _finish_parquet(run: VectorRun) -> None:
    pa, pq = _pyarrow()
    vectors = load_mapped(run.parts_folder / "vectors.npy")
    vector_type = pa.list_(pa.from_numpy_dtype(vectors.dtype), vectors.shape[1])
    offset_columns = [("start", pa.int64()), ("end", pa.int64())] if run.has_offsets else []
    schema = pa.schema([("text", pa.int64()), *offset_columns, ("vector", vector_type)])
    sidecar_path(run.output).unlink(missing_ok=True)
    with atomic_write(run.output) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for texts, offsets, block in _blocks(run):
            columns = [pa.array(texts)]
            if run.has_offsets:
                columns += [pa.array(np.ascontiguousarray(offsets[:, column])) for column in (0, 1)]
            flat = pa.array(np.ascontiguousarray(block).reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(flat, block.shape[1]))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    _finish_file(run)


def _blocks(run: VectorRun) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield text numbers (B,), offsets (B, 2) if there are any, and vectors (B, D)."""
    vectors = load_mapped(run.parts_folder / "vectors.npy")
    offsets = load_mapped(run.parts_folder / "offsets.npy") if run.has_offsets else np.empty((len(vectors), 0))
    index = load_mapped(run.parts_folder / "index.npy") if run.has_offsets else None
    for start in range(0, len(vectors), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(vectors)))
        texts = rows if index is None else np.searchsorted(index, rows, side="right") - 1
        yield texts, offsets[rows[0] : rows[-1] + 1], vectors[rows[0] : rows[-1] + 1]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "parquet", "writing Parquet files") from error
    return pa, pq


FORMATS: dict[str, Callable[[VectorRun], None]] = {
    "npy": _finish_npy,
    "parquet": _finish_parquet,
    "jsonl": _finish_json_lines,
}
