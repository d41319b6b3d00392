"""Tables in memory in, rows by column name out: dicts of columns, pandas and polars frames, `datasets.Dataset`.

None of these libraries is imported: a frame is recognized by its methods. Values become those of JSON: a missing value
of any kind (NaN, pandas' NA) is None, and a class index of `datasets` is the name of its class.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from bertworks.errors import InputError, show_names, show_value

# pandas' markers of a missing value, which compare as neither equal nor unequal.
_MISSING_TYPES = ("NAType", "NaTType")


def table_rows(data: Any, name: str) -> Iterator[Mapping[str, Any]] | None:
    """Return the rows of a table; None if `data` is not a table. Errors begin with `name`."""
    if isinstance(data, Mapping):
        return _rows_of_columns(data, name)
    if getattr(data, "column_names", None) and getattr(data, "features", None):
        return _rows_of_dataset(data)
    if hasattr(data, "iter_rows"):  # polars
        rows: Iterator[Mapping[str, Any]] = data.iter_rows(named=True)
        return rows
    if hasattr(data, "itertuples"):  # pandas
        columns = [str(column) for column in data.columns]
        return (dict(zip(columns, row, strict=True)) for row in data.itertuples(index=False, name=None))
    return None


def _rows_of_columns(columns: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    if any(hasattr(values, "column_names") for values in columns.values()):
        raise InputError(f"{name} holds the splits {show_names(columns)}; give one of them")
    for column, values in columns.items():
        if isinstance(values, str) or not isinstance(values, Sized):
            raise InputError(f"{name}: the column {column!r} is a {type(values).__name__}; give a list of values")
    lengths = {str(column): len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{column!r} has {length:,}" for column, length in lengths.items())
        raise InputError(f"{name}: the columns differ in length: {shown}; give each one value per row")
    return (dict(zip(lengths, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _rows_of_dataset(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `datasets.Dataset`; -1 stands for an unknown class."""
    names = {column: _class_names(feature) for column, feature in data.features.items()}
    for row in data:
        yield {column: _name_classes(value, names.get(column)) for column, value in row.items()}


def _class_names(feature: Any) -> list[str] | None:
    """Return the names of a ClassLabel, or of a list of them."""
    if isinstance(feature, list):  # the older way to write a list of values
        return _class_names(feature[0])
    if type(feature).__name__ == "ClassLabel":
        return list(feature.names)
    return _class_names(feature.feature) if hasattr(feature, "feature") else None


def _name_classes(value: Any, names: list[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, list):
        return [_name_classes(item, names) for item in value]
    return names[value] if isinstance(value, int) and value >= 0 else None


def json_value(value: Any, location: str) -> Any:
    """Return a value as JSON has it: numpy's, torch's and pandas' values become Python's, a missing one None."""
    if value is None or type(value).__name__ in _MISSING_TYPES:
        return None
    if isinstance(value, str):
        return _json_text(str(value), location)  # numpy has its own class
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _json_number(value, location)
    if isinstance(value, Mapping):
        return {str(key): json_value(item, location) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item, location) for item in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist(), location)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise InputError(f"{location}: {show_value(value)} is of type {type(value).__name__}; give text or a number")


def _json_text(value: str, location: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{location}: {show_value(value)} has half of a surrogate pair, no character; correct it"
        ) from None
    return value


def _json_number(value: float, location: str) -> float | None:
    if math.isinf(value):
        raise InputError(f"{location}: {value} is not a finite number; correct it")
    return None if math.isnan(value) else float(value)
