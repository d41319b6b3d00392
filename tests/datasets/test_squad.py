"""Questions from SQuAD's JSON and from flat records, with correct, wrong and missing offsets."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.datasets.files import Record
from bertworks.datasets.squad import (
    GoldAnswer,
    SquadQuestion,
    SquadReport,
    find_nearest,
    is_squad_file,
    read_questions,
    unlabelled_records,
)
from bertworks.errors import InputError

CONTEXT = "Rome fell. Rome rose. Paris slept."


def make_squad(*entries: dict[str, Any], context: str = CONTEXT, title: str | None = "Cities") -> dict[str, Any]:
    article: dict[str, Any] = {"paragraphs": [{"context": context, "qas": list(entries), "id": "P1"}]}
    return {"version": "v2.0", "data": [article if title is None else {"title": title, **article}]}


def make_entry(*answers: tuple[str, int], **extra: Any) -> dict[str, Any]:
    gold_answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"question": "What?", "id": "q1", "answers": gold_answers, **extra}


def read(folder: Path, value: object, name: str = "dev.json") -> tuple[list[SquadQuestion], SquadReport]:
    (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    report = SquadReport()
    return list(read_questions(folder / name, report)), report


def read_flat(folder: Path, *records: dict[str, Any]) -> tuple[list[SquadQuestion], SquadReport]:
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "t.jsonl").write_text(content, encoding="utf-8")
    report = SquadReport()
    return list(read_questions(folder / "t.jsonl", report)), report


def test_a_squad_1_question(tmp_path: Path):
    questions, report = read(tmp_path, make_squad(make_entry(("Paris", 22), ("Rome", 11))))
    location = "dev.json, article 1, question q1"
    answers = (GoldAnswer("Paris", 22), GoldAnswer("Rome", 11))
    assert questions == [
        SquadQuestion(
            id="q1",
            title="Cities",
            context=CONTEXT,
            question="What?",
            answers=answers,
            is_impossible=False,
            location=location,
        )
    ]
    assert report == SquadReport(num_questions=1, num_answers=2)


def test_an_impossible_squad_2_question(tmp_path: Path):
    plausible = [{"text": "Rome", "answer_start": 0}]
    entries = [
        make_entry(is_impossible=True, plausible_answers=plausible),
        make_entry(("Rome", 0), is_impossible=False),
    ]
    questions, report = read(tmp_path, make_squad(*entries))
    assert [(one.is_impossible, one.answers) for one in questions] == [(True, ()), (False, (GoldAnswer("Rome", 0),))]
    assert report == SquadReport(num_questions=2, num_impossible=1, num_answers=1)


def test_extra_keys_and_a_missing_title_are_ignored(tmp_path: Path):
    context = "范廷颂于1919年6月15日出生。"
    questions, _ = read(
        tmp_path, make_squad(make_entry(("1919年", 4), evidences=["1919年"]), context=context, title=None)
    )
    assert (questions[0].title, questions[0].answers) == ("", (GoldAnswer("1919年", 4),))


@pytest.mark.parametrize(
    ("start", "expected"), [(1, 0), (5, 0), (6, 11), (10, 11), (12, 11), (30, 11), (999, 11), (-1, 0)]
)
def test_a_wrong_offset_is_repaired_to_the_nearest_occurrence(tmp_path: Path, start: int, expected: int):
    questions, report = read(tmp_path, make_squad(make_entry(("Rome", start))))
    assert questions[0].answers == (GoldAnswer("Rome", expected),)
    assert report == SquadReport(num_questions=1, num_answers=1, num_repaired=1)


def test_of_two_equally_near_occurrences_the_earlier_is_used():
    assert find_nearest("a", "a---a", 2) == 0
    assert find_nearest("aa", "aaaa", 1) == 1
    assert find_nearest("b", "aaaa", 1) is None
    assert find_nearest("", "aaaa", 1) is None


def test_an_absent_answer_has_no_offset_and_is_counted(tmp_path: Path):
    questions, report = read(tmp_path, make_squad(make_entry(("London", 3), ("Paris", 22)), make_entry(("", 0))))
    assert questions[0].answers == (GoldAnswer("London", None), GoldAnswer("Paris", 22))
    assert questions[0].answers_in_context == (GoldAnswer("Paris", 22),)
    assert questions[1].answers_in_context == ()
    assert (report.num_answers, report.num_absent, report.num_unlocated) == (3, 2, 1)
    assert report.absent_answers[0] == "dev.json, article 1, question q1: the answer 'London' is not in its context"


def test_flat_records_may_give_answers_in_four_formats(tmp_path: Path):
    record = {"question": "What?", "context": CONTEXT}
    questions, report = read_flat(
        tmp_path,
        {**record, "answer": "Paris"},
        {**record, "answers": ["Rome", "Paris"], "id": "two", "title": "T"},
        {**record, "answers": [{"text": "Rome", "answer_start": 11}]},
        {**record, "answers": {"text": ["Rome"], "answer_start": [0]}},
    )
    assert [one.answers for one in questions] == [
        (GoldAnswer("Paris", 22),),
        (GoldAnswer("Rome", 0), GoldAnswer("Paris", 22)),
        (GoldAnswer("Rome", 11),),
        (GoldAnswer("Rome", 0),),
    ]
    assert [(one.id, one.title) for one in questions] == [("0", ""), ("two", "T"), ("2", ""), ("3", "")]
    assert questions[1].location == "t.jsonl, line 2"
    assert report == SquadReport(num_questions=4, num_answers=5, num_searched=3)


def test_in_flat_records_an_empty_answer_is_impossible_and_a_missing_one_unknown(tmp_path: Path):
    record = {"question": "What?", "context": CONTEXT}
    empty = {"text": [], "answer_start": []}
    questions, _ = read_flat(tmp_path, {**record, "answers": []}, {**record, "answers": empty}, record)
    assert [one.is_impossible for one in questions] == [True, True, False]


def test_articles_larger_than_a_chunk_are_parsed(tmp_path: Path):
    long = "x" * 700_000 + " 汉字"
    value = make_squad(make_entry(("汉字", 700_001)), context=long)
    value["data"] = value["data"] * 3 + make_squad(make_entry(("Rome", 0)))["data"]
    value["end"] = "more"
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(json.dumps(value, indent=1, ensure_ascii=False).encode()))
    questions = list(read_questions(tmp_path / "dev.json.gz"))
    assert [one.answers for one in questions] == [(GoldAnswer("汉字", 700_001),)] * 3 + [(GoldAnswer("Rome", 0),)]
    assert questions[0].context == long


def test_an_empty_list_of_articles_gives_no_questions(tmp_path: Path):
    assert read(tmp_path, {"data": []}) == ([], SquadReport())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"version": "v2.0"}, 'dev.json has no list "data"'),
        ([1], 'dev.json has no list "data"'),
        ({"data": [{"title": "t"}]}, "dev.json, article 1: no 'paragraphs' among 'title'"),
        ({"data": [{"paragraphs": {}}]}, "'paragraphs' is not a list"),
        ({"data": ["text"]}, "expected an object with 'title', got a str"),
        (make_squad({"question": "What?"}), "no 'id' among 'question'"),
        (make_squad({"id": "q1", "answers": []}), "question q1: no 'question' among"),
        (make_squad(make_entry(("Rome", 0)), context=7), "'context' is not a string"),  # type: ignore[arg-type]
        (
            make_squad({**make_entry(), "answers": [{"answer_start": 1}]}),
            "question q1: the answer {'answer_start': 1} needs a 'text'",
        ),
        (
            make_squad(make_entry(("Rome", 0), is_impossible=True)),
            "question q1: is_impossible, yet it has the answer 'Rome'",
        ),
    ],
)
def test_another_format_raises_an_error_with_its_location(tmp_path: Path, value: object, message: str):
    with pytest.raises(InputError) as caught:
        read(tmp_path, value)
    assert message in str(caught.value)


def test_a_truncated_file_raises_an_error_after_its_complete_articles(tmp_path: Path):
    value = make_squad(make_entry(("Rome", 0)))
    value["data"] *= 2
    (tmp_path / "dev.json").write_text(json.dumps(value)[:-30])
    questions = read_questions(tmp_path / "dev.json")
    assert next(questions).answers == (GoldAnswer("Rome", 0),)
    with pytest.raises(InputError, match=r"dev\.json is not valid JSON"):
        next(questions)


def test_a_file_that_is_not_utf8_raises_an_error(tmp_path: Path):
    (tmp_path / "dev.json").write_bytes('{"data": ["汉字"]}'.encode("gb18030"))
    with pytest.raises(InputError, match=r"dev\.json is not UTF-8"):
        list(read_questions(tmp_path / "dev.json"))


def test_a_squad_file_is_recognized_by_its_content(tmp_path: Path):
    (tmp_path / "dev.json").write_text(json.dumps(make_squad(make_entry(("Rome", 0))), indent=1))
    (tmp_path / "lines.json").write_text('{"question": "What?", "context": "Rome", "data": [1]}\n')
    (tmp_path / "dev.jsonl").write_text((tmp_path / "dev.json").read_text())
    assert [is_squad_file(tmp_path / name) for name in ("dev.json", "lines.json", "dev.jsonl")] == [True, False, False]


def test_unlabelled_records_have_no_answers(tmp_path: Path):
    (tmp_path / "dev.json").write_text(json.dumps(make_squad(make_entry(("Rome", 0)))))
    fields = {"id": "q1", "title": "Cities", "question": "What?", "context": CONTEXT}
    assert list(unlabelled_records(tmp_path / "dev.json")) == [Record(fields, "dev.json, article 1, question q1")]


def test_deep_lists_are_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "deep.json").write_text('{"data": [' + "[" * 100_000)
    with pytest.raises(InputError, match="lists are nested too deeply"):
        list(read_questions(tmp_path / "deep.json"))
