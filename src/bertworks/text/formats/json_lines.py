"""JSON Lines: one document per line, the text in the member `field` of its object."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bertworks.errors import InputError, show_names
from bertworks.text.chunks import FileChunk
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format, line_number, record_end


def is_json_lines(sample: str) -> bool:
    """Return whether the first line is a JSON object, as in no prose."""
    first, ended, _ = sample.lstrip().partition("\n")
    if not (ended and first.startswith("{") and first.rstrip().endswith("}")):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _record_text(line: str, field: str, location: str) -> str | None:
    """Return the text of one record; None if the field is null."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(f"{location}: not a JSON object ({reason}); fix or remove the line") from error
    if not isinstance(record, dict):
        raise InputError(f"{location}: a {type(record).__name__}, not an object; write one object per line")
    if field not in record:
        fields = show_names(record) or "no fields"
        raise InputError(f"{location}: no field {field!r}; the line has {fields}; name the text's field with --field")
    text = record[field]
    if text is not None and not isinstance(text, str):
        raise InputError(
            f"{location}: field {field!r} holds a {type(text).__name__}, not text; name another with --field"
        )
    return text


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    for number, line in enumerate(chunk.decode(counts).split("\n")):
        if not line or line.isspace():
            continue
        try:
            text = _record_text(line, chunk.field, "")
        except InputError:
            # Counting the lines before this chunk may mean reading the file, so it is done only for an error.
            text = _record_text(line, chunk.field, f"{chunk.name}, line {line_number(chunk, number)}")
        if text is None or not text.strip():
            counts["records skipped: no text"] += 1
            continue
        # Raw UTF-8 has no surrogates, but an escape such as \\ud800 may yield a lone one.
        if "\\u" in line:
            text = _without_lone_surrogates(text, counts)
        yield RawDocument(text.replace("\r\n", "\n").strip(), chunk.location(number), chunk.lines)


def _without_lone_surrogates(text: str, counts: Counts) -> str:
    num_lone = sum("\ud800" <= character <= "\udfff" for character in text)
    if not num_lone:
        return text
    counts["characters replaced: half of a surrogate pair"] += num_lone
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _prepare(head: bytes, chunk: FileChunk) -> FileChunk:
    """Check the first record."""
    for number, line in enumerate(head.split(b"\n")[:-1]):
        if line.strip():
            _record_text(line.decode("utf-8", "replace"), chunk.field, f"{chunk.name}, line {number + 1}")
            break
    return chunk


JSON_LINES = Format(
    name="jsonl",
    extensions=(".jsonl", ".ndjson", ".json-lines"),
    read=_read,
    find_boundary=record_end,
    prepare=_prepare,
    whole_records=True,
)
