"""The samplers by name, and the sampler and corruption of each pretraining objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bertworks.corpus.corpus import CorpusSplit
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.loading import Corruption, ExampleSampler
from bertworks.sampling.masking import Masker, MaskSettings
from bertworks.sampling.pairs import NextSentencePairs, SentenceOrderPairs
from bertworks.sampling.permutation import Permuter
from bertworks.sampling.streams import Streams
from bertworks.vocabulary.tokenizer import SpecialTokenIds, Tokenizer


@dataclass(frozen=True, slots=True)
class SamplerKind:
    """How to build a sampler, and the meaning of the labels 0 and 1 of its pairs, if it makes pairs."""

    build: Callable[[CorpusSplit, int, SpecialTokenIds], ExampleSampler]
    label_names: tuple[str, ...] = ()


SAMPLERS = {
    "next-sentence": SamplerKind(NextSentencePairs, ("segment B follows segment A", "segment B is random")),
    "sentence-order": SamplerKind(SentenceOrderPairs, ("in order", "swapped")),
    "blocks": SamplerKind(Blocks),
    "streams": SamplerKind(Streams),
}


@dataclass(frozen=True, slots=True)
class ObjectiveInput:
    """The input of an objective: a key of SAMPLERS, and the corruption of its examples."""

    sampler: str
    corruption: Callable[[Tokenizer, MaskSettings], Corruption]


# By objective name. The losses are in `objectives`.
OBJECTIVE_INPUTS = {
    "mlm-nsp": ObjectiveInput("next-sentence", Masker),
    "mlm-sop": ObjectiveInput("sentence-order", Masker),
    "mlm": ObjectiveInput("blocks", Masker),
    "causal": ObjectiveInput("blocks", lambda tokenizer, settings: NextTokenTargets()),
    "causal-stream": ObjectiveInput("streams", lambda tokenizer, settings: NextTokenTargets()),
    "bilm": ObjectiveInput("blocks", lambda tokenizer, settings: NextTokenTargets()),
    "permutation": ObjectiveInput("blocks", Permuter),
    "permutation-stream": ObjectiveInput("streams", Permuter),
}
