"""Blocks: whole sentences in order, a separator where a document ends, and all text seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from numbered_corpus import FIRST_WORD, Numbered

from bertworks.errors import InputError
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.example import Example
from bertworks.sampling.order import ExampleOrder

STREAM = ExampleOrder(3, "phase", "train")
CLS, SEP = 2, 3
Make = Callable[..., Numbered]


def blocks_of(numbered: Numbered, length: int) -> Blocks:
    return Blocks(numbered.corpus.split("train"), length, numbered.corpus.tokenizer.specials)


def draw(blocks: Blocks, num_epochs: int) -> Iterator[Example]:
    for epoch in range(num_epochs):
        for anchor in range(blocks.num_anchors):
            yield blocks.example(anchor + STREAM.offset(epoch), STREAM.generator(epoch, anchor))


def spans_of(example: Example) -> list[list[int]]:
    """The numbers of the words between the separators."""
    ids = example.input_ids.tolist()
    assert ids[0] == CLS
    assert ids[-1] == SEP
    ends = [0, *np.flatnonzero(example.input_ids == SEP).tolist()]
    return [[number - FIRST_WORD for number in ids[a + 1 : b]] for a, b in pairwise(ends)]


def test_a_block_holds_the_sentences_that_fit_with_a_separator_between_documents(make_corpus: Make) -> None:
    # In the row: documents of 3 + 2, 1 + 1 + 2 and 7 + 6 + 7 pieces, then the one of a single sentence of 6.
    blocks = blocks_of(make_corpus([[3, 2], [6], [1, 1, 2], [7, 6, 7]]), 12)
    found = {tuple(map(tuple, spans_of(example))) for example in draw(blocks, 100)}
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
    assert found == {tuple(map(tuple, spans)) for spans in expected.values()}


@pytest.mark.parametrize("length", [16, 40, 128])
def test_blocks_are_whole_sentences_in_order_and_never_too_long(numbered: Numbered, length: int) -> None:
    sentence_of, document_of = numbered.sentence_of, numbered.document_of
    last_of_document = set(np.flatnonzero(np.diff(document_of, append=-1)).tolist())
    for example in draw(blocks_of(numbered, length), 3):
        assert len(example) <= length
        assert example.label is None
        assert set(example.token_type_ids.tolist()) == {0}
        spans = spans_of(example)
        for number, span in enumerate(spans):
            assert span == list(range(span[0], span[-1] + 1))
            assert len(set(document_of[span])) == 1
            assert span[0] == 0 or sentence_of[span[0] - 1] != sentence_of[span[0]]
            assert span[-1] + 1 == len(sentence_of) or sentence_of[span[-1]] != sentence_of[span[-1] + 1]
            if number + 1 < len(spans):
                assert span[-1] in last_of_document


def test_special_pieces_are_marked_as_such(numbered: Numbered) -> None:
    example = next(draw(blocks_of(numbered, 64), 1))
    assert example.is_special.tolist() == np.isin(example.input_ids, [CLS, SEP]).tolist()


def test_blocks_draw_nothing(numbered: Numbered) -> None:
    generator = STREAM.generator(0, 0)
    blocks_of(numbered, 32).example(1.5, generator)
    assert generator.random() == STREAM.generator(0, 0).random()


def test_an_epoch_shows_nearly_every_piece_once(numbered: Numbered) -> None:
    num_epochs = 20
    seen = np.zeros((num_epochs, len(numbered.sentence_of)))
    blocks = blocks_of(numbered, 128)
    for number, example in enumerate(draw(blocks, num_epochs)):
        for span in spans_of(example):
            seen[number // blocks.num_anchors, span] += 1
    # A block leaves the sentence out that no longer fits, 4 of 126 pieces on average, and spends some on separators.
    assert 0.92 < seen.mean() < 1.0
    assert (seen == 0).mean() < 0.1
    assert seen.max() <= 3
    assert seen.mean(axis=0).max() < 1.7
    # The first block of a shard is met by fewer anchors: there is no text before it from which a block could reach it.
    assert (seen.sum(axis=0)[126:] > 0).all()


def test_a_sentence_longer_than_a_block_is_covered_over_the_epochs(make_corpus: Make) -> None:
    numbered = make_corpus([[3, 300, 3], [5, 5]])
    num_epochs = 60
    seen = np.zeros(316)
    for example in draw(blocks_of(numbered, 32), num_epochs):
        assert len(example) <= 32
        for span in spans_of(example):
            seen[span] += 1
    assert seen.min() > 0
    assert seen.max() / num_epochs < 2


def test_what_is_left_of_a_word_cut_by_a_block_begins_with_the_block(numbered: Numbered) -> None:
    for example in draw(blocks_of(numbered, 16), 1):
        assert example.word_starts[1]


def test_a_block_stays_in_its_shard(make_corpus: Make) -> None:
    numbered = make_corpus([[4, 4]] * 30, block_bytes=300)
    split = numbered.corpus.split("train")
    shard_of = np.repeat(np.arange(len(split.shards)), [shard.num_tokens for shard in split.shards])
    assert len(split.shards) > 2
    for example in draw(blocks_of(numbered, 64), 5):
        assert len({shard_of[number] for span in spans_of(example) for number in span}) == 1


def test_a_single_document_is_enough(make_corpus: Make) -> None:
    assert [spans_of(example) for example in draw(blocks_of(make_corpus([[4]]), 16), 2)] == [[[0, 1, 2, 3]]] * 2


def test_a_length_without_room_is_refused(numbered: Numbered) -> None:
    with pytest.raises(InputError, match="at least 3 places"):
        blocks_of(numbered, 2)
