"""How likely each word of a large vocabulary is: vectors and the words that stood there in, the part of a loss out.

All heads say exact probabilities wherever nothing is learned; they differ in what learning costs. Words are numbered by
how frequent they are. `names` is the kind of head whose names its tensors have in a folder.

  adaptive   the frequent words are scored at once, the others in two bands only where one of them stands, and from
             shorter vectors
  sampled    one table; learning compares with all frequent words, and of the rare ones with some that are drawn anew in
             every step
  full       one table, and learning compares with all words

P places, D width of a vector, V words, C words that are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.objectives.cross_entropy import scored_sum
from bertworks.objectives.loss import Part

# Where the frequent words end, and where the rare ones begin; a small vocabulary has them at a quarter and a half.
_CUTOFFS = ((2_000, 4), (10_000, 2))
# By how much the vectors are shorter for each band of rarer words.
_SHORTER = 2.0
# With how many words a sampled softmax compares on average.
_SAMPLES = 2_048


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    """Three bands of words, the rarer the shorter their vectors."""

    names = "two-way"

    def __init__(self, width: int, vocabulary: int, generator: torch.Generator | None = None) -> None:
        cutoffs = [min(most, vocabulary // part) for most, part in _CUTOFFS]
        super().__init__(width, vocabulary, cutoffs, div_value=_SHORTER)
        for values in self.parameters():
            _draw(values, generator)

    def scored(
        self, vectors: torch.Tensor, targets: torch.Tensor, scale: float, seed: torch.Tensor | None
    ) -> tuple[torch.Tensor, Part]:
        """Return scale * the summed cross entropy of vectors (P, D), and the part of the loss that it is."""
        total = -self(vectors, targets).output.sum()
        right = None if torch.is_grad_enabled() else int((self.predict(vectors) == targets).sum())
        return total * scale, Part(total.detach(), len(targets), right)


class TableSoftmax(nn.Module):
    """A vector and a bias for each word; learning compares with `num_samples` words on average, 0: with all."""

    names = "two-way-table"

    def __init__(
        self, width: int, vocabulary: int, generator: torch.Generator | None = None, num_samples: int = _SAMPLES
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.chances = inclusion(vocabulary, num_samples or vocabulary)
        _draw(self.weight, generator)

    def scored(
        self, vectors: torch.Tensor, targets: torch.Tensor, scale: float, seed: torch.Tensor | None
    ) -> tuple[torch.Tensor, Part]:
        """Return scale * the summed cross entropy of vectors (P, D), and the part of the loss that it is: exact where
        nothing is learned, else with the words that a seed draws."""
        if seed is None or not torch.is_grad_enabled() or self.chances.min() == 1.0:
            return scored_sum(vectors, self.weight, self.bias, targets, scale)
        drawn = np.random.Generator(np.random.Philox(key=int(seed) % 2**32)).random(len(self.chances)) < self.chances
        total = self.sampled(vectors, targets, np.flatnonzero(drawn))
        return total * scale, Part(total.detach(), len(targets))

    def sampled(self, vectors: torch.Tensor, targets: torch.Tensor, drawn: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return the summed cross entropy, where the sum over all words is estimated by those that were drawn.

        A word that is drawn with the chance c counts for 1 / c words, the target itself for one: so the estimate of
        that sum, before its logarithm is taken, is right on average.
        """
        numbers = torch.from_numpy(drawn).to(targets.device)
        shift = torch.from_numpy(np.log(self.chances[drawn])).to(self.bias)
        others = F.linear(vectors, self.weight[numbers], self.bias[numbers] - shift)  # (P, C)
        others = others.masked_fill(numbers == targets[:, None], -math.inf)
        own = (vectors * self.weight[targets]).sum(1) + self.bias[targets]  # (P,)
        return (torch.logaddexp(own, others.logsumexp(1)) - own).sum()

    def log_prob(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (P, V): the logarithm of how likely each word is."""
        return F.log_softmax(F.linear(vectors, self.weight, self.bias), -1)


def inclusion(vocabulary: int, num_samples: int) -> npt.NDArray[np.float64]:
    """Return (V,): with what chance each word is compared with, `num_samples` on average.

    The k-th word occurs about in proportion to 1 / k, and so is its chance, but no more than 1: the most frequent words
    always take part.
    """
    if num_samples >= vocabulary:
        return np.ones(vocabulary)
    rank = np.arange(1, vocabulary + 1, dtype=np.float64)
    low, high = 0.0, float(vocabulary)
    for _ in range(60):  # halved so often that nothing is left to halve
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1.0, middle / rank).sum() < num_samples else (low, middle)
    return np.minimum(1.0, high / rank)


def _draw(values: torch.Tensor, generator: torch.Generator | None) -> None:
    bound = 1 / math.sqrt(values.shape[1])
    nn.init.uniform_(values, -bound, bound, generator=generator)


Softmax = AdaptiveSoftmax | TableSoftmax
# By the names that `encoders.elmo.SCORINGS` has.
SOFTMAXES: dict[str, Callable[[int, int, torch.Generator | None], Softmax]] = {
    "adaptive": AdaptiveSoftmax,
    "sampled": TableSoftmax,
    "full": lambda width, vocabulary, generator: TableSoftmax(width, vocabulary, generator, num_samples=0),
}
