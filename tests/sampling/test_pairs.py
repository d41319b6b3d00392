"""Pairs: honest labels, no hint of the label in what stands around it, and all text seen. Bounds are 5 standard
deviations unless they say otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from numbered_corpus import FIRST_WORD, Numbered

from bertworks.errors import InputError
from bertworks.sampling.example import Example
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.pairs import (
    FOLLOWS,
    IN_ORDER,
    RANDOM,
    SWAPPED,
    NextSentencePairs,
    PairSettings,
    SentenceOrderPairs,
)

STREAM = ExampleOrder(3, "phase", "train")
CLS, SEP = 2, 3
Make = Callable[..., Numbered]
Numbers = npt.NDArray[np.int64]


def pairs_of(numbered: Numbered, length: int, kind: type = NextSentencePairs, **settings: float) -> NextSentencePairs:
    corpus = numbered.corpus
    return kind(corpus.split("train"), length, corpus.tokenizer.specials, PairSettings(**settings))


def draw(pairs: NextSentencePairs, num_epochs: int) -> Iterator[Example]:
    for epoch in range(num_epochs):
        for anchor in range(pairs.num_anchors):
            yield pairs.example(anchor + STREAM.offset(epoch), STREAM.generator(epoch, anchor))


def parts(example: Example) -> tuple[Numbers, Numbers]:
    """The numbers of the words in both segments."""
    numbers = example.input_ids.astype(np.int64) - FIRST_WORD
    return numbers[~example.is_special & (example.token_type_ids == 0)], numbers[
        ~example.is_special & (example.token_type_ids == 1)
    ]


def views(numbered: Numbered, examples: Iterator[Example]) -> Numbers:
    """How often each piece of the corpus is seen."""
    seen = [part for example in examples for part in parts(example)]
    return np.bincount(np.concatenate(seen), minlength=len(numbered.document_of))


@pytest.fixture(scope="module")
def varied(make_corpus: Make) -> Numbered:
    """40 documents of 20 sentences that are very different in length: 1 to 3 pieces, or 16 to 20."""
    generator = np.random.default_rng(2)
    short, long = generator.integers(1, 4, size=(40, 20)), generator.integers(16, 21, size=(40, 20))
    return make_corpus(np.where(generator.random((40, 20)) < 0.5, short, long).tolist())


def test_a_pair_is_first_separator_second_separator(numbered: Numbered) -> None:
    for example in draw(pairs_of(numbered, 32), 3):
        first, second = parts(example)
        assert len(first) > 0
        assert len(second) > 0
        assert len(example) == len(first) + len(second) + 3 <= 32
        assert np.flatnonzero(example.is_special).tolist() == [0, len(first) + 1, len(example) - 1]
        assert example.input_ids[example.is_special].tolist() == [CLS, SEP, SEP]
        assert example.token_type_ids.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert (np.diff(first) == 1).all()
        assert (np.diff(second) == 1).all()


def test_the_shortest_possible_pair_has_one_piece_a_segment(numbered: Numbered) -> None:
    assert {len(example) for example in draw(pairs_of(numbered, 5), 1)} == {5}


def test_half_of_the_pairs_are_random(numbered: Numbered) -> None:
    labels = [example.label for example in draw(pairs_of(numbered, 32), 12)]
    assert len(labels) > 2000
    assert abs(labels.count(RANDOM) - len(labels) / 2) <= 5 * np.sqrt(len(labels) / 4)
    assert labels.count(RANDOM) + labels.count(FOLLOWS) == len(labels)


@pytest.mark.parametrize("length", [12, 32, 128])
def test_a_random_segment_is_never_from_the_own_document(numbered: Numbered, length: int) -> None:
    document_of = numbered.document_of
    for example in draw(pairs_of(numbered, length, random_rate=1.0), 4):
        first, second = parts(example)
        assert len(set(document_of[first])) == len(set(document_of[second])) == 1
        assert document_of[first[0]] != document_of[second[0]]
        assert example.label == RANDOM


@pytest.mark.parametrize("shape", [[[2, 2], [30] * 40], [[30] * 40, [2, 2]], [[1, 1], [400]]])
def test_of_two_documents_of_very_different_size_each_gets_the_other_as_random(
    make_corpus: Make, shape: list[list[int]]
) -> None:
    numbered = make_corpus(shape)
    pairs = pairs_of(numbered, 16, random_rate=1.0)
    met = Counter()
    for epoch in range(max(3, 400 // pairs.num_anchors)):
        for anchor in range(pairs.num_anchors):
            example = pairs.example(anchor + STREAM.offset(epoch), STREAM.generator(epoch, anchor))
            first, second = (set(numbered.document_of[part].tolist()) for part in parts(example))
            assert first | second == {0, 1}
            met[tuple(first)] += 1
    assert sum(met.values()) >= 300


def test_a_true_second_segment_follows_directly(numbered: Numbered) -> None:
    num_direct = 0
    sentences = numbered.sentence_of
    for example in draw(pairs_of(numbered, 48, random_rate=0.0), 4):
        first, second = parts(example)
        assert example.label == FOLLOWS
        assert numbered.document_of[first[0]] == numbered.document_of[second[0]]
        assert second[0] == first[-1] + 1
        num_direct += sentences[second[0]] == sentences[first[-1]] + 1
    assert num_direct > 100


def test_the_first_segment_is_the_same_whatever_the_label(varied: Numbered) -> None:
    true = [parts(example)[0].tolist() for example in draw(pairs_of(varied, 64, random_rate=0.0), 2)]
    random = [parts(example)[0].tolist() for example in draw(pairs_of(varied, 64, random_rate=1.0), 2)]
    assert true == random


def lengths_by_label(numbered: Numbered, measure: Callable[[Example], float]) -> tuple[float, float]:
    """The means of a measure for true and for random pairs, as their difference and its standard error."""
    values = {FOLLOWS: [], RANDOM: []}
    for rate, label in ((0.0, FOLLOWS), (1.0, RANDOM)):
        values[label] = [measure(example) for example in draw(pairs_of(numbered, 64, random_rate=rate), 20)]
    errors = [np.var(one) / len(one) for one in values.values()]
    return float(np.mean(values[FOLLOWS]) - np.mean(values[RANDOM])), float(np.sqrt(sum(errors)))


@pytest.mark.parametrize("length", [16, 32, 128])
def test_lengths_are_the_same_whatever_the_label(varied: Numbered, length: int) -> None:
    true = [[len(part) for part in parts(example)] for example in draw(pairs_of(varied, length, random_rate=0.0), 3)]
    random = [[len(part) for part in parts(example)] for example in draw(pairs_of(varied, length, random_rate=1.0), 3)]
    assert true == random


def test_a_random_segment_is_shorter_only_where_the_other_documents_are(make_corpus: Make) -> None:
    numbered = make_corpus([[9, 9, 9], [4, 4]])
    for example in draw(pairs_of(numbered, 24, random_rate=1.0, short_rate=0.0), 40):
        first, second = parts(example)
        if numbered.document_of[first[0]] == 0:  # 21 of its 27 pieces, cut after 9 or 18, or before
            assert len(second) == min(8, 21 - len(first))


def test_a_random_segment_begins_with_a_sentence_as_a_true_one_does(varied: Numbered) -> None:
    starts = {0, *np.flatnonzero(np.diff(varied.sentence_of)) + 1}
    for rate in (0.0, 1.0):
        assert all(int(parts(example)[1][0]) in starts for example in draw(pairs_of(varied, 32, random_rate=rate), 2))


def test_the_sentence_that_begins_the_second_segment_does_not_betray_the_label(varied: Numbered) -> None:
    # The sentence at a random piece has 17 pieces on average, a sentence that follows another 10: that would betray it.
    sizes = np.bincount(varied.sentence_of)
    difference, error = lengths_by_label(varied, lambda example: sizes[varied.sentence_of[parts(example)[1][0]]])
    assert abs(difference) < 0.5 + 5 * error


def test_a_tenth_of_the_pairs_is_short(make_corpus: Make) -> None:
    # Sentences of one piece give exactly the wanted length. A short one is of 2 to 29 pieces, of which 29 is not short.
    pairs = pairs_of(make_corpus([[1] * 200] * 10), 32)
    lengths = np.array([len(example) for example in draw(pairs, 45)])
    rate = 0.1 * 27 / 28
    assert len(lengths) > 3000
    assert abs((lengths < 32).mean() - rate) <= 5 * np.sqrt(rate * (1 - rate) / len(lengths))
    short = lengths[lengths < 32]
    assert short.min() < 8
    # 5 to 31 alike: their mean is 18 and their standard deviation 7.8.
    assert abs(short.mean() - 18) <= 5 * 7.8 / np.sqrt(len(short))


def test_without_short_pairs_a_long_document_always_fills_the_length(varied: Numbered) -> None:
    assert {len(example) for example in draw(pairs_of(varied, 64, random_rate=0.0, short_rate=0.0), 2)} == {64}


def test_a_single_document_is_refused(make_corpus: Make) -> None:
    with pytest.raises(InputError, match="the split 'train' has a single document"):
        pairs_of(make_corpus([[3, 3, 3]]), 32)


def test_documents_of_one_sentence_are_refused(make_corpus: Make) -> None:
    numbered = make_corpus([[3], [4], [5]])
    for kind in (NextSentencePairs, SentenceOrderPairs):
        with pytest.raises(InputError, match="no document of the split 'train' has two sentences"):
            pairs_of(numbered, 32, kind)


@pytest.mark.parametrize("kind", [NextSentencePairs, SentenceOrderPairs])
def test_a_length_without_room_for_a_pair_is_refused(numbered: Numbered, kind: type) -> None:
    with pytest.raises(InputError, match=r"at least 5 places \(\[CLS\] a \[SEP\] b \[SEP\]\); the length is 4"):
        pairs_of(numbered, 4, kind)


def test_documents_of_one_sentence_are_met_as_random_segments_only(make_corpus: Make) -> None:
    numbered = make_corpus([[5, 5, 5], [7], [5, 5], [9]])
    lone = {1, 3}
    seconds = set()
    for example in draw(pairs_of(numbered, 16), 100):
        first, second = (int(numbered.document_of[part[0]]) for part in parts(example))
        assert first not in lone
        assert second not in lone or example.label == RANDOM
        seconds.add(second)
    assert seconds == {0, 1, 2, 3}


# Sentence order.


def test_half_of_the_neighbours_are_swapped_and_all_are_neighbours(numbered: Numbered) -> None:
    labels = Counter()
    num_direct = 0
    for example in draw(pairs_of(numbered, 48, SentenceOrderPairs), 15):
        first, second = parts(example)
        labels[example.label] += 1
        if example.label == SWAPPED:
            first, second = second, first
        assert numbered.document_of[first[0]] == numbered.document_of[second[0]]
        assert first[-1] < second[0]
        if len(example) < 48:
            num_direct += 1
            assert first[-1] + 1 == second[0]
    size = labels.total()
    assert num_direct > 100
    assert set(labels) == {IN_ORDER, SWAPPED}
    assert abs(labels[SWAPPED] - size / 2) <= 5 * np.sqrt(size / 4)


def test_one_document_is_enough_for_sentence_order(make_corpus: Make) -> None:
    assert {example.label for example in draw(pairs_of(make_corpus([[3, 3, 3]]), 16, SentenceOrderPairs), 30)} == {0, 1}


def test_the_odd_piece_does_not_betray_the_order(make_corpus: Make) -> None:
    # Of 29 places two segments of 20 pieces or more keep 14 and 15: who gets the 15th place must not tell the order.
    pairs = pairs_of(make_corpus([[20] * 10] * 20), 32, SentenceOrderPairs, short_rate=0.0)
    longer_first = {IN_ORDER: [], SWAPPED: []}
    for example in draw(pairs, 8):
        first, second = parts(example)
        assert {len(first), len(second)} == {14, 15}
        longer_first[example.label].append(len(first) == 15)
    for found in longer_first.values():
        assert abs(np.mean(found) - 0.5) <= 5 * np.sqrt(0.25 / len(found))


# What an epoch shows.


def test_over_the_epochs_every_piece_is_seen_and_none_wildly_often(numbered: Numbered) -> None:
    num_epochs = 60
    seen = views(numbered, draw(pairs_of(numbered, 32), num_epochs)) / num_epochs
    is_paired = np.array([len(document) > 1 for document in numbered.shape])[numbered.document_of]
    assert 0.8 < seen.mean() < 1.05
    assert seen[is_paired].min() > 0.05
    assert seen.max() < 3


@pytest.mark.parametrize("kind", [NextSentencePairs, SentenceOrderPairs])
def test_the_first_and_last_sentences_of_documents_are_not_neglected(varied: Numbered, kind: type) -> None:
    num_epochs = 40
    seen = views(varied, draw(pairs_of(varied, 64, kind), num_epochs)) / num_epochs
    ends = np.cumsum([sum(document) for document in varied.shape])
    assert 0.9 < seen.mean() < 1.05
    # In the middle of a document a piece is seen once an epoch; an example that would have to begin before the document
    # begins with it, which happens for half of them. Every view of an edge may be trimmed.
    assert seen[ends - 1].mean() > 0.3
    assert seen[[0, *ends[:-1]]].mean() > 0.3


def test_few_pieces_are_missed_in_an_epoch(varied: Numbered) -> None:
    missed = np.mean([(views(varied, iter(one)) == 0).mean() for one in epochs_of(pairs_of(varied, 64), 10)])
    assert missed < 0.4


def epochs_of(pairs: NextSentencePairs, num_epochs: int) -> Iterator[list[Example]]:
    examples = list(draw(pairs, num_epochs))
    for epoch in range(num_epochs):
        yield examples[epoch * pairs.num_anchors :][: pairs.num_anchors]


@pytest.mark.parametrize("kind", [NextSentencePairs, SentenceOrderPairs])
@pytest.mark.parametrize("shape", [[[2, 500], [3, 3]], [[500, 2], [3, 3]], [[4, 500, 4], [3, 3]]])
def test_a_sentence_longer_than_an_example_is_seen_all_over(
    make_corpus: Make, kind: type, shape: list[list[int]]
) -> None:
    numbered = make_corpus(shape)
    num_epochs = 60
    seen = views(numbered, draw(pairs_of(numbered, 32, kind), num_epochs)) / num_epochs
    long = seen[np.flatnonzero(np.bincount(numbered.sentence_of)[numbered.sentence_of] == 500)]
    assert long.min() > 0
    assert long.max() < 3


def test_a_split_smaller_than_an_example_is_met_evenly(make_corpus: Make) -> None:
    numbered = make_corpus([[3, 3], [3, 3]])
    pairs = pairs_of(numbered, 128, random_rate=0.0)
    assert pairs.num_anchors == 1
    met = Counter(int(numbered.document_of[parts(example)[0][0]]) for example in draw(pairs, 400))
    assert abs(met[0] - 200) <= 50  # 5 * sqrt(400 / 4)


def test_the_number_of_anchors_is_that_of_full_examples_in_the_paired_documents(make_corpus: Make) -> None:
    # 29 pieces stand in documents of two sentences; 32 - 3 are one example, 31 - 3 are not.
    numbered = make_corpus([[3, 2], [6], [1, 1, 2], [7, 6, 7]])
    assert pairs_of(numbered, 32).num_anchors == 1
    assert pairs_of(numbered, 31).num_anchors == 2
