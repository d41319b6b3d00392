"""What a pretraining objective answers: a corpus split in, examples out; an encoder in, the module to train out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from bertworks.corpus.corpus import CorpusSplit
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.tensor_names import NameTable
from bertworks.objectives.loss import Loss
from bertworks.sampling.batch import Batch
from bertworks.sampling.loading import Corruption, ExampleSampler
from bertworks.sampling.masking import MaskSettings
from bertworks.vocabulary.tokenizer import SpecialTokenIds, Tokenizer


class ObjectiveModule(nn.Module):
    """An encoder with heads that computes a loss. Models are selected by the first part of the loss.

    kind                the kind of the whole in `encoders.families.CLASS_SUFFIXES`
    heads               attributes that are heads -> the kind of head whose tensor names they have in a folder
    other_names         tensors outside of the encoder and the heads -> their names in a folder
    unused_parameters   beginnings of the names of parameters that get no gradient
    """

    kind: str
    heads: Mapping[str, str]
    other_names: NameTable = MappingProxyType({})
    unused_parameters: tuple[str, ...] = ()

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def attention(self) -> str:
        """The attention that the encoder is trained with."""
        return self.encoder.attention

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss."""
        raise NotImplementedError

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, each part multiplied by its scale."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A pretraining objective. The file of an objective ends with it, and the registry lists it.

    name             in recipes and model folders
    sampler          corpus split, max_length and special tokens -> how examples are sampled: pairs, blocks, streams
    corruption       tokenizer and mask settings -> what is masked and predicted when a batch is loaded
    build            encoder and generator -> the module to train
    required_heads   kinds of heads that a family must have tensor names for
    label_names      what the labels 0 and 1 of a pair of segments mean, if it has pairs
    pair_task        the name of the task on pairs in reports: NSP, SOP
    is_stateful      whether sequences continue those of the step before, with the encoder's state
    """

    name: str
    sampler: Callable[[CorpusSplit, int, SpecialTokenIds], ExampleSampler]
    corruption: Callable[[Tokenizer, MaskSettings], Corruption]
    build: Callable[[Encoder, torch.Generator | None], ObjectiveModule]
    required_heads: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    pair_task: str = ""
    is_stateful: bool = False
