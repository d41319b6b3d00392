"""Predict the next word and the one before: a Batch in, a Loss out. What reads ahead is asked what follows, what reads
back is asked what went before, both by one table (ELMo).

P places, D / 2 width of one half, V words.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bertworks.encoders.elmo import ElmoConfig
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.errors import SettingsError
from bertworks.objectives.large_softmax import SOFTMAXES, Softmax
from bertworks.objectives.loss import Loss
from bertworks.sampling.batch import Batch

# Of which place of the network the seed is that draws words; layers have those from 0 on.
_SAMPLING_SEED = -1


def create_bilm_head(config: BertConfig, generator: torch.Generator | None = None) -> Softmax:
    """Return what says how likely each word is, from vectors (P, D / 2) of either half."""
    if not isinstance(config, ElmoConfig):
        raise SettingsError(
            f"a model of the family '{config.model_type}' is no two halves that read apart; choose elmo"
        )
    return SOFTMAXES[config.softmax_kind](config.projection_size, config.vocab_size, generator)


class BiLmObjective(nn.Module):
    """A language model in both directions. Its loss is the mean over both; what is asked are a batch's places, and the
    places behind them, back."""

    kind = "bilm"

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.bilm_head = create_bilm_head(encoder.config, generator)

    @property
    def heads(self) -> dict[str, str]:
        return {"bilm_head": self.bilm_head.head_kind}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers the loss will have."""
        assert batch.targets is not None
        return {"bilm": 2 * len(batch.targets)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, scaled as told for gradients."""
        assert batch.positions is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds)
        half = self.encoder.config.hidden_size // 2
        ahead = encoded.gather(batch.positions)[:, :half]
        back = encoded.gather(batch.positions + 1)[:, half:]
        vectors = torch.cat([ahead, back])
        targets = torch.cat([batch.targets, batch.input_ids.flatten()[batch.positions]])
        value, part = self.bilm_head.compute_loss(
            vectors, targets, scales["bilm"], seeds.seed_for(_SAMPLING_SEED) if seeds else None
        )
        return Loss(value, {"bilm": part})


def neighbor_log_probs(
    encoder: Encoder, head: Softmax, batch: Batch, positions: torch.Tensor, is_backward: bool = False
) -> torch.Tensor:
    """Return (P, V): the logarithm of how likely each word is behind the given places (row * T + place), or before."""
    half = encoder.config.hidden_size // 2
    vectors = encoder(batch).gather(positions)
    return head.log_prob(vectors[:, half:] if is_backward else vectors[:, :half])
