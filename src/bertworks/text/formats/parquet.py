"""A Parquet file in, one Passage a row out: the text stands in one column; row groups are read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertworks.errors import InputError, MissingDependencyError
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import FileChunk, FileSpec, Format
from bertworks.text.object_stores import is_address, store_of

_BATCH_ROWS = 1024


def open_parquet(path: str, name: str, field: str) -> Any:
    """Open a Parquet file and check that the column is there and holds text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "parquet", "reading Parquet files") from error
    try:
        store, place = store_of(path) if is_address(path) else (None, path)
        file = pq.ParquetFile(place, filesystem=store)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name} is not a whole Parquet file ({error}); copy or download it again") from error
    schema = file.schema_arrow
    if field not in schema.names:
        columns = ", ".join(map(repr, schema.names))
        raise InputError(f"{name}: no column {field!r}; the columns are {columns}; name the text's column with --field")
    kind = schema.field(field).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        raise InputError(f"{name}: column {field!r} holds {kind}, not text; name another with --field")
    return file


def row_group_sizes(path: str, spec: FileSpec) -> list[tuple[int, int]]:
    """For each row group, its bytes on disk and the bytes of its text column once unpacked."""
    with open_parquet(path, spec.name, spec.field) as file:
        sizes = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            columns = [group.column(index) for index in range(group.num_columns)]
            on_disk = sum(column.total_compressed_size for column in columns)
            unpacked = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == spec.field)
            sizes.append((on_disk, unpacked))
    return sizes


def read_row_groups(path: str, spec: FileSpec, groups: tuple[int, ...], counts: Counts) -> Iterator[RawDocument]:
    """The texts of some row groups, a batch of rows in memory at a time; a row is named by its number from 1."""
    import pyarrow as pa

    with open_parquet(path, spec.name, spec.field) as file:
        for group in groups:
            row = sum(file.metadata.row_group(number).num_rows for number in range(group))
            try:
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[spec.field]):
                    for text in batch.column(0).to_pylist():
                        row += 1
                        if text is None or not text.strip():
                            counts["records skipped: no text"] += 1
                        else:
                            yield RawDocument(text.replace("\r\n", "\n").strip(), f"{spec.name}:{row}", spec.lines)
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{spec.name} is damaged near row {row} ({error}); copy it again") from error


def _refuse_chunk(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    raise AssertionError("Parquet is read by row groups")


def _refuse_stream(head: bytes, spec: FileSpec) -> FileSpec:
    raise InputError(
        f"{spec.name}: Parquet cannot be read from a stream, an archive or a compressed file; give it as a file"
    )


def _find_boundary(data: bytes, at: int, spec: FileSpec) -> int | None:
    return None


PARQUET = Format("parquet", (".parquet",), _refuse_chunk, _find_boundary, prepare=_refuse_stream)
