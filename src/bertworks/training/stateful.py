"""What rows leave for those that go on behind them: a batch in, the same with its state out; and what it left in.

Rows of a step go on behind those of the step before, row by row, however the rows are divided into micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from bertworks.encoders.encoded import Carried
from bertworks.errors import FolderError
from bertworks.sampling.batch import Batch

_LENGTH = "carried/length"


@dataclass(slots=True)
class Carrying:
    """The state of all rows of the last step, and of those of this step that were computed."""

    before: Carried | None = None
    left: list[Carried] = field(default_factory=list)

    def onto(self, batch: Batch) -> Batch:
        """Return the next batch of a step with what its rows go on from; as it is where they have nothing before."""
        if batch.goes_on is None:
            return batch
        if not batch.goes_on:
            return replace(batch, state=Carried())
        assert self.before is not None, "rows go on, but nothing was read before"
        first = sum(part.num_rows for part in self.left)
        return replace(batch, state=self.before.of_rows(first, len(batch.ids)).to(batch.ids.device))

    def keep(self, state: object | None) -> None:
        """Take what the batch left."""
        if isinstance(state, Carried):
            self.left.append(state)

    def turn(self) -> None:
        """End the step: what its rows left is what the next ones go on from."""
        self.before = Carried.joined(self.left) if self.left else None
        self.left = []

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all of it as tensors by name, between two steps."""
        if self.before is None:
            return {}
        named = {
            f"carried/{number}/{side}": both[side] for number, both in enumerate(self.before.layers) for side in (0, 1)
        }
        return {_LENGTH: torch.tensor([self.before.length]), **named}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up what `tensors` returned; other names are passed over."""
        if _LENGTH not in tensors:
            return
        num_layers = sum(name.startswith("carried/") for name in tensors) // 2
        try:
            layers = [(tensors[f"carried/{number}/0"], tensors[f"carried/{number}/1"]) for number in range(num_layers)]
        except KeyError as error:
            raise FolderError(
                f"the checkpoint lacks {error}; go back to an older one, or start anew with --out"
            ) from None
        self.before = Carried(int(tensors[_LENGTH]), tuple(layers))
