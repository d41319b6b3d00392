"""Files of questions with several endings in, Choices out: SWAG's and ComVE's CSV, numbered columns, JSON Lines."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.datasets.files import Record, read_records
from bertworks.errors import InputError
from bertworks.text.document import Counts

_ENDING_COLUMN = re.compile(r"(?:ending|choice|option)[ _-]?(\d+)", re.IGNORECASE)
_PROMPTS = ("sent1", "prompt", "question", "context", "premise", "sentence", "text")
_COMVE = ("Incorrect Statement", "Right Reason1", "Confusing Reason1", "Confusing Reason2")


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt and its endings; `label` is the number of the right one from 0, None where the file does not say."""

    prompt: str
    endings: tuple[str, ...]
    label: int | None
    id: str
    location: str


def read_choices(path: Path, counts: Counts | None = None) -> Iterator[Choice]:
    """Read a file of choices; records with an empty ending are left out and counted in `counts`."""
    return choices_of(read_records(path), Counts() if counts is None else counts)


def choices_of(records: Iterable[Record], counts: Counts | None = None) -> Iterator[Choice]:
    """Turn records into choices. The layout is told by the names of the fields: see `LAYOUTS`.

    A record with an empty ending is left out and counted; where nobody counts, it is refused.
    """
    for number, line in enumerate(records):
        for is_this, arrange in LAYOUTS:
            if is_this(line.fields):
                prompt, endings, label = arrange(line)
                break
        else:
            raise InputError(
                f"{line.location}: no choices among the fields {', '.join(map(repr, line.fields))}; give 'prompt' and "
                f"'choices', or a prompt and the columns ending0, ending1, … and label"
            )
        if len(endings) < 2:
            raise InputError(f"{line.location}: fewer than two choices; give at least two")
        if not all(ending.strip() for ending in endings):
            if counts is None:
                raise InputError(f"{line.location}: an ending is empty; fill it in or remove the line")
            counts["records left out: an ending is empty"] += 1
            continue
        yield Choice(prompt, endings, label, str(line.fields.get("id", number)), line.location)


_Parts = tuple[str, tuple[str, ...], int | None]


def _from_list(record: Record) -> _Parts:
    endings = record.fields["choices"]
    if not isinstance(endings, list) or not all(isinstance(ending, str) for ending in endings):
        raise InputError(f'{record.location}: \'choices\' is no list of texts; write them as ["…", "…"]')
    return _prompt(record), tuple(endings), _label(record, len(endings))


def _from_columns(record: Record) -> _Parts:
    """SWAG and its like. SWAG's second sentence is begun by `sent2` and finished by each ending, as the paper does."""
    numbered = sorted((int(match[1]), name) for name in record.fields if (match := _ENDING_COLUMN.fullmatch(name)))
    start = str(record.fields.get("sent2") or "").strip()
    texts = [str(record.fields[name] or "").strip() for _, name in numbered]
    endings = tuple(f"{start} {text}" if start and text else text for text in texts)
    return _prompt(record), endings, _label(record, len(endings))


def _from_comve(record: Record) -> _Parts:
    """The false statement is the prompt. The file has the right reason first, so the order is drawn anew.

    The draw is a hash of the statement: the same in every run and every part of a file, and nothing can be learned
    from the place of an ending.
    """
    prompt, *reasons = (str(record.fields[name]).strip() for name in _COMVE)
    orders = list(itertools.permutations(range(len(reasons))))
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    order = orders[int.from_bytes(digest) % len(orders)]
    return prompt, tuple(reasons[place] for place in order), order.index(0)


# How each layout is told from the fields, and how it is read; the first that fits is taken.
LAYOUTS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Record], _Parts]], ...] = (
    (lambda fields: all(name in fields for name in _COMVE), _from_comve),
    (lambda fields: "choices" in fields, _from_list),
    (lambda fields: any(_ENDING_COLUMN.fullmatch(name) for name in fields), _from_columns),
)


def _prompt(record: Record) -> str:
    for name in _PROMPTS:
        if name in record.fields:
            if not isinstance(record.fields[name], str):
                raise InputError(f"{record.location}: {name!r} is no text; put the prompt there")
            return str(record.fields[name]).strip()
    raise InputError(
        f"{record.location}: no prompt among the fields {', '.join(map(repr, record.fields))}; call it 'prompt'"
    )


def _label(record: Record, num_endings: int) -> int | None:
    label = record.fields.get("label")
    if label in (None, "", -1, "-1"):  # -1 is how published test files say that the label is kept back
        return None
    # True and 1.0 are equal to 1 in Python, but no one means a number of an ending by them.
    is_number = isinstance(label, int | str) and not isinstance(label, bool) and str(label).strip().isdecimal()
    if is_number and int(label) < num_endings:
        return int(label)
    raise InputError(f"{record.location}: the label {label!r} is no number from 0 to {num_endings - 1}; mend it")
