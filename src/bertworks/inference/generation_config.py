"""How text is generated, and what comes out: options in, a GenerationConfig out; importable without PyTorch.

V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertworks.errors import SettingsError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """How the next token is sampled.

    max_new_tokens  stop after this many tokens
    top_k           sample from the k most probable tokens; 1: greedy decoding; 0: no limit
    top_p           sample from the smallest set of tokens with at least this total probability (nucleus); 1: no limit
    temperature     divides the logits: below 1 sharpens the distribution, above 1 flattens it
    seed            of the random generator
    """

    max_new_tokens: int = 40
    top_k: int = 1
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise SettingsError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if self.top_k < 0:
            raise SettingsError(f"top_k is {self.top_k}; it must be 0 (no limit) or more")
        if not 0 < self.top_p <= 1:
            raise SettingsError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.temperature <= 0:
            raise SettingsError(f"temperature is {self.temperature}; it must be above 0 (greedy decoding is top_k = 1)")

    def probabilities(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the sampling probabilities (V,) given the model's log probabilities (V,)."""
        import torch

        logits = log_probs / self.temperature
        if self.top_k:
            logits = logits.masked_fill(logits < logits.topk(min(self.top_k, len(logits))).values[-1], float("-inf"))
        probs, order = torch.softmax(logits, -1).sort(descending=True, stable=True)
        if self.top_p < 1:
            preceding = probs.cumsum(0) - probs  # a token stays while the more probable ones do not reach top_p
            probs = probs.masked_fill(preceding >= self.top_p, 0.0)
        return torch.zeros_like(probs).scatter(0, order, probs / probs.sum())


def make_generation_config(
    max_new_tokens: int, top_k: int | None, top_p: float | None, temperature: float | None, seed: int
) -> GenerationConfig:
    """Return the config of explicit options: greedy decoding unless top_k, top_p or temperature is given."""
    default_top_k = 1 if top_p is None and temperature is None else 0
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        top_k=default_top_k if top_k is None else top_k,
        top_p=1.0 if top_p is None else top_p,
        temperature=1.0 if temperature is None else temperature,
        seed=seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The text with its continuation, the new tokens with their probabilities, and why generation ended.

    finish_reason is "eos" (the end token was sampled), "max_new_tokens", or "max_length" (no position is left).
    Probabilities are the model's own, before top_k, top_p and temperature.
    """

    text: str
    continuation: str
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class NextWord:
    """A candidate for the next word, its tokens, and the product of their probabilities."""

    word: str
    tokens: tuple[str, ...]
    probability: float
