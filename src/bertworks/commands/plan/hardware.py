"""Hardware specifications: a name such as 8xA100 in, its peak FLOP/s, memory and utilisation out.

Peaks are the vendors' for dense matmuls in 16 bits; the utilisation is what BERT reaches in practice, with its source.
The result is arithmetic, not a measurement of this package on such hardware.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from bertworks.errors import SettingsError

_GIB = 2**30

# NVIDIA's BERT-Large pretraining in PyTorch (DeepLearningExamples), mixed precision, in sequences per second: 8 V100
# with 32 GB 1,306 at length 128 and 232 at 512, by `step_flops` 31 % and 24 % of the peak; 8 A100 with 40 GB 3,231 and
# 620, 31 % and 25 %. (8 A100 with 80 GB later reached 4,591 at 128, 44 %.)
_NVIDIA_SOURCE = "NVIDIA's published throughput of BERT-Large"
_ASSUMPTION_SOURCE = "assumed: a little less than is published for V100 and A100"
# Base took 4 days on 16 chips, Large 4 days on 64: 9.5 % and 8.2 % of the peak of the second generation.
_PAPER_SOURCE = "the BERT paper's 4 days, for Base on 16 and for Large on 64 chips"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A number of equal devices. `peak_flops` (FLOP/s) and `memory` (bytes) are those of one device."""

    name: str
    peak_flops: float
    memory: int | None
    utilisation: float
    source: str
    num_devices: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.peak_flops < math.inf:
            raise SettingsError(f"the peak FLOP/s are {self.peak_flops}; give a positive number such as 312e12")
        if self.num_devices < 1:
            raise SettingsError(f"the number of devices is {self.num_devices}; it must be at least 1")
        if not 0 < self.utilisation <= 1:
            raise SettingsError(f"the utilisation is {self.utilisation}; it must be above 0 and at most 1")

    @property
    def label(self) -> str:
        return f"{self.num_devices}x{self.name}"

    def seconds(self, flops: float) -> float:
        """Return the time for a number of FLOPs."""
        return flops / (self.num_devices * self.peak_flops * self.utilisation)


_KINDS = tuple(
    Hardware(name=name, peak_flops=peak_flops, memory=memory * _GIB, utilisation=utilisation, source=source)
    for name, peak_flops, memory, utilisation, source in (
        ("TPUv2", 45e12, 16, 0.09, _PAPER_SOURCE),
        ("V100", 125e12, 16, 0.28, _NVIDIA_SOURCE),
        ("A100", 312e12, 40, 0.28, _NVIDIA_SOURCE),
        ("H100", 989e12, 80, 0.25, _ASSUMPTION_SOURCE),
        ("T4", 65e12, 16, 0.25, _ASSUMPTION_SOURCE),
        ("RTX3090", 71e12, 24, 0.25, _ASSUMPTION_SOURCE),
        ("RTX4090", 165e12, 24, 0.25, _ASSUMPTION_SOURCE),
    )
)
HARDWARE = {kind.name.lower(): kind for kind in _KINDS}


def parse_hardware(text: str) -> Hardware:
    """Parse "8xA100" or "A100"; an unknown kind raises an error that lists the known ones."""
    match = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?(\w+)", text.strip(), re.IGNORECASE)
    kind = HARDWARE.get(match[2].lower()) if match else None
    if match is None or kind is None:
        kinds = ", ".join(kind.name for kind in _KINDS)
        raise SettingsError(
            f"there is no hardware '{text}'; write a number and one of: {kinds}, such as 8xA100, or give the peak "
            f"FLOP/s of a device with --flops 312e12 --devices 8"
        )
    return replace(kind, num_devices=int(match[1] or 1))


def hardware_from_flops(peak_flops: float, num_devices: int, utilisation: float) -> Hardware:
    """Return hardware of which only the peak FLOP/s of a device are known."""
    return Hardware(
        name=f"{peak_flops:.3g} flop/s",
        peak_flops=peak_flops,
        memory=None,
        utilisation=utilisation,
        source="as given",
        num_devices=num_devices,
    )
