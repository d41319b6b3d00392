"""Random parameters for parity tests: a module in, the same module with random parameters out."""

from __future__ import annotations

import torch


def randomize_parameters(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Randomize every parameter, biases and layer norms included, so that all of them have an effect."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:  # sinusoidal positions are not trained
                parameter.normal_(0.1, 0.3, generator=generator)
    return module
