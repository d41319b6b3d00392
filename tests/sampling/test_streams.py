"""Streams and the readers in them: every piece in its order, nothing twice in a round, where stretches end, weights."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.corpus.corpus import CorpusSplit, SplitShard
from bertworks.corpus.shard import Region, ShardArrays, write_shard
from bertworks.errors import InputError
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.example import Example
from bertworks.sampling.loading import StatefulLoader
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.streams import Streams
from bertworks.vocabulary.special_tokens import XLNET
from bertworks.vocabulary.tokenizer import SpecialTokenIds

SPECIALS = SpecialTokenIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
# Of each shard the documents of the split; each a list of sentences. Before them stands another split's.
SHARDS = [[[[10, 11], [12]], [[13, 14, 15]]], [[[20], [21, 22]]]]
OTHER = [[[98, 99]]]
WHOLE = [2, 10, 11, 12, 3, 2, 13, 14, 15, 3, 2, 20, 21, 22, 3]


def split_of(folder: Path, weights: tuple[float, ...] = (1.0, 1.0)) -> CorpusSplit:
    shards = []
    for number, documents in enumerate(SHARDS):
        every = [*OTHER, *documents]
        sentences = [sentence for document in every for sentence in document]
        pieces = [piece for sentence in sentences for piece in sentence]
        starts = [place == 0 for sentence in sentences for place in range(len(sentence))]
        arrays = ShardArrays(
            np.array(pieces, dtype=np.uint16),
            np.packbits(starts),
            np.cumsum([len(sentence) for sentence in sentences]).astype(np.uint32),
            np.cumsum([len(document) for document in every]).astype(np.uint32),
        )
        path = folder / f"{number}.safetensors"
        write_shard(path, arrays)
        region = Region(len(pieces) - 2, len(sentences) - 1, len(documents))
        shards.append(SplitShard(path, weights[number], region, Region(), 2))
    return CorpusSplit("train", shards)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> CorpusSplit:
    return split_of(tmp_path_factory.mktemp("shards"))


def test_documents_stand_between_their_special_pieces_and_begin_again_at_the_end(split: CorpusSplit):
    stream = Streams(split, 8, SPECIALS)
    assert stream.num_tokens == len(WHOLE)
    example = stream.example_between(0, 2 * len(WHOLE))
    assert example.input_ids.tolist() == WHOLE + WHOLE
    assert example.next_token == 2
    assert example.is_special.tolist() == [piece in (2, 3) for piece in WHOLE + WHOLE]
    # A word begins with each sentence here, and of a word that was cut the rest begins where the stretch does.
    assert stream.example_between(1, 5).word_starts.tolist() == [True, False, True, True]
    assert stream.example_between(2, 5).word_starts.tolist() == [True, True, True]


@given(start=st.integers(0, 100), size=st.integers(1, 40))
def test_any_stretch_is_that_of_the_endless_row(split: CorpusSplit, start: int, size: int):
    example = Streams(split, 8, SPECIALS).example_between(start, start + size)
    assert example.input_ids.tolist() == [WHOLE[place % len(WHOLE)] for place in range(start, start + size)]
    assert example.next_token == WHOLE[(start + size) % len(WHOLE)]
    assert len(example) == len(example.token_type_ids) == len(example.word_starts) == len(example.is_special) == size


def test_a_vocabulary_whose_summary_piece_stands_last_has_it_there(split: CorpusSplit):
    specials = SpecialTokenIds(0, 1, 2, 3, 4, XLNET)
    assert Streams(split, 8, specials).example_between(0, 7).input_ids.tolist() == [10, 11, 12, 3, 2, 13, 14]


def test_a_source_is_met_as_often_as_it_weighs(tmp_path: Path):
    stream = Streams(split_of(tmp_path, (0.5, 2.0)), 8, SPECIALS)
    assert stream.num_tokens == 5 + 10
    counts = Counter(stream.example_between(0, 2 * stream.num_tokens).input_ids.tolist())
    # In two rounds the first source once, its halves one after the other, and the second four times.
    assert {piece: counts[piece] for piece in (10, 12, 15, 20, 22)} == {10: 1, 12: 1, 15: 1, 20: 4, 22: 4}


def test_every_place_is_asked_what_follows_it_also_the_last(split: CorpusSplit):
    example = Streams(split, 8, SPECIALS).example_between(3, 7)
    hidden = NextTokenTargets().mask(example, np.random.default_rng(0))
    assert hidden.positions.tolist() == [0, 1, 2, 3]
    assert hidden.targets.tolist() == WHOLE[4:8]


def lanes(split: CorpusSplit, length: int, count: int, seed: int = 0) -> StatefulLoader:
    return StatefulLoader(Streams(split, length, SPECIALS), NextTokenTargets(), ExampleOrder(seed, "8", "train"), count)


def drawn(reader: StatefulLoader, step: int, lane: int) -> Example:
    return reader.load_example(step * reader.num_streams + lane)[0]


@pytest.mark.parametrize("length", [8, 32, 80])
def test_rows_go_on_where_those_before_them_ended_and_no_piece_is_left_out(split: CorpusSplit, length: int):
    reader = lanes(split, length, 3)
    begins = set()
    for lane in range(3):
        rows = [drawn(reader, step, lane) for step in range(12)]
        for row, following in itertools.pairwise(rows):
            assert row.next_token == following.input_ids[0]
        read = [piece for row in rows for piece in row.input_ids.tolist()]
        begin = next(place for place in range(len(WHOLE)) if (WHOLE * 90)[place : place + len(read)] == read)
        begins.add(begin)
    assert len(begins) == 3  # and a third of the stream apart
    assert len({(begin * 3 // len(WHOLE)) for begin in begins}) == 3


def test_rows_of_a_step_are_equally_long_and_vary_from_step_to_step(split: CorpusSplit):
    reader = lanes(split, 80, 4)
    lengths = []
    for step in range(200):
        sizes = {len(drawn(reader, step, lane)) for lane in range(4)}
        assert len(sizes) == 1
        lengths += sizes
    assert max(lengths) <= 80
    assert min(lengths) >= 60
    assert len(set(lengths)) > 10
    assert abs(np.mean(lengths) - 70) < 1


def test_a_row_is_made_alone_and_the_first_of_each_reader_begins(split: CorpusSplit):
    reader = lanes(split, 8, 3)
    forward = [reader.load_example(number)[0].input_ids.tolist() for number in range(20)]
    backward = [reader.load_example(number)[0].input_ids.tolist() for number in reversed(range(20))]
    assert forward == backward[::-1]
    assert [reader.is_continuation(number) for number in range(5)] == [False, False, False, True, True]


def test_held_out_rows_come_reader_by_reader(split: CorpusSplit):
    reader = lanes(split, 4, 3)
    assert reader.sampler.num_anchors == 4
    assert [list(numbers) for numbers in reader.batches(100, 2)] == [[0, 1], [2]]
    assert [list(numbers) for numbers in lanes(split, 2, 3).batches(7, 2)] == [[0, 1], [3, 4], [2], [5]]


def test_a_stretch_of_nothing_is_refused(split: CorpusSplit):
    with pytest.raises(InputError, match="at least 2 places"):
        Streams(split, 1, SPECIALS)
