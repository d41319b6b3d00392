"""Finished arrays in, the file or folder that was asked for out: .npy as they are, or Parquet or JSON Lines.

N rows of vectors, D their width.
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

from bertworks.disk import atomic_write, flush_folder, read_json, write_json
from bertworks.errors import FolderError, MissingDependencyError

MANIFEST = "manifest.json"
# What a run keeps among its parts for itself.
PROGRESS = "progress.json"
LOCK = "lock"
# Rows that are turned into another format at a time.
_BLOCK = 4_096


@dataclass(frozen=True, slots=True)
class VectorRun:
    """The folder with all arrays of a run, where they shall go, and what the run tells about itself."""

    parts_folder: Path
    output: Path
    metadata: dict[str, Any]

    @property
    def has_offsets(self) -> bool:
        return bool(self.metadata["unit"] != "texts")


def sidecar_path(output: Path) -> Path:
    """Return where the facts about a file of vectors stand: which model, which texts."""
    return output.with_name(output.name + ".json")


def read_metadata(output: Path) -> dict[str, Any] | None:
    """Return the facts about vectors on disk, or None where there are none."""
    path = output / MANIFEST if output.is_dir() else sidecar_path(output)
    if not path.is_file():
        return None
    told = read_json(path, "the facts about vectors")
    return told if isinstance(told, dict) and "unit" in told else None


def load_mapped(path: Path) -> npt.NDArray[Any]:
    """Return an array of a .npy file without reading it; one of no rows cannot be mapped and is read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        return np.load(path, allow_pickle=False)


def check_output(output: Path, unit: str, format: str) -> None:  # noqa: A002
    """Refuse a place that already holds something else, and a format that cannot be written, before hours of work."""
    if format == "parquet":
        _pyarrow()
    makes_folder = format == "npy" and unit != "texts"
    if (
        makes_folder
        and output.exists()
        and (not output.is_dir() or (any(output.iterdir()) and read_metadata(output) is None))
    ):
        raise FolderError(f"{output} holds something else than vectors of {unit}; choose another name with --out")
    if not makes_folder and output.is_dir():
        raise FolderError(
            f"{output} is a folder, but a file of vectors is to be written; choose another name with --out"
        )


def _finish_npy(run: VectorRun) -> None:
    if not run.has_offsets:
        (run.parts_folder / "vectors.npy").replace(run.output)
        _finish_file(run)
        return
    write_json(run.parts_folder / MANIFEST, run.metadata)
    if run.output.exists():
        shutil.rmtree(run.output)
    run.parts_folder.rename(run.output)
    for name in (PROGRESS, LOCK):
        (run.output / name).unlink(missing_ok=True)
    flush_folder(run.output.parent)


def _finish_file(run: VectorRun) -> None:
    # Vectors first, facts second: whoever stops between them leaves facts that do not fit, never ones that seem to.
    flush_folder(run.output.parent)
    write_json(sidecar_path(run.output), run.metadata)
    shutil.rmtree(run.parts_folder)


def _finish_json_lines(run: VectorRun) -> None:
    with atomic_write(run.output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for texts, offsets, vectors in _blocks(run):
            for row, (text, vector) in enumerate(zip(texts.tolist(), vectors, strict=True)):
                told = {"text": text}
                if run.has_offsets:
                    told |= {"start": int(offsets[row, 0]), "end": int(offsets[row, 1])}
                # numpy writes the fewest digits that read back as the same number
                file.write(f'{json.dumps(told)[:-1]}, "vector": [{", ".join(vector.astype(str))}]}}\n')
    _finish_file(run)


def _finish_parquet(run: VectorRun) -> None:
    pa, pq = _pyarrow()
    vectors = load_mapped(run.parts_folder / "vectors.npy")
    kind = pa.list_(pa.from_numpy_dtype(vectors.dtype), vectors.shape[1])
    places = [("start", pa.int64()), ("end", pa.int64())] if run.has_offsets else []
    schema = pa.schema([("text", pa.int64()), *places, ("vector", kind)])
    with atomic_write(run.output) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for texts, offsets, block in _blocks(run):
            columns = [pa.array(texts)]
            if run.has_offsets:
                columns += [pa.array(np.ascontiguousarray(offsets[:, side])) for side in (0, 1)]
            flat = pa.array(np.ascontiguousarray(block).reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(flat, block.shape[1]))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    _finish_file(run)


def _blocks(run: VectorRun) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield numbers of texts (B,), offsets (B, 2) if there are any, and vectors (B, D), some rows at a time."""
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
