"""An exponential moving average of weights: the parameters after each optimizer step in, averaged weights out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from bertworks.errors import FolderError
from bertworks.training.sharding import reshard

_PREFIX = "ema/"


def decay_at(decay: float, num_steps: int) -> float:
    """Return the decay of a step: a short average at the beginning, so that it forgets the initial weights."""
    return min(decay, (1 + num_steps) / (10 + num_steps))


class WeightAverage:
    """The averages of named parameters, in fp32; of a sharded module, each process has those of its local rows."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], decay: float) -> None:
        self.decay = decay
        self._parameters = {name: values.detach() for name, values in parameters.items()}
        self._averages = {name: values.float().clone() for name, values in self._parameters.items()}

    @torch.no_grad()
    def update(self, num_steps: int) -> None:
        """Set average = decay * average + (1 - decay) * weights, after `num_steps` steps."""
        weight = 1 - decay_at(self.decay, num_steps)
        torch._foreach_lerp_(list(self._averages.values()), list(self._parameters.values()), weight)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the averages, named "ema/NAME", for a checkpoint."""
        return {f"{_PREFIX}{name}": values for name, values in self._averages.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the averages that `state` returned; other names are ignored."""
        for name, average in self._averages.items():
            values = tensors.get(f"{_PREFIX}{name}")
            if values is None or values.shape != average.shape:
                raise FolderError(
                    f"the checkpoint has no average of '{name}', or one of another shape; it belongs to another "
                    f"recipe: start a new run with --output"
                )
            average.copy_(values)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights of the module with the averages, tensor by tensor; a second call undoes it exactly."""
        for name, average in self._averages.items():
            weights = self._parameters[name].clone()
            self._parameters[name].copy_(average)
            average.copy_(weights)


@contextlib.contextmanager
def use_averaged_weights(module: nn.Module, average: WeightAverage | None) -> Iterator[None]:
    """Give a module its averaged weights inside the block; without an average, nothing changes."""
    if average is None:
        yield
        return
    reshard(module)
    average.swap()
    try:
        yield
    finally:
        reshard(module)
        average.swap()


def averaged_weights(
    model: Mapping[str, torch.Tensor], optimizer: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the model tensors of a checkpoint, averaged ones if its optimizer tensors have them."""
    averages = {name.removeprefix(_PREFIX): values for name, values in optimizer.items() if name.startswith(_PREFIX)}
    return {**model, **averages}
