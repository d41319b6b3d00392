"""split_sentences: examples, F1 on the labelled paragraphs in sentences.txt, and properties of any text."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.text.sentences import split_sentences

LABELLED = Path(__file__).parent / "sentences.txt"
# The benchmark defines how labels are read and scored, so that the docs and the test report the same F1.
BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sentences.py"))


def check(marked: str) -> None:
    """Bars mark all sentence ends."""
    assert split_sentences(marked.replace("|", "")) == marked.split("|")


@pytest.mark.parametrize(
    ("section", "num_sentences", "min_f1"), [("en", 155, 0.97), ("zh", 145, 0.97), ("other", 38, 0.95)]
)
def test_f1_on_labelled_paragraphs(section: str, num_sentences: int, min_f1: float) -> None:
    paragraphs = BENCHMARK["read_labelled"](LABELLED)[section]
    assert sum(map(len, paragraphs)) == num_sentences
    assert BENCHMARK["score"](split_sentences, paragraphs).f1 >= min_f1


def test_the_score_counts_boundaries_inside_paragraphs() -> None:
    # Two boundaries are labelled; the second of them and a wrong one are predicted.
    score = BENCHMARK["score"](lambda text: ["One. Two. ", "Three ", "four."], [["One. ", "Two. ", "Three four."]])
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)


@given(st.text())
def test_concatenated_sentences_are_the_paragraph(paragraph: str) -> None:
    assert "".join(split_sentences(paragraph)) == paragraph


@given(st.text(alphabet="aA1Mr. !?…\"'“”‘’()（）《》。！？；，、：\u3000\n他说的道「」»«_—।؟"))
def test_sentences_keep_their_trailing_white_space(paragraph: str) -> None:
    sentences = split_sentences(paragraph)
    assert "".join(sentences) == paragraph
    assert all(sentences)
    assert not any(sentence[0].isspace() for sentence in sentences[1:])


def test_empty_text_has_no_sentences() -> None:
    assert split_sentences("") == []


def test_long_text_without_marks_is_not_split() -> None:
    for text in ("word " * 20_000, "字" * 50_000, "   "):
        assert split_sentences(text) == [text]


def test_white_space_between_sentences_is_kept() -> None:
    assert split_sentences("One.  Two.\tThree.\u3000四。 五。 ") == [
        "One.  ",
        "Two.\t",
        "Three.\u3000",
        "四。 ",
        "五。 ",
    ]


@pytest.mark.parametrize(
    "marked",
    [
        "Mr. Smith met Dr. Jones vs. Prof. Lee. |They talked.",
        "MR. SMITH LEFT. |DR. LEE STAYED.",
        "Some fruit, e.g. Apples, i.e. Boskoop.",
        "The case was Roe v. Wade. |It was long.",
        "Yes--Mr. Finch of Boston. |Do you know him?",
    ],
)
def test_titles_and_connecting_abbreviations_never_end_a_sentence(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "The U.S. Army left the U.S. |The navy stayed.",
        "Ford Motor Co. |It makes cars.",
        "Ford Motor Co. Chairman Bill Ford spoke.",
        "It opens at 9 a.m. |Visitors queue.",
        "It opens at 9 a.m. Monday.",
        "Bring pens, ink, etc. |Paper is here.",
    ],
)
def test_other_abbreviations_end_a_sentence_depending_on_the_next_word(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "Look at No. 5 and Fig. 2, vol. XII, p. 9.",
        "Do you agree? |No. |It is wrong.",
        "No. |I had a hateful time.",
        "See Rom. x. 24 for that.",
    ],
)
def test_abbreviations_before_numbers(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "It was by J. R. R. Tolkien and George R. R. Martin. |Both wrote much.",
        "So did I. |We left.",
        "Take vitamin C. |It helps.",
        "А. С. Пушкин родился в Москве. |Он был поэт.",
    ],
)
def test_initials_do_not_end_a_sentence_but_single_letters_may(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "Pi is 3.14159 or so. |It costs $4.50.",
        "See https://example.org/a.b?c=d!e and ask me@example.org. |Then run v1.2.3 of setup.py.",
        "圆周率是3.14。|版本是v2.0.1。|３．４５元。",
    ],
)
def test_marks_inside_numbers_addresses_and_file_names_do_not_end_a_sentence(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "1. Open the box. |2. Take it out. |A. Look. |II. Leave.",
        "In 1999. |It was 2001. |2002 came.",
        "1. 打开盒子。|2.取出电池。|3．合上盖子。",
    ],
)
def test_numbers_of_list_items_are_not_split_off(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        '"Stop!" he said. |"Why?" asked Ann. |"Go!"',
        '"Stop!" Anna cried. |"Why?" Mr. Finch asked. |"What?" I said.',
        '"Stop!" |He said nothing.',
        '"Home." |Tom said it twice.',
        "What?! |Anna asked him.",
        "(It was late.) |He left (at ten!) in haste.",
        "_No!_ |He ran.",
    ],
)
def test_english_quotations_keep_their_speaker_and_brackets_their_marks(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "He waited... then left. |Nobody came... |The end.",
        "Well ... I think so. |So . . . that is all. |Oh . . . |Then he left.",
        "我……我不知道。|雨下了一整夜……|第二天天晴了。",
        "苹果、梨、桃……都有。",
    ],
)
def test_ellipsis_ends_a_sentence_only_before_a_new_one(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "好。|走！|吗？！|真的！！！|先停；|再走……",
        "“走吧！”他说。|“走吧！”她高兴地说，“快！”",
        "“走吧！”|他说：“快！”|“走吧！”|他没有回答。|“走吧！”|我不知道。",
        "他说：“走吧！|快走！”|大家都走了。",
        '他说："走吧!|快走!"|大家都走了。',
        "「走吧！」她說。|『好。』|他走了。",
        "史书称“彭咸投水而死。”|后人不信。",
        "他写了“为什么？”三个字。|“好！”的一声，他醒了。",
        "这是真话。|的确是真话。",
    ],
)
def test_chinese_marks_and_quotations(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize(
    "marked",
    [
        "我看过《你是谁？》和《走吧！》两部电影。|都不错。",
        "（他是医生。）|他（真的吗？）来了。|【注意！】|开会。",
        "他来了！，她说。",
    ],
)
def test_chinese_titles_and_brackets_inside_a_sentence_do_not_end_it(marked: str) -> None:
    check(marked)


def test_narrow_marks_between_chinese_characters_end_a_sentence() -> None:
    check("房间不错,服务也好.|下次还来!|你呢?|我也去。|很贵(真的).|不去。")


def test_only_the_wide_semicolon_ends_a_sentence() -> None:
    check("One; two; three.")
    check("一；|二；|三。")
    check("Πού είναι; Δεν ξέρω.")


def test_text_without_capitals_is_split() -> None:
    check("hello there. |how are you? |fine, mr. smith.")
    check("დღეს ცივა. |თოვლი მოდის.")


def test_lower_case_brand_can_start_a_sentence() -> None:
    check("Sales fell. |iPhone sales rose.")


@pytest.mark.parametrize(
    "marked",
    [
        "राम गया। |वह आया॥ |क्या?",
        "أين هو؟ |لا أعلم. |حسنا!",
        "وہ گیا۔ |وہ آیا۔",
        "Ես տանն եմ։ |Դու ես։",
        "ሰላም ነው። |እንዴት ነህ፧ |ደህና።",
        "「行こう！」と彼は言った。|雪だ。",
        "วันนี้อากาศดี เราไปกันเถอะ",
        "« Pourquoi ? » demanda-t-il. |Il partit.",
        "»Komm!« |»Nein.« |„Doch.“ |Er ging.",
    ],
)
def test_other_scripts_have_their_own_marks(marked: str) -> None:
    check(marked)


@pytest.mark.parametrize("text", ["." * 50_000 + "x", "! " * 20_000 + "x", ". " * 20_000 + "x", "…" * 50_000 + "他"])
def test_long_runs_of_marks_are_not_lost(text: str) -> None:
    assert "".join(split_sentences(text)) == text
