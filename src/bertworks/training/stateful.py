"""Stateful batches: a batch in, the same batch with the encoder state of the previous step out.

Each sequence of a step continues the corresponding one of the previous step, however the sequences are divided into
micro-batches. The state is XLNet's memory or an LSTM's hidden state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.errors import FolderError
from bertworks.sampling.batch import Batch

_PREFIX = "state/"
_LENGTH_KEY = f"{_PREFIX}length"


@dataclass(slots=True)
class StatefulBatches:
    """The state after the previous step, and those of the micro-batches of the current step so far."""

    previous_state: EncoderState | None = None
    current_states: list[EncoderState] = field(default_factory=list)

    def attach_state(self, batch: Batch) -> Batch:
        """Return the next micro-batch of a step with its initial state; batches of other samplers are unchanged."""
        if batch.is_continuation is None:
            return batch
        if not batch.is_continuation:
            return replace(batch, state=EncoderState())
        assert self.previous_state is not None, "a continuation batch needs a previous step"
        first = sum(part.num_sequences for part in self.current_states)
        return replace(
            batch, state=self.previous_state.slice_sequences(first, len(batch.input_ids)).to(batch.input_ids.device)
        )

    def collect(self, state: object | None) -> None:
        """Store the final state of the micro-batch."""
        if isinstance(state, EncoderState):
            self.current_states.append(state)

    def end_step(self) -> None:
        """Make the states of this step the initial states of the next one."""
        self.previous_state = EncoderState.concat(self.current_states) if self.current_states else None
        self.current_states = []

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state between two steps as named tensors, for a checkpoint."""
        if self.previous_state is None:
            return {}
        layer_tensors = {
            f"{_PREFIX}{layer}/{index}": tensors[index]
            for layer, tensors in enumerate(self.previous_state.layers)
            for index in (0, 1)
        }
        return {_LENGTH_KEY: torch.tensor([self.previous_state.length]), **layer_tensors}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the state that `tensors` returned; other names are ignored."""
        if _LENGTH_KEY not in tensors:
            return
        num_layers = sum(name.startswith(_PREFIX) for name in tensors) // 2
        try:
            layers = [(tensors[f"{_PREFIX}{layer}/0"], tensors[f"{_PREFIX}{layer}/1"]) for layer in range(num_layers)]
        except KeyError as error:
            raise FolderError(
                f"the checkpoint lacks {error}; resume from an older one, or start a new run with --output"
            ) from None
        self.previous_state = EncoderState(int(tensors[_LENGTH_KEY]), tuple(layers))
