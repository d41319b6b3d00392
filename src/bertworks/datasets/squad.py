"""Files of questions on passages in, Questions out: SQuAD's JSON shape (1.1, 2.0, CMRC 2018) and flat JSON Lines."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.datasets.files import Record, kind_of_name, read_records
from bertworks.errors import InputError
from bertworks.text.compression import ByteStream, decompress, open_raw

_CHUNK = 2**18
_MAX_HEADER_CHARACTERS = 2**20  # the list "data" must begin before this character
_DATA = re.compile(r'"data"\s*:\s*\[')
_SEPARATORS = re.compile(r"[\s,]*")
_MAX_EXAMPLES = 20


class GoldAnswer(NamedTuple):
    """A right answer and where it starts in the context: None where the context does not hold it.

    Such an answer cannot be trained on, but the official scores count it as right, so it stays.
    """

    text: str
    start: int | None


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """A question on a context, with its right answers; `is_impossible` says that the context has none."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[GoldAnswer, ...]
    is_impossible: bool
    location: str

    @property
    def answers_in_context(self) -> tuple[GoldAnswer, ...]:
        """The answers that stand in the context."""
        return tuple(answer for answer in self.answers if answer.start is not None)


@dataclass(slots=True)
class SquadReport:
    """What was read, and what became of the answers; filled while the questions are read.

    `num_repaired` answers stood elsewhere than the file says; `num_searched` had no offset and were looked up;
    `num_absent` are nowhere in their context, and `absent` names the first of them; `num_unlocated` questions have
    answers, but none that is in the context.
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
    """Read SQuAD's JSON article by article, never whole; a name that ends in .jsonl means flat records."""
    report = SquadReport() if report is None else report
    if kind_of_name(path.name) == "jsonl":
        yield from questions_of(read_records(path), report)
        return
    with open_raw(str(path), str(path)) as raw:
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        for number, article in enumerate(_articles(stream), 1):
            yield from _questions_of_article(article, f"{path.name}, article {number}", report)


def _articles(stream: ByteStream) -> Iterator[Any]:
    """The elements of the list "data", each parsed as soon as its text is there."""
    decoder = json.JSONDecoder()
    texts = _texts(stream)
    text = next(texts, "")
    while not (data := _DATA.search(text)):
        if len(text) > _MAX_HEADER_CHARACTERS or not (more := next(texts, "")):
            raise InputError(f'{stream.name} has no list "data"; give SQuAD\'s JSON, or flat records named .jsonl')
        text += more
    at = data.end()
    while True:
        text, at = text[at:], 0
        try:
            at = _skip(text)
            if text[at : at + 1] == "]":
                return
            article, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # Broken or only not read to its end: doubling what is read keeps the work of trying again in bounds.
            more = "".join(part for _, part in zip(range(1 + len(text) // _CHUNK), texts, strict=False))
            if not more:
                raise InputError(f"{stream.name} is not valid JSON ({error}); mend it or download it again") from error
            text, at = text + more, 0
            continue
        yield article


def _skip(text: str) -> int:
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
    """What a question stands on."""

    id: str
    title: str
    context: str
    location: str


def _questions_of_article(article: Any, location: str, report: SquadReport) -> Iterator[SquadQuestion]:
    title = str(_value(article, "title", location, ""))
    for paragraph in _list(article, "paragraphs", location):
        context = _text(paragraph, "context", location)
        for entry in _list(paragraph, "qas", location):
            number = str(_value(entry, "id", location))
            passage = _Passage(number, title, context, f"{location}, question {number}")
            yield _question(entry, passage, bool(entry.get("is_impossible", False)), report)


def questions_of(records: Iterable[Record], report: SquadReport) -> Iterator[SquadQuestion]:
    """Turn flat records into questions: {"question", "context", "answers" or "answer"}, and maybe "id" and "title".

    Answers are texts, objects as in SQuAD, or an object of two lists. An empty list means that there is no answer;
    where the field is missing, nothing is known.
    """
    for number, line in enumerate(records):
        context = _text(line.fields, "context", line.location)
        passage = _Passage(
            str(line.fields.get("id", number)), str(line.fields.get("title", "")), context, line.location
        )
        is_impossible = bool(line.fields.get("is_impossible", _raw_answers(line.fields, line.location) == []))
        yield _question(line.fields, passage, is_impossible, report)


def _question(entry: Mapping[str, Any], passage: _Passage, is_impossible: bool, report: SquadReport) -> SquadQuestion:
    number, title, context, place = passage
    given = _raw_answers(entry, place) or []
    if is_impossible and given:
        raise InputError(f"{place}: is_impossible, yet it has the answer {given[0][0]!r}; remove one of them")
    answers = tuple(_locate_answer(text, start, passage, report) for text, start in given)
    question = SquadQuestion(number, title, context, _text(entry, "question", place), answers, is_impossible, place)
    report.num_questions += 1
    report.num_impossible += is_impossible
    report.num_answers += len(answers)
    report.num_unlocated += bool(answers) and not question.answers_in_context
    return question


def _raw_answers(entry: Mapping[str, Any], location: str) -> list[tuple[str, int | None]] | None:
    """The answers as the file gives them, each with its offset if it has one; None where it says nothing."""
    value = entry.get("answers", entry.get("answer"))
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start") or [None] * len(value["text"])
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise InputError(f"{location}: the lists of texts and of offsets differ in length; mend the answers")
        value = [{"text": text, "answer_start": start} for text, start in zip(value["text"], starts, strict=True)]
    if value == "":
        return []
    answers = []
    for answer in value if isinstance(value, list) else [value]:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (answer, None)
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise InputError(
                f"{location}: an answer is {answer!r}; write its 'text' and, as a number, its 'answer_start'"
            )
        answers.append((text, start))
    return answers


def _locate_answer(text: str, start: int | None, passage: _Passage, report: SquadReport) -> GoldAnswer:
    """The answer where it stands: as the file says, else its nearest occurrence, else nowhere."""
    context = passage.context
    if text and start is not None and start >= 0 and context.startswith(text, start):
        return GoldAnswer(text, start)
    near = find_nearest(text, context, start or 0)
    if near is None:
        report.num_absent += 1
        if len(report.absent_answers) < _MAX_EXAMPLES:
            report.absent_answers.append(f"{passage.location}: the answer {text!r} is not in its context")
    elif start is None:
        report.num_searched += 1
    else:
        report.num_repaired += 1
    return GoldAnswer(text, near)


def find_nearest(text: str, context: str, start: int) -> int | None:
    """Where `text` occurs in `context` nearest to `start`, the earlier of two as near; None if nowhere."""
    if not text:
        return None
    start = max(start, 0)
    before, behind = context.rfind(text, 0, start + len(text)), context.find(text, start)
    return min((place for place in (before, behind) if place >= 0), key=lambda place: abs(place - start), default=None)


_MISSING = object()


def _value(record: Any, name: str, location: str, default: Any = _MISSING) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{location}: a {type(record).__name__} where an object with {name!r} was expected; mend it")
    if name not in record and default is _MISSING:
        raise InputError(f"{location}: no {name!r} among {', '.join(map(repr, record))}; give SQuAD's JSON shape")
    return record.get(name, default)


def _list(record: Any, name: str, location: str) -> list[Any]:
    value = _value(record, name, location)
    if not isinstance(value, list):
        raise InputError(f"{location}: {name!r} is no list; give SQuAD's JSON shape")
    return value


def _text(record: Any, name: str, location: str) -> str:
    value = _value(record, name, location)
    if not isinstance(value, str):
        raise InputError(f"{location}: {name!r} is no text; give SQuAD's JSON shape")
    return value
