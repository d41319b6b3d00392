"""Settings and results of the training of static word vectors, by kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError

# (stage, done, total, unit)
TrainingCallback = Callable[[str, int, int, str], None]
OBJECTIVES = ("cbow", "skip-gram")


@dataclass(frozen=True, slots=True, kw_only=True)
class GloveSettings:
    """How GloVe is trained.

    window          context words on each side
    learning_rate   initial learning rate of AdaGrad
    x_max, alpha    a pair's squared error has the weight min(1, count / x_max) ** alpha
    memory_mb       limit for counting and shuffling pairs; four tables of V x D are needed in addition
    """

    vector_size: int = 100
    window: int = 10
    epochs: int = 25
    learning_rate: float = 0.05
    x_max: float = 10.0
    alpha: float = 0.75
    memory_mb: int = 1024
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("vector_size", "window", "epochs", "memory_mb", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} = {getattr(self, name)}: must be 1 or more")
        for name in ("learning_rate", "x_max"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(f"{name} = {getattr(self, name)}: must be more than 0")
        if not 0 <= self.alpha <= 1:
            raise SettingsError(f"alpha = {self.alpha}: must lie in 0..1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word2VecSettings:
    """How Word2Vec is trained.

    objective           "skip-gram": a word predicts its context; "cbow": the context predicts the word
    window              maximum of context words on each side; each position samples its own window size up to it
    learning_rate       initial learning rate; it decays linearly to min_learning_rate
    negative            negative samples per positive example
    sample              threshold of subsampling: more frequent words are dropped at random; 0 for no subsampling
    threads             with more than one the result is not reproducible
    """

    objective: str = "skip-gram"
    vector_size: int = 100
    window: int = 5
    epochs: int = 5
    learning_rate: float = 0.025
    min_learning_rate: float = 0.0001
    negative: int = 5
    sample: float = 1e-3
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise SettingsError(f"objective '{self.objective}' is unknown; choose one of: {', '.join(OBJECTIVES)}")
        for name in ("vector_size", "window", "epochs", "negative", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} = {getattr(self, name)}: must be 1 or more")
        if not 0 < self.min_learning_rate <= self.learning_rate < math.inf:
            raise SettingsError(
                f"learning_rate = {self.learning_rate}: must not be below min_learning_rate = {self.min_learning_rate}"
            )
        if not 0 <= self.sample < 1:
            raise SettingsError(f"sample = {self.sample}: must be at least 0 and less than 1")


@dataclass(frozen=True, slots=True)
class TrainedVectors:
    """The vectors (V, D) of the words of a stream, and metadata of the training."""

    table: npt.NDArray[np.float32]
    metadata: dict[str, object]


# The default settings by kind.
KINDS: dict[str, GloveSettings | Word2VecSettings] = {
    "glove": GloveSettings(),
    "skip-gram": Word2VecSettings(objective="skip-gram"),
    "cbow": Word2VecSettings(objective="cbow"),
}
