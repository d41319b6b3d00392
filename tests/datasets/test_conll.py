"""Tagged sentences: CoNLL columns, JSON Lines, and conversion between tags and spans."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.datasets.conll import (
    CHANGED_TAGS,
    CONFLICTING_SPANS,
    WIDENED_SPANS,
    Sentence,
    TagSpan,
    read_sentences,
    repair_tags,
    spans_of,
    tags_of,
)
from bertworks.errors import InputError
from bertworks.text.document import Counts

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

BRUSSELS NNP B-NP B-LOC
"""


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def write_records(folder: Path, *records: object) -> Path:
    return write(folder, "t.jsonl", "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def test_columns_give_words_tags_offsets_and_documents(tmp_path: Path):
    assert list(read_sentences(write(tmp_path, "train.txt", CONLL))) == [
        Sentence(
            words=("EU", "rejects"),
            tags=("B-ORG", "O"),
            text="EU rejects",
            offsets=((0, 2), (3, 10)),
            document=0,
            location="train.txt, line 3",
        ),
        Sentence(
            words=("Peter", "Blackburn"),
            tags=("B-PER", "I-PER"),
            text="Peter Blackburn",
            offsets=((0, 5), (6, 15)),
            document=0,
            location="train.txt, line 6",
        ),
        Sentence(
            words=("BRUSSELS",),
            tags=("B-LOC",),
            text="BRUSSELS",
            offsets=((0, 8),),
            document=1,
            location="train.txt, line 11",
        ),
    ]


def test_the_columns_can_be_chosen(tmp_path: Path):
    sentences = list(read_sentences(write(tmp_path, "t.txt", CONLL), word=1, tag=2))
    assert (sentences[1].words, sentences[1].tags) == (("NNP", "NNP"), ("B-NP", "I-NP"))
    assert next(read_sentences(tmp_path / "t.txt", tag=None)).tags is None


def test_with_tabs_a_word_may_contain_a_space(tmp_path: Path):
    sentences = list(read_sentences(write(tmp_path, "t.tsv", "New York\tB-LOC\r\nis\tO\r\n\r\n")))
    assert [(one.words, one.tags) for one in sentences] == [(("New York", "is"), ("B-LOC", "O"))]


def test_without_document_starts_each_sentence_is_its_own_document(tmp_path: Path):
    assert [one.document for one in read_sentences(write(tmp_path, "t.txt", "a O\n\nb O\n\n\nc O"))] == [0, 1, 2]


def test_one_column_has_words_and_no_tags(tmp_path: Path):
    sentence = next(read_sentences(write(tmp_path, "t.txt", "line\nb\n")))
    assert (sentence.words, sentence.tags) == (("line", "b"), None)


def test_tags_are_converted_to_bio_and_changes_counted(tmp_path: Path):
    counts = Counts()
    sentences = list(read_sentences(write(tmp_path, "t.txt", "a I-PER\nb I-PER\n\nc S-LOC\nd O\n"), counts))
    assert [one.tags for one in sentences] == [("B-PER", "I-PER"), ("B-LOC", "O")]
    assert counts == {CHANGED_TAGS: 2}


def test_a_tag_that_is_not_bio_in_a_sentence_with_bio_tags_raises_an_error_with_its_line(tmp_path: Path):
    with pytest.raises(InputError, match=r"t\.txt, line 3: 'PERSON' is not a BIO tag"):
        list(read_sentences(write(tmp_path, "t.txt", "a B-PER\nb O\nc PERSON\n")))


def test_plain_tags_stay_as_they_are(tmp_path: Path):
    counts = Counts()
    assert next(read_sentences(write(tmp_path, "t.txt", "a O\nb PERSON\n"), counts)).tags == ("O", "PERSON")
    assert not counts


def test_a_line_with_another_number_of_columns_raises_an_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"t\.txt, line 5: expected 2 columns, got 1"):
        list(read_sentences(write(tmp_path, "t.txt", "a O\nb O\n\nd O\nbroken\n")))


def test_a_missing_column_raises_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="no column 4; the file has 4"):
        list(read_sentences(write(tmp_path, "t.txt", CONLL), tag=4))


def test_spans_become_tags_and_the_text_is_unchanged(tmp_path: Path):
    text = "  Ms. Smith left New York."
    spans = [{"start": 17, "end": 25, "label": "LOC"}, {"start": 6, "end": 11, "label": "PER"}]
    sentence = next(read_sentences(write_records(tmp_path, {"text": text, "spans": spans})))
    assert sentence.text == text
    assert sentence.words == ("Ms", ".", "Smith", "left", "New", "York", ".")
    assert sentence.tags == ("O", "O", "B-PER", "O", "B-LOC", "I-LOC", "O")
    assert tuple(text[start:end] for start, end in sentence.offsets) == sentence.words


def test_chinese_is_split_into_characters(tmp_path: Path):
    record = {"text": "我在北京看iPhone15。", "spans": [{"start": 2, "end": 4, "label": "LOC"}]}
    sentence = next(read_sentences(write_records(tmp_path, record)))
    assert sentence.words == ("我", "在", "北", "京", "看", "iPhone15", "。")
    assert sentence.tags == ("O", "O", "B-LOC", "I-LOC", "O", "O", "O")


def test_a_span_through_a_word_is_widened_and_counted(tmp_path: Path):
    counts = Counts()
    spans = [{"start": 0, "end": 5, "label": "ORG"}, {"start": 5, "end": 9, "label": "ORG"}]
    record = {"text": "AlphaBeta wins", "spans": spans}
    assert next(read_sentences(write_records(tmp_path, record), counts)).tags == ("B-ORG", "O")
    assert counts == {WIDENED_SPANS: 1, CONFLICTING_SPANS: 1}


def test_a_span_with_spaces_around_it_is_not_widened(tmp_path: Path):
    counts = Counts()
    record = {"text": "in Rome now", "spans": [{"start": 2, "end": 8, "label": "LOC"}]}
    assert next(read_sentences(write_records(tmp_path, record), counts)).tags == ("O", "B-LOC", "O")
    assert counts == {}


def test_tokens_have_offsets_in_the_text_if_it_is_given(tmp_path: Path):
    record = {"tokens": ["don", "'t", "go"], "tags": ["O", "O", "B-ACT"]}
    without_text, with_text = read_sentences(write_records(tmp_path, record, {**record, "text": "don't  go"}))
    assert (without_text.text, without_text.offsets) == ("don 't go", ((0, 3), (4, 6), (7, 9)))
    assert (with_text.text, with_text.offsets) == ("don't  go", ((0, 3), (3, 5), (7, 9)))
    assert without_text.tags == with_text.tags == ("O", "O", "B-ACT")


def test_records_without_spans_have_no_tags_and_empty_spans_are_all_o(tmp_path: Path):
    sentences = list(read_sentences(write_records(tmp_path, {"text": "a b"}, {"text": "a b", "spans": []})))
    assert [one.tags for one in sentences] == [None, ("O", "O")]


def test_consecutive_records_with_one_document_name_are_one_document(tmp_path: Path):
    records = [{"text": "a", "document": name} for name in ("x", "x", "y", None, None)]
    assert [one.document for one in read_sentences(write_records(tmp_path, *records))] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"text": "a b", "spans": [{"start": 0, "end": 9, "label": "X"}]},
            "from 0 to 9 is not within the 3 characters",
        ),
        ({"text": "a b", "spans": [{"start": 1, "end": 2, "label": "X"}]}, "has no text"),
        ({"text": "a b", "spans": [{"start": 0, "end": 1}]}, "'start', 'end' and 'label'"),
        ({"text": "a b", "spans": [{"start": 0, "end": 1, "label": ""}]}, "no label"),
        (
            {"text": "a b", "spans": [{"start": 0, "end": 3, "label": "X"}, {"start": 2, "end": 3, "label": "Y"}]},
            "overlap",
        ),
        ({"tokens": ["a", "b"], "tags": ["O"]}, "1 tags for 2 tokens"),
        ({"tokens": ["a"], "tags": [0]}, "the tags are not a list of strings"),
        ({"tokens": ["a", "b"], "tags": ["B-PER", "person"]}, "'person' is not a BIO tag"),
        ({"tokens": ["a", " "]}, "one of the tokens is empty"),
        ({"tokens": ["a", "b"], "text": "b a"}, "the token 'b' is not in the rest of the text"),
        ({"sentence": "a"}, "neither 'tokens' nor 'text' among the fields 'sentence'"),
    ],
)
def test_an_invalid_record_raises_an_error_with_its_line(tmp_path: Path, record: object, message: str):
    with pytest.raises(InputError, match=rf"t\.jsonl, line 2: .*{message}"):
        list(read_sentences(write_records(tmp_path, {"text": "fine"}, record)))


@pytest.mark.parametrize(
    ("tags", "expected", "num_changes"),
    [
        ("O B-PER I-PER O", "O B-PER I-PER O", 0),
        ("O I-PER I-PER O", "O B-PER I-PER O", 1),
        ("B-PER I-LOC I-LOC", "B-PER B-LOC I-LOC", 1),
        ("I-PER I-PER B-PER I-PER", "B-PER I-PER B-PER I-PER", 1),  # IOB1: B- only between adjacent entities
        ("S-PER B-LOC I-LOC E-LOC O", "B-PER B-LOC I-LOC I-LOC O", 2),
        ("U-PER B-LOC L-LOC", "B-PER B-LOC I-LOC", 2),
        ("B-PER M-PER E-PER", "B-PER I-PER I-PER", 2),
        ("E-PER I-PER", "B-PER B-PER", 2),
        ("B-PER E-PER I-PER", "B-PER I-PER B-PER", 2),
        ("B_PER I_PER", "B-PER I-PER", 2),
        ("B-creative-work I-creative-work", "B-creative-work I-creative-work", 0),
        ("", "", 0),
    ],
)
def test_illegal_sequences_and_other_schemes_become_bio(tags: str, expected: str, num_changes: int):
    assert repair_tags(tags.split()) == (tuple(expected.split()), num_changes)


@pytest.mark.parametrize("tag", ["PER", "B", "B-", "b-PER", "X-PER", "", "O "])
def test_an_invalid_tag_raises_an_error_with_its_location(tag: str):
    with pytest.raises(InputError, match=r"^t\.txt, line 7: .* is not a BIO tag"):
        repair_tags(["O", tag], "t.txt, line 7")


def test_spans_of_tags():
    tags = ["B-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG"]
    assert spans_of(tags) == (TagSpan(0, 2, "PER"), TagSpan(2, 3, "PER"), TagSpan(4, 5, "LOC"), TagSpan(5, 6, "ORG"))


def test_tags_of_spans():
    assert tags_of([TagSpan(1, 3, "LOC"), TagSpan(3, 4, "LOC")], 5) == ("O", "B-LOC", "I-LOC", "B-LOC", "O")


@given(st.lists(st.sampled_from(["O", *(f"{letter}-{label}" for letter in "BIESLUM" for label in "XY")])))
def test_repair_is_idempotent_and_spans_equal_tags(tags: list[str]):
    legal, _ = repair_tags(tags)
    assert repair_tags(legal) == (legal, 0)
    assert tags_of(spans_of(tags), len(tags)) == legal
