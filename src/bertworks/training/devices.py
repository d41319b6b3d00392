"""Device and precision of a step: their names in, torch's objects out."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bertworks.encoders.precision import CPU, DTYPES
from bertworks.errors import SettingsError

# Small gradients underflow in fp16, so the loss is scaled by the largest power of two that does not overflow.
_INITIAL_SCALE = 2.0**16
_GROWTH_INTERVAL = 2_000


def _is_cuda_available() -> bool:
    return torch.cuda.is_available()


def _is_mps_available() -> bool:
    return torch.backends.mps.is_available()


_IS_AVAILABLE: dict[str, Callable[[], bool]] = {
    "cuda": _is_cuda_available,
    "mps": _is_mps_available,
    "cpu": lambda: True,
}
DEVICES = ("auto", "cpu", "cuda", "mps", "xla")


def device_of(name: str) -> torch.device:
    """Return the device of that name; `auto` is the first available one of cuda, mps and cpu."""
    if name == "auto":
        name = next(candidate for candidate, is_available in _IS_AVAILABLE.items() if is_available())
    if name not in DEVICES:
        raise SettingsError(f"there is no device '{name}'; choose one of: {', '.join(DEVICES)}")
    if name == "xla":
        try:
            device: torch.device = importlib.import_module("torch_xla").device()
        except ImportError as error:
            raise SettingsError(
                "computing on a TPU needs the package 'torch_xla'; install it with: pip install torch_xla"
            ) from error
        return device
    if not _IS_AVAILABLE[name]():
        raise SettingsError(f"this machine has no {name}, or this torch cannot use it; choose --device cpu")
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def finish_step(device: torch.device) -> None:
    """Run the operations that XLA has recorded so far; other devices run them at once."""
    if device.type == "xla":
        importlib.import_module("torch_xla").sync()


@dataclass(slots=True)
class LossScaler:
    """The loss scale of fp16, and the number of steps since the last overflow. Part of the train state."""

    scale: float = _INITIAL_SCALE
    num_good_steps: int = 0

    def update(self, grad_norm: float) -> bool:
        """Adapt the scale to the gradient norm of a step, and return whether the scaled gradients overflowed.

        An overflow halves the scale, many steps without one double it. At a scale of 1 an infinite norm is no
        overflow of scaling: training has diverged.
        """
        if math.isfinite(grad_norm):
            self.num_good_steps += 1
            if self.num_good_steps == _GROWTH_INTERVAL:
                self.scale, self.num_good_steps = self.scale * 2, 0
            return False
        self.num_good_steps = 0
        if self.scale <= 1.0:
            return False
        self.scale /= 2
        return True


@dataclass(frozen=True, slots=True)
class Precision:
    """The compute dtype of a device (autocast)."""

    name: str = "fp32"
    device: torch.device = CPU

    def __post_init__(self) -> None:
        if self.name not in DTYPES:
            raise SettingsError(f"there is no precision '{self.name}'; choose one of: {', '.join(DTYPES)}")
        if self.name == "bf16" and self.device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise SettingsError("this GPU does not support bf16; choose --precision fp16 or fp32")

    @property
    def should_scale_loss(self) -> bool:
        """Whether gradients would underflow without loss scaling."""
        return self.name == "fp16"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context manager for the forward pass."""
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.name])
