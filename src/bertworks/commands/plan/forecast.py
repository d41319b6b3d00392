"""What will a run cost and come to? Sizes, lengths and counts in; operations, pieces and an expected loss out.

Pure arithmetic: nothing is measured here. The loss is a rule of thumb with few constants, all of which stand below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from bertworks.encoders.stack import BertSizes

# Backward costs twice the forward pass: a product of matrices has two slopes.
_PASSES = 3

# The end of a very long run. Held-out masked perplexity by depth and width, table 6 of the BERT paper, in nats: 3
# layers of 768 1.76, 6 of 768 1.54, 12 of 768 1.38, 12 of 1,024 1.26, 24 of 1,024 1.17. A power law through Base, over
# the parameters of the layers, misses the others by 3 % at most.
PAPER_LOSS = math.log(3.99)  # of 12 layers of 768
PAPER_LAYERS = 85_054_464  # their parameters
SIZE_POWER = 0.154

# A loss means little without the vocabulary and the text, so it is counted in shares of the unigram entropy. The paper
# does not tell its own; this is the one of WikiText-2 with the paper's vocabulary of 30,522 pieces.
PAPER_ENTROPY = 6.94


class Way(NamedTuple):
    """The way there: so many pieces until reading the context begins to pay, and how fast it pays from then on."""

    first_pieces: float
    power: float


# From random weights: set by hand between runs of this package up to 3 million pieces and the paper's 43 billion.
# From heads that begin with a look at their neighbours: fitted to runs from 1 to 10 million pieces. Where the first is
# ahead, from 200 million pieces on, it counts for both: a head start does no harm. (docs/planning.md has all runs.)
FROM_NOTHING = Way(8e6, 0.45)
FROM_NEIGHBOURS = Way(4e5, 0.2375)
# By the recipe's model.position_start; of several ways the lower loss counts.
WAYS = {
    "normal": (FROM_NOTHING,),
    "waves": (FROM_NOTHING,),
    "neighbours": (FROM_NOTHING, FROM_NEIGHBOURS),
}

# How far off the pieces may be: the ends of the band are the losses of a quarter and of four times as many.
BAND = 4.0

# Seen again, text teaches less: with this many repetitions what they add has fallen to 1/e. (Muennighoff and others,
# "Scaling Data-Constrained Language Models", 2023, for models that read from the left. Fresh masks should bear more.)
REPETITIONS = 15.0

_HIGHEST_END = 0.95  # of the unigram entropy: no model is so small that it learns nothing at all


@dataclass(frozen=True, slots=True)
class LossBand:
    """A forecast loss over hidden pieces in nats, and how low and high it may well be."""

    low: float
    middle: float
    high: float


def step_flops(sizes: BertSizes, batch: int, length: int, hidden_rate: float = 0.15) -> float:
    """Return the operations of the matrix products of a training step on full rows, forward and backward."""
    width, num_pieces = sizes.width, batch * length
    layer = 2 * num_pieces * (4 * width * width + 2 * width * sizes.inner) + 4 * num_pieces * length * width
    num_hidden = batch * round(hidden_rate * max(length - 3, 1))
    heads = 2 * num_hidden * (width * width + width * sizes.vocabulary) + 2 * batch * width * width
    return float(_PASSES * (sizes.num_layers * layer + heads))


def layer_parameters(sizes: BertSizes) -> int:
    """Return the parameters of all layers, without the tables: what a loss depends on."""
    width, inner = sizes.width, sizes.inner
    return sizes.num_layers * (4 * width * width + 2 * width * inner + inner + 9 * width)


def useful_pieces(pieces: float, text: float) -> float:
    """Return how many fresh pieces are worth as much as `pieces` drawn from a text of `text`: repeats teach less."""
    if pieces <= text:
        return pieces
    repetitions = pieces / text - 1
    return text * (1 + REPETITIONS * (1 - math.exp(-repetitions / REPETITIONS)))


def forecast_loss(sizes: BertSizes, pieces: float, unigram_entropy: float, start: str = "normal") -> LossBand:
    """Return the loss to expect on held-out text after so many useful pieces; `start` is the recipe's position_start.

    It falls from the unigram entropy, which a run reaches within a few hundred steps, to the end that a model of this
    size would reach in the paper's million steps.
    """
    share = PAPER_LOSS / PAPER_ENTROPY * (layer_parameters(sizes) / PAPER_LAYERS) ** -SIZE_POWER
    end = min(share, _HIGHEST_END)

    def after(seen: float) -> float:
        left = min((1 + seen / way.first_pieces) ** -way.power for way in WAYS[start])
        return unigram_entropy * (end + (1 - end) * left)

    return LossBand(after(pieces * BAND), after(pieces), after(pieces / BAND))
