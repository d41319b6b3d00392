"""What rows leave for those behind them: row by row, however a step is divided, and back from a checkpoint."""

from __future__ import annotations

import pytest
import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.errors import FolderError
from bertworks.sampling.batch import Batch
from bertworks.training.stateful import StatefulBatches

ROWS = 4


def batch(count: int, goes_on: bool | None) -> Batch:
    ids = torch.ones(count, 3).long()
    return Batch(ids, torch.zeros_like(ids), torch.full((count,), 3), is_continuation=goes_on)


def state(first: int, count: int) -> EncoderState:
    """What so many rows left, each its own numbers: 10, 11, … and 20, 21, … of one layer, 100 more of another."""
    numbers = torch.arange(first, first + count, dtype=torch.float32)[:, None]
    return EncoderState(3, ((numbers + 10, numbers + 20), (numbers + 110, numbers + 120)))


def stepped(carrying: StatefulBatches, sizes: tuple[int, ...]) -> None:
    first = 0
    for size in sizes:
        carrying.collect(state(first, size))
        first += size
    carrying.end_step()


def test_rows_that_begin_have_an_empty_state_and_others_none():
    carrying = StatefulBatches()
    assert carrying.attach_state(batch(2, False)).state == EncoderState()
    assert carrying.attach_state(batch(2, None)).state is None
    carrying.collect(None)
    carrying.end_step()
    assert carrying.previous_state is None


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3)])
@pytest.mark.parametrize("asked", [(4,), (3, 1), (1, 1, 2)])
def test_a_row_goes_on_from_its_own_however_steps_are_divided(sizes: tuple[int, ...], asked: tuple[int, ...]):
    carrying = StatefulBatches()
    stepped(carrying, sizes)
    found = []
    for size in asked:
        given = carrying.attach_state(batch(size, True)).state
        assert isinstance(given, EncoderState)
        assert given.length == 3
        found.append(given.layers[1][0])
        carrying.collect(state(sum(map(len, found)) - size, size))
    assert torch.cat(found)[:, 0].tolist() == [110, 111, 112, 113]


def test_what_is_carried_goes_to_a_checkpoint_and_comes_back_among_other_tensors():
    carrying, again = StatefulBatches(), StatefulBatches()
    assert carrying.tensors() == {}
    stepped(carrying, (ROWS,))
    tensors = carrying.tensors()
    again.restore({"mean/encoder.pieces.weight": torch.zeros(1), **tensors})
    assert again.previous_state is not None
    assert again.previous_state.length == 3
    assert [one.tolist() for both in again.previous_state.layers for one in both] == [
        one.tolist() for both in state(0, ROWS).layers for one in both
    ]
    untouched = StatefulBatches()
    untouched.restore({"mean/encoder.pieces.weight": torch.zeros(1)})
    assert untouched.previous_state is None
    del tensors["carried/1/0"]
    with pytest.raises(FolderError, match="lacks 'carried/1/0'"):
        again.restore({"carried/other": torch.zeros(1), **tensors})
