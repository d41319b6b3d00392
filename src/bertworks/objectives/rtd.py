"""Replaced token detection (ELECTRA): a Batch in, a Loss out.

A small generator, a masked language model, samples a token for each masked position. The encoder, the discriminator,
decides for every token whether it was replaced. Both are trained at once and share their embeddings; no gradient flows
through the samples.

B sequences, T positions, P masked positions, N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.electra import Electra, ElectraGenerator, generator_tensor_names, project_embeddings
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.layers import ACTIVATIONS, DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import combine_name_tables
from bertworks.objectives.cross_entropy import cross_entropy_loss, sample_tokens
from bertworks.objectives.heads import MlmHead
from bertworks.objectives.loss import Loss, LossPart
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.sampling.batch import Batch
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.masking import Masker

# The weight of the discriminator's loss; that of the generator has weight 1.
DISCRIMINATOR_WEIGHT = 50.0
# Added to the seeds of the generator's dropout: for the discriminator's dropout, and for the samples.
_DISCRIMINATOR_SEED, _SAMPLE_SEED = 1, 2


class RtdHead(nn.Module):
    """The discriminator's head: one logit for each token, above 0 where it looks replaced."""

    def __init__(self, hidden_size: int, hidden_act: str) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[hidden_act]
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the logits (N,) of vectors (N, D)."""
        return self.score(self.activation(self.dense(vectors)))[:, 0]


class RtdModule(ObjectiveModule):
    """A discriminator and its generator. The loss is the mean over masked tokens plus 50 times that over all tokens.

    Models are selected by the generator's part: the discriminator's rises as the generator gets better.
    """

    kind = "rtd"
    heads: Mapping[str, str] = {"rtd_head": "rtd", "mlm_head": "generator"}
    unused_parameters = ("encoder.pooler.",)
    encoder: Electra

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__(encoder)
        if not isinstance(encoder, Electra):
            raise SettingsError(
                f"a model of the family '{encoder.config.model_type}' has no generator for replaced token detection; "
                f"choose electra"
            )
        config = encoder.config
        self.rtd_head = RtdHead(config.hidden_size, config.hidden_act)
        init_weights(self.rtd_head, config.initializer_range, generator)
        self.generator = ElectraGenerator(config.generator_config, generator)
        self.mlm_head = MlmHead(config.generator_config)
        init_weights(self.mlm_head, config.initializer_range, generator)
        self.other_names = combine_name_tables({"generator": generator_tensor_names(config.generator_config)})

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss: masked tokens, and all tokens."""
        assert batch.targets is not None
        return {"mlm": len(batch.targets), "rtd": int(batch.lengths.sum())}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, each part multiplied by its scale."""
        assert batch.positions is not None
        assert batch.targets is not None
        table, bias = self.encoder.token_embeddings.weight, self.mlm_head.bias
        vectors = self.mlm_head.transform(self._generator_states(batch, seeds))  # (P, E)
        value, mlm_part = cross_entropy_loss(vectors, table, bias, batch.targets, scales["mlm"])
        sampled_ids = sample_tokens(vectors, table, bias, _uniform_numbers(len(vectors), seeds).to(vectors.device))
        logits, is_replaced = self._detect(batch, sampled_ids, seeds)
        total = F.binary_cross_entropy_with_logits(logits, is_replaced.to(logits.dtype), reduction="sum")
        num_correct = int(((logits > 0) == is_replaced).sum())
        rtd_part = LossPart(total.detach(), len(logits), num_correct)
        return Loss(value + DISCRIMINATOR_WEIGHT * scales["rtd"] * total, {"mlm": mlm_part, "rtd": rtd_part})

    def _generator_states(self, batch: Batch, seeds: DropoutSeeds | None) -> torch.Tensor:
        """Return the generator's last hidden state (P, D) at the masked positions."""
        assert batch.positions is not None
        layout = self.encoder.create_layout(batch)
        embeddings = self.encoder.embed_unprojected(batch, layout, sparse_grad=True)
        self.generator.activation_checkpointing = self.encoder.activation_checkpointing
        encoded = self.generator.forward_layers(
            project_embeddings(self.generator, embeddings), layout, seeds, batch.positions
        )
        return encoded.gather(batch.positions)

    def _detect(
        self, batch: Batch, sampled_ids: torch.Tensor, seeds: DropoutSeeds | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (N,) of the batch with samples for its masked tokens, and which tokens (N,) are not the
        original ones: a sample may be right."""
        assert batch.positions is not None
        assert batch.targets is not None
        input_ids = batch.input_ids.flatten().index_copy(0, batch.positions, sampled_ids)
        is_replaced = torch.zeros_like(input_ids, dtype=torch.bool)
        is_replaced[batch.positions] = sampled_ids != batch.targets
        own_seeds = None if seeds is None else DropoutSeeds(seeds.base + _DISCRIMINATOR_SEED)
        encoded = self.encoder(
            replace(batch, input_ids=input_ids.view_as(batch.input_ids)), seeds=own_seeds, sparse_grad=True
        )
        is_token = torch.arange(batch.input_ids.shape[1], device=input_ids.device) < batch.lengths[:, None]  # (B, T)
        tokens = torch.nonzero(is_token.flatten()).flatten()  # (N,)
        logits = self.rtd_head(encoded.gather(tokens))
        return logits.to(self.encoder.token_embeddings.weight.dtype), is_replaced[tokens]


def _uniform_numbers(count: int, seeds: DropoutSeeds | None) -> torch.Tensor:
    """Return random numbers from 0 to below 1, which follow from the seeds of a step; in evaluation always the same."""
    seed = 0 if seeds is None else int(seeds.base) + _SAMPLE_SEED
    numbers = np.random.Generator(np.random.Philox(key=seed % 2**32)).random(count, np.float32)
    return torch.from_numpy(numbers)


RTD = Objective(
    name="rtd",
    sampler=Blocks,
    corruption=Masker,
    build=RtdModule,
    required_heads=("rtd", "generator"),
)
