"""What will a run cost and come to? Sizes, lengths and counts in; operations, pieces and an expected loss out.

Pure arithmetic: nothing is measured here. The loss is a rule of thumb with few constants, all of which stand below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from bertworks.encoders.stack import BertConfig

# Backward costs twice the forward pass: a product of matrices has two slopes.
_FORWARD_BACKWARD_FACTOR = 3

# The end of a very long run. Held-out masked perplexity by depth and width, table 6 of the BERT paper, in nats: 3
# layers of 768 1.76, 6 of 768 1.54, 12 of 768 1.38, 12 of 1,024 1.26, 24 of 1,024 1.17. A power law through Base, over
# the parameters of the layers, misses the others by 3 % at most.
PAPER_LOSS = math.log(3.99)  # of 12 layers of 768
PAPER_LAYER_PARAMETERS = 85_054_464  # their parameters
SIZE_EXPONENT = 0.154

# A loss means little without the vocabulary and the text, so it is counted in shares of the unigram entropy. The paper
# does not tell its own; this is the one of WikiText-2 with the paper's vocabulary of 30,522 pieces.
PAPER_ENTROPY = 6.94


class LearningCurve(NamedTuple):
    """The way there: so many pieces until reading the context begins to pay, and how fast it pays from then on."""

    onset_tokens: float
    exponent: float


# From random weights: set by hand between runs of this package up to 3 million pieces and the paper's 43 billion.
# From heads that begin with a look at their neighbours: fitted to runs from 1 to 10 million pieces. Where the first is
# ahead, from 200 million pieces on, it counts for both: a head start does no harm. (docs/planning.md has all runs.)
RANDOM_INIT_CURVE = LearningCurve(8e6, 0.45)
NEIGHBORS_INIT_CURVE = LearningCurve(4e5, 0.2375)
# By the recipe's model.position_start; of several ways the lower loss counts.
LEARNING_CURVES = {
    "normal": (RANDOM_INIT_CURVE,),
    "waves": (RANDOM_INIT_CURVE,),
    "neighbours": (RANDOM_INIT_CURVE, NEIGHBORS_INIT_CURVE),
}

# How far off the pieces may be: the ends of the band are the losses of a quarter and of four times as many.
BAND_FACTOR = 4.0

# Seen again, text teaches less: with this many repetitions what they add has fallen to 1/e. (Muennighoff and others,
# "Scaling Data-Constrained Language Models", 2023, for models that read from the left. Fresh masks should bear more.)
REPETITION_DECAY = 15.0

_MAX_FINAL_RATIO = 0.95  # of the unigram entropy: no model is so small that it learns nothing at all


@dataclass(frozen=True, slots=True)
class LossBand:
    """A forecast loss over hidden pieces in nats, and how low and high it may well be."""

    low: float
    middle: float
    high: float


def step_flops(config: BertConfig, batch_size: int, length: int, mask_prob: float = 0.15) -> float:
    """Return the operations of the matrix products of a training step on full rows, forward and backward."""
    width, num_pieces = config.hidden_size, batch_size * length
    layer = (
        2 * num_pieces * (4 * width * width + 2 * width * config.intermediate_size) + 4 * num_pieces * length * width
    )
    num_hidden = batch_size * round(mask_prob * max(length - 3, 1))
    heads = 2 * num_hidden * (width * width + width * config.vocab_size) + 2 * batch_size * width * width
    return float(_FORWARD_BACKWARD_FACTOR * (config.num_hidden_layers * layer + heads))


def layer_parameters(config: BertConfig) -> int:
    """Return the parameters of all layers, without the tables: what a loss depends on."""
    width, inner = config.hidden_size, config.intermediate_size
    return config.num_hidden_layers * (4 * width * width + 2 * width * inner + inner + 9 * width)


def effective_tokens(num_tokens: float, num_corpus_tokens: float) -> float:
    """Return how many fresh pieces are worth as much as `pieces` drawn from a text of `text`: repeats teach less."""
    if num_tokens <= num_corpus_tokens:
        return num_tokens
    repetitions = num_tokens / num_corpus_tokens - 1
    return num_corpus_tokens * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def forecast_loss(
    config: BertConfig, num_tokens: float, unigram_entropy: float, position_init: str = "normal"
) -> LossBand:
    """Return the loss to expect on held-out text after so many useful pieces; `start` is the recipe's position_start.

    It falls from the unigram entropy, which a run reaches within a few hundred steps, to the end that a model of this
    size would reach in the paper's million steps.
    """
    share = PAPER_LOSS / PAPER_ENTROPY * (layer_parameters(config) / PAPER_LAYER_PARAMETERS) ** -SIZE_EXPONENT
    end = min(share, _MAX_FINAL_RATIO)

    def after(seen: float) -> float:
        left = min((1 + seen / way.onset_tokens) ** -way.exponent for way in LEARNING_CURVES[position_init])
        return unigram_entropy * (end + (1 - end) * left)

    return LossBand(after(num_tokens * BAND_FACTOR), after(num_tokens), after(num_tokens / BAND_FACTOR))
