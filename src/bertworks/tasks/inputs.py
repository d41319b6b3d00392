"""Inputs of `predict`, `explain` and the server: a text, texts or a dict of fields in, the example of a task out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertworks.datasets.files import Record
from bertworks.errors import InputError, show_value
from bertworks.tasks.contract import InputFields, Task

TEXT = InputFields(("text",))
PAIR = InputFields(("sentence1", "sentence2"))

# A text, the texts of a pair and the like (the last may be a list of texts: choices), or a dict of fields.
Input = str | Sequence[Any] | Mapping[str, Any]


def fields_from_input(task: Task | type[Task], value: Input) -> dict[str, Any]:
    """Return an input as a dict of fields: plain texts fill the task's `input_fields` in order."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        raise InputError(
            f"the input is {show_value(value)}; the task '{task.name}' takes {describe_input_fields(task)}"
        )
    for input_fields in task.input_fields:
        names, num_items = input_fields.names, input_fields.min_list_items
        if len(value) == len(names) and not num_items:
            return dict(zip(names, value, strict=True))
        if num_items and len(value) == len(names) and isinstance(value[-1], list | tuple):
            return {**dict(zip(names, value, strict=True)), names[-1]: list(value[-1])}
        if num_items and len(value) >= len(names) - 1 + num_items:
            last = len(names) - 1
            return {**dict(zip(names, value[:last], strict=False)), names[last]: list(value[last:])}
    raise InputError(f"got {len(value)} texts; the task '{task.name}' takes {describe_input_fields(task)}")


def record_of_input(task: Task | type[Task], value: Input, location: str) -> Record:
    """Return an input as a record, with what else its dict has; an error names its location."""
    try:
        values = fields_from_input(task, value)
    except InputError as error:
        raise InputError(f"{location}: {error}") from None
    fields = {name: list(item) if isinstance(item, tuple) else item for name, item in values.items()}
    for input_fields in task.input_fields:
        if _matches({name: fields[name] for name in input_fields.names if name in fields}, input_fields):
            return Record(fields, location)
    raise InputError(f"{location}: the task '{task.name}' takes {describe_input_fields(task)}")


def example_from_input(task: Task, value: Input, location: str, example_id: str) -> Any:
    """Return the example of one input; raise InputError, naming the location, if the task does not take it."""
    fields = fields_from_input(task, value)
    if not any(_matches(fields, input_fields) for input_fields in task.input_fields):
        raise InputError(f"{location}: the task '{task.name}' takes {describe_input_fields(task)}")
    # One record at a time: the inputs of a request may have different fields.
    example = next(iter(task.read_unlabelled([Record(fields, location)], {})), None)
    if example is None:
        raise InputError(f"{location}: one of its texts is empty; every text needs at least one character")
    return replace(example, id=example_id)


def _matches(fields: Mapping[str, Any], input_fields: InputFields) -> bool:
    return fields.keys() == set(input_fields.names) and all(
        isinstance(value, list if name == input_fields.list_name else str) for name, value in fields.items()
    )


def describe_input_fields(task: Task | type[Task]) -> str:
    """Return what a task takes as JSON with placeholders: {"prompt": TEXT, "choices": [TEXT, ...]}."""
    return " or ".join(map(_describe, task.input_fields))


def _describe(input_fields: InputFields) -> str:
    values = {name: "[TEXT, ...]" if name == input_fields.list_name else "TEXT" for name in input_fields.names}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"
