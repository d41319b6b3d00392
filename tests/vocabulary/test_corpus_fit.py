"""How text looks through a tiny vocabulary, pieces counted by hand."""

from __future__ import annotations

from bertworks.text.document import Document
from bertworks.text.statistics import TextStatistics
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.corpus_fit import UnknownWords, measure_fit, profile_vocabulary
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "mill", "##er", "Mill", "sang", ".", "山"]


def tokenizer(cased: bool = False) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(PIECES, cased))


def test_pieces_words_and_unknown_pieces_are_counted() -> None:
    tally, unknown = TextStatistics(), UnknownWords()
    document = Document(("The miller sang. ", "The zebra sang 山水.\n"), "a.txt")
    measure_fit(document, tokenizer(), tally, unknown)
    # the mill ##er sang . | the [UNK] sang 山 [UNK] .
    assert tally.totals["pieces"] == 11
    assert tally.totals["words of the vocabulary"] == 10
    assert tally.totals["unknown pieces"] == 2
    assert unknown.words == {"zebra": 1, "水": 1}
    assert tally.excerpts["unknown pieces"].text == "The zebra sang 山水."


def test_documents_longer_than_the_usual_lengths_are_counted() -> None:
    tally = TextStatistics()
    for length in (128, 129, 513):
        measure_fit(Document(("sang " * length,), "a.txt"), tokenizer(), tally, UnknownWords())
    assert tally.totals["documents longer than 128 pieces"] == 2
    assert tally.totals["documents longer than 512 pieces"] == 1


def test_the_nature_of_a_vocabulary_tells_capitals_and_ideographs() -> None:
    nature = profile_vocabulary(tokenizer(cased=True))
    assert nature.cased
    assert nature.capital_ratio == 1 / 5  # of: the, mill, ##er, Mill, sang
    assert nature.num_ideographs == 1


def test_unknown_words_are_remembered_within_a_bound_in_any_order() -> None:
    def words(first: int) -> UnknownWords:
        one = UnknownWords()
        one.words.update(f"w{number}" for number in range(first, first + 15_000))
        return one

    left, right = words(0), words(10_000)
    left.merge(words(10_000))
    right.merge(words(0))
    assert left.words == right.words
    assert len(left.words) == 20_000
    assert set(left.words.values()) == {1, 2}
