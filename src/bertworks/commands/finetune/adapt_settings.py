"""The section [adapt] of a fine-tuning recipe: settings in, validated settings out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertworks.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptSettings:
    """Task-adaptive pretraining (Gururangan et al., 2020): the model's language-model objective on the training texts,
    before their labels are learned.

    epochs          passes over the training texts; 0: none
    learning_rate   the peak, after which it decays linearly to zero
    batch_size      examples per step
    """

    epochs: int = 0
    learning_rate: float = 1e-4
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise SettingsError(f"epochs is {self.epochs}; it must be positive, or 0 for no adaptation")
        if self.batch_size < 1:
            raise SettingsError(f"batch_size is {self.batch_size}; it must be at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"learning_rate is {self.learning_rate}; give a number above 0, such as 1e-4")
