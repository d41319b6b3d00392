"""Predict the next word and the one before: a Batch in, a Loss out. What reads ahead is asked what follows, what reads
back is asked what went before, both by one table (ELMo).

P places, D / 2 width of one half, V words.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bertworks.encoders.elmo import ElmoSizes
from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import BertSizes, Stack
from bertworks.errors import SettingsError
from bertworks.objectives.large_softmax import SOFTMAXES, Softmax
from bertworks.objectives.loss import Loss
from bertworks.sampling.batch import Batch

# Of which place of the network the seed is that draws words; layers have those from 0 on.
_DRAWS = -1


def two_way_head(sizes: BertSizes, generator: torch.Generator | None = None) -> Softmax:
    """Return what says how likely each word is, from vectors (P, D / 2) of either half."""
    if not isinstance(sizes, ElmoSizes):
        raise SettingsError(f"a model of the family '{sizes.family}' is no two halves that read apart; choose elmo")
    return SOFTMAXES[sizes.scoring](sizes.half, sizes.vocabulary, generator)


class TwoWay(nn.Module):
    """A language model in both directions. Its loss is the mean over both; what is asked are a batch's places, and the
    places behind them, back."""

    kind = "two-way"

    def __init__(self, encoder: Stack, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.two_way = two_way_head(encoder.sizes, generator)

    @property
    def heads(self) -> dict[str, str]:
        return {"two_way": self.two_way.names}

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
        value, part = self.two_way.scored(vectors, targets, scales["two-way"], seeds.of(_DRAWS) if seeds else None)
        return Loss(value, {"two-way": part})


def neighbour_scores(
    encoder: Stack, head: Softmax, batch: Batch, places: torch.Tensor, backward: bool = False
) -> torch.Tensor:
    """Return (P, V): the logarithm of how likely each word is behind the given places (row * T + place), or before."""
    half = encoder.sizes.width // 2
    vectors = encoder(batch).at(places)
    return head.log_prob(vectors[:, half:] if backward else vectors[:, :half])
