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

from bertworks.objectives.cross_entropy import cross_entropy_loss
from bertworks.objectives.loss import LossPart

# Where the frequent words end, and where the rare ones begin; a small vocabulary has them at a quarter and a half.
_CUTOFFS = ((2_000, 4), (10_000, 2))
# By how much the vectors are shorter for each band of rarer words.
_DIV_VALUE = 2.0
# With how many words a sampled softmax compares on average.
_NUM_SAMPLES = 2_048


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    """Three bands of words, the rarer the shorter their vectors."""

    head_kind = "bilm"

    def __init__(self, hidden_size: int, vocab_size: int, generator: torch.Generator | None = None) -> None:
        cutoffs = [min(most, vocab_size // part) for most, part in _CUTOFFS]
        super().__init__(hidden_size, vocab_size, cutoffs, div_value=_DIV_VALUE)
        for values in self.parameters():
            _init_uniform(values, generator)

    def compute_loss(
        self, vectors: torch.Tensor, targets: torch.Tensor, scale: float, seed: torch.Tensor | None
    ) -> tuple[torch.Tensor, LossPart]:
        """Return scale * the summed cross entropy of vectors (P, D), and the part of the loss that it is."""
        total = -self(vectors, targets).output.sum()
        right = None if torch.is_grad_enabled() else int((self.predict(vectors) == targets).sum())
        return total * scale, LossPart(total.detach(), len(targets), right)


class TableSoftmax(nn.Module):
    """A vector and a bias for each word; learning compares with `num_samples` words on average, 0: with all."""

    head_kind = "bilm-table"

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        generator: torch.Generator | None = None,
        num_samples: int = _NUM_SAMPLES,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.sampling_probs = inclusion_probs(vocab_size, num_samples or vocab_size)
        _init_uniform(self.weight, generator)

    def compute_loss(
        self, vectors: torch.Tensor, targets: torch.Tensor, scale: float, seed: torch.Tensor | None
    ) -> tuple[torch.Tensor, LossPart]:
        """Return scale * the summed cross entropy of vectors (P, D), and the part of the loss that it is: exact where
        nothing is learned, else with the words that a seed draws."""
        if seed is None or not torch.is_grad_enabled() or self.sampling_probs.min() == 1.0:
            return cross_entropy_loss(vectors, self.weight, self.bias, targets, scale)
        drawn = (
            np.random.Generator(np.random.Philox(key=int(seed) % 2**32)).random(len(self.sampling_probs))
            < self.sampling_probs
        )
        total = self.sampled_cross_entropy(vectors, targets, np.flatnonzero(drawn))
        return total * scale, LossPart(total.detach(), len(targets))

    def sampled_cross_entropy(
        self, vectors: torch.Tensor, targets: torch.Tensor, sample: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Return the summed cross entropy, where the sum over all words is estimated by those that were drawn.

        A word that is drawn with the chance c counts for 1 / c words, the target itself for one: so the estimate of
        that sum, before its logarithm is taken, is right on average.
        """
        numbers = torch.from_numpy(sample).to(targets.device)
        shift = torch.from_numpy(np.log(self.sampling_probs[sample])).to(self.bias)
        others = F.linear(vectors, self.weight[numbers], self.bias[numbers] - shift)  # (P, C)
        others = others.masked_fill(numbers == targets[:, None], -math.inf)
        own = (vectors * self.weight[targets]).sum(1) + self.bias[targets]  # (P,)
        return (torch.logaddexp(own, others.logsumexp(1)) - own).sum()

    def log_prob(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (P, V): the logarithm of how likely each word is."""
        return F.log_softmax(F.linear(vectors, self.weight, self.bias), -1)


def inclusion_probs(vocab_size: int, num_samples: int) -> npt.NDArray[np.float64]:
    """Return (V,): with what chance each word is compared with, `num_samples` on average.

    The k-th word occurs about in proportion to 1 / k, and so is its chance, but no more than 1: the most frequent words
    always take part.
    """
    if num_samples >= vocab_size:
        return np.ones(vocab_size)
    rank = np.arange(1, vocab_size + 1, dtype=np.float64)
    low, high = 0.0, float(vocab_size)
    for _ in range(60):  # halved so often that nothing is left to halve
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1.0, middle / rank).sum() < num_samples else (low, middle)
    return np.minimum(1.0, high / rank)


def _init_uniform(values: torch.Tensor, generator: torch.Generator | None) -> None:
    bound = 1 / math.sqrt(values.shape[1])
    nn.init.uniform_(values, -bound, bound, generator=generator)


Softmax = AdaptiveSoftmax | TableSoftmax
# By the names that `encoders.elmo.SCORINGS` has.
SOFTMAXES: dict[str, Callable[[int, int, torch.Generator | None], Softmax]] = {
    "adaptive": AdaptiveSoftmax,
    "sampled": TableSoftmax,
    "full": lambda width, vocabulary, generator: TableSoftmax(width, vocabulary, generator, num_samples=0),
}
