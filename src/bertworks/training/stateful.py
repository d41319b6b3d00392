"""What rows leave for those that go on behind them: a batch in, the same with its state out; and what it left in.

Rows of a step go on behind those of the step before, row by row, however the rows are divided into micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.errors import FolderError
from bertworks.sampling.batch import Batch

_LENGTH_KEY = "carried/length"


@dataclass(slots=True)
class StatefulBatches:
    """The state of all rows of the last step, and of those of this step that were computed."""

    previous_state: EncoderState | None = None
    current_states: list[EncoderState] = field(default_factory=list)

    def attach_state(self, batch: Batch) -> Batch:
        """Return the next batch of a step with what its rows go on from; as it is where they have nothing before."""
        if batch.is_continuation is None:
            return batch
        if not batch.is_continuation:
            return replace(batch, state=EncoderState())
        assert self.previous_state is not None, "rows go on, but nothing was read before"
        first = sum(part.num_sequences for part in self.current_states)
        return replace(
            batch, state=self.previous_state.slice_sequences(first, len(batch.input_ids)).to(batch.input_ids.device)
        )

    def collect(self, state: object | None) -> None:
        """Take what the batch left."""
        if isinstance(state, EncoderState):
            self.current_states.append(state)

    def end_step(self) -> None:
        """End the step: what its rows left is what the next ones go on from."""
        self.previous_state = EncoderState.concat(self.current_states) if self.current_states else None
        self.current_states = []

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all of it as tensors by name, between two steps."""
        if self.previous_state is None:
            return {}
        named = {
            f"carried/{number}/{side}": both[side]
            for number, both in enumerate(self.previous_state.layers)
            for side in (0, 1)
        }
        return {_LENGTH_KEY: torch.tensor([self.previous_state.length]), **named}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up what `tensors` returned; other names are passed over."""
        if _LENGTH_KEY not in tensors:
            return
        num_layers = sum(name.startswith("carried/") for name in tensors) // 2
        try:
            layers = [(tensors[f"carried/{number}/0"], tensors[f"carried/{number}/1"]) for number in range(num_layers)]
        except KeyError as error:
            raise FolderError(
                f"the checkpoint lacks {error}; go back to an older one, or start anew with --out"
            ) from None
        self.previous_state = EncoderState(int(tensors[_LENGTH_KEY]), tuple(layers))
