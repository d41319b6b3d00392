"""Multiple-choice files in, Choices out: SWAG's and ComVE's CSV, numbered columns, JSON Lines."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.datasets.files import Record, read_records
from bertworks.errors import InputError, show_names, show_value
from bertworks.text.document import Counts

_ENDING_COLUMN = re.compile(r"(?:ending|choice|option)[ _-]?(\d{1,6})", re.IGNORECASE)
_MAX_DIGITS = 6  # of the index of an ending
_PROMPTS = ("sent1", "prompt", "question", "context", "premise", "sentence", "text")
_COMVE = ("Incorrect Statement", "Right Reason1", "Confusing Reason1", "Confusing Reason2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A prompt and its endings; `label` is the index of the correct one, None if unknown."""

    prompt: str
    endings: tuple[str, ...]
    label: int | None
    id: str
    location: str


def read_choices(path: Path, counts: Counts | None = None) -> Iterator[Choice]:
    """Read a multiple-choice file; records with an empty ending are skipped and added to `counts`."""
    return choices_of(read_records(path), Counts() if counts is None else counts)


def choices_of(records: Iterable[Record], counts: Counts | None = None) -> Iterator[Choice]:
    """Turn records into choices. The names of the fields determine the layout: see `LAYOUTS`.

    A record with an empty ending is skipped and counted; without `counts` it raises InputError.
    """
    for index, record in enumerate(records):
        for matches, parse in LAYOUTS:
            if matches(record.fields):
                prompt, endings, label = parse(record)
                break
        else:
            raise InputError(
                f"{record.location}: no choices among the fields {show_names(record.fields)}; give 'prompt' "
                f"and 'choices', or a prompt and the columns ending0, ending1, … and label"
            )
        if len(endings) < 2:
            raise InputError(f"{record.location}: fewer than two choices; give at least two")
        if not all(ending.strip() for ending in endings):
            if counts is None:
                raise InputError(f"{record.location}: an ending is empty; fill it in or remove the line")
            counts["records skipped: an ending is empty"] += 1
            continue
        yield Choice(
            prompt=prompt,
            endings=endings,
            label=label,
            id=str(record.fields.get("id", index)),
            location=record.location,
        )


_Parts = tuple[str, tuple[str, ...], int | None]


def _from_list(record: Record) -> _Parts:
    endings = record.fields["choices"]
    if not isinstance(endings, list) or not all(isinstance(ending, str) for ending in endings):
        raise InputError(f'{record.location}: \'choices\' is not a list of strings; write it as ["…", "…"]')
    return _prompt(record), tuple(endings), _label(record, len(endings))


def _from_columns(record: Record) -> _Parts:
    """SWAG and similar files. `sent2` begins SWAG's second sentence and each ending completes it, as in the paper."""
    numbered = sorted((int(match[1]), name) for name in record.fields if (match := _ENDING_COLUMN.fullmatch(name)))
    beginning = str(record.fields.get("sent2") or "").strip()
    texts = [str(record.fields[name] or "").strip() for _, name in numbered]
    endings = tuple(f"{beginning} {text}" if beginning and text else text for text in texts)
    return _prompt(record), endings, _label(record, len(endings))


def _from_comve(record: Record) -> _Parts:
    """The false statement is the prompt. The file has the correct reason first, so the endings are shuffled.

    The order is a hash of the statement: the same in every run, and independent of the correct reason.
    """
    prompt, *reasons = (str(record.fields[name]).strip() for name in _COMVE)
    orders = list(itertools.permutations(range(len(reasons))))
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    order = orders[int.from_bytes(digest) % len(orders)]
    return prompt, tuple(reasons[index] for index in order), order.index(0)


# Whether the fields of a record have a layout, and how it is parsed; the first match is used.
LAYOUTS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Record], _Parts]], ...] = (
    (lambda fields: all(name in fields for name in _COMVE), _from_comve),
    (lambda fields: "choices" in fields, _from_list),
    (lambda fields: any(_ENDING_COLUMN.fullmatch(name) for name in fields), _from_columns),
)


def _prompt(record: Record) -> str:
    for name in _PROMPTS:
        if name in record.fields:
            if not isinstance(record.fields[name], str):
                raise InputError(f"{record.location}: {name!r} is not a string; put the prompt there")
            return str(record.fields[name]).strip()
    raise InputError(f"{record.location}: no prompt among the fields {show_names(record.fields)}; call it 'prompt'")


def _label(record: Record, num_endings: int) -> int | None:
    label = record.fields.get("label")
    if label in (None, "", -1, "-1"):  # published test files have -1 for a hidden label
        return None
    # True and 1.0 equal 1 in Python, but are not indices.
    text = "" if isinstance(label, bool) or not isinstance(label, int | str) else str(label).strip()
    if text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) < num_endings:
        return int(text)
    raise InputError(
        f"{record.location}: the label {show_value(label)} is not an index from 0 to {num_endings - 1}; correct it"
    )
