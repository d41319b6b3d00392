"""Forecast a run: a config, lengths and counts in; FLOPs, effective tokens and an expected loss out.

Pure arithmetic: nothing is measured here. The loss is a rule of thumb; all of its constants are defined below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from bertworks.encoders.config import EncoderConfig

# The backward pass costs twice the forward pass: a matmul has two gradients.
_FORWARD_BACKWARD_FACTOR = 3

# The loss at the end of a very long run. Held-out MLM loss by depth and hidden size, from table 6 of the BERT paper, in
# nats: 3 layers of 768 1.76, 6 of 768 1.54, 12 of 768 1.38, 12 of 1,024 1.26, 24 of 1,024 1.17. A power law
# through Base, in the number of layer parameters, deviates from the others by 3 % at most.
PAPER_LOSS = math.log(3.99)  # 12 layers of 768
PAPER_LAYER_PARAMETERS = 85_054_464  # of the same model
SIZE_EXPONENT = 0.154

# A loss depends on the vocabulary and the text, so it is expressed relative to the unigram entropy. The paper does not
# give its own; this is that of WikiText-2 with the paper's vocabulary of 30,522 tokens.
PAPER_ENTROPY = 6.94


class LearningCurve(NamedTuple):
    """How the loss falls: after about `onset_tokens` the model begins to use the context, then by a power law."""

    onset_tokens: float
    exponent: float


# Random initialization: set by hand between runs of this package up to 3 million tokens and the paper's 43 billion.
# Neighbor initialization: fitted to runs from 1 to 10 million tokens. From 200 million tokens on the first is ahead and
# is used for both: the initialization does no harm. (docs/planning.md lists all runs.)
RANDOM_INIT_CURVE = LearningCurve(8e6, 0.45)
NEIGHBORS_INIT_CURVE = LearningCurve(4e5, 0.2375)
# By model.position_init of the recipe; of several curves the lowest loss counts.
LEARNING_CURVES = {
    "normal": (RANDOM_INIT_CURVE,),
    "sinusoidal": (RANDOM_INIT_CURVE,),
    "neighbors": (RANDOM_INIT_CURVE, NEIGHBORS_INIT_CURVE),
}

# Uncertainty of the number of tokens: the ends of the band are the losses after a quarter and four times as many.
BAND_FACTOR = 4.0

# Repeated text teaches less: after this many repetitions their value has fallen to 1/e. (Muennighoff et al., "Scaling
# Data-Constrained Language Models", 2023, for causal LMs. With dynamic masking it should decay more slowly.)
REPETITION_DECAY = 15.0

_MAX_FINAL_RATIO = 0.95  # of the unigram entropy: even the smallest model learns something


@dataclass(frozen=True, slots=True)
class LossBand:
    """A forecast MLM loss in nats, with its lower and upper bound."""

    low: float
    middle: float
    high: float


def step_flops(config: EncoderConfig, batch_size: int, length: int, mask_prob: float = 0.15) -> float:
    """Return the FLOPs of the matmuls of a training step on full-length sequences, forward and backward."""
    hidden_size, num_tokens = config.hidden_size, batch_size * length
    layer = (
        2 * num_tokens * (4 * hidden_size * hidden_size + 2 * hidden_size * config.feed_forward_size)
        + 4 * num_tokens * length * hidden_size
    )
    num_masked = batch_size * round(mask_prob * max(length - 3, 1))
    heads = (
        2 * num_masked * (hidden_size * hidden_size + hidden_size * config.vocab_size)
        + 2 * batch_size * hidden_size * hidden_size
    )
    return float(_FORWARD_BACKWARD_FACTOR * (config.depth * layer + heads))


def layer_parameters(config: EncoderConfig) -> int:
    """Return the number of parameters of all layers, without the embeddings: what the loss depends on."""
    hidden_size, intermediate_size = config.hidden_size, config.feed_forward_size
    return config.depth * (
        4 * hidden_size * hidden_size + 2 * hidden_size * intermediate_size + intermediate_size + 9 * hidden_size
    )


def effective_tokens(num_tokens: float, num_corpus_tokens: float) -> float:
    """Return how many unique tokens are worth as much as `num_tokens` from a corpus of `num_corpus_tokens`."""
    if num_tokens <= num_corpus_tokens:
        return num_tokens
    repetitions = num_tokens / num_corpus_tokens - 1
    return num_corpus_tokens * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def forecast_loss(
    config: EncoderConfig, num_tokens: float, unigram_entropy: float, position_init: str = "normal"
) -> LossBand:
    """Return the expected held-out loss after `num_tokens` effective tokens, for the recipe's `position_init`.

    It falls from the unigram entropy, which a run reaches within a few hundred steps, to the final loss of a model of
    this size after the paper's million steps.
    """
    ratio = PAPER_LOSS / PAPER_ENTROPY * (layer_parameters(config) / PAPER_LAYER_PARAMETERS) ** -SIZE_EXPONENT
    final_ratio = min(ratio, _MAX_FINAL_RATIO)

    def loss_after(tokens: float) -> float:
        remaining = min(
            (1 + tokens / curve.onset_tokens) ** -curve.exponent for curve in LEARNING_CURVES[position_init]
        )
        return unigram_entropy * (final_ratio + (1 - final_ratio) * remaining)

    return LossBand(loss_after(num_tokens * BAND_FACTOR), loss_after(num_tokens), loss_after(num_tokens / BAND_FACTOR))
