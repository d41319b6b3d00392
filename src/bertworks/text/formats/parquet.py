"""Parquet files: one document per row, the text in the column `field`; a chunk is one row group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertworks.errors import InputError, MissingDependencyError, show_names
from bertworks.reading import unreadable_reason
from bertworks.text.chunks import FileChunk
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format
from bertworks.text.object_stores import is_address, store_of

_BATCH_ROWS = 1024


def open_parquet(path: str, name: str, field: str) -> Any:
    """Open a Parquet file and check that it has a text column `field`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "parquet", "reading Parquet files") from error
    try:
        store, location = store_of(path) if is_address(path) else (None, path)
        file = pq.ParquetFile(location, filesystem=store)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise InputError(f"{name} cannot be read: {unreadable_reason(error)}") from error
        raise InputError(f"{name} is not a whole Parquet file ({error}); copy or download it again") from error
    schema = file.schema_arrow
    if field not in schema.names:
        columns = show_names(schema.names)
        raise InputError(f"{name}: no column {field!r}; the columns are {columns}; name the text's column with --field")
    dtype = schema.field(field).type
    value_type = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(check(value_type) for check in is_text):
        raise InputError(f"{name}: column {field!r} holds {dtype}, not text; name another with --field")
    return file


def row_group_sizes(chunk: FileChunk) -> list[tuple[int, int]]:
    """Return for each row group its size on disk and the uncompressed size of its text column."""
    with open_parquet(chunk.path, chunk.name, chunk.field) as file:
        sizes = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            columns = [group.column(index) for index in range(group.num_columns)]
            num_bytes = sum(column.total_compressed_size for column in columns)
            text_bytes = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == chunk.field)
            sizes.append((num_bytes, text_bytes))
    return sizes


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    """Yield the texts of a row group, with one batch of rows in memory; a row is named by its number from 1."""
    import pyarrow as pa

    with open_parquet(chunk.path, chunk.name, chunk.field) as file:
        row = sum(file.metadata.row_group(number).num_rows for number in range(chunk.row_group))
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[chunk.row_group], columns=[chunk.field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if text is None or not text.strip():
                        counts["records skipped: no text"] += 1
                    else:
                        yield RawDocument(text.replace("\r\n", "\n").strip(), f"{chunk.name}:{row}", chunk.lines)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{chunk.name} is damaged near row {row} ({error}); copy it again") from error


def _reject_stream(head: bytes, chunk: FileChunk) -> FileChunk:
    raise InputError(
        f"{chunk.name}: Parquet cannot be read from a stream, an archive or a compressed file; give it as a file"
    )


def _find_boundary(data: bytes, start: int, chunk: FileChunk) -> int | None:
    return None  # a Parquet file is split by row groups, never by bytes


PARQUET = Format(
    name="parquet", extensions=(".parquet",), read=_read, find_boundary=_find_boundary, prepare=_reject_stream
)
