"""How the rows of a batch are laid out, who may read whom, and finding pieces again; all values by hand."""

import pytest
import torch

from bertworks.encoders.encoded import (
    Encoded,
    SequenceGroup,
    create_attention_mask,
    create_layout,
    select_output_positions,
)
from bertworks.sampling.batch import Batch

NEVER = float("-inf")


def batch_with(lengths: list[int], width: int) -> Batch:
    ids = torch.ones(len(lengths), width, dtype=torch.long)
    return Batch(ids, torch.zeros_like(ids), torch.tensor(lengths))


def test_a_full_batch_keeps_its_shape_and_needs_no_mask():
    layout = create_layout(batch_with([4, 4], 4))
    assert layout.groups == (SequenceGroup(0, 2, 4, None),)
    assert layout.starts.tolist() == [0, 4]
    assert layout.index is None
    assert layout.shape == (2, 4)


def test_a_nearly_full_batch_keeps_its_shape_and_masks_the_padding():
    layout = create_layout(batch_with([10, 9], 10))
    assert layout.index is None
    mask = layout.groups[0].mask
    assert mask is not None
    assert mask.shape == (2, 1, 1, 10)
    assert mask[0].tolist() == [[[0.0] * 10]]
    assert mask[1].tolist() == [[[0.0] * 9 + [NEVER]]]


def test_a_ragged_batch_leaves_padding_out_and_groups_equal_neighbours():
    layout = create_layout(batch_with([5, 2, 2, 1], 5))
    assert layout.groups == (SequenceGroup(0, 1, 5), SequenceGroup(5, 2, 2), SequenceGroup(9, 1, 1))
    assert layout.starts.tolist() == [0, 5, 7, 9]
    assert layout.index is not None
    assert layout.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 10, 11, 15]


def test_places_of_a_ragged_batch_are_found_among_its_pieces():
    layout = create_layout(batch_with([5, 2, 2, 1], 5))
    places = torch.tensor([15, 4, 11, 5])
    assert layout.token_indices(places).tolist() == [9, 4, 8, 5]
    assert layout.index is not None
    assert torch.equal(layout.index[layout.token_indices(places)], places)


def test_places_of_a_full_batch_are_its_pieces():
    places = torch.tensor([7, 0])
    assert create_layout(batch_with([4, 4], 4)).token_indices(places).tolist() == [7, 0]


def test_reading_left_allows_each_place_and_those_before_it():
    mask = create_attention_mask(batch_with([3, 3], 3), "causal")
    assert mask is not None
    triangle = [[0.0, NEVER, NEVER], [0.0, 0.0, NEVER], [0.0, 0.0, 0.0]]
    assert mask.expand(2, 1, 3, 3).tolist() == [[triangle], [triangle]]


def test_padding_reads_itself_under_a_table_so_that_no_row_of_scores_is_empty():
    nothing = torch.zeros(1, 3, 3, dtype=torch.bool)
    nothing[0, 0, 1] = nothing[0, 0, 2] = True  # place 2 is padding: it may not be read, whatever the table says
    mask = create_attention_mask(batch_with([2], 3), nothing)
    assert mask is not None
    assert mask[0, 0].tolist() == [[0.0, 0.0, NEVER], [NEVER, 0.0, NEVER], [NEVER, NEVER, 0.0]]


@pytest.mark.parametrize("lengths", [[3, 3], [3, 1]], ids=["padded", "packed"])
def test_a_layer_is_handed_out_in_the_shape_of_the_batch_and_at_places(lengths: list[int]):
    layout = create_layout(batch_with(lengths, 3))
    num = sum(lengths)
    values = torch.arange(1.0, num + 1).view(num, 1)
    encoded = Encoded((values * 0, values), None, layout)
    rest = [4.0, 5.0, 6.0] if lengths == [3, 3] else [4.0, 0.0, 0.0]
    assert encoded.to_padded().squeeze(-1).tolist() == [[1.0, 2.0, 3.0], rest]
    assert encoded.gather(torch.tensor([3, 1])).tolist() == [[4.0], [2.0]]
    assert encoded.gather(torch.tensor([3]), layer=0).tolist() == [[0.0]]
    assert encoded.last_hidden_state is values


def test_padding_is_zero_in_the_shape_of_the_batch_however_it_was_computed():
    batch = batch_with([10, 9], 10)
    values = torch.ones(20, 2)
    padded = Encoded((values,), None, create_layout(batch)).to_padded()
    assert padded[0].tolist() == [[1.0, 1.0]] * 10
    assert padded[1].tolist() == [[1.0, 1.0]] * 9 + [[0.0, 0.0]]


def test_wanted_pieces_are_the_first_of_each_row_and_those_asked_filled_up_by_group():
    layout = create_layout(batch_with([5, 2, 2, 1], 5))  # pieces 0-4, 5-6, 7-8, 9
    wanted = select_output_positions(
        layout, layout.starts, torch.tensor([11, 4, 2])
    )  # row 2 place 1, row 0 places 4 and 2
    assert wanted.token_indices.tolist() == [0, 5, 7, 9, 8, 4, 2]
    assert wanted.counts == (3, 2, 1)
    # Row 0 has three, rows 1 and 2 are filled up to two, row 3 has its first piece.
    assert wanted.padded_indices.tolist() == [0, 4, 2, 5, 5, 7, 8, 9]
    assert wanted.padded_indices[wanted.order].tolist() == wanted.token_indices.tolist()


def test_where_no_place_is_wanted_the_first_piece_of_each_row_is():
    layout = create_layout(batch_with([4, 4], 4))
    wanted = select_output_positions(layout, layout.starts, torch.empty(0, dtype=torch.long))
    assert wanted.token_indices.tolist() == wanted.padded_indices.tolist() == [0, 4]
