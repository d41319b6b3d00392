"""Blocks: consecutive whole sentences, a separator at the end of a document, and coverage of all text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from numbered_corpus import FIRST_WORD, NumberedCorpus

from bertworks.errors import InputError
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.example import Example
from bertworks.sampling.order import ExampleOrder

ORDER = ExampleOrder(3, "phase", "train")
CLS, SEP = 2, 3
Make = Callable[..., NumberedCorpus]


def blocks_of(numbered: NumberedCorpus, max_length: int) -> Blocks:
    return Blocks(numbered.corpus.split("train"), max_length, numbered.corpus.tokenizer.specials)


def sample(blocks: Blocks, num_epochs: int) -> Iterator[Example]:
    for epoch in range(num_epochs):
        for anchor in range(blocks.num_anchors):
            yield blocks.example(anchor + ORDER.offset(epoch), ORDER.generator(epoch, anchor))


def spans_of(example: Example) -> list[list[int]]:
    """The word numbers between separators."""
    input_ids = example.input_ids.tolist()
    assert input_ids[0] == CLS
    assert input_ids[-1] == SEP
    ends = [0, *np.flatnonzero(example.input_ids == SEP).tolist()]
    return [[word - FIRST_WORD for word in input_ids[start + 1 : end]] for start, end in pairwise(ends)]


def test_a_block_has_the_sentences_that_fit_with_a_separator_between_documents(make_corpus: Make) -> None:
    # In corpus order: documents of 3 + 2, 1 + 1 + 2 and 7 + 6 + 7 tokens, then the one with a single sentence of 6.
    blocks = blocks_of(make_corpus([[3, 2], [6], [1, 1, 2], [7, 6, 7]]), 12)
    spans_found = {tuple(map(tuple, spans_of(example))) for example in sample(blocks, 100)}
    expected = {
        0: [[0, 1, 2, 3, 4], [11, 12, 13, 14]],  # [CLS] 5 [SEP] 4 [SEP]: exactly 12
        3: [[3, 4], [11, 12, 13, 14]],  # 7 more would not fit
        11: [[11, 12, 13, 14]],
        12: [[12, 13, 14]],
        13: [[13, 14], [15, 16, 17, 18, 19, 20, 21]],
        15: [[15, 16, 17, 18, 19, 20, 21]],
        22: [[22, 23, 24, 25, 26, 27]],
        28: [[28, 29, 30, 31, 32, 33, 34]],
        5: [[5, 6, 7, 8, 9, 10]],
    }
    assert spans_found == {tuple(map(tuple, spans)) for spans in expected.values()}


@pytest.mark.parametrize("max_length", [16, 40, 128])
def test_blocks_are_whole_sentences_in_order_and_never_too_long(numbered: NumberedCorpus, max_length: int) -> None:
    sentence_of, document_of = numbered.sentence_of, numbered.document_of
    last_of_document = set(np.flatnonzero(np.diff(document_of, append=-1)).tolist())
    for example in sample(blocks_of(numbered, max_length), 3):
        assert len(example) <= max_length
        assert example.label is None
        assert set(example.token_type_ids.tolist()) == {0}
        spans = spans_of(example)
        for index, span in enumerate(spans):
            assert span == list(range(span[0], span[-1] + 1))
            assert len(set(document_of[span])) == 1
            assert span[0] == 0 or sentence_of[span[0] - 1] != sentence_of[span[0]]
            assert span[-1] + 1 == len(sentence_of) or sentence_of[span[-1]] != sentence_of[span[-1] + 1]
            if index + 1 < len(spans):
                assert span[-1] in last_of_document


def test_is_special_marks_special_tokens(numbered: NumberedCorpus) -> None:
    example = next(sample(blocks_of(numbered, 64), 1))
    assert example.is_special.tolist() == np.isin(example.input_ids, [CLS, SEP]).tolist()


def test_blocks_use_no_randomness(numbered: NumberedCorpus) -> None:
    generator = ORDER.generator(0, 0)
    blocks_of(numbered, 32).example(1.5, generator)
    assert generator.random() == ORDER.generator(0, 0).random()


def test_an_epoch_covers_nearly_every_token_once(numbered: NumberedCorpus) -> None:
    num_epochs = 20
    counts = np.zeros((num_epochs, len(numbered.sentence_of)))
    blocks = blocks_of(numbered, 128)
    for index, example in enumerate(sample(blocks, num_epochs)):
        for span in spans_of(example):
            counts[index // blocks.num_anchors, span] += 1
    # A block omits the sentence that does not fit, 4 of 126 tokens on average, and has some separators.
    assert 0.92 < counts.mean() < 1.0
    assert (counts == 0).mean() < 0.1
    assert counts.max() <= 3
    assert counts.mean(axis=0).max() < 1.7
    # Fewer anchors cover the first block of a shard: no block can start before it.
    assert (counts.sum(axis=0)[126:] > 0).all()


def test_a_sentence_longer_than_a_block_is_covered_over_the_epochs(make_corpus: Make) -> None:
    numbered = make_corpus([[3, 300, 3], [5, 5]])
    num_epochs = 60
    counts = np.zeros(316)
    for example in sample(blocks_of(numbered, 32), num_epochs):
        assert len(example) <= 32
        for span in spans_of(example):
            counts[span] += 1
    assert counts.min() > 0
    assert counts.max() / num_epochs < 2


def test_a_word_split_by_a_block_starts_with_the_block(numbered: NumberedCorpus) -> None:
    for example in sample(blocks_of(numbered, 16), 1):
        assert example.word_starts[1]


def test_a_block_does_not_cross_shards(make_corpus: Make) -> None:
    numbered = make_corpus([[4, 4]] * 30, block_bytes=300)
    split = numbered.corpus.split("train")
    shard_of = np.repeat(np.arange(len(split.shards)), [shard.num_tokens for shard in split.shards])
    assert len(split.shards) > 2
    for example in sample(blocks_of(numbered, 64), 5):
        assert len({shard_of[word] for span in spans_of(example) for word in span}) == 1


def test_a_single_document_is_enough(make_corpus: Make) -> None:
    assert [spans_of(example) for example in sample(blocks_of(make_corpus([[4]]), 16), 2)] == [[[0, 1, 2, 3]]] * 2


def test_a_max_length_too_short_for_a_block_is_rejected(numbered: NumberedCorpus) -> None:
    with pytest.raises(InputError, match="at least 3 positions"):
        blocks_of(numbered, 2)
