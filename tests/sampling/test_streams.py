"""Streams and stateful loading: the order of tokens, spans and their ends, weights."""

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
from bertworks.disk import sha256
from bertworks.errors import InputError
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.example import Example
from bertworks.sampling.loading import StatefulLoader
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.streams import Streams
from bertworks.vocabulary.special_tokens import XLNET
from bertworks.vocabulary.tokenizer import SpecialTokenIds

SPECIALS = SpecialTokenIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
# By shard, the documents of the split as lists of sentences. A document of another split precedes them.
SHARDS = [[[[10, 11], [12]], [[13, 14, 15]]], [[[20], [21, 22]]]]
OTHER_SPLIT = [[[98, 99]]]
ROUND = [2, 10, 11, 12, 3, 2, 13, 14, 15, 3, 2, 20, 21, 22, 3]


def split_of(folder: Path, weights: tuple[float, ...] = (1.0, 1.0)) -> CorpusSplit:
    shards = []
    for number, documents in enumerate(SHARDS):
        all_documents = [*OTHER_SPLIT, *documents]
        sentences = [sentence for document in all_documents for sentence in document]
        tokens = [token for sentence in sentences for token in sentence]
        word_starts = [index == 0 for sentence in sentences for index in range(len(sentence))]
        arrays = ShardArrays(
            np.array(tokens, dtype=np.uint16),
            np.packbits(word_starts),
            np.cumsum([len(sentence) for sentence in sentences]).astype(np.uint32),
            np.cumsum([len(document) for document in all_documents]).astype(np.uint32),
        )
        path = folder / f"{number}.safetensors"
        write_shard(path, arrays)
        region = Region(len(tokens) - 2, len(sentences) - 1, len(documents))
        shards.append(
            SplitShard(
                path=path,
                sha256=sha256(path),
                weight=weights[number],
                pairable=region,
                single_sentence=Region(),
                first_token=2,
            )
        )
    return CorpusSplit("train", shards)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> CorpusSplit:
    return split_of(tmp_path_factory.mktemp("shards"))


def test_a_stream_is_the_documents_with_special_tokens_repeated(split: CorpusSplit):
    stream = Streams(split, 8, SPECIALS)
    assert stream.num_tokens == len(ROUND)
    example = stream.example_between(0, 2 * len(ROUND))
    assert example.input_ids.tolist() == ROUND + ROUND
    assert example.next_token == 2
    assert example.is_special.tolist() == [token in (2, 3) for token in ROUND + ROUND]
    # Here a word begins with each sentence; the rest of a split word begins with the span.
    assert stream.example_between(1, 5).word_starts.tolist() == [True, False, True, True]
    assert stream.example_between(2, 5).word_starts.tolist() == [True, True, True]


@given(start=st.integers(0, 100), size=st.integers(1, 40))
def test_any_span_equals_that_of_the_repeated_documents(split: CorpusSplit, start: int, size: int):
    example = Streams(split, 8, SPECIALS).example_between(start, start + size)
    assert example.input_ids.tolist() == [ROUND[index % len(ROUND)] for index in range(start, start + size)]
    assert example.next_token == ROUND[(start + size) % len(ROUND)]
    assert len(example) == len(example.token_type_ids) == len(example.word_starts) == len(example.is_special) == size


def test_xlnet_documents_end_with_cls(split: CorpusSplit):
    specials = SpecialTokenIds(pad=0, unknown=1, cls=2, sep=3, mask=4, template=XLNET)
    assert Streams(split, 8, specials).example_between(0, 7).input_ids.tolist() == [10, 11, 12, 3, 2, 13, 14]


def test_a_source_occurs_as_often_as_its_weight(tmp_path: Path):
    stream = Streams(split_of(tmp_path, (0.5, 2.0)), 8, SPECIALS)
    assert stream.num_tokens == 5 + 10
    counts = Counter(stream.example_between(0, 2 * stream.num_tokens).input_ids.tolist())
    # Two rounds contain the first source once, half in each round, and the second four times.
    assert {token: counts[token] for token in (10, 12, 15, 20, 22)} == {10: 1, 12: 1, 15: 1, 20: 4, 22: 4}


def test_the_target_of_every_position_is_the_next_token(split: CorpusSplit):
    example = Streams(split, 8, SPECIALS).example_between(3, 7)
    masked = NextTokenTargets().mask(example, np.random.default_rng(0))
    assert masked.positions.tolist() == [0, 1, 2, 3]
    assert masked.targets.tolist() == ROUND[4:8]


def loader_of(split: CorpusSplit, length: int, count: int, seed: int = 0) -> StatefulLoader:
    return StatefulLoader(Streams(split, length, SPECIALS), NextTokenTargets(), ExampleOrder(seed, "8", "train"), count)


def load(loader: StatefulLoader, step: int, stream_index: int) -> Example:
    return loader.load_example(step * loader.num_streams + stream_index)[0]


@pytest.mark.parametrize("length", [8, 32, 80])
def test_each_example_of_a_stream_continues_the_previous_one(split: CorpusSplit, length: int):
    loader = loader_of(split, length, 3)
    starts = set()
    for stream_index in range(3):
        examples = [load(loader, step, stream_index) for step in range(12)]
        for example, following in itertools.pairwise(examples):
            assert example.next_token == following.input_ids[0]
        tokens = [token for example in examples for token in example.input_ids.tolist()]
        start = next(index for index in range(len(ROUND)) if (ROUND * 90)[index : index + len(tokens)] == tokens)
        starts.add(start)
    assert len(starts) == 3  # and a third of the stream apart
    assert len({(start * 3 // len(ROUND)) for start in starts}) == 3


def test_examples_of_a_step_have_equal_length_which_varies_between_steps(split: CorpusSplit):
    loader = loader_of(split, 80, 4)
    lengths = []
    for step in range(200):
        sizes = {len(load(loader, step, stream_index)) for stream_index in range(4)}
        assert len(sizes) == 1
        lengths += sizes
    assert max(lengths) <= 80
    assert min(lengths) >= 60
    assert len(set(lengths)) > 10
    assert abs(np.mean(lengths) - 70) < 1


def test_examples_are_independent_of_load_order_and_the_first_of_each_stream_is_no_continuation(split: CorpusSplit):
    loader = loader_of(split, 8, 3)
    forward = [loader.load_example(number)[0].input_ids.tolist() for number in range(20)]
    backward = [loader.load_example(number)[0].input_ids.tolist() for number in reversed(range(20))]
    assert forward == backward[::-1]
    assert [loader.is_continuation(number) for number in range(5)] == [False, False, False, True, True]


def test_held_out_batches_cover_stream_after_stream(split: CorpusSplit):
    loader = loader_of(split, 4, 3)
    assert loader.sampler.num_anchors == 4
    assert [list(numbers) for numbers in loader.batches(100, 2)] == [[0, 1], [2]]
    assert [list(numbers) for numbers in loader_of(split, 2, 3).batches(7, 2)] == [[0, 1], [3, 4], [2], [5]]


def test_a_span_of_one_position_is_rejected(split: CorpusSplit):
    with pytest.raises(InputError, match="at least 2 positions"):
        Streams(split, 1, SPECIALS)
