"""The ways to arrange sentences, by name: what an objective, a recipe and `bertworks show` may ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bertworks.corpus.corpus import Split
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.causal import NextPieces
from bertworks.sampling.loading import Arrangement, Hider
from bertworks.sampling.masking import Masker, MaskSettings
from bertworks.sampling.pairs import NextSentencePairs, OrderedPairs
from bertworks.sampling.permutation import Permuter
from bertworks.sampling.streams import Streams
from bertworks.vocabulary.tokenizer import Specials, Tokenizer


@dataclass(frozen=True, slots=True)
class Way:
    """How sentences become examples of a length, and what the labels 0 and 1 of a pair mean (if there are any)."""

    arrange: Callable[[Split, int, Specials], Arrangement]
    labels: tuple[str, ...] = ()


ARRANGEMENTS = {
    "next": Way(NextSentencePairs, ("the second follows the first", "the second is random")),
    "order": Way(OrderedPairs, ("in order", "swapped")),
    "blocks": Way(Blocks),
    "streams": Way(Streams),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What an objective reads: the arrangement of sentences, and what asks about an example of it."""

    arrangement: str
    hider: Callable[[Tokenizer, MaskSettings], Hider]


# The pretraining objectives, and what each one reads. (What they learn from it: `objectives`.)
READS = {
    "masked-next": Reading("next", Masker),
    "masked-order": Reading("order", Masker),
    "masked": Reading("blocks", Masker),
    "next": Reading("blocks", lambda tokenizer, settings: NextPieces()),
    "next-stream": Reading("streams", lambda tokenizer, settings: NextPieces()),
    "two-way": Reading("blocks", lambda tokenizer, settings: NextPieces()),
    "permuted": Reading("blocks", Permuter),
    "permuted-stream": Reading("streams", Permuter),
}
