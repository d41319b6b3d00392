"""Multiple-choice files: SWAG's, ComVE's, numbered columns and JSON Lines."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bertworks.datasets.choices import Choice, choices_of, read_choices
from bertworks.datasets.files import Record
from bertworks.errors import InputError
from bertworks.text.document import Counts

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,v1,1,"He stops. He",He stops.,He,gold,runs.,"eats, then sleeps.",flies.,sings.,1\n'
)
COMVE = "Correct Statement,Incorrect Statement,Right Reason1,Confusing Reason1,Confusing Reason2,Right Reason2\n"


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def write_records(folder: Path, *records: object) -> Path:
    return write(folder, "t.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def test_each_ending_of_swag_completes_the_second_sentence(tmp_path: Path):
    assert list(read_choices(write(tmp_path, "train.csv", SWAG))) == [
        Choice(
            prompt="He stops.",
            endings=("He runs.", "He eats, then sleeps.", "He flies.", "He sings."),
            label=1,
            id="0",
            location="train.csv, line 2",
        )
    ]


def test_a_file_without_labels_has_none(tmp_path: Path):
    header, row, _ = SWAG.split("\n")
    path = write(tmp_path, "test.csv", header.removesuffix(",label") + "\n" + row.removesuffix(",1") + "\n")
    assert [choice.label for choice in read_choices(path)] == [None]


def test_the_reasons_of_comve_are_shuffled(tmp_path: Path):
    rows = "".join(f"c{row},statement {row},right {row},x{row},y{row},z{row}\n" for row in range(600))
    choices = list(read_choices(write(tmp_path, "train.csv", COMVE + rows)))
    assert [choice.prompt for choice in choices] == [f"statement {row}" for row in range(600)]
    for row, choice in enumerate(choices):
        assert choice.label is not None
        assert choice.endings[choice.label] == f"right {row}"
        assert sorted(choice.endings) == [f"right {row}", f"x{row}", f"y{row}"]
    orders = Counter((choice.label, choice.endings.index(f"x{row}")) for row, choice in enumerate(choices))
    # All six orders occur, each about 100 times: 100 +- 5 standard deviations of 9.1.
    assert len(orders) == 6
    assert all(54 < count < 146 for count in orders.values())


def test_the_order_of_comve_s_reasons_does_not_depend_on_the_line(tmp_path: Path):
    rows = [f"c,statement {row},right,x,y,z\n" for row in range(20)]
    forwards = {
        choice.prompt: choice.endings for choice in read_choices(write(tmp_path, "a.csv", COMVE + "".join(rows)))
    }
    backwards = list(read_choices(write(tmp_path, "b.csv", COMVE + "".join(reversed(rows)))))
    assert {choice.prompt: choice.endings for choice in backwards} == forwards


def test_without_counts_an_empty_ending_raises_an_error():
    records = [Record({"prompt": "a", "choices": ["b", " "]}, "the input, line 1")]
    with pytest.raises(InputError, match="the input, line 1: an ending is empty; fill it in or remove the line"):
        list(choices_of(records))


def test_a_record_with_an_empty_ending_is_skipped_and_counted(tmp_path: Path):
    counts = Counts()
    path = write(tmp_path, "dev.csv", COMVE + "c,s,right,x,,\nc,t,right,x,y,z\n")
    assert [choice.prompt for choice in read_choices(path, counts)] == ["t"]
    assert counts == {"records skipped: an ending is empty": 1}


def test_json_lines_have_any_number_of_choices(tmp_path: Path):
    path = write_records(
        tmp_path,
        {"prompt": "1 + 1", "choices": ["1", "2"], "label": 1, "id": "sum"},
        {"question": "哪个？", "choices": ["甲", "乙", "丙", "丁", "戊"]},
    )
    assert list(read_choices(path)) == [
        Choice(prompt="1 + 1", endings=("1", "2"), label=1, id="sum", location="t.jsonl, line 1"),
        Choice(prompt="哪个？", endings=("甲", "乙", "丙", "丁", "戊"), label=None, id="1", location="t.jsonl, line 2"),
    ]


def test_numbered_columns_are_sorted(tmp_path: Path):
    names = [f"choice{number}" for number in (10, 2, 1)]
    path = write(tmp_path, "t.tsv", "prompt\t" + "\t".join(names) + "\tlabel\np\tten\ttwo\tone\t2\n")
    choice = next(read_choices(path))
    assert (choice.endings, choice.label) == (("one", "two", "ten"), 2)


@pytest.mark.parametrize("label", [2, "2", "x", -2, True, 0.5, [0]])
def test_a_label_that_is_not_an_index_raises_an_error(tmp_path: Path, label: object):
    good = {"prompt": "p", "choices": ["a", "b"], "label": "1"}
    with pytest.raises(InputError, match=r"t\.jsonl, line 2: the label .* is not an index from 0 to 1"):
        list(read_choices(write_records(tmp_path, good, {**good, "label": label})))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "p", "choices": ["a"]}, "fewer than two choices"),
        ({"prompt": "p", "choices": "ab"}, "'choices' is not a list of strings"),
        ({"choices": ["a", "b"]}, "no prompt among the fields 'choices'"),
        ({"prompt": 7, "choices": ["a", "b"]}, "'prompt' is not a string"),
        ({"prompt": "p"}, "no choices among the fields 'prompt'"),
    ],
)
def test_an_invalid_record_raises_an_error_with_its_line(tmp_path: Path, record: object, message: str):
    with pytest.raises(InputError, match=rf"t\.jsonl, line 1: {message}"):
        list(read_choices(write_records(tmp_path, record)))


def test_a_label_of_thousands_of_digits_is_refused():
    record = Record({"prompt": "a", "choices": ["b", "c"], "label": "9" * 5_000}, "line 1")
    with pytest.raises(InputError, match="is not an index from 0 to 1") as error:
        list(choices_of([record]))
    assert len(str(error.value)) < 200
