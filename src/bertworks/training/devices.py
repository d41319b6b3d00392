"""Where and how exactly a step is computed: the names of a device and a precision in, torch's objects out."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bertworks.errors import MissingDependencyError, SettingsError

CPU = torch.device("cpu")

# What a recipe may say of precision. In the lower two, products are computed in half the bits and all else in full;
# parameters and the optimizer's state stay in full.
PRECISIONS: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# fp16 has so few small numbers that most slopes would be zero. They are scaled up, as far as none overflows.
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
    """Return the device of that name; `auto` is the first of cuda, mps and cpu that is there."""
    if name == "auto":
        name = next(one for one, is_here in _IS_AVAILABLE.items() if is_here())
    if name not in DEVICES:
        raise SettingsError(f"there is no device '{name}'; choose one of: {', '.join(DEVICES)}")
    if name == "xla":
        try:
            found: torch.device = importlib.import_module("torch_xla").device()
        except ImportError as error:
            raise MissingDependencyError("torch_xla", "torch_xla", "computing on a TPU") from error
        return found
    if not _IS_AVAILABLE[name]():
        raise SettingsError(f"this machine has no {name}, or this torch cannot use it; choose --device cpu")
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def finish_step(device: torch.device) -> None:
    """Have done what was asked of the device: XLA only writes operations down until somebody says so."""
    if device.type == "xla":
        importlib.import_module("torch_xla").sync()


@dataclass(slots=True)
class LossScaler:
    """By how much fp16 slopes are scaled up, and how many steps in a row have gone well. A checkpoint keeps it."""

    scale: float = _INITIAL_SCALE
    num_good_steps: int = 0

    def update(self, grad_norm: float) -> bool:
        """Learn from the norm of a step's gradients, and return whether they have overflowed because of the scale.

        An overflow halves the scale, many steps without one double it. Slopes that overflow without being scaled are
        no fault of the scale.
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
    """How a device computes products."""

    name: str = "fp32"
    device: torch.device = CPU

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise SettingsError(f"there is no precision '{self.name}'; choose one of: {', '.join(PRECISIONS)}")
        if self.name == "bf16" and self.device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise SettingsError("this graphics card has no bf16; choose precision fp16 or fp32")

    @property
    def should_scale_loss(self) -> bool:
        """Whether slopes have to be scaled up."""
        return self.name == "fp16"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which a module computes."""
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=PRECISIONS[self.name])
