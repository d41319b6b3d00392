"""The fit of a tiny vocabulary to text, with tokens counted by hand."""

from __future__ import annotations

from bertworks.text.document import Document
from bertworks.text.statistics import TextStatistics
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.corpus_fit import UnknownWords, measure_fit, profile_vocabulary
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "mill", "##er", "Mill", "sang", ".", "山"]


def tokenizer(cased: bool = False) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(TOKENS, cased))


def test_tokens_words_and_unknown_tokens_are_counted() -> None:
    statistics, unknown = TextStatistics(), UnknownWords()
    document = Document(("The miller sang. ", "The zebra sang 山水.\n"), "a.txt")
    measure_fit(document, tokenizer(), statistics, unknown)
    # the mill ##er sang . | the [UNK] sang 山 [UNK] .
    assert statistics.totals["tokens"] == 11
    assert statistics.totals["words of the vocabulary"] == 10
    assert statistics.totals["unknown tokens"] == 2
    assert unknown.words == {"zebra": 1, "水": 1}
    assert statistics.excerpts["unknown tokens"].text == "The zebra sang 山水."


def test_documents_longer_than_the_usual_lengths_are_counted() -> None:
    statistics = TextStatistics()
    for length in (128, 129, 513):
        measure_fit(Document(("sang " * length,), "a.txt"), tokenizer(), statistics, UnknownWords())
    assert statistics.totals["documents longer than 128 tokens"] == 2
    assert statistics.totals["documents longer than 512 tokens"] == 1


def test_the_profile_of_a_vocabulary_has_capitals_and_ideographs() -> None:
    profile = profile_vocabulary(tokenizer(cased=True))
    assert profile.cased
    assert profile.capital_ratio == 1 / 5  # of: the, mill, ##er, Mill, sang
    assert profile.num_ideographs == 1


def test_unknown_words_are_limited_independently_of_merge_order() -> None:
    def words(start: int) -> UnknownWords:
        unknown_words = UnknownWords()
        unknown_words.words.update(f"w{index}" for index in range(start, start + 15_000))
        return unknown_words

    first_merged, second_merged = words(0), words(10_000)
    first_merged.merge(words(10_000))
    second_merged.merge(words(0))
    assert first_merged.words == second_merged.words
    assert len(first_merged.words) == 20_000
    assert set(first_merged.words.values()) == {1, 2}
