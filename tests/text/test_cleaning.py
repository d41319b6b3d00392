"""Cleaning: what is repaired, joined, removed and dropped, and how it is counted."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.text.cleaning import CleanSettings, clean, clean_text
from bertworks.text.document import LINE_MEANINGS, Counts, RawDocument

DEFAULT = CleanSettings()
KEEP_ALL = CleanSettings(min_characters=0, max_symbol_ratio=1.0)


def cleaned(text: str, settings: CleanSettings = DEFAULT) -> tuple[str, dict[str, int]]:
    counts = Counts()
    return clean_text(text, settings, counts), dict(counts)


def sentences(text: str, lines: str) -> tuple[str, ...]:
    document = clean(RawDocument(text, "hand", lines), KEEP_ALL, Counts())
    assert document is not None
    return document.sentences


@pytest.mark.parametrize(
    ("damaged", "repaired"),
    [
        ("The menu says cafÃ© and naÃ¯ve.", "The menu says café and naïve."),
        ("He said â€œyesâ€\x9d, and donâ€™t ask.", "He said “yes”, and don’t ask."),
        ("ä½\xa0å¥½ï¼Œä¸–ç•Œ", "你好，世界"),
    ],
)
def test_mojibake_is_repaired_and_counted(damaged: str, repaired: str) -> None:
    text, counts = cleaned(damaged)
    assert text == repaired
    assert counts["lines repaired: mojibake"] == 1


def test_only_damaged_lines_are_repaired() -> None:
    text, counts = cleaned("Ein sÃ¼ÃŸer Hund.\nEin süßer Hund.\nA plain line.\nDer fÃ¼nfte.")
    assert text == "Ein süßer Hund.\nEin süßer Hund.\nA plain line.\nDer fünfte."
    assert counts["lines repaired: mojibake"] == 2


@pytest.mark.parametrize(
    "text", ["São Paulo é bonito.", "Ça va, là-bas ?", "今天下雨。", "“Quoted” – naïve café…", "Ñandú"]
)
def test_valid_text_is_unchanged(text: str) -> None:
    assert cleaned(text) == (text, {})


def test_mojibake_is_kept_without_repair() -> None:
    assert cleaned("cafÃ©", CleanSettings(repair=False)) == ("cafÃ©", {})


def test_accents_are_normalized_to_nfc_and_counted() -> None:
    assert cleaned("cafe\u0301 and \u1112\u1161\u11ab") == ("café and 한", {"documents normalised to NFC": 1})


def test_accent_after_a_control_character_is_composed() -> None:
    text, _ = cleaned("cafe\u200b\u0301")
    assert text == "café"


def test_control_characters_are_removed_and_counted() -> None:
    text, counts = cleaned("\ufeffone\x00 t\u200bwo\xad th\x07ree\u200e")
    assert text == "one two three"
    assert counts == {"control characters removed": 6}


def test_zero_width_joiners_are_kept() -> None:
    persian, family = "می\u200cخواهم", "👩\u200d👧"
    assert cleaned(persian)[0] == persian
    assert cleaned(family)[0] == family


def test_replacement_characters_are_kept_and_counted() -> None:
    assert cleaned("a \ufffd b \ufffd") == ("a \ufffd b \ufffd", {"replacement characters (U+FFFD) found": 2})


def test_unusual_spaces_become_one_space() -> None:
    assert cleaned("  a\t b\xa0\xa0c\u3000d\u2003\u202fe  f ")[0] == "a b c d e f"


def test_all_line_breaks_become_newlines() -> None:
    assert cleaned("a\r\nb\rc\x0bd\x0ce\u2028f\u2029g\x85h\x1ci")[0] == "a\nb\nc\nd\ne\nf\ng\nh\ni"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_cleaning_is_idempotent(text: str) -> None:
    once = clean_text(text, CleanSettings(repair=False), Counts())
    assert clean_text(once, CleanSettings(repair=False), Counts()) == once
    assert unicodedata.is_normalized("NFC", once)
    assert "  " not in once
    assert once == once.strip()


# Lines and sentences.


def test_wrapped_english_lines_are_joined_with_a_space() -> None:
    text = "It was a dark and\nstormy night. The rain\nfell.\n\nA new paragraph."
    assert sentences(text, "wrapped") == ("It was a dark and stormy night. ", "The rain fell.\n", "A new paragraph.\n")


def test_wrapped_chinese_lines_are_joined_without_a_space() -> None:
    assert sentences("今天下\n雨，我\n在家。 \n 他出门了。", "wrapped") == ("今天下雨，我在家。", "他出门了。\n")


def test_wrapped_lines_of_mixed_scripts_are_joined_by_script() -> None:
    assert sentences("我用\nPython\nevery day 写\n程序。", "wrapped") == ("我用 Python every day 写程序。\n",)


def test_empty_line_separates_wrapped_chinese_paragraphs() -> None:
    assert sentences("今天下雨\n  \n我在家", "wrapped") == ("今天下雨\n", "我在家\n")


def test_lines_as_paragraphs_are_split_into_sentences() -> None:
    assert sentences("One. Two.\nThree\n\nFour.", "paragraphs") == ("One. ", "Two.\n", "Three\n", "Four.\n")


def test_lines_as_sentences_are_not_split() -> None:
    assert sentences("One. Two.\n  Three \n", "sentences") == ("One. Two.\n", "Three\n")


@given(st.text(st.sampled_from("ab 。.中\n\t\x00!é")), st.sampled_from(LINE_MEANINGS))
def test_sentences_have_all_letters_of_the_text(text: str, lines: str) -> None:
    document = clean(RawDocument(text, "hand", lines), KEEP_ALL, Counts())
    expected = "".join(text.replace("\x00", "").split())
    assert "".join((document.text if document else "").split()) == expected
    assert document is None or all(sentence.strip() for sentence in document.sentences)


# Filters.


def test_short_documents_are_dropped_and_counted() -> None:
    counts = Counts()
    assert clean(RawDocument("Nineteen letters, no", "hand"), CleanSettings(min_characters=21), counts) is None
    assert counts == {
        "documents read": 1,
        "documents dropped: shorter than 21 characters": 1,
        "characters dropped: shorter than 21 characters": 20,
    }
    assert clean(RawDocument("Nineteen letters, no", "hand"), CleanSettings(min_characters=20), counts) is not None


def test_documents_of_control_characters_are_dropped_as_empty() -> None:
    counts = Counts()
    assert clean(RawDocument("\u200b\x00 \n", "hand"), KEEP_ALL, counts) is None
    assert counts["documents dropped: empty"] == 1


def test_documents_of_symbols_are_dropped_and_counted() -> None:
    counts = Counts()
    # 20 letters and spaces of 33 characters: 39 % symbols are kept, one more symbol is not.
    assert clean(RawDocument("abcd efgh ijkl mnopq" + "#" * 13, "hand"), DEFAULT, counts) is not None
    assert clean(RawDocument("abcd efgh ijkl mnopq" + "#" * 14, "hand"), DEFAULT, counts) is None
    assert counts["documents dropped: more than 40% symbols"] == 1
    assert counts["characters dropped: more than 40% symbols"] == 34
    assert counts["documents read"] == 2


@pytest.mark.parametrize(
    "text", ["हिन्दी में भी कुछ शब्दों की स्थिति ऐसी ही है", "ที่นี่ที่นั่นมีน้ำแข็งที่ดีที่สุด", "今天天气很好我们一起出去走一走看一看吧朋友们"]
)
def test_vowel_signs_are_not_symbols(text: str) -> None:
    assert clean(RawDocument(text, "hand"), CleanSettings(max_symbol_ratio=0.05), Counts()) is not None


@given(st.lists(st.text(st.sampled_from("ab .#\x00\n")), max_size=12))
def test_every_document_is_kept_or_counted_as_dropped(texts: list[str]) -> None:
    counts = Counts()
    documents = [clean(RawDocument(text, "hand"), CleanSettings(min_characters=4), counts) for text in texts]
    num_dropped = sum(count for name, count in counts.items() if name.startswith("documents dropped"))
    assert counts["documents read"] == len(texts)
    assert sum(document is not None for document in documents) + num_dropped == len(texts)
