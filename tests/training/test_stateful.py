"""Stateful batches: each sequence continues its own state, for any micro-batch sizes, also after a checkpoint."""

from __future__ import annotations

import pytest
import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.errors import FolderError
from bertworks.sampling.batch import Batch
from bertworks.training.stateful import StatefulBatches

NUM_SEQUENCES = 4


def batch(count: int, is_continuation: bool | None) -> Batch:
    input_ids = torch.ones(count, 3).long()
    lengths = torch.full((count,), 3)
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=lengths,
        is_continuation=is_continuation,
    )


def state(first: int, count: int) -> EncoderState:
    """A state with different values for each sequence: 10, 11, … and 20, 21, … in one layer, 100 more in another."""
    numbers = torch.arange(first, first + count, dtype=torch.float32)[:, None]
    return EncoderState(3, ((numbers + 10, numbers + 20), (numbers + 110, numbers + 120)))


def run_step(stateful_batches: StatefulBatches, sizes: tuple[int, ...]) -> None:
    first = 0
    for size in sizes:
        stateful_batches.collect(state(first, size))
        first += size
    stateful_batches.end_step()


def test_first_batches_have_an_empty_state_and_independent_ones_none():
    stateful_batches = StatefulBatches()
    assert stateful_batches.attach_state(batch(2, False)).state == EncoderState()
    assert stateful_batches.attach_state(batch(2, None)).state is None
    stateful_batches.collect(None)
    stateful_batches.end_step()
    assert stateful_batches.previous_state is None


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3)])
@pytest.mark.parametrize("next_sizes", [(4,), (3, 1), (1, 1, 2)])
def test_a_sequence_continues_its_own_state_for_any_micro_batches(sizes: tuple[int, ...], next_sizes: tuple[int, ...]):
    stateful_batches = StatefulBatches()
    run_step(stateful_batches, sizes)
    values = []
    for size in next_sizes:
        attached = stateful_batches.attach_state(batch(size, True)).state
        assert isinstance(attached, EncoderState)
        assert attached.length == 3
        values.append(attached.layers[1][0])
        stateful_batches.collect(state(sum(map(len, values)) - size, size))
    assert torch.cat(values)[:, 0].tolist() == [110, 111, 112, 113]


def test_the_state_is_restored_from_the_tensors_of_a_checkpoint():
    stateful_batches, restored = StatefulBatches(), StatefulBatches()
    assert stateful_batches.tensors() == {}
    run_step(stateful_batches, (NUM_SEQUENCES,))
    tensors = stateful_batches.tensors()
    restored.restore({"exp_avg/encoder.token_embeddings.weight": torch.zeros(1), **tensors})
    assert restored.previous_state is not None
    assert restored.previous_state.length == 3
    assert [tensor.tolist() for layer in restored.previous_state.layers for tensor in layer] == [
        tensor.tolist() for layer in state(0, NUM_SEQUENCES).layers for tensor in layer
    ]
    untouched = StatefulBatches()
    untouched.restore({"exp_avg/encoder.token_embeddings.weight": torch.zeros(1)})
    assert untouched.previous_state is None
    del tensors["state/1/0"]
    with pytest.raises(FolderError, match="lacks 'state/1/0'"):
        restored.restore({"state/other": torch.zeros(1), **tensors})
