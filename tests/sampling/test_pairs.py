"""Segment pairs: correct labels, nothing that reveals the label, and coverage of all text.

Bounds are 5 standard deviations unless stated otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from numbered_corpus import FIRST_WORD, NumberedCorpus

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

ORDER = ExampleOrder(3, "phase", "train")
CLS, SEP = 2, 3
Make = Callable[..., NumberedCorpus]
WordIds = npt.NDArray[np.int64]


def pairs_of(
    numbered: NumberedCorpus, max_length: int, kind: type = NextSentencePairs, **settings: float
) -> NextSentencePairs:
    corpus = numbered.corpus
    return kind(corpus.split("train"), max_length, corpus.tokenizer.specials, PairSettings(**settings))


def sample(pairs: NextSentencePairs, num_epochs: int) -> Iterator[Example]:
    for epoch in range(num_epochs):
        for anchor in range(pairs.num_anchors):
            yield pairs.example(anchor + ORDER.offset(epoch), ORDER.generator(epoch, anchor))


def segments_of(example: Example) -> tuple[WordIds, WordIds]:
    """The word numbers of both segments."""
    word_ids = example.input_ids.astype(np.int64) - FIRST_WORD
    return word_ids[~example.is_special & (example.token_type_ids == 0)], word_ids[
        ~example.is_special & (example.token_type_ids == 1)
    ]


def token_counts(numbered: NumberedCorpus, examples: Iterator[Example]) -> WordIds:
    """The number of occurrences of each token of the corpus."""
    counts = [part for example in examples for part in segments_of(example)]
    return np.bincount(np.concatenate(counts), minlength=len(numbered.document_of))


@pytest.fixture(scope="module")
def varied(make_corpus: Make) -> NumberedCorpus:
    """40 documents of 20 sentences of very different lengths: 1 to 3 tokens, or 16 to 20."""
    generator = np.random.default_rng(2)
    short, long = generator.integers(1, 4, size=(40, 20)), generator.integers(16, 21, size=(40, 20))
    return make_corpus(np.where(generator.random((40, 20)) < 0.5, short, long).tolist())


def test_a_pair_is_cls_a_sep_b_sep(numbered: NumberedCorpus) -> None:
    for example in sample(pairs_of(numbered, 32), 3):
        first, second = segments_of(example)
        assert len(first) > 0
        assert len(second) > 0
        assert len(example) == len(first) + len(second) + 3 <= 32
        assert np.flatnonzero(example.is_special).tolist() == [0, len(first) + 1, len(example) - 1]
        assert example.input_ids[example.is_special].tolist() == [CLS, SEP, SEP]
        assert example.token_type_ids.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert (np.diff(first) == 1).all()
        assert (np.diff(second) == 1).all()


def test_the_shortest_pair_has_one_token_per_segment(numbered: NumberedCorpus) -> None:
    assert {len(example) for example in sample(pairs_of(numbered, 5), 1)} == {5}


def test_half_of_the_pairs_are_random(numbered: NumberedCorpus) -> None:
    labels = [example.label for example in sample(pairs_of(numbered, 32), 12)]
    assert len(labels) > 2000
    assert abs(labels.count(RANDOM) - len(labels) / 2) <= 5 * np.sqrt(len(labels) / 4)
    assert labels.count(RANDOM) + labels.count(FOLLOWS) == len(labels)


@pytest.mark.parametrize("max_length", [12, 32, 128])
def test_a_random_segment_is_never_from_the_same_document(numbered: NumberedCorpus, max_length: int) -> None:
    document_of = numbered.document_of
    for example in sample(pairs_of(numbered, max_length, random_prob=1.0), 4):
        first, second = segments_of(example)
        assert len(set(document_of[first])) == len(set(document_of[second])) == 1
        assert document_of[first[0]] != document_of[second[0]]
        assert example.label == RANDOM


@pytest.mark.parametrize("shape", [[[2, 2], [30] * 40], [[30] * 40, [2, 2]], [[1, 1], [400]]])
def test_with_two_documents_of_very_different_size_each_samples_the_other(
    make_corpus: Make, shape: list[list[int]]
) -> None:
    numbered = make_corpus(shape)
    pairs = pairs_of(numbered, 16, random_prob=1.0)
    documents = Counter()
    for epoch in range(max(3, 400 // pairs.num_anchors)):
        for anchor in range(pairs.num_anchors):
            example = pairs.example(anchor + ORDER.offset(epoch), ORDER.generator(epoch, anchor))
            first, second = (set(numbered.document_of[part].tolist()) for part in segments_of(example))
            assert first | second == {0, 1}
            documents[tuple(first)] += 1
    assert sum(documents.values()) >= 300


def test_a_true_second_segment_follows_directly(numbered: NumberedCorpus) -> None:
    num_direct = 0
    sentences = numbered.sentence_of
    for example in sample(pairs_of(numbered, 48, random_prob=0.0), 4):
        first, second = segments_of(example)
        assert example.label == FOLLOWS
        assert numbered.document_of[first[0]] == numbered.document_of[second[0]]
        assert second[0] == first[-1] + 1
        num_direct += sentences[second[0]] == sentences[first[-1]] + 1
    assert num_direct > 100


def test_segment_a_does_not_depend_on_the_label(varied: NumberedCorpus) -> None:
    true_pairs = [segments_of(example)[0].tolist() for example in sample(pairs_of(varied, 64, random_prob=0.0), 2)]
    random_pairs = [segments_of(example)[0].tolist() for example in sample(pairs_of(varied, 64, random_prob=1.0), 2)]
    assert true_pairs == random_pairs


def lengths_by_label(numbered: NumberedCorpus, measure: Callable[[Example], float]) -> tuple[float, float]:
    """The difference of the means of a measure between true and random pairs, and its standard error."""
    values = {FOLLOWS: [], RANDOM: []}
    for prob, label in ((0.0, FOLLOWS), (1.0, RANDOM)):
        values[label] = [measure(example) for example in sample(pairs_of(numbered, 64, random_prob=prob), 20)]
    errors = [np.var(examples) / len(examples) for examples in values.values()]
    return float(np.mean(values[FOLLOWS]) - np.mean(values[RANDOM])), float(np.sqrt(sum(errors)))


@pytest.mark.parametrize("max_length", [16, 32, 128])
def test_lengths_do_not_depend_on_the_label(varied: NumberedCorpus, max_length: int) -> None:
    true_pairs = [
        [len(part) for part in segments_of(example)]
        for example in sample(pairs_of(varied, max_length, random_prob=0.0), 3)
    ]
    random_pairs = [
        [len(part) for part in segments_of(example)]
        for example in sample(pairs_of(varied, max_length, random_prob=1.0), 3)
    ]
    assert true_pairs == random_pairs


def test_a_random_segment_is_shorter_only_if_the_other_documents_are(make_corpus: Make) -> None:
    numbered = make_corpus([[9, 9, 9], [4, 4]])
    for example in sample(pairs_of(numbered, 24, random_prob=1.0, short_seq_prob=0.0), 40):
        first, second = segments_of(example)
        if numbered.document_of[first[0]] == 0:  # 21 of its 27 tokens, split after 9 or 18, or before
            assert len(second) == min(8, 21 - len(first))


def test_random_segments_start_at_a_sentence_like_true_ones(varied: NumberedCorpus) -> None:
    starts = {0, *np.flatnonzero(np.diff(varied.sentence_of)) + 1}
    for prob in (0.0, 1.0):
        assert all(
            int(segments_of(example)[1][0]) in starts for example in sample(pairs_of(varied, 32, random_prob=prob), 2)
        )


def test_the_first_sentence_of_segment_b_does_not_reveal_the_label(varied: NumberedCorpus) -> None:
    # The sentence at a random token has 17 tokens on average, a sentence after another 10: that would reveal the label.
    sizes = np.bincount(varied.sentence_of)
    difference, error = lengths_by_label(varied, lambda example: sizes[varied.sentence_of[segments_of(example)[1][0]]])
    assert abs(difference) < 0.5 + 5 * error


def test_a_tenth_of_the_pairs_is_short(make_corpus: Make) -> None:
    # Sentences of one token give exactly the target length, which is 2 to 29 tokens for short ones; 29 is not short.
    pairs = pairs_of(make_corpus([[1] * 200] * 10), 32)
    lengths = np.array([len(example) for example in sample(pairs, 45)])
    prob = 0.1 * 27 / 28
    assert len(lengths) > 3000
    assert abs((lengths < 32).mean() - prob) <= 5 * np.sqrt(prob * (1 - prob) / len(lengths))
    short = lengths[lengths < 32]
    assert short.min() < 8
    # Uniform in 5 to 31: the mean is 18 and the standard deviation 7.8.
    assert abs(short.mean() - 18) <= 5 * 7.8 / np.sqrt(len(short))


def test_without_short_pairs_a_long_document_always_fills_the_length(varied: NumberedCorpus) -> None:
    assert {len(example) for example in sample(pairs_of(varied, 64, random_prob=0.0, short_seq_prob=0.0), 2)} == {64}


def test_next_sentence_pairs_need_two_documents(make_corpus: Make) -> None:
    with pytest.raises(InputError, match="the split 'train' has a single document"):
        pairs_of(make_corpus([[3, 3, 3]]), 32)


def test_a_split_without_documents_of_two_sentences_is_rejected(make_corpus: Make) -> None:
    numbered = make_corpus([[3], [4], [5]])
    for kind in (NextSentencePairs, SentenceOrderPairs):
        with pytest.raises(InputError, match="no document of the split 'train' has two sentences"):
            pairs_of(numbered, 32, kind)


@pytest.mark.parametrize("kind", [NextSentencePairs, SentenceOrderPairs])
def test_a_max_length_too_short_for_a_pair_is_rejected(numbered: NumberedCorpus, kind: type) -> None:
    with pytest.raises(
        InputError, match=r"max_length is 4; a pair needs at least 5 positions \(\[CLS\] a \[SEP\] b \[SEP\]\)"
    ):
        pairs_of(numbered, 4, kind)


def test_documents_of_one_sentence_occur_as_random_segments_only(make_corpus: Make) -> None:
    numbered = make_corpus([[5, 5, 5], [7], [5, 5], [9]])
    single_sentence = {1, 3}
    seconds = set()
    for example in sample(pairs_of(numbered, 16), 100):
        first, second = (int(numbered.document_of[part[0]]) for part in segments_of(example))
        assert first not in single_sentence
        assert second not in single_sentence or example.label == RANDOM
        seconds.add(second)
    assert seconds == {0, 1, 2, 3}


# Sentence order prediction.


def test_half_of_the_pairs_are_swapped_and_all_are_consecutive(numbered: NumberedCorpus) -> None:
    labels = Counter()
    num_direct = 0
    for example in sample(pairs_of(numbered, 48, SentenceOrderPairs), 15):
        first, second = segments_of(example)
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
    assert {example.label for example in sample(pairs_of(make_corpus([[3, 3, 3]]), 16, SentenceOrderPairs), 30)} == {
        0,
        1,
    }


def test_the_odd_token_does_not_reveal_the_order(make_corpus: Make) -> None:
    # With 29 tokens, two segments of 20 or more are trimmed to 14 and 15: which one gets 15 must not reveal the order.
    pairs = pairs_of(make_corpus([[20] * 10] * 20), 32, SentenceOrderPairs, short_seq_prob=0.0)
    first_is_longer = {IN_ORDER: [], SWAPPED: []}
    for example in sample(pairs, 8):
        first, second = segments_of(example)
        assert {len(first), len(second)} == {14, 15}
        first_is_longer[example.label].append(len(first) == 15)
    for is_longer in first_is_longer.values():
        assert abs(np.mean(is_longer) - 0.5) <= 5 * np.sqrt(0.25 / len(is_longer))


# Coverage.


def test_over_many_epochs_every_token_is_sampled_about_equally(numbered: NumberedCorpus) -> None:
    num_epochs = 60
    counts = token_counts(numbered, sample(pairs_of(numbered, 32), num_epochs)) / num_epochs
    is_paired = np.array([len(document) > 1 for document in numbered.shape])[numbered.document_of]
    assert 0.8 < counts.mean() < 1.05
    assert counts[is_paired].min() > 0.05
    assert counts.max() < 3


@pytest.mark.parametrize("kind", [NextSentencePairs, SentenceOrderPairs])
def test_first_and_last_sentences_of_documents_are_sampled_as_often(varied: NumberedCorpus, kind: type) -> None:
    num_epochs = 40
    counts = token_counts(varied, sample(pairs_of(varied, 64, kind), num_epochs)) / num_epochs
    ends = np.cumsum([sum(document) for document in varied.shape])
    assert 0.9 < counts.mean() < 1.05
    # A token in the middle of a document occurs once per epoch. An example that would start before the document starts
    # with it, as half of them do at its beginning. At the edges any occurrence may be trimmed.
    assert counts[ends - 1].mean() > 0.3
    assert counts[[0, *ends[:-1]]].mean() > 0.3


def test_few_tokens_are_missed_in_an_epoch(varied: NumberedCorpus) -> None:
    missed_ratio = np.mean(
        [(token_counts(varied, iter(examples)) == 0).mean() for examples in epochs_of(pairs_of(varied, 64), 10)]
    )
    assert missed_ratio < 0.4


def epochs_of(pairs: NextSentencePairs, num_epochs: int) -> Iterator[list[Example]]:
    examples = list(sample(pairs, num_epochs))
    for epoch in range(num_epochs):
        yield examples[epoch * pairs.num_anchors :][: pairs.num_anchors]


@pytest.mark.parametrize("kind", [NextSentencePairs, SentenceOrderPairs])
@pytest.mark.parametrize("shape", [[[2, 500], [3, 3]], [[500, 2], [3, 3]], [[4, 500, 4], [3, 3]]])
def test_a_sentence_longer_than_an_example_is_covered(make_corpus: Make, kind: type, shape: list[list[int]]) -> None:
    numbered = make_corpus(shape)
    num_epochs = 60
    counts = token_counts(numbered, sample(pairs_of(numbered, 32, kind), num_epochs)) / num_epochs
    long = counts[np.flatnonzero(np.bincount(numbered.sentence_of)[numbered.sentence_of] == 500)]
    assert long.min() > 0
    assert long.max() < 3


def test_a_split_smaller_than_an_example_is_sampled_evenly(make_corpus: Make) -> None:
    numbered = make_corpus([[3, 3], [3, 3]])
    pairs = pairs_of(numbered, 128, random_prob=0.0)
    assert pairs.num_anchors == 1
    documents = Counter(int(numbered.document_of[segments_of(example)[0][0]]) for example in sample(pairs, 400))
    assert abs(documents[0] - 200) <= 50  # 5 * sqrt(400 / 4)


def test_num_anchors_is_the_number_of_full_examples_in_pairable_documents(make_corpus: Make) -> None:
    # 29 tokens are in documents of two sentences or more; 32 - 3 are one example, 31 - 3 are not.
    numbered = make_corpus([[3, 2], [6], [1, 1, 2], [7, 6, 7]])
    assert pairs_of(numbered, 32).num_anchors == 1
    assert pairs_of(numbered, 31).num_anchors == 2
