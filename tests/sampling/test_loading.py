"""Loading: example n is the same in any process and order of loading; an epoch visits every anchor once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numbered_corpus import FIRST_WORD, NumberedCorpus

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
from test_loading import digest_of, loader_of
from bertworks.corpus.corpus import Corpus
loader = loader_of(Corpus.open(sys.argv[2]))
for number in sys.argv[3:]:
    print(digest_of(loader.load_example(int(number))))
"""


def loader_of(corpus: Corpus) -> Loader:
    tokenizer = corpus.tokenizer
    pairs = NextSentencePairs(corpus.split("train"), 32, tokenizer.specials)
    return Loader(pairs, Masker(tokenizer), ExampleOrder(11, "phase", "train"))


def digest_of(loaded: tuple[Example, MaskedExample]) -> str:
    """A hash of an example and its masked form."""
    example, masked = loaded
    arrays = (
        example.input_ids,
        example.token_type_ids,
        example.word_starts,
        masked.input_ids,
        masked.positions,
        masked.targets,
    )
    digest = hashlib.sha256(str(example.label).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


@pytest.fixture
def loader(numbered: NumberedCorpus) -> Loader:
    return loader_of(numbered.corpus)


def test_an_example_does_not_depend_on_earlier_ones(numbered: NumberedCorpus) -> None:
    numbers = [5, 0, 700, 3, 5, 10**9, 3]
    expected = [digest_of(loader_of(numbered.corpus).load_example(number)) for number in numbers]
    loader = loader_of(numbered.corpus)
    assert [digest_of(loader.load_example(number)) for number in numbers] == expected
    assert [digest_of(loader.load_example(number)) for number in reversed(numbers)] == expected[::-1]


def test_an_example_is_the_same_in_another_process(loader: Loader, numbered: NumberedCorpus) -> None:
    numbers = [0, 1, 999, 123_456_789]
    folder = Path(__file__).parent
    command = [
        sys.executable,
        "-c",
        _OTHER_PROCESS,
        f"{folder},{folder.parent / 'support'}",
        str(numbered.corpus.folder),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    process = subprocess.run(
        [*command, *map(str, numbers)], env=environment, capture_output=True, text=True, check=True
    )
    digests = process.stdout.split()
    assert digests == [digest_of(loader.load_example(number)) for number in numbers]


def test_processes_and_micro_batches_only_select_examples(numbered: NumberedCorpus) -> None:
    # Step 3 of 12 examples: in one process, or in two with every other example, in micro-batches of 3.
    expected = [digest_of(loader_of(numbered.corpus).load_example(3 * 12 + index)) for index in range(12)]
    ranks = [loader_of(numbered.corpus) for _ in range(2)]
    distributed = [
        digest_of(ranks[index % 2].load_example(3 * 12 + index))
        for micro_batch in range(2)
        for index in range(6 * micro_batch, 6 * micro_batch + 6)
    ]
    assert distributed == expected


class AnchorRecorder:
    """A sampler that records its anchors."""

    num_anchors = 37

    def __init__(self) -> None:
        self.anchors: list[float] = []

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        self.anchors.append(anchor)
        is_special = np.array([True, False, False, True])
        input_ids = np.array([2, FIRST_WORD, FIRST_WORD + 1, 3], dtype=np.int32)
        return Example(
            input_ids=input_ids,
            token_type_ids=np.zeros(4, np.int8),
            word_starts=np.ones(4, np.bool_),
            is_special=is_special,
        )


def test_an_epoch_visits_every_anchor_once_with_its_offset(tokenizer: Tokenizer) -> None:
    order = ExampleOrder(1, "phase", "train")
    for epoch in (0, 1, 5):
        recorder = AnchorRecorder()
        list(Loader(recorder, Masker(tokenizer), order).epoch(epoch))
        expected = [anchor + order.offset(epoch) for anchor in range(37)]
        assert sorted(recorder.anchors) == expected
        assert recorder.anchors != expected


def test_epochs_follow_each_other_without_a_gap(loader: Loader) -> None:
    num_anchors = loader.sampler.num_anchors
    digests = [digest_of(loader.load_example(number)) for number in range(2 * num_anchors)]
    assert [digest_of(loaded) for epoch in (0, 1) for loaded in loader.epoch(epoch)] == digests


def test_every_epoch_has_fresh_pairs_and_masks(loader: Loader) -> None:
    first, second = ({digest_of(loaded) for loaded in loader.epoch(epoch)} for epoch in (0, 1))
    assert not first & second


def test_static_masking_repeats_every_example_in_a_new_order(loader: Loader) -> None:
    static = replace(loader, num_fresh_epochs=1)
    epochs = [[digest_of(loaded) for loaded in static.epoch(epoch)] for epoch in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_examples_repeat_after_the_fresh_epochs(loader: Loader) -> None:
    repeating = replace(loader, num_fresh_epochs=3)
    epochs = [sorted(digest_of(loaded) for loaded in repeating.epoch(epoch)) for epoch in range(7)]
    assert epochs[0] == epochs[3] == epochs[6]
    assert epochs[1] == epochs[4]
    assert epochs[2] == epochs[5]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_seed_phase_and_split_each_give_other_examples(loader: Loader) -> None:
    orders = [
        ExampleOrder(11, "phase", "train"),
        ExampleOrder(12, "phase", "train"),
        ExampleOrder(11, "p2", "train"),
        ExampleOrder(11, "phase", "x"),
    ]
    digests = {
        tuple(digest_of(replace(loader, order=order).load_example(number)) for number in range(5)) for order in orders
    }
    assert len(digests) == 4


def test_blocks_load_the_same_way(numbered: NumberedCorpus) -> None:
    tokenizer = numbered.corpus.tokenizer
    blocks = Blocks(numbered.corpus.split("train"), 64, tokenizer.specials)
    loader = Loader(blocks, Masker(tokenizer), ExampleOrder(0, "phase", "train"))
    assert digest_of(loader.load_example(7)) == digest_of(loader.load_example(7)) != digest_of(loader.load_example(8))
