"""Feature strategies: the hidden states of all layers in, one tensor of features out; by name, as in the BERT paper.

N tokens, D hidden size, L layers; `layers` are L + 1 tensors (N, D), the embeddings first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertworks.errors import SettingsError

if TYPE_CHECKING:
    import torch

    Layers = Sequence[torch.Tensor]


def _single(layers: Layers) -> torch.Tensor:
    (layer,) = layers
    return layer


def _concatenate(layers: Layers) -> torch.Tensor:
    import torch

    return torch.cat(tuple(layers), dim=-1)


def _sum(layers: Layers) -> torch.Tensor:
    total = layers[0]
    for layer in layers[1:]:
        total = total + layer
    return total


@dataclass(frozen=True, slots=True)
class Strategy:
    """The layers to use (`span` is a slice of the L + 1) and how they are combined.

    `num_layers` is the number of layers that an encoder needs, without the embeddings.
    """

    name: str
    span: slice
    combine: Callable[[Layers], torch.Tensor]
    num_layers: int = 1

    def check(self, hidden_sizes: Sequence[int]) -> None:
        """Raise a SettingsError if an encoder has too few layers, or layers of different sizes to combine."""
        self._check_depth(len(hidden_sizes) - 1)
        self._check_sizes(hidden_sizes[self.span])

    def _check_depth(self, num_layers: int) -> None:
        if num_layers < self.num_layers:
            raise SettingsError(
                f"'{self.name}' needs {self.num_layers} layers, but the model has {num_layers}; choose another of: "
                f"{', '.join(STRATEGIES)}"
            )

    def _check_sizes(self, hidden_sizes: Sequence[int]) -> None:
        if len(set(hidden_sizes)) > 1:
            raise SettingsError(
                f"'{self.name}' combines layers, but those of the model have different sizes"
                f" ({', '.join(map(str, sorted(set(hidden_sizes))))}); choose embeddings, second-to-last or last"
            )

    def select(self, layers: Layers) -> Layers:
        """Return the layers of the strategy, the lowest first."""
        self._check_depth(len(layers) - 1)
        selected = layers[self.span]
        self._check_sizes([layer.shape[-1] for layer in selected])
        return selected

    def __call__(self, layers: Layers) -> torch.Tensor:
        """Return (N, D'): D' is D, or a multiple of D if layers are concatenated."""
        return self.combine(self.select(layers))

    @property
    def is_sum(self) -> bool:
        """Whether a task can learn the weights of the sum, with WeightedLayers in place of `combine`."""
        return self.combine is _sum

    def output_size(self, hidden_sizes: Sequence[int]) -> int:
        """Return D' for an encoder whose layers, the embeddings first, have these sizes."""
        size = hidden_sizes[self.span][-1]
        return size * self.num_layers if self.combine is _concatenate else size


# The last one is ELMo's, which includes the embeddings. In the papers a task learns the weights of a sum; without a
# task all weights are 1.
STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("embeddings", slice(0, 1), _single, num_layers=0),
        Strategy("second-to-last", slice(-2, -1), _single, num_layers=2),
        Strategy("last", slice(-1, None), _single, num_layers=0),  # for static vectors: the embeddings
        Strategy("sum-last-four", slice(-4, None), _sum, num_layers=4),
        Strategy("concat-last-four", slice(-4, None), _concatenate, num_layers=4),
        Strategy("sum-all", slice(1, None), _sum),
        Strategy("sum-with-embeddings", slice(None), _sum),
    )
}


def get_strategy(name: str) -> Strategy:
    """Return the strategy of that name."""
    if name not in STRATEGIES:
        raise SettingsError(f"there is no feature strategy '{name}'; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
