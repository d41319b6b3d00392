"""An encoder with the head of a task: a Batch in, outputs or a Loss out; what the loop trains when it fine-tunes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.families import Family, family_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import Encoder, initialise
from bertworks.encoders.tensor_names import NameTable
from bertworks.objectives.cross_entropy import cross_entropy_sum
from bertworks.objectives.heads import MlmHead
from bertworks.objectives.loss import Loss, LossPart
from bertworks.sampling.batch import Batch
from bertworks.tasks.contract import GenerativeTask, Task
from bertworks.tasks.recurrent_head import PREFIX, RecurrentHead, RecurrentSettings, packing_of, recurrent_head


@dataclass(frozen=True, slots=True)
class AuxiliaryLoss:
    """A language-model loss beside the task's, and how much it weighs: of masked pieces with their head, or without a
    head of the next pieces."""

    head: MlmHead | None
    weight: float

    @property
    def name(self) -> str:
        return "next" if self.head is None else "masked"


class TaskModule(nn.Module):
    """An encoder, the head of a task, and a masked-word head if there is an auxiliary loss that needs it.

    With `recurrent` settings the encoder gives features to a recurrent head. Unless they say otherwise it is frozen and
    drops nothing, and what it said of rows may be kept: `kept` returns it for a batch, or None where it does not know
    all of the rows.
    """

    def __init__(
        self,
        encoder: Encoder,
        task: Task,
        generator: torch.Generator | None = None,
        auxiliary: AuxiliaryLoss | None = None,
        recurrent: RecurrentSettings | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.task = task
        self.head = task.head(encoder.config)
        self.feature_cache: Callable[[Batch], torch.Tensor | None] | None = None
        if recurrent is None:
            _trim(self.head, self.family.heads.get(task.head_kind))
            initialise(self.head, encoder.config.initializer_range, generator)
        else:
            self.head = recurrent_head(self.head, encoder.config, recurrent, generator)
            if recurrent.freeze_encoder:
                encoder.requires_grad_(False).eval()
        self.mlm_head = auxiliary.head if auxiliary is not None else None
        self.auxiliary = auxiliary

    @property
    def recurrent(self) -> RecurrentSettings | None:
        """What the head was built from, if it is a recurrent one."""
        return self.head.settings if isinstance(self.head, RecurrentHead) else None

    @property
    def family(self) -> Family:
        return family_of(self.encoder.config.model_type)

    @property
    def transformers_head_kind(self) -> str:
        """The kind of head that transformers knows this one by; "" where only we have such a head."""
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
        """Change between training and use; a frozen encoder is always in use."""
        super().train(mode)
        if self.recurrent is not None and self.recurrent.freeze_encoder:
            self.encoder.eval()
        return self

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers each part of the loss will have."""
        found = {"task": self.task.num_targets(batch)}
        if batch.auxiliary_batch is not None:
            assert batch.auxiliary_batch.targets is not None
            found[self._required_auxiliary.name] = len(batch.auxiliary_batch.targets)
        return found

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch; each part scaled as told, for gradients."""
        total = self.task.loss(self.outputs(batch, seeds), batch)
        value = total * scales["task"]
        parts = {"task": LossPart(total.detach(), self.task.num_targets(batch))}
        if batch.auxiliary_batch is not None:
            scale = scales[self._required_auxiliary.name]
            more = self._auxiliary_loss(batch.auxiliary_batch, scale, seeds)
            assert batch.auxiliary_batch.targets is not None
            parts[self._required_auxiliary.name] = LossPart(more.detach() / scale, len(batch.auxiliary_batch.targets))
            value = value + self._required_auxiliary.weight * more
        return Loss(value, parts)

    def outputs(self, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        """Return what the head answers; where an answer is written piece by piece, what is lost by the right one."""
        if isinstance(self.task, GenerativeTask):
            return self.task.sequence_loss(self.encoder, self.head, batch, seeds)
        if isinstance(self.head, RecurrentHead):
            return self.head.forward_layers(self._encoder_features(self.head, batch, seeds), batch, seeds)
        places: torch.Tensor | None = self.head.positions(batch)  # type: ignore[operator]
        return self.head(self.encoder(batch, seeds=seeds, positions=places), batch, seeds)

    def _encoder_features(self, head: RecurrentHead, batch: Batch, seeds: DropoutSeeds | None) -> torch.Tensor:
        """Return what the encoder says of the batch; of a frozen one from what is kept, if it is there."""
        if not head.settings.freeze_encoder:
            return head.select_layers(self.encoder(batch, seeds=seeds), packing_of(batch))
        found = None if self.feature_cache is None else self.feature_cache(batch)
        if found is None:
            with torch.no_grad():
                found = head.select_layers(self.encoder(batch), packing_of(batch))
        return found

    @property
    def _required_auxiliary(self) -> AuxiliaryLoss:
        assert self.auxiliary is not None, "a batch with an auxiliary question, and nobody to answer it"
        return self.auxiliary

    def _auxiliary_loss(self, batch: Batch, scale: float, seeds: DropoutSeeds | None) -> torch.Tensor:
        """Return the scaled auxiliary loss of a second pass, on a copy of the rows that is asked about pieces."""
        assert batch.positions is not None
        assert batch.targets is not None
        again = None if seeds is None else DropoutSeeds(seeds.base + 1)  # the second pass drops other values
        encoded = self.encoder(batch, seeds=again, positions=batch.positions)
        vectors, table = encoded.gather(batch.positions), self.encoder.token_embeddings.weight
        if self.mlm_head is None:
            return cross_entropy_sum(vectors, table, table.new_zeros(len(table)), batch.targets, scale)
        return cross_entropy_sum(self.mlm_head.transform(vectors), table, self.mlm_head.bias, batch.targets, scale)


def _trim(head: nn.Module, names: NameTable | None) -> None:
    """Leave out the parameters of a head for which a family's table has no name: GPT's heads have no bias."""
    for name in [] if names is None else [name for name, _ in head.named_parameters() if name not in names]:
        path, _, last = name.rpartition(".")
        head.get_submodule(path).register_parameter(last, None)
