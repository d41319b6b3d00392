"""Collation: padding on the right, lengths, and flat positions with their targets."""

from __future__ import annotations

import numpy as np
import torch

from bertworks.sampling.batch import collate_examples
from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample

PAD, CLS, SEP, MASK = 0, 2, 3, 4


def make_example(
    token_ids: list[int], token_type_ids: list[int], label: int | None, replacements: dict[int, int]
) -> tuple[Example, MaskedExample]:
    """An example and its masked form; `replacements` maps positions to the ids that the model sees there."""
    input_ids = np.array(token_ids, dtype=np.int32)
    example = Example(
        input_ids=input_ids,
        token_type_ids=np.array(token_type_ids, dtype=np.int8),
        word_starts=np.ones(len(token_ids), np.bool_),
        is_special=np.isin(input_ids, [CLS, SEP]),
        label=label,
    )
    masked_ids = input_ids.copy()
    positions = np.array(sorted(replacements), dtype=np.int32)
    masked_ids[positions] = [replacements[position] for position in sorted(replacements)]
    return example, MaskedExample(masked_ids, positions, input_ids[positions])


EXAMPLES = [
    make_example([CLS, 11, 12, SEP, 13, SEP], [0, 0, 0, 0, 1, 1], 0, {2: MASK}),
    make_example([CLS, 21, SEP, 22, 23, 24, 25, SEP], [0, 0, 0, 1, 1, 1, 1, 1], 1, {1: 99, 6: 25}),
    make_example([CLS, 31, SEP, 32, SEP], [0, 0, 0, 1, 1], 0, {3: MASK}),
]


def test_collation_pads_examples_and_flattens_positions() -> None:
    batch = collate_examples([example for example, _ in EXAMPLES], [masked for _, masked in EXAMPLES], PAD)
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
    assert batch.labels["nsp"].tolist() == [0, 1, 0]
    assert batch.attention is None


def test_all_tensors_are_int64() -> None:
    batch = collate_examples([example for example, _ in EXAMPLES], [masked for _, masked in EXAMPLES], PAD)
    for tensor in (
        batch.input_ids,
        batch.token_type_ids,
        batch.lengths,
        batch.positions,
        batch.targets,
        batch.labels["nsp"],
    ):
        assert tensor is not None
        assert tensor.dtype == torch.int64


def test_a_batch_without_pair_labels_has_no_labels() -> None:
    example, masked = make_example([CLS, 11, 12, SEP], [0, 0, 0, 0], None, {1: MASK})
    assert collate_examples([example], [masked], PAD).labels == {}


def test_padding_uses_the_given_pad_id() -> None:
    batch = collate_examples([example for example, _ in EXAMPLES], [masked for _, masked in EXAMPLES], pad=1)
    assert batch.input_ids[0, 6:].tolist() == [1, 1]
