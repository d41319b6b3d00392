"""Similarity of neighbouring sentences, worked out by hand on eight pairs."""

from __future__ import annotations

from bertworks.text.coherence import SCORE_UNIT, measure_coherence
from bertworks.text.document import Document
from bertworks.text.statistics import TextStatistics


def near_score(documents: list[Document]) -> float:
    statistics = TextStatistics()
    measure_coherence(documents, statistics)
    prefix = "neighbouring sentences: near"
    return statistics.totals[f"{prefix}, score"] / statistics.totals[f"{prefix}, pairs"] / SCORE_UNIT


def pairs_of(pairs: list[tuple[str, str]]) -> list[Document]:
    return [Document((left, right), "a.txt") for left, right in pairs]


NAMES = ("anna", "berta", "clara", "dora", "emma", "frida", "greta", "hanna")
CHINESE = ("春风", "夏雨", "秋月", "冬雪", "高山", "流水", "白云", "青松")


def test_sentences_with_the_same_words_have_similarity_one() -> None:
    assert near_score(pairs_of([(f"{name} sings", f"Sings {name}!") for name in NAMES])) == 1.0


def test_words_of_all_sentences_have_no_weight() -> None:
    pairs = [(f"{name} sings", f"{other}x sings") for name, other in zip(NAMES, NAMES, strict=True)]
    assert near_score(pairs_of(pairs)) == 0.0


def test_similarity_of_half_the_words_in_common() -> None:
    # Per sentence: one word of both sentences of a pair, weight ln(16/2)^2 = 4.324, and one word of this sentence only,
    # weight ln(16)^2 = 7.687; so 4.324 / (4.324 + 7.687) = 0.36 for each of the eight pairs.
    pairs = [(f"{name} left{name}", f"{name} right{name}") for name in NAMES]
    assert round(near_score(pairs_of(pairs)), 2) == 0.36


def test_chinese_is_compared_by_character_bigrams() -> None:
    assert near_score(pairs_of([(f"{term}。", f"“{term}”！") for term in CHINESE])) == 1.0


def test_copies_are_excluded() -> None:
    statistics = TextStatistics()
    measure_coherence(pairs_of([("anna sings", "anna sings")] * 20), statistics)
    assert not [name for name in statistics.totals if "sentences: near" in name]


def test_long_documents_are_compared_with_distant_sentences() -> None:
    # The second half repeats the first, so each sentence equals the one half a document away and differs from the next.
    sentences = tuple(f"{name} sings" for name in NAMES * 2)
    statistics = TextStatistics()
    measure_coherence([Document(sentences, "a.txt")], statistics)
    assert statistics.totals["neighbouring sentences: inside, pairs"] == 15
    assert statistics.totals["neighbouring sentences: inside, score"] == 15 * SCORE_UNIT
    assert statistics.totals["neighbouring sentences: near, long documents, pairs"] == 15
    assert statistics.totals["neighbouring sentences: near, long documents, score"] == 0
