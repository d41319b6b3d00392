"""The ways to arrange sentences, by name: what an objective, a recipe and `bertworks show` may ask for."""

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
    """How sentences become examples of a length, and what the labels 0 and 1 of a pair mean (if there are any)."""

    build: Callable[[CorpusSplit, int, SpecialTokenIds], ExampleSampler]
    label_names: tuple[str, ...] = ()


SAMPLERS = {
    "next-sentence": SamplerKind(NextSentencePairs, ("the second follows the first", "the second is random")),
    "sentence-order": SamplerKind(SentenceOrderPairs, ("in order", "swapped")),
    "blocks": SamplerKind(Blocks),
    "streams": SamplerKind(Streams),
}


@dataclass(frozen=True, slots=True)
class ObjectiveInput:
    """What an objective reads: the arrangement of sentences, and what asks about an example of it."""

    sampler: str
    corruption: Callable[[Tokenizer, MaskSettings], Corruption]


# The pretraining objectives, and what each one reads. (What they learn from it: `objectives`.)
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
