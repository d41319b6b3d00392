"""Question answering files in, SquadQuestions out: SQuAD's JSON (1.1, 2.0, CMRC 2018) and flat JSON Lines."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.datasets.files import Record, kind_of_name, read_records
from bertworks.errors import InputError, show_names, show_value
from bertworks.text.compression import ByteStream, decompress, open_raw

_CHUNK = 2**18
_MAX_HEADER_CHARACTERS = 2**20  # the list "data" begins before this character
_MAX_ARTICLE_CHARACTERS = 2**28
_DATA = re.compile(r'"data"\s*:\s*\[')
_SEPARATORS = re.compile(r"[\s,]*")
_MAX_EXAMPLES = 20


class GoldAnswer(NamedTuple):
    """A gold answer and its start in the context, None if it is not in the context.

    Such an answer cannot be trained on, but the official scripts count it.
    """

    text: str
    start: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SquadQuestion:
    """A question on a context, with its gold answers; `is_impossible` if the context has none."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[GoldAnswer, ...]
    is_impossible: bool
    location: str

    @property
    def answers_in_context(self) -> tuple[GoldAnswer, ...]:
        """The answers that are in the context."""
        return tuple(answer for answer in self.answers if answer.start is not None)


@dataclass(slots=True, kw_only=True)
class SquadReport:
    """Counts of questions and answers, filled while a file is read.

    num_repaired    answers whose offset was wrong
    num_searched    answers without an offset, found by searching
    num_absent      answers that are not in their context; `absent_answers` names the first of them
    num_unlocated   questions with answers, none of which is in the context
    """

    num_questions: int = 0
    num_impossible: int = 0
    num_answers: int = 0
    num_repaired: int = 0
    num_searched: int = 0
    num_absent: int = 0
    num_unlocated: int = 0
    absent_answers: list[str] = field(default_factory=list)


def read_questions(path: Path, report: SquadReport | None = None) -> Iterator[SquadQuestion]:
    """Stream the questions of SQuAD's JSON, or of flat records if the name ends in .jsonl."""
    report = SquadReport() if report is None else report
    if kind_of_name(path.name) == "jsonl":
        yield from questions_of(read_records(path), report)
        return
    with open_raw(str(path), str(path)) as raw:
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        for number, article in enumerate(_articles(stream), 1):
            yield from _questions_of_article(article, f"{path.name}, article {number}", report)


def is_squad_file(path: Path) -> bool:
    """Whether a file is one JSON object in SQuAD's format, and not a table or JSON Lines."""
    if kind_of_name(path.name) is not None:
        return False
    with open_raw(str(path), str(path)) as raw:
        head = decompress(raw, path.name).peek(_CHUNK).decode(errors="replace")
    return bool((data := _DATA.search(head)) and '"paragraphs"' in head[data.end() :])


def unlabelled_records(path: Path) -> Iterator[Record]:
    """Yield the questions of a SQuAD file as flat records, without answers."""
    for question in read_questions(path):
        yield Record(
            {"id": question.id, "title": question.title, "question": question.question, "context": question.context},
            question.location,
        )


def _articles(stream: ByteStream) -> Iterator[Any]:
    """Yield the elements of the list "data", each parsed as soon as it is complete."""
    decoder = json.JSONDecoder()
    texts = _texts(stream)
    text = next(texts, "")
    while not (data := _DATA.search(text)):
        if len(text) > _MAX_HEADER_CHARACTERS or not (chunk := next(texts, "")):
            raise InputError(f'{stream.name} has no list "data"; give SQuAD\'s JSON, or flat records named .jsonl')
        text += chunk
    position = data.end()
    while True:
        text, position = text[position:], 0
        try:
            position = _skip_separators(text)
            if text[position : position + 1] == "]":
                return
            article, position = decoder.raw_decode(text, position)
        except RecursionError:
            raise InputError(
                f"{stream.name} is not SQuAD's JSON: lists are nested too deeply; check the file"
            ) from None
        except ValueError as error:
            # Invalid or incomplete: doubling the buffer bounds the work of parsing again.
            chunks = "".join(chunk for _, chunk in zip(range(1 + len(text) // _CHUNK), texts, strict=False))
            if not chunks:
                raise InputError(f"{stream.name} is not valid JSON ({error}); download it again") from error
            if len(text) > _MAX_ARTICLE_CHARACTERS:
                raise InputError(
                    f"{stream.name} has an article of more than {len(text):,} characters; split it"
                ) from None
            text, position = text + chunks, 0
            continue
        yield article


def _skip_separators(text: str) -> int:
    match = _SEPARATORS.match(text)
    return match.end() if match else 0


def _texts(stream: ByteStream) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while data := stream.read(_CHUNK):
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InputError(f"{stream.name} is not UTF-8 ({error.reason}); convert it with iconv") from error


class _Passage(NamedTuple):
    """The context of a question, with the question's id and location."""

    id: str
    title: str
    context: str
    location: str


def _questions_of_article(article: Any, location: str, report: SquadReport) -> Iterator[SquadQuestion]:
    title = str(_value(article, "title", location, ""))
    for paragraph in _list(article, "paragraphs", location):
        context = _text(paragraph, "context", location)
        for entry in _list(paragraph, "qas", location):
            question_id = str(_value(entry, "id", location))
            passage = _Passage(question_id, title, context, f"{location}, question {question_id}")
            yield _question(entry, passage, bool(entry.get("is_impossible", False)), report)


def labelled_fields(value: Any, label: Any) -> dict[str, Any]:
    """Return the fields of a flat record: of (question, context) or a dict of the two, and of the answers."""
    if isinstance(value, Mapping):
        return {**value, "answers": label}
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InputError(f"the input is {show_value(value)}; give (question, context)")
    return {"question": value[0], "context": value[1], "answers": label}


def questions_of(records: Iterable[Record], report: SquadReport) -> Iterator[SquadQuestion]:
    """Turn flat records into questions: {"question", "context", "answers" or "answer"}, optionally "id" and "title".

    Answers are strings, objects as in SQuAD, or an object of two lists. An empty list means that the question is
    impossible; a missing field, that the answer is unknown.
    """
    for index, record in enumerate(records):
        fields, location = record.fields, record.location
        context = _text(fields, "context", location)
        passage = _Passage(str(fields.get("id", index)), str(fields.get("title", "")), context, location)
        is_impossible = bool(fields.get("is_impossible", _raw_answers(fields, location) == []))
        yield _question(fields, passage, is_impossible, report)


def _question(entry: Mapping[str, Any], passage: _Passage, is_impossible: bool, report: SquadReport) -> SquadQuestion:
    location = passage.location
    raw_answers = _raw_answers(entry, location) or []
    if is_impossible and raw_answers:
        raise InputError(f"{location}: is_impossible, yet it has the answer {raw_answers[0][0]!r}; remove one of them")
    answers = tuple(_locate_answer(text, start, passage, report) for text, start in raw_answers)
    question = SquadQuestion(
        id=passage.id,
        title=passage.title,
        context=passage.context,
        question=_text(entry, "question", location),
        answers=answers,
        is_impossible=is_impossible,
        location=location,
    )
    report.num_questions += 1
    report.num_impossible += is_impossible
    report.num_answers += len(answers)
    report.num_unlocated += bool(answers) and not question.answers_in_context
    return question


def _raw_answers(entry: Mapping[str, Any], location: str) -> list[tuple[str, int | None]] | None:
    """Return the answers of an entry, each with its offset if it has one; None if there is no such field."""
    value = entry.get("answers", entry.get("answer"))
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start") or [None] * len(value["text"])
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise InputError(f"{location}: the lists of texts and offsets differ in length; correct the answers")
        value = [{"text": text, "answer_start": start} for text, start in zip(value["text"], starts, strict=True)]
    if value == "":
        return []
    answers = []
    for answer in value if isinstance(value, list) else [value]:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (answer, None)
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise InputError(
                f"{location}: the answer {show_value(answer)} needs a 'text' and, if known, an 'answer_start', a number"
            )
        answers.append((text, start))
    return answers


def _locate_answer(text: str, start: int | None, passage: _Passage, report: SquadReport) -> GoldAnswer:
    """Return the answer with its start: the file's, else that of the nearest occurrence, else None."""
    context = passage.context
    if text and start is not None and start >= 0 and context.startswith(text, start):
        return GoldAnswer(text, start)
    nearest = find_nearest(text, context, start or 0)
    if nearest is None:
        report.num_absent += 1
        if len(report.absent_answers) < _MAX_EXAMPLES:
            report.absent_answers.append(f"{passage.location}: the answer {text!r} is not in its context")
    elif start is None:
        report.num_searched += 1
    else:
        report.num_repaired += 1
    return GoldAnswer(text, nearest)


def find_nearest(text: str, context: str, start: int) -> int | None:
    """Return the occurrence of `text` in `context` nearest to `start`, the earlier of two; None if there is none."""
    if not text:
        return None
    start = max(start, 0)
    before, after = context.rfind(text, 0, start + len(text)), context.find(text, start)
    return min(
        (position for position in (before, after) if position >= 0),
        key=lambda position: abs(position - start),
        default=None,
    )


_MISSING = object()


def _value(record: Any, name: str, location: str, default: Any = _MISSING) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{location}: expected an object with {name!r}, got a {type(record).__name__}; correct it")
    if name not in record and default is _MISSING:
        raise InputError(f"{location}: no {name!r} among {show_names(record)}; give SQuAD's JSON format")
    return record.get(name, default)


def _list(record: Any, name: str, location: str) -> list[Any]:
    value = _value(record, name, location)
    if not isinstance(value, list):
        raise InputError(f"{location}: {name!r} is not a list; give SQuAD's JSON format")
    return value


def _text(record: Any, name: str, location: str) -> str:
    value = _value(record, name, location)
    if not isinstance(value, str):
        raise InputError(f"{location}: {name!r} is not a string; give SQuAD's JSON format")
    return value
