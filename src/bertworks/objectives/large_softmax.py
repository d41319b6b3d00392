"""Softmax over a large vocabulary: vectors and target words in, a part of a loss out.

Without gradients all heads compute exact probabilities; they differ in what training costs. Word ids are ranks by
frequency. `head_kind` is the kind of head that its tensors are named by in a folder.

  adaptive   frequent words are scored at once, the others in two clusters only where they occur, with smaller vectors
  sampled    one table; training compares with all frequent words and a random sample of the rare ones in each step
  full       one table; training compares with all words

P positions, D size of a vector, V vocabulary, C words of a sample.
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

# The cutoffs of the adaptive softmax: (word id, divisor), with vocab_size // divisor as the upper limit.
_CUTOFFS = ((2_000, 4), (10_000, 2))
# The factor by which the vectors of each cluster are smaller.
_DIV_VALUE = 2.0
# The mean number of words of a sampled softmax.
_NUM_SAMPLES = 2_048


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    """torch's adaptive softmax with three clusters of words."""

    head_kind = "bilm"

    def __init__(self, hidden_size: int, vocab_size: int, generator: torch.Generator | None = None) -> None:
        cutoffs = [min(cutoff, vocab_size // divisor) for cutoff, divisor in _CUTOFFS]
        super().__init__(hidden_size, vocab_size, cutoffs, div_value=_DIV_VALUE)
        for values in self.parameters():
            _init_uniform(values, generator)

    def compute_loss(
        self, vectors: torch.Tensor, targets: torch.Tensor, scale: float, seed: torch.Tensor | None
    ) -> tuple[torch.Tensor, LossPart]:
        """Return scale * the summed cross entropy of vectors (P, D), and the part of the loss."""
        with torch.autocast(vectors.device.type, enabled=False):  # a sum of log probabilities needs fp32
            total = -self(vectors.to(self.head.weight.dtype), targets).output.sum()
        num_correct = None if torch.is_grad_enabled() else int((self.predict(vectors) == targets).sum())
        return total * scale, LossPart(total.detach(), len(targets), num_correct)


class TableSoftmax(nn.Module):
    """A softmax with a vector and a bias for each word; trained with `num_samples` words on average, 0: with all."""

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
        """Return scale * the summed cross entropy of vectors (P, D), and the part of the loss: with a sample of words
        in training, exact otherwise."""
        if seed is None or not torch.is_grad_enabled() or self.sampling_probs.min() == 1.0:
            return cross_entropy_loss(vectors, self.weight, self.bias, targets, scale)
        generator = np.random.Generator(np.random.Philox(key=int(seed) % 2**32))
        is_sampled = generator.random(len(self.sampling_probs)) < self.sampling_probs
        total = self.sampled_cross_entropy(vectors, targets, np.flatnonzero(is_sampled))
        return total * scale, LossPart(total.detach(), len(targets))

    def sampled_cross_entropy(
        self, vectors: torch.Tensor, targets: torch.Tensor, sample: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Return the summed cross entropy, with the sum over all words estimated from a sample.

        A word with the inclusion probability p counts 1 / p times, the target once: so the estimate of the sum, before
        its logarithm, is unbiased.
        """
        word_ids = torch.from_numpy(sample).to(targets.device)
        log_probs = torch.from_numpy(np.log(self.sampling_probs[sample])).to(self.bias)
        sample_logits = F.linear(vectors, self.weight[word_ids], self.bias[word_ids] - log_probs).to(self.bias.dtype)
        sample_logits = sample_logits.masked_fill(word_ids == targets[:, None], -math.inf)  # (P, C)
        target_logits = (vectors * self.weight[targets]).sum(1) + self.bias[targets]  # (P,)
        return (torch.logaddexp(target_logits, sample_logits.logsumexp(1)) - target_logits).sum()

    def log_prob(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (P, V): the log probabilities of all words."""
        return F.log_softmax(F.linear(vectors, self.weight, self.bias), -1)


def inclusion_probs(vocab_size: int, num_samples: int) -> npt.NDArray[np.float64]:
    """Return (V,): the probability of each word to be in a sample of `num_samples` on average.

    The frequency of the k-th word is roughly proportional to 1 / k, and so is its probability, up to 1: the most
    frequent words are in every sample.
    """
    if num_samples >= vocab_size:
        return np.ones(vocab_size)
    rank = np.arange(1, vocab_size + 1, dtype=np.float64)
    low, high = 0.0, float(vocab_size)
    for _ in range(60):  # bisection down to the precision of a double
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1.0, middle / rank).sum() < num_samples else (low, middle)
    return np.minimum(1.0, high / rank)


def _init_uniform(values: torch.Tensor, generator: torch.Generator | None) -> None:
    bound = 1 / math.sqrt(values.shape[1])
    nn.init.uniform_(values, -bound, bound, generator=generator)


Softmax = AdaptiveSoftmax | TableSoftmax
# By the names of `encoders.elmo.SOFTMAX_KINDS`.
SOFTMAXES: dict[str, Callable[[int, int, torch.Generator | None], Softmax]] = {
    "adaptive": AdaptiveSoftmax,
    "sampled": TableSoftmax,
    "full": lambda hidden_size, vocab_size, generator: TableSoftmax(hidden_size, vocab_size, generator, num_samples=0),
}
