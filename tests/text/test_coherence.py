"""Likeness of neighbours, worked out by hand on eight pairs."""

from __future__ import annotations

from bertworks.text.coherence import SCORE_UNIT, measure_coherence
from bertworks.text.document import Document
from bertworks.text.statistics import TextStatistics


def near_score(documents: list[Document]) -> float:
    tally = TextStatistics()
    measure_coherence(documents, tally)
    head = "neighbouring sentences: near"
    return tally.totals[f"{head}, score"] / tally.totals[f"{head}, pairs"] / SCORE_UNIT


def pairs_of(pairs: list[tuple[str, str]]) -> list[Document]:
    return [Document((left, right), "a.txt") for left, right in pairs]


NAMES = ("anna", "berta", "clara", "dora", "emma", "frida", "greta", "hanna")
CHINESE = ("春风", "夏雨", "秋月", "冬雪", "高山", "流水", "白云", "青松")


def test_sentences_with_the_same_words_are_wholly_alike() -> None:
    assert near_score(pairs_of([(f"{name} sings", f"Sings {name}!") for name in NAMES])) == 1.0


def test_a_word_that_all_sentences_have_counts_nothing() -> None:
    pairs = [(f"{name} sings", f"{other}x sings") for name, other in zip(NAMES, NAMES, strict=True)]
    assert near_score(pairs_of(pairs)) == 0.0


def test_half_of_the_words_in_common_is_half_alike() -> None:
    # Per pair: two words, each only in this pair or only in one sentence. Shared: ln(16/2)^2 = 4.324, own: ln(16)^2 =
    # 7.687; so 4.324 / (4.324 + 7.687) = 0.36 for each of the eight pairs.
    pairs = [(f"{name} left{name}", f"{name} right{name}") for name in NAMES]
    assert round(near_score(pairs_of(pairs)), 2) == 0.36


def test_chinese_is_compared_by_pairs_of_characters() -> None:
    assert near_score(pairs_of([(f"{term}。", f"“{term}”！") for term in CHINESE])) == 1.0


def test_copies_and_very_few_pairs_are_left_out() -> None:
    tally = TextStatistics()
    measure_coherence(pairs_of([("anna sings", "anna sings")] * 20), tally)
    assert not [name for name in tally.totals if "sentences: near" in name]


def test_long_documents_are_also_compared_with_themselves() -> None:
    # The second half repeats the first, so each sentence is wholly like the one half a document away, not the next.
    sentences = tuple(f"{name} sings" for name in NAMES * 2)
    tally = TextStatistics()
    measure_coherence([Document(sentences, "a.txt")], tally)
    assert tally.totals["neighbouring sentences: inside, pairs"] == 15
    assert tally.totals["neighbouring sentences: inside, score"] == 15 * SCORE_UNIT
    assert tally.totals["neighbouring sentences: near, long documents, pairs"] == 15
    assert tally.totals["neighbouring sentences: near, long documents, score"] == 0
