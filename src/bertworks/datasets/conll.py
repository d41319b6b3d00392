"""Files of tagged words in, Sentences with BIO tags out: CoNLL columns, and JSON Lines of spans or of tokens."""

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
from bertworks.errors import InputError
from bertworks.text.document import Counts

DOCUMENT_START = "-DOCSTART-"
CHANGED_TAGS = "tags changed to BIO"
WIDENED_SPANS = "spans widened to whole words"
CONFLICTING_SPANS = "spans left out: they share a word with another"

# A word is a run of letters and digits, or one other visible character. Scripts written without spaces go by
# character, so that a span may start anywhere in them.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}_]--[{_UNSPACED}]]+|\S", regex.V1)

# BIO and its relatives: IOB1, BIOES (IOBES), BILOU and BMES. Each letter says B or I, and whether the span ends there.
_TAG = re.compile(r"O|([BIESLUM])[-_](.+)")
_STARTS = frozenset("BSU")
_ENDS = frozenset("ESLU")


class TagSpan(NamedTuple):
    """A labelled stretch: words (or characters) `start` up to but not including `end`."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with their BIO tags (None where the file has none) and their offsets into `text`.

    Sentences of one `document` number belong together, in order.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    text: str
    offsets: tuple[tuple[int, int], ...]
    document: int
    location: str


def read_sentences(path: Path, counts: Counts | None = None, word: int = 0, tag: int | None = -1) -> Iterator[Sentence]:
    """Read JSON Lines by their extension, anything else as CoNLL columns; what was mended is added to `counts`.

    `word` and `tag` are the columns' places as in a Python list, so -1 is the last; no tags are read where `tag` is
    None or the file has but one column.
    """
    counts = Counts() if counts is None else counts
    if kind_of_name(path.name) == "jsonl":
        return sentences_of(read_records(path), counts)
    return conll_sentences(read_records(path, ("line",), kind="text"), counts, word, tag)


def conll_sentences(
    records: Iterable[Record], counts: Counts, word: int = 0, tag: int | None = -1
) -> Iterator[Sentence]:
    """Turn plain lines (field "line") into sentences: an empty line ends one, -DOCSTART- starts a document.

    Where no -DOCSTART- has come yet nothing says which sentences belong together, so each is its own document.
    """
    document, is_marked, num_columns = -1, False, 0
    rows: list[tuple[list[str], str]] = []
    for line in itertools.chain(records, [Record({"line": ""}, "")]):
        fields = _fields(line)
        if fields and fields[0] != DOCUMENT_START:
            num_columns = num_columns or len(fields)
            if len(fields) != num_columns:
                raise InputError(
                    f"{line.location}: {len(fields)} columns where {num_columns} are expected; mend the line"
                )
            rows.append((fields, line.location))
            continue
        if rows:
            document += not is_marked
            yield _from_rows(rows, document, counts, (word, tag))
            rows = []
        if fields:
            document, is_marked = document + 1, True


def _fields(record: Record) -> list[str]:
    # Only blanks and tabs: other white space may be part of a word.
    text = record.fields["line"].strip(" \t\r")
    if not text:
        return []
    return text.split("\t") if "\t" in text else re.split(" +", text)


def _from_rows(
    rows: list[tuple[list[str], str]], document: int, counts: Counts, columns: tuple[int, int | None]
) -> Sentence:
    word, tag = columns
    place, num_columns = rows[0][1], len(rows[0][0])
    for column in (word, 0 if tag is None else tag):
        if not -num_columns <= column < num_columns:
            raise InputError(f"{place}: no column {column}; the file has {num_columns}, the first is 0, the last -1")
    words = tuple(fields[word] for fields, _ in rows)
    tags = None
    if tag is not None and num_columns > 1:
        for fields, where in rows:
            _check(fields[tag], where)
        tags = _repair_and_count(tuple(fields[tag] for fields, _ in rows), place, counts)
    text, offsets = join_words(words)
    return Sentence(words, tags, text, offsets, document, place)


def join_words(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text of words with one space between them, and where in it each word stands."""
    ends = list(itertools.accumulate(len(word) + 1 for word in words))
    return " ".join(words), tuple((end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True))


def sentences_of(records: Iterable[Record], counts: Counts) -> Iterator[Sentence]:
    """Turn JSON records into sentences.

    A record is {"text": …, "spans": [{"start", "end", "label"}]}, offsets counted in characters, or {"tokens": […],
    "tags": […]}; spans or tags may be missing. Neighbours with an equal "document" belong together.
    """
    document, before = -1, None
    for line in records:
        name = line.fields.get("document")
        document += name is None or name != before or document < 0
        before = name
        tokens = _first_of(line, ("tokens", "words"))
        yield _from_text(line, document, counts) if tokens is None else _from_tokens(line, tokens, document, counts)


def _first_of(record: Record, names: Sequence[str]) -> Any:
    return next((record.fields[name] for name in names if record.fields.get(name) is not None), None)


def _from_tokens(record: Record, tokens: Any, document: int, counts: Counts) -> Sentence:
    words = _texts(record, tokens, "tokens")
    if not all(word.strip() for word in words):
        raise InputError(f"{record.location}: one of the tokens is empty; remove it and its tag")
    tags = None
    if (given := _first_of(record, ("tags", "ner_tags", "labels"))) is not None:
        tags = _texts(record, given, "tags")
        if len(tags) != len(words):
            raise InputError(f"{record.location}: {len(tags)} tags for {len(words)} tokens; give one tag for each")
        tags = _repair_and_count(tags, record.location, counts)
    text, offsets = join_words(words)
    if isinstance(record.fields.get("text"), str):
        text = record.fields["text"]
        offsets = _find_offsets(words, text, record.location)
    return Sentence(words, tags, text, offsets, document, record.location)


def _texts(record: Record, values: Any, what: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f'{record.location}: the {what} are no list of texts; write them as ["…", "…"]')
    return tuple(values)


def _find_offsets(words: Sequence[str], text: str, location: str) -> tuple[tuple[int, int], ...]:
    offsets, end = [], 0
    for word in words:
        start = text.find(word, end)
        if start < 0:
            raise InputError(
                f"{location}: the token {word!r} does not follow in the text; mend it, or leave 'text' out"
            )
        end = start + len(word)
        offsets.append((start, end))
    return tuple(offsets)


def _from_text(record: Record, document: int, counts: Counts) -> Sentence:
    text = record.fields.get("text")
    if not isinstance(text, str):
        raise InputError(
            f"{record.location}: neither 'tokens' nor 'text' among the fields {', '.join(map(repr, record.fields))}; give one"
        )
    words, offsets = split_words(text)
    spans = _first_of(record, ("spans", "entities"))
    tags = None
    if spans is not None:
        tags = tags_of(_to_word_spans(_spans(record, spans, text), offsets, record.location, counts), len(words))
    return Sentence(words, tags, text, offsets, document, record.location)


def split_words(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Cut a text into words, and say where each stands."""
    matches = list(_WORD.finditer(text))
    return tuple(match[0] for match in matches), tuple(match.span() for match in matches)


def _spans(record: Record, spans: Any, text: str) -> list[TagSpan]:
    """The character spans of a record, checked and in order."""
    found = []
    for span in spans if isinstance(spans, list) else [spans]:
        try:
            start, end, label = span["start"], span["end"], span["label"]
        except (TypeError, KeyError):
            raise InputError(
                f"{record.location}: a span is {span!r}; write it with 'start', 'end' and 'label'"
            ) from None
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text)):
            raise InputError(f"{record.location}: a span from {start!r} to {end!r} in {len(text)} characters; mend it")
        if not isinstance(label, str) or not label:
            raise InputError(f"{record.location}: the span from {start} to {end} has no label; give it one as text")
        found.append(TagSpan(start, end, label))
    found.sort()
    for one, other in itertools.pairwise(found):
        if other.start < one.end:
            raise InputError(
                f"{record.location}: the spans {tuple(one)} and {tuple(other)} overlap, which tags cannot say; keep one"
            )
    return found


def _to_word_spans(
    spans: Iterable[TagSpan], offsets: Sequence[tuple[int, int]], location: str, counts: Counts
) -> Iterator[TagSpan]:
    """Character spans as word spans; one that cuts through a word is widened to the whole of it."""
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    free = 0  # the first word that no span has taken
    for start, end, label in spans:
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(starts, end)
        if first == last:
            raise InputError(f"{location}: the span from {start} to {end} holds no text; mend or remove it")
        if first < free:
            counts[CONFLICTING_SPANS] += 1
            continue
        if starts[first] < start or end < ends[last - 1]:
            counts[WIDENED_SPANS] += 1
        free = last
        yield TagSpan(first, last, label)


def _check(tag: str, location: str) -> None:
    if not _TAG.fullmatch(tag):
        raise InputError(f"{location}: {tag!r} is no BIO tag; write O, or B- or I- and a type, as B-PER")


def _repair_and_count(tags: tuple[str, ...], location: str, counts: Counts) -> tuple[str, ...]:
    tags, num_changes = repair_tags(tags, location)
    if num_changes:
        counts[CHANGED_TAGS] += num_changes
    return tags


def repair_tags(tags: Sequence[str], location: str = "the tags") -> tuple[tuple[str, ...], int]:
    """Return the tags as legal BIO (every span starts with B-), and how many had to change.

    An I- that continues nothing becomes B-. So IOB1 becomes BIO too; BIOES, BILOU and BMES are written with B and I.
    """
    legal: list[str] = []
    open_label = None
    for tag in tags:
        _check(tag, location)
        if tag == "O":
            legal.append(tag)
            open_label = None
            continue
        letter, label = tag[0], tag[2:]
        legal.append(f"B-{label}" if letter in _STARTS or open_label != label else f"I-{label}")
        open_label = None if letter in _ENDS else label
    return tuple(legal), sum(before != after for before, after in zip(tags, legal, strict=True))


def spans_of(tags: Sequence[str]) -> tuple[TagSpan, ...]:
    """The word spans that tags say, repaired first: predicted tags need not be legal."""
    starts = [(number, tag) for number, tag in enumerate(repair_tags(tags)[0]) if tag != "O"]
    spans: list[TagSpan] = []
    for number, tag in starts:
        if tag.startswith("B-"):
            spans.append(TagSpan(number, number + 1, tag[2:]))
        else:
            spans[-1] = spans[-1]._replace(end=number + 1)
    return tuple(spans)


def tags_of(spans: Iterable[TagSpan], num_words: int) -> tuple[str, ...]:
    """The BIO tags of word spans that do not overlap."""
    tags = ["O"] * num_words
    for start, end, label in spans:
        assert tags[start:end] == ["O"] * (end - start), "spans overlap or leave the sentence"
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tuple(tags)
