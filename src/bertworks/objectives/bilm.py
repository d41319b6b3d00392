"""Bidirectional language modeling (ELMo): a Batch in, a Loss out. The forward direction predicts the next word, the
backward direction the previous one, with one softmax.

P positions, D / 2 size of one direction, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.elmo import ElmoConfig
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.objectives.large_softmax import SOFTMAXES, Softmax
from bertworks.objectives.loss import Loss
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.sampling.batch import Batch
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.causal import NextTokenTargets

# The index of the seed of the sampled softmax; those of layers start at 0.
_SAMPLING_SEED = -1


def create_bilm_head(config: EncoderConfig, generator: torch.Generator | None = None) -> Softmax:
    """Return the softmax over words for vectors (P, D / 2) of either direction."""
    if not isinstance(config, ElmoConfig):
        raise SettingsError(
            f"a model of the family '{config.model_type}' has no separate directions for a biLM; choose elmo"
        )
    return SOFTMAXES[config.softmax_kind](config.projection_size, config.vocab_size, generator)


class BiLmModule(ObjectiveModule):
    """A bidirectional language model. The loss is the mean over both directions: from each position of the batch to
    the next word, and back."""

    kind = "bilm"

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__(encoder)
        self.bilm_head = create_bilm_head(encoder.config, generator)
        self.heads = {"bilm_head": self.bilm_head.head_kind}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss."""
        assert batch.targets is not None
        return {"bilm": 2 * len(batch.targets)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, multiplied by its scale."""
        assert batch.positions is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds)
        size = self.encoder.config.hidden_size // 2
        forward = encoded.gather(batch.positions)[:, :size]
        backward = encoded.gather(batch.positions + 1)[:, size:]
        vectors = torch.cat([forward, backward])
        targets = torch.cat([batch.targets, batch.input_ids.flatten()[batch.positions]])
        value, part = self.bilm_head.compute_loss(
            vectors, targets, scales["bilm"], seeds.seed_for(_SAMPLING_SEED) if seeds else None
        )
        return Loss(value, {"bilm": part})


def neighbor_log_probs(
    encoder: Encoder, head: Softmax, batch: Batch, positions: torch.Tensor, is_backward: bool = False
) -> torch.Tensor:
    """Return (P, V): log probabilities of the word after, or before, the given positions (sequence * T + position)."""
    size = encoder.config.hidden_size // 2
    vectors = encoder(batch).gather(positions)
    return head.log_prob(vectors[:, size:] if is_backward else vectors[:, :size])


BILM = Objective(
    name="bilm",
    sampler=Blocks,
    corruption=lambda tokenizer, settings: NextTokenTargets(),
    build=BiLmModule,
    required_heads=("bilm",),
)
