"""Layouts, attention masks and the positions of tokens; all values by hand."""

import pytest
import torch

from bertworks.encoders.encoded import (
    Encoded,
    SequenceGroup,
    create_attention_mask,
    create_layout,
    round_shapes,
    select_output_positions,
)
from bertworks.sampling.batch import Batch

NEG_INF = float("-inf")


def make_batch(lengths: list[int], length: int) -> Batch:
    input_ids = torch.ones(len(lengths), length, dtype=torch.long)
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def test_a_full_batch_is_computed_padded_without_a_mask():
    layout = create_layout(make_batch([4, 4], 4))
    assert layout.groups == (SequenceGroup(0, 2, 4, None),)
    assert layout.starts.tolist() == [0, 4]
    assert layout.index is None
    assert layout.shape == (2, 4)


def test_a_nearly_full_batch_is_computed_padded_with_a_mask():
    layout = create_layout(make_batch([10, 9], 10))
    assert layout.index is None
    mask = layout.groups[0].mask
    assert mask is not None
    assert mask.shape == (2, 1, 1, 10)
    assert mask[0].tolist() == [[[0.0] * 10]]
    assert mask[1].tolist() == [[[0.0] * 9 + [NEG_INF]]]


def test_a_ragged_batch_is_packed_and_consecutive_sequences_of_equal_length_are_a_group():
    layout = create_layout(make_batch([5, 2, 2, 1], 5))
    assert layout.groups == (SequenceGroup(0, 1, 5), SequenceGroup(5, 2, 2), SequenceGroup(9, 1, 1))
    assert layout.starts.tolist() == [0, 5, 7, 9]
    assert layout.index is not None
    assert layout.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 10, 11, 15]


def test_positions_of_a_packed_batch_are_mapped_to_token_indices():
    layout = create_layout(make_batch([5, 2, 2, 1], 5))
    positions = torch.tensor([15, 4, 11, 5])
    assert layout.token_indices(positions).tolist() == [9, 4, 8, 5]
    assert layout.index is not None
    assert torch.equal(layout.index[layout.token_indices(positions)], positions)


def test_rounded_shapes_repeat_the_last_token_and_pad_sequences_for_attention():
    layout = round_shapes(create_layout(make_batch([40, 33, 17, 3], 40)))
    assert layout.num_repeated == 128 - 93
    assert layout.index is not None
    assert layout.index[92:].tolist() == [122] * 36  # the last token of the last sequence
    padding = layout.padding
    assert padding is not None
    assert [(group.start, group.num_sequences, group.length) for group in padding.groups] == [
        (0, 2, 64),
        (128, 1, 32),
        (160, 1, 16),
    ]
    assert padding.index[:64].tolist() == [*range(40), *[0] * 24]  # padding is the first token of the sequence
    assert padding.index[160:].tolist() == [90, 91, 92, *[90] * 13]
    assert padding.index[padding.order].tolist() == [*range(93), *[92] * 35]
    mask = padding.groups[1].mask
    assert mask is not None
    assert mask.tolist() == [[[[0.0] * 17 + [NEG_INF] * 15]]]


def test_a_padded_batch_and_sequences_of_one_length_keep_their_shapes():
    for lengths in ([4, 4], [3, 3]):
        layout = create_layout(make_batch(lengths, 4))
        assert round_shapes(layout) is layout


def test_positions_of_a_padded_batch_are_its_token_indices():
    positions = torch.tensor([7, 0])
    assert create_layout(make_batch([4, 4], 4)).token_indices(positions).tolist() == [7, 0]


def test_causal_attention_allows_each_position_and_those_before_it():
    mask = create_attention_mask(make_batch([3, 3], 3), "causal")
    assert mask is not None
    triangle = [[0.0, NEG_INF, NEG_INF], [0.0, 0.0, NEG_INF], [0.0, 0.0, 0.0]]
    assert mask.expand(2, 1, 3, 3).tolist() == [[triangle], [triangle]]


def test_padding_attends_to_itself_so_that_no_softmax_is_empty():
    allowed = torch.zeros(1, 3, 3, dtype=torch.bool)
    allowed[0, 0, 1] = allowed[0, 0, 2] = True  # position 2 is padding and stays masked
    mask = create_attention_mask(make_batch([2], 3), allowed)
    assert mask is not None
    assert mask[0, 0].tolist() == [[0.0, 0.0, NEG_INF], [NEG_INF, 0.0, NEG_INF], [NEG_INF, NEG_INF, 0.0]]


@pytest.mark.parametrize("lengths", [[3, 3], [3, 1]], ids=["padded", "packed"])
def test_hidden_states_are_returned_in_the_shape_of_the_batch_and_at_positions(lengths: list[int]):
    layout = create_layout(make_batch(lengths, 3))
    num_tokens = sum(lengths)
    values = torch.arange(1.0, num_tokens + 1).view(num_tokens, 1)
    encoded = Encoded(hidden_states=(values * 0, values), pooled=None, layout=layout)
    second = [4.0, 5.0, 6.0] if lengths == [3, 3] else [4.0, 0.0, 0.0]
    assert encoded.to_padded().squeeze(-1).tolist() == [[1.0, 2.0, 3.0], second]
    assert encoded.gather(torch.tensor([3, 1])).tolist() == [[4.0], [2.0]]
    assert encoded.gather(torch.tensor([3]), layer=0).tolist() == [[0.0]]
    assert encoded.last_hidden_state is values


def test_padding_is_zero_in_the_shape_of_the_batch():
    batch = make_batch([10, 9], 10)
    values = torch.ones(20, 2)
    padded = Encoded(hidden_states=(values,), pooled=None, layout=create_layout(batch)).to_padded()
    assert padded[0].tolist() == [[1.0, 1.0]] * 10
    assert padded[1].tolist() == [[1.0, 1.0]] * 9 + [[0.0, 0.0]]


def test_output_positions_are_the_pooled_ones_and_the_requested_ones_padded_by_group():
    layout = create_layout(make_batch([5, 2, 2, 1], 5))  # tokens 0-4, 5-6, 7-8, 9
    outputs = select_output_positions(
        layout, layout.starts, torch.tensor([11, 4, 2])
    )  # position 1 of sequence 2, positions 4 and 2 of sequence 0
    assert outputs.token_indices.tolist() == [0, 5, 7, 9, 8, 4, 2]
    assert outputs.counts == (3, 2, 1)
    # Sequence 0 has three, sequences 1 and 2 are padded to two, sequence 3 has its first token.
    assert outputs.padded_indices.tolist() == [0, 4, 2, 5, 5, 7, 8, 9]
    assert outputs.padded_indices[outputs.order].tolist() == outputs.token_indices.tolist()


def test_without_requested_positions_only_the_pooled_tokens_are_computed():
    layout = create_layout(make_batch([4, 4], 4))
    outputs = select_output_positions(layout, layout.starts, torch.empty(0, dtype=torch.long))
    assert outputs.token_indices.tolist() == outputs.padded_indices.tolist() == [0, 4]
