"""An encoder with the head of a task: a Batch in, outputs or a Loss out; the module that fine-tuning trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.families import family_of
from bertworks.encoders.family import Family
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.tensor_names import NameTable
from bertworks.objectives.cross_entropy import cross_entropy_sum
from bertworks.objectives.heads import MlmHead
from bertworks.objectives.loss import Loss, LossPart
from bertworks.sampling.batch import Batch
from bertworks.tasks.batching import batch_of_input_sequences
from bertworks.tasks.contract import ConsistentTask, GenerativeTask, InputSequence, Outputs, Task
from bertworks.tasks.distillation import DISTILLATION
from bertworks.tasks.heads import PositionHead
from bertworks.tasks.recurrent_head import PREFIX, RecurrentHead, RecurrentSettings, packing_of, recurrent_head
from bertworks.vocabulary.tokenizer import Tokenizer

# Added to the seed of a batch, so that a second pass has other dropout masks than the first.
_AUXILIARY_SEED, _R_DROP_SEED = 1, 2


@dataclass(frozen=True, slots=True)
class AuxiliaryLoss:
    """An auxiliary language-model loss and its weight: masked LM with its head, or causal LM without one."""

    head: MlmHead | None
    weight: float

    @property
    def name(self) -> str:
        return "causal" if self.head is None else "mlm"


class TaskModule(nn.Module):
    """An encoder, the head of a task, and an MLM head if the auxiliary loss needs one.

    With `recurrent` settings a recurrent head reads features of the encoder. The encoder is frozen, without dropout,
    unless they say otherwise, and its features may be cached: `feature_cache` returns those of a batch, or None if it
    lacks some of its sequences. `r_drop` is the weight of R-Drop, 0 for none, `distill_weight` that of the loss on
    batches of distillation.
    """

    def __init__(
        self,
        encoder: Encoder,
        task: Task,
        generator: torch.Generator | None = None,
        auxiliary: AuxiliaryLoss | None = None,
        recurrent: RecurrentSettings | None = None,
        r_drop: float = 0.0,
        distill_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.task = task
        self.head = task.head(encoder.config)
        self.feature_cache: Callable[[Batch], torch.Tensor | None] | None = None
        if recurrent is None:
            _remove_unnamed_parameters(self.head, self.family.heads.get(task.head_kind))
            init_weights(self.head, encoder.config.initializer_range, generator)
        else:
            self.head = recurrent_head(self.head, encoder.config, recurrent, generator)
            if recurrent.freeze_encoder:
                encoder.requires_grad_(False).eval()
        self.mlm_head = auxiliary.head if auxiliary is not None else None
        self.auxiliary = auxiliary
        self.r_drop = r_drop
        self.distill_weight = distill_weight

    @property
    def recurrent(self) -> RecurrentSettings | None:
        """The settings of a recurrent head, else None."""
        return self.head.settings if isinstance(self.head, RecurrentHead) else None

    @property
    def reads_positions(self) -> bool:
        """Whether the head scores the target positions of a sequence, as that of tags does."""
        return isinstance(self.head, PositionHead)

    @property
    def family(self) -> Family:
        return family_of(self.encoder.config.model_type)

    @property
    def transformers_head_kind(self) -> str:
        """The head kind if transformers has a class for it in this family, else ""."""
        return self.task.head_kind if self.recurrent is None and self.task.head_kind in self.family.heads else ""

    @property
    def head_names(self) -> Mapping[str, tuple[str, ...]]:
        """The head's tensors -> their names in a model folder."""
        if isinstance(self.head, RecurrentHead):
            return self.head.tensor_names
        if self.transformers_head_kind:
            return self.family.heads[self.transformers_head_kind]
        return {name: (PREFIX + name,) for name in self.head.state_dict()}

    def train(self, mode: bool = True) -> TaskModule:
        """Set training mode; a frozen encoder always stays in evaluation mode."""
        super().train(mode)
        if self.recurrent is not None and self.recurrent.freeze_encoder:
            self.encoder.eval()
        return self

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss."""
        counts = {batch.loss_part: self.task.num_targets(batch)}
        if batch.auxiliary_batch is not None:
            assert batch.auxiliary_batch.targets is not None
            counts[self._required_auxiliary.name] = len(batch.auxiliary_batch.targets)
        return counts

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch; `scales` multiply the parts for the backward pass."""
        outputs = _at_least_fp32(self.outputs(batch, seeds))
        total = self.task.loss(outputs, batch)
        parts = {batch.loss_part: LossPart(total.detach(), self.task.num_targets(batch))}
        if batch.loss_part == DISTILLATION:
            return Loss(self.distill_weight * scales[DISTILLATION] * total, parts)
        value = self._regularized(total, outputs, batch, seeds) * scales["task"]
        if batch.auxiliary_batch is not None:
            scale = scales[self._required_auxiliary.name]
            auxiliary_loss = self._auxiliary_loss(batch.auxiliary_batch, scale, seeds)
            assert batch.auxiliary_batch.targets is not None
            parts[self._required_auxiliary.name] = LossPart(
                auxiliary_loss.detach() / scale, len(batch.auxiliary_batch.targets)
            )
            value = value + self._required_auxiliary.weight * auxiliary_loss
        return Loss(value, parts)

    def _regularized(
        self, loss: torch.Tensor, outputs: torch.Tensor, batch: Batch, seeds: DropoutSeeds | None
    ) -> torch.Tensor:
        """Return the loss with R-Drop: the mean of two passes with other dropout masks, and their divergence."""
        if not self.r_drop or seeds is None:
            return loss
        assert isinstance(self.task, ConsistentTask)
        others = _at_least_fp32(self.outputs(batch, DropoutSeeds(seeds.base + _R_DROP_SEED)))
        other_loss, divergence = self.task.loss(others, batch), self.task.divergence(outputs, others, batch)
        return (loss + other_loss + self.r_drop * divergence) / 2

    def outputs(self, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        """Return the outputs of the head; of a generative task, the summed loss of its targets."""
        if isinstance(self.task, GenerativeTask):
            return self.task.sequence_loss(self.encoder, self.head, batch, seeds)
        if isinstance(self.head, RecurrentHead):
            return self.head.forward_layers(self._encoder_features(self.head, batch, seeds), batch, seeds)
        positions: torch.Tensor | None = self.head.positions(batch)  # type: ignore[operator]
        encoded = self.encoder(batch, seeds=seeds, positions=positions)
        return self.head(self.encoder.transform_for_head(encoded), batch, seeds)

    @torch.inference_mode()
    def compute_outputs(self, sequences: Sequence[InputSequence], tokenizer: Tokenizer) -> list[Outputs]:
        """Return the output of the head for each sequence, as `Task.decode` takes it."""
        batch = batch_of_input_sequences(sequences, tokenizer.specials.pad).to(self.encoder.device)
        if isinstance(self.task, GenerativeTask):
            return self.task.generate(self.encoder, self.head, batch, tokenizer)
        outputs = self.outputs(batch).float().cpu().numpy()
        if batch.positions is not None:
            ends = np.cumsum([sequence.num_positions for sequence in sequences])
            return np.split(outputs, ends[:-1])
        if outputs.ndim == 3:  # (B, T, 2): remove the padding of each sequence
            return [output[: len(sequence)] for sequence, output in zip(sequences, outputs, strict=True)]
        return list(outputs)

    def _encoder_features(self, head: RecurrentHead, batch: Batch, seeds: DropoutSeeds | None) -> torch.Tensor:
        """Return the encoder's features of a batch; those of a frozen encoder from the cache if it has them."""
        if not head.settings.freeze_encoder:
            return head.select_layers(self.encoder(batch, seeds=seeds), packing_of(batch))
        features = None if self.feature_cache is None else self.feature_cache(batch)
        if features is None:
            with torch.no_grad():
                features = head.select_layers(self.encoder(batch), packing_of(batch))
        return features

    @property
    def _required_auxiliary(self) -> AuxiliaryLoss:
        assert self.auxiliary is not None, "the batch has auxiliary targets, but the module has no auxiliary loss"
        return self.auxiliary

    def _auxiliary_loss(self, batch: Batch, scale: float, seeds: DropoutSeeds | None) -> torch.Tensor:
        """Return the scaled auxiliary loss of a second forward pass, on the same sequences with LM targets."""
        assert batch.positions is not None
        assert batch.targets is not None
        own_seeds = None if seeds is None else DropoutSeeds(seeds.base + _AUXILIARY_SEED)
        encoded = self.encoder(batch, seeds=own_seeds, positions=batch.positions)
        if self.mlm_head is not None:
            encoded = self.encoder.transform_for_head(encoded)
        vectors, embeddings = encoded.gather(batch.positions), self.encoder.token_embeddings.weight
        if self.mlm_head is None:
            bias = embeddings.new_zeros(len(embeddings))
            return cross_entropy_sum(vectors, embeddings, bias, batch.targets, scale)
        return cross_entropy_sum(self.mlm_head.transform(vectors), embeddings, self.mlm_head.bias, batch.targets, scale)


def _at_least_fp32(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.float() if outputs.itemsize < 4 else outputs


def _remove_unnamed_parameters(head: nn.Module, names: NameTable | None) -> None:
    """Remove the parameters for which the family's table has no name: GPT's heads have no bias."""
    for name in [] if names is None else [name for name, _ in head.named_parameters() if name not in names]:
        path, _, last = name.rpartition(".")
        head.get_submodule(path).register_parameter(last, None)
