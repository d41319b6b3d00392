"""What static word vectors are trained with: frozen settings a kind, and what a training hands back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError

# Stage, how much is done, of how much, in which unit.
TrainingCallback = Callable[[str, int, int, str], None]
OBJECTIVES = ("cbow", "skip-gram")


@dataclass(frozen=True, slots=True)
class GloveSettings:
    """How GloVe is trained.

    window       words on each side that count as near
    rate         AdaGrad's rate at the beginning
    x_max, alpha the weight of a pair's error is min(1, count / x_max) ** alpha
    memory_mb    what counting and shuffling pairs may take; beside it stand four tables of V x D
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
        for name in ("width", "window", "epochs", "memory_mb", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} = {getattr(self, name)}: must be 1 or more")
        for name in ("rate", "x_max"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(f"{name} = {getattr(self, name)}: must be more than 0")
        if not 0 <= self.alpha <= 1:
            raise SettingsError(f"alpha = {self.alpha}: must lie in 0..1")


@dataclass(frozen=True, slots=True)
class Word2VecSettings:
    """How Word2Vec is trained.

    objective        "skip-gram": a word tells those around it; "cbow": they tell the word
    window           words on each side at most: each place draws its own width up to this
    rate, last_rate  the rate at the beginning and at the end; it falls evenly
    negative         words drawn at random against each one that was met
    sample           words of a larger share are left out the more often the larger it is; 0 keeps all
    threads          with more than one the result cannot be repeated
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
        for name in ("width", "window", "epochs", "negative", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} = {getattr(self, name)}: must be 1 or more")
        if not 0 < self.min_learning_rate <= self.learning_rate < math.inf:
            raise SettingsError(
                f"rate = {self.learning_rate}: must not be less than the last one, {self.min_learning_rate}"
            )
        if not 0 <= self.sample < 1:
            raise SettingsError(f"sample = {self.sample}: must be at least 0 and less than 1")


@dataclass(frozen=True, slots=True)
class TrainedVectors:
    """The vectors (V, D) of a stream's words, and what the training tells about itself."""

    table: npt.NDArray[np.float32]
    metadata: dict[str, object]


# Each kind of vectors and the settings it begins with.
KINDS: dict[str, GloveSettings | Word2VecSettings] = {
    "glove": GloveSettings(),
    "skip-gram": Word2VecSettings(objective="skip-gram"),
    "cbow": Word2VecSettings(objective="cbow"),
}
