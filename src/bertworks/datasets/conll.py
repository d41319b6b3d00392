"""Files of tagged words in, Sentences with tags out: CoNLL columns, and JSON Lines of spans or tokens.

BIO tags and those of related schemes become BIO. Plain tags, such as parts of speech, stay as they are.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import regex

from bertworks.datasets.files import Record, kind_of_name, read_records
from bertworks.errors import InputError, show_names
from bertworks.text.document import Counts

DOCUMENT_START = "-DOCSTART-"
CHANGED_TAGS = "tags changed to BIO"
WIDENED_SPANS = "spans widened to whole words"
CONFLICTING_SPANS = "spans skipped: they share a word with another"

# A word is a run of letters and digits, or one other visible character. Scripts written without spaces are split into
# characters, so that a span may start anywhere in them.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}_]--[{_UNSPACED}]]+|\S", regex.V1)

# BIO and related schemes: IOB1, BIOES (IOBES), BILOU and BMES. A prefix means B or I, and may end the span.
_TAG = re.compile(r"O|([BIESLUM])[-_](.+)")
_STARTS = frozenset("BSU")
_ENDS = frozenset("ESLU")


class TagSpan(NamedTuple):
    """A labelled span of words (or characters) from `start` to `end`, exclusive."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Words with their tags, BIO or plain (None if the file has none), and their offsets in `text`.

    Consecutive sentences with the same `document` index are one document.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    text: str
    offsets: tuple[tuple[int, int], ...]
    document: int
    location: str


def read_sentences(path: Path, counts: Counts | None = None, word: int = 0, tag: int | None = -1) -> Iterator[Sentence]:
    """Read JSON Lines, by extension, or else CoNLL columns; repaired tags and spans are added to `counts`.

    `word` and `tag` are column indices, -1 being the last; no tags are read if `tag` is None or the file has one
    column.
    """
    counts = Counts() if counts is None else counts
    if kind_of_name(path.name) == "jsonl":
        return sentences_of(read_records(path), counts)
    return conll_sentences(read_records(path, ("line",), kind="text"), counts, word, tag)


def conll_sentences(
    records: Iterable[Record], counts: Counts, word: int = 0, tag: int | None = -1
) -> Iterator[Sentence]:
    """Turn plain lines (field "line") into sentences: an empty line ends one, -DOCSTART- starts a document.

    Before the first -DOCSTART-, each sentence is its own document.
    """
    document, is_marked, num_columns = -1, False, 0
    rows: list[tuple[list[str], str]] = []
    for record in itertools.chain(records, [Record({"line": ""}, "")]):
        fields = _fields(record)
        if fields and fields[0] != DOCUMENT_START:
            num_columns = num_columns or len(fields)
            if len(fields) != num_columns:
                raise InputError(
                    f"{record.location}: expected {num_columns} columns, got {len(fields)}; correct the line"
                )
            rows.append((fields, record.location))
            continue
        if rows:
            document += not is_marked
            yield _from_rows(rows, document, counts, (word, tag))
            rows = []
        if fields:
            document, is_marked = document + 1, True


def _fields(record: Record) -> list[str]:
    # Only spaces and tabs: other white space may be part of a word.
    text = record.fields["line"].strip(" \t\r")
    if not text:
        return []
    return text.split("\t") if "\t" in text else re.split(" +", text)


def _from_rows(
    rows: list[tuple[list[str], str]], document: int, counts: Counts, columns: tuple[int, int | None]
) -> Sentence:
    word, tag = columns
    location, num_columns = rows[0][1], len(rows[0][0])
    for column in (word, 0 if tag is None else tag):
        if not -num_columns <= column < num_columns:
            raise InputError(f"{location}: no column {column}; the file has {num_columns}: 0 is the first, -1 the last")
    words = tuple(fields[word] for fields, _ in rows)
    tags = None
    if tag is not None and num_columns > 1:
        tags = tuple(fields[tag] for fields, _ in rows)
        if not are_plain(tags):
            for fields, row_location in rows:
                check_bio(fields[tag], row_location)
            tags = _repair_and_count(tags, location, counts)
    text, offsets = join_words(words)
    return Sentence(words=words, tags=tags, text=text, offsets=offsets, document=document, location=location)


def join_words(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the words joined by spaces, and the offsets of each word."""
    ends = list(itertools.accumulate(len(word) + 1 for word in words))
    return " ".join(words), tuple((end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True))


def sentences_of(records: Iterable[Record], counts: Counts) -> Iterator[Sentence]:
    """Turn JSON records into sentences.

    A record is {"text": …, "spans": [{"start", "end", "label"}]} with character offsets, or {"tokens": […], "tags":
    […]}; spans or tags may be missing. Consecutive records with the same "document" are one document.
    """
    document, previous_name = -1, None
    for record in records:
        name = record.fields.get("document")
        document += name is None or name != previous_name or document < 0
        previous_name = name
        words = _first_of(record, ("tokens", "words"))
        yield _from_text(record, document, counts) if words is None else _from_words(record, words, document, counts)


def _first_of(record: Record, names: Sequence[str]) -> Any:
    return next((record.fields[name] for name in names if record.fields.get(name) is not None), None)


def _from_words(record: Record, values: Any, document: int, counts: Counts) -> Sentence:
    words = _texts(record, values, "tokens")
    if not all(word.strip() for word in words):
        raise InputError(f"{record.location}: one of the tokens is empty; remove it and its tag")
    tags = None
    if (values := _first_of(record, ("tags", "ner_tags", "labels"))) is not None:
        tags = _texts(record, values, "tags")
        if len(tags) != len(words):
            raise InputError(f"{record.location}: {len(tags)} tags for {len(words)} tokens; give one tag per token")
        tags = tags if are_plain(tags) else _repair_and_count(tags, record.location, counts)
    text, offsets = join_words(words)
    if isinstance(record.fields.get("text"), str):
        text = record.fields["text"]
        offsets = _find_offsets(words, text, record.location)
    return Sentence(words=words, tags=tags, text=text, offsets=offsets, document=document, location=record.location)


def _texts(record: Record, values: Any, field: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f'{record.location}: the {field} are not a list of strings; write them as ["…", "…"]')
    return tuple(values)


def _find_offsets(words: Sequence[str], text: str, location: str) -> tuple[tuple[int, int], ...]:
    offsets, end = [], 0
    for word in words:
        start = text.find(word, end)
        if start < 0:
            raise InputError(
                f"{location}: the token {word!r} is not in the rest of the text; correct it, or omit 'text'"
            )
        end = start + len(word)
        offsets.append((start, end))
    return tuple(offsets)


def _from_text(record: Record, document: int, counts: Counts) -> Sentence:
    text = record.fields.get("text")
    if not isinstance(text, str):
        raise InputError(
            f"{record.location}: neither 'tokens' nor 'text' among the fields {show_names(record.fields)}; give one"
        )
    words, offsets = split_words(text)
    spans = _first_of(record, ("spans", "entities"))
    tags = None
    if spans is not None:
        tags = tags_of(_to_word_spans(_spans(record, spans, text), offsets, record.location, counts), len(words))
    return Sentence(words=words, tags=tags, text=text, offsets=offsets, document=document, location=record.location)


def split_words(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Split a text into words; return them and their offsets."""
    matches = list(_WORD.finditer(text))
    return tuple(match[0] for match in matches), tuple(match.span() for match in matches)


def _spans(record: Record, spans: Any, text: str) -> list[TagSpan]:
    """Return the character spans of a record, checked and sorted."""
    checked = []
    for span in spans if isinstance(spans, list) else [spans]:
        try:
            start, end, label = span["start"], span["end"], span["label"]
        except (TypeError, KeyError):
            raise InputError(f"{record.location}: the span {span!r} needs 'start', 'end' and 'label'") from None
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text)):
            raise InputError(
                f"{record.location}: the span from {start!r} to {end!r} is not within the {len(text)} characters; "
                f"correct it"
            )
        if not isinstance(label, str) or not label:
            raise InputError(f"{record.location}: the span from {start} to {end} has no label; give it a string")
        checked.append(TagSpan(start, end, label))
    checked.sort()
    for span_before, span_after in itertools.pairwise(checked):
        if span_after.start < span_before.end:
            raise InputError(
                f"{record.location}: the spans {tuple(span_before)} and {tuple(span_after)} overlap, which tags cannot "
                f"express; remove one"
            )
    return checked


def _to_word_spans(
    spans: Iterable[TagSpan], offsets: Sequence[tuple[int, int]], location: str, counts: Counts
) -> Iterator[TagSpan]:
    """Yield character spans as word spans; one that cuts through a word is widened to the whole word."""
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    first_free = 0  # the first word after all spans so far
    for start, end, label in spans:
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(starts, end)
        if first == last:
            raise InputError(f"{location}: the span from {start} to {end} has no text; correct or remove it")
        if first < first_free:
            counts[CONFLICTING_SPANS] += 1
            continue
        if starts[first] < start or end < ends[last - 1]:
            counts[WIDENED_SPANS] += 1
        first_free = last
        yield TagSpan(first, last, label)


def are_plain(tags: Iterable[str]) -> bool:
    """Whether tags are no BIO tags, but names of their own: at least one that is not O, and none with a prefix."""
    names = [tag for tag in tags if tag != "O"]
    return bool(names) and not any(map(_TAG.fullmatch, names))


def check_bio(tag: str, location: str) -> None:
    """Raise InputError for what is not a BIO tag."""
    if not _TAG.fullmatch(tag):
        raise InputError(f"{location}: {tag!r} is not a BIO tag; write O, or a type after B- or I-, such as B-PER")


def _repair_and_count(tags: tuple[str, ...], location: str, counts: Counts) -> tuple[str, ...]:
    tags, num_changes = repair_tags(tags, location)
    if num_changes:
        counts[CHANGED_TAGS] += num_changes
    return tags


def repair_tags(tags: Sequence[str], location: str = "the tags") -> tuple[tuple[str, ...], int]:
    """Return the tags as legal BIO (every span starts with B-), and how many were changed.

    An I- that continues nothing becomes B-, which also converts IOB1; BIOES, BILOU and BMES are written with B and I.
    """
    legal: list[str] = []
    open_label = None
    for tag in tags:
        check_bio(tag, location)
        if tag == "O":
            legal.append(tag)
            open_label = None
            continue
        prefix, label = tag[0], tag[2:]
        legal.append(f"B-{label}" if prefix in _STARTS or open_label != label else f"I-{label}")
        open_label = None if prefix in _ENDS else label
    return tuple(legal), sum(before != after for before, after in zip(tags, legal, strict=True))


def spans_of(tags: Sequence[str]) -> tuple[TagSpan, ...]:
    """Return the word spans of tags, repaired first: predicted tags may be illegal."""
    entity_tags = [(index, tag) for index, tag in enumerate(repair_tags(tags)[0]) if tag != "O"]
    spans: list[TagSpan] = []
    for index, tag in entity_tags:
        if tag.startswith("B-"):
            spans.append(TagSpan(index, index + 1, tag[2:]))
        else:
            spans[-1] = spans[-1]._replace(end=index + 1)
    return tuple(spans)


def tags_of(spans: Iterable[TagSpan], num_words: int) -> tuple[str, ...]:
    """Return the BIO tags of word spans that do not overlap."""
    tags = ["O"] * num_words
    for start, end, label in spans:
        assert tags[start:end] == ["O"] * (end - start), "spans overlap or are outside the sentence"
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tuple(tags)
