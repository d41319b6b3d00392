"""Row n of a run is the same example in any process, after any other draw; an epoch holds every anchor once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numbered_corpus import FIRST_WORD, Numbered

from bertworks.corpus.corpus import Corpus
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.example import Example
from bertworks.sampling.loading import Loader
from bertworks.sampling.masking import MaskedExample, Masker
from bertworks.sampling.order import ExampleOrder
from bertworks.sampling.pairs import NextSentencePairs
from bertworks.vocabulary.tokenizer import Tokenizer

_OTHER_PROCESS = """
import sys
sys.path[:0] = sys.argv[1].split(",")
from test_loading import loader_of, told
from bertworks.corpus.corpus import Corpus
loader = loader_of(Corpus.open(sys.argv[2]))
for number in sys.argv[3:]:
    print(told(loader.draw(int(number))))
"""


def loader_of(corpus: Corpus) -> Loader:
    tokenizer = corpus.tokenizer
    pairs = NextSentencePairs(corpus.split("train"), 32, tokenizer.specials)
    return Loader(pairs, Masker(tokenizer), ExampleOrder(11, "phase", "train"))


def told(drawn: tuple[Example, MaskedExample]) -> str:
    """A hash of all that is in a row."""
    example, hidden = drawn
    arrays = (
        example.input_ids,
        example.token_type_ids,
        example.word_starts,
        hidden.input_ids,
        hidden.positions,
        hidden.targets,
    )
    digest = hashlib.sha256(str(example.label).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


@pytest.fixture
def loader(numbered: Numbered) -> Loader:
    return loader_of(numbered.corpus)


def test_a_row_does_not_depend_on_what_was_drawn_before(numbered: Numbered) -> None:
    numbers = [5, 0, 700, 3, 5, 10**9, 3]
    alone = [told(loader_of(numbered.corpus).load_example(number)) for number in numbers]
    loader = loader_of(numbered.corpus)
    assert [told(loader.load_example(number)) for number in numbers] == alone
    assert [told(loader.load_example(number)) for number in reversed(numbers)] == alone[::-1]


def test_a_row_is_the_same_in_another_process(loader: Loader, numbered: Numbered) -> None:
    numbers = [0, 1, 999, 123_456_789]
    here = Path(__file__).parent
    command = [sys.executable, "-c", _OTHER_PROCESS, f"{here},{here.parent / 'support'}", str(numbered.corpus.folder)]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run([*command, *map(str, numbers)], env=environment, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert found == [told(loader.load_example(number)) for number in numbers]


def test_processes_and_micro_batches_only_choose_rows(numbered: Numbered) -> None:
    # Step 3 of 12 rows: by one process, or by two that take every other row in micro-batches of 3.
    whole = [told(loader_of(numbered.corpus).load_example(3 * 12 + row)) for row in range(12)]
    ranks = [loader_of(numbered.corpus) for _ in range(2)]
    shared = [
        told(ranks[row % 2].load_example(3 * 12 + row)) for micro in range(2) for row in range(6 * micro, 6 * micro + 6)
    ]
    assert shared == whole


class Recorder:
    """An arrangement that notes its anchors."""

    num_anchors = 37

    def __init__(self) -> None:
        self.anchors: list[float] = []

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        self.anchors.append(anchor)
        flags = np.array([True, False, False, True])
        ids = np.array([2, FIRST_WORD, FIRST_WORD + 1, 3], dtype=np.int32)
        return Example(ids, np.zeros(4, np.int8), np.ones(4, np.bool_), flags)


def test_an_epoch_holds_every_anchor_once_with_its_shift(tokenizer: Tokenizer) -> None:
    stream = ExampleOrder(1, "phase", "train")
    for epoch in (0, 1, 5):
        recorder = Recorder()
        list(Loader(recorder, Masker(tokenizer), stream).epoch(epoch))
        expected = [anchor + stream.offset(epoch) for anchor in range(37)]
        assert sorted(recorder.anchors) == expected
        assert recorder.anchors != expected


def test_epochs_follow_each_other_without_a_gap(loader: Loader) -> None:
    size = loader.sampler.num_anchors
    rows = [told(loader.load_example(number)) for number in range(2 * size)]
    assert [told(row) for epoch in (0, 1) for row in loader.epoch(epoch)] == rows


def test_every_epoch_has_fresh_pairs_and_masks(loader: Loader) -> None:
    first, second = ({told(row) for row in loader.epoch(epoch)} for epoch in (0, 1))
    assert not first & second


def test_static_masks_repeat_every_example_in_a_new_order(loader: Loader) -> None:
    static = replace(loader, num_fresh_epochs=1)
    epochs = [[told(row) for row in static.epoch(epoch)] for epoch in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_examples_repeat_after_the_fresh_epochs(loader: Loader) -> None:
    some = replace(loader, num_fresh_epochs=3)
    epochs = [sorted(told(row) for row in some.epoch(epoch)) for epoch in range(7)]
    assert epochs[0] == epochs[3] == epochs[6]
    assert epochs[1] == epochs[4]
    assert epochs[2] == epochs[5]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_seed_phase_and_split_each_give_other_examples(loader: Loader) -> None:
    streams = [
        ExampleOrder(11, "phase", "train"),
        ExampleOrder(12, "phase", "train"),
        ExampleOrder(11, "p2", "train"),
        ExampleOrder(11, "phase", "x"),
    ]
    rows = {
        tuple(told(replace(loader, order=stream).load_example(number)) for number in range(5)) for stream in streams
    }
    assert len(rows) == 4


def test_blocks_load_the_same_way(numbered: Numbered) -> None:
    tokenizer = numbered.corpus.tokenizer
    blocks = Blocks(numbered.corpus.split("train"), 64, tokenizer.specials)
    loader = Loader(blocks, Masker(tokenizer), ExampleOrder(0, "phase", "train"))
    assert told(loader.load_example(7)) == told(loader.load_example(7)) != told(loader.load_example(8))
