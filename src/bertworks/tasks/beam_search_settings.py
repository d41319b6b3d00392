"""Settings of beam search: values of a recipe or a bertworks.json in, checked settings out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertworks.errors import SettingsError

# What a bertworks.json may ask for at most.
_MAX_BEAMS, _MAX_EXTRA_TOKENS = 10_000, 100_000


@dataclass(frozen=True, slots=True)
class BeamSearchSettings:
    """Settings of beam search. The defaults are the paper's.

    num_beams          1: greedy decoding
    length_penalty     a hypothesis of n tokens, its end included, is scored by its log probability divided by
                       ((5 + n) / 6) to this power: higher values favour longer texts
    max_extra_tokens   a target has at most this many tokens more than its source
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_extra_tokens: int = 50

    def __post_init__(self) -> None:
        is_valid = 1 <= self.num_beams <= _MAX_BEAMS and 0 <= self.max_extra_tokens <= _MAX_EXTRA_TOKENS
        if not is_valid or not math.isfinite(self.length_penalty):
            raise SettingsError(
                f"num_beams is {self.num_beams}, length_penalty {self.length_penalty}, max_extra_tokens "
                f"{self.max_extra_tokens}; give from 1 to {_MAX_BEAMS:,}, a number, and from 0 to {_MAX_EXTRA_TOKENS:,}"
            )

    def penalty(self, length: int) -> float:
        """Return the divisor of the log probability of so many tokens."""
        return ((5 + length) / 6) ** self.length_penalty
