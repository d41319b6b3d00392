"""Predict the next word and the one before: a Batch in, a Loss out. What reads ahead is asked what follows, what reads
back is asked what went before, both by one table (ELMo).

Scores over a large vocabulary are made by an adaptive softmax: the frequent words, which have the lowest ids, at once,
the others only where one of them stands, and from shorter vectors.

P places, D / 2 width of one half, V words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import Stack
from bertworks.errors import SettingsError
from bertworks.examples.batch import Batch
from bertworks.objectives.loss import Loss, Part

# Where the frequent words end, and where the rare ones begin; a small vocabulary has them at a quarter and a half.
_CUTOFFS = ((2_000, 4), (10_000, 2))
# By how much the vectors are shorter for each band of rarer words.
_SHORTER = 2.0


def two_way_head(half: int, vocabulary: int, generator: torch.Generator | None = None) -> nn.AdaptiveLogSoftmaxWithLoss:
    """Return what says how likely each word is, from vectors (P, D / 2): always in three bands."""
    cutoffs = [min(most, vocabulary // part) for most, part in _CUTOFFS]
    head = nn.AdaptiveLogSoftmaxWithLoss(half, vocabulary, cutoffs, div_value=_SHORTER)
    for values in head.parameters():
        bound = 1 / math.sqrt(values.shape[1])
        nn.init.uniform_(values, -bound, bound, generator=generator)
    return head


class TwoWay(nn.Module):
    """A language model in both directions. Its loss is the mean over both; what is asked are a batch's places, and the
    places behind them, back."""

    kind = "two-way"
    heads: Mapping[str, str] = {"two_way": "two-way"}

    def __init__(self, encoder: Stack, generator: torch.Generator | None = None) -> None:
        super().__init__()
        sizes = encoder.sizes
        if sizes.family != "elmo":
            raise SettingsError(f"a model of the family '{sizes.family}' is no two halves that read apart; choose elmo")
        self.encoder = encoder
        self.two_way = two_way_head(sizes.width // 2, sizes.vocabulary, generator)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers the loss will have."""
        assert batch.targets is not None
        return {"two-way": 2 * len(batch.targets)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: Seeds | None = None) -> Loss:
        """Return the loss of a batch, scaled as told for gradients."""
        assert batch.places is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds)
        half = self.encoder.sizes.width // 2
        ahead = encoded.at(batch.places)[:, :half]
        back = encoded.at(batch.places + 1)[:, half:]
        vectors = torch.cat([ahead, back])
        targets = torch.cat([batch.targets, batch.ids.flatten()[batch.places]])
        total = -self.two_way(vectors, targets).output.sum()
        right = None
        if not torch.is_grad_enabled():
            right = int((self.two_way.predict(vectors) == targets).sum())
        return Loss(total * scales["two-way"], {"two-way": Part(total.detach(), len(targets), right)})


def neighbour_scores(
    encoder: Stack, head: nn.AdaptiveLogSoftmaxWithLoss, batch: Batch, places: torch.Tensor, backward: bool = False
) -> torch.Tensor:
    """Return (P, V): the logarithm of how likely each word is behind the given places (row * T + place), or before."""
    half = encoder.sizes.width // 2
    vectors = encoder(batch).at(places)
    return head.log_prob(vectors[:, half:] if backward else vectors[:, :half])
