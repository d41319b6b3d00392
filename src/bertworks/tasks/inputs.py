"""Inputs of `predict`, `explain` and the server: a text, texts or a dict of fields in, the example of a task out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertworks.datasets.files import Record
from bertworks.errors import InputError
from bertworks.tasks.contract import InputFields, Task

TEXT = InputFields(("text",))
PAIR = InputFields(("sentence1", "sentence2"))

# A text, the texts of a pair and the like, or a dict of fields.
Input = str | Sequence[str] | Mapping[str, Any]


def fields_from_input(task: Task | type[Task], value: Input) -> dict[str, Any]:
    """Return an input as a dict of fields: plain texts fill the task's `input_fields` in order."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return {"text": value}
    for input_fields in task.input_fields:
        names, num_items = input_fields.names, input_fields.min_list_items
        if len(value) == len(names) and not num_items:
            return dict(zip(names, value, strict=True))
        if num_items and len(value) >= len(names) - 1 + num_items:
            last = len(names) - 1
            return {**dict(zip(names, value[:last], strict=False)), names[last]: list(value[last:])}
    raise InputError(f"a '{task.name}' model takes {describe_input_fields(task)}; got {len(value)} texts")


def example_from_input(task: Task, value: Input, location: str, example_id: str) -> Any:
    """Return the example of one input; raise InputError, naming the location, if the task does not take it."""
    fields = fields_from_input(task, value)
    if not any(fields.keys() == set(input_fields.names) for input_fields in task.input_fields):
        raise InputError(f"{location}: a '{task.name}' model takes {describe_input_fields(task)}; send that")
    example = next(iter(task.read_unlabelled([Record(fields, location)], {})), None)
    if example is None:
        raise InputError(f"{location}: one of its texts is empty; fill it in, or remove the input")
    return replace(example, id=example_id)


def describe_input_fields(task: Task | type[Task]) -> str:
    """Return what a task takes, for messages: {"text"} or {"sentence1", "sentence2"}."""
    return " or ".join("{" + _describe(input_fields) + "}" for input_fields in task.input_fields)


def _describe(input_fields: InputFields) -> str:
    names = [f'"{name}"' for name in input_fields.names]
    if input_fields.min_list_items:
        names[-1] += f" (a list of at least {input_fields.min_list_items})"
    return ", ".join(names)
