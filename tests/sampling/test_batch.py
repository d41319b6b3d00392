"""Examples become a batch: padding at the right, lengths, and places that point at their targets."""

from __future__ import annotations

import numpy as np
import torch

from bertworks.sampling.batch import collate_examples
from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample

PAD, CLS, SEP, MASK = 0, 2, 3, 4


def row(
    ids: list[int], segments: list[int], label: int | None, hidden: dict[int, int]
) -> tuple[Example, MaskedExample]:
    """An example and what is hidden in it; `hidden` gives, by place, what the model sees there instead."""
    true = np.array(ids, dtype=np.int32)
    is_special = np.isin(true, [CLS, SEP])
    example = Example(true, np.array(segments, dtype=np.int8), np.ones(len(ids), np.bool_), is_special, label)
    seen = true.copy()
    places = np.array(sorted(hidden), dtype=np.int32)
    seen[places] = [hidden[place] for place in sorted(hidden)]
    return example, MaskedExample(seen, places, true[places])


ROWS = [
    row([CLS, 11, 12, SEP, 13, SEP], [0, 0, 0, 0, 1, 1], 0, {2: MASK}),
    row([CLS, 21, SEP, 22, 23, 24, 25, SEP], [0, 0, 0, 1, 1, 1, 1, 1], 1, {1: 99, 6: 25}),
    row([CLS, 31, SEP, 32, SEP], [0, 0, 0, 1, 1], 0, {3: MASK}),
]


def test_a_batch_holds_what_its_examples_hold() -> None:
    batch = collate_examples([example for example, _ in ROWS], [hidden for _, hidden in ROWS], PAD)
    assert batch.input_ids.tolist() == [
        [CLS, 11, MASK, SEP, 13, SEP, PAD, PAD],
        [CLS, 99, SEP, 22, 23, 24, 25, SEP],
        [CLS, 31, SEP, MASK, SEP, PAD, PAD, PAD],
    ]
    assert batch.token_type_ids.tolist() == [
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0, 0],
    ]
    assert batch.lengths.tolist() == [6, 8, 5]
    assert batch.positions is not None
    assert batch.targets is not None
    assert batch.positions.tolist() == [2, 8 + 1, 8 + 6, 16 + 3]
    assert batch.targets.tolist() == [12, 21, 25, 32]
    assert batch.labels["pair"].tolist() == [0, 1, 0]
    assert batch.attention is None


def test_everything_is_of_the_type_that_torch_takes_as_an_index() -> None:
    batch = collate_examples([example for example, _ in ROWS], [hidden for _, hidden in ROWS], PAD)
    for tensor in (
        batch.input_ids,
        batch.token_type_ids,
        batch.lengths,
        batch.positions,
        batch.targets,
        batch.labels["pair"],
    ):
        assert tensor is not None
        assert tensor.dtype == torch.int64


def test_a_batch_without_a_question_about_pairs_has_no_labels() -> None:
    example, hidden = row([CLS, 11, 12, SEP], [0, 0, 0, 0], None, {1: MASK})
    assert collate_examples([example], [hidden], PAD).labels == {}


def test_the_padding_is_the_vocabularys_own() -> None:
    batch = collate_examples([example for example, _ in ROWS], [hidden for _, hidden in ROWS], pad=1)
    assert batch.input_ids[0, 6:].tolist() == [1, 1]
