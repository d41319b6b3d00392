"""Hardware that is not here: a name such as 8xA100 in, its stated rate, memory and utilisation out.

The rates are the makers' for dense products in 16 bits; the utilisation is what BERT gets of them in practice, with its
source. What comes out is arithmetic about machines, not a measurement of this package on them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from bertworks.errors import SettingsError

_GIB = 2**30

# NVIDIA's own BERT-Large pretraining in PyTorch (DeepLearningExamples), mixed precision, in sequences a second: 8 V100
# with 32 GB 1,306 at length 128 and 232 at 512, by `step_flops` 31 % and 24 % of the peak; 8 A100 with 40 GB 3,231 and
# 620, 31 % and 25 %. (8 A100 with 80 GB later reached 4,591 at 128, 44 %.)
_NVIDIA_SOURCE = "NVIDIA's published throughput of BERT-Large"
_ASSUMPTION_SOURCE = "assumed: a little less than is published for V100 and A100"
# Base took 4 days on 16 chips, Large 4 days on 64: 9.5 % and 8.2 % of the peak of the second generation.
_PAPER_SOURCE = "the BERT paper's 4 days, for Base on 16 and for Large on 64 chips"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Some devices of a kind. `peak` is in operations a second and `memory` in bytes, both of one device."""

    name: str
    peak_flops: float
    memory: int | None
    utilisation: float
    source: str
    num_devices: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.peak_flops < math.inf:
            raise SettingsError(f"a peak rate of {self.peak_flops} is no rate; write it as 312e12")
        if self.num_devices < 1:
            raise SettingsError(f"{self.num_devices} devices cannot compute; give at least 1")
        if not 0 < self.utilisation <= 1:
            raise SettingsError(f"a utilisation of {self.utilisation} is none; give a number above 0, up to 1")

    @property
    def label(self) -> str:
        return f"{self.num_devices}x{self.name}"

    def seconds(self, flops: float) -> float:
        """Return how long so many operations take."""
        return flops / (self.num_devices * self.peak_flops * self.utilisation)


_KINDS = (
    Hardware("TPUv2", 45e12, 16 * _GIB, 0.09, _PAPER_SOURCE),
    Hardware("V100", 125e12, 16 * _GIB, 0.28, _NVIDIA_SOURCE),
    Hardware("A100", 312e12, 40 * _GIB, 0.28, _NVIDIA_SOURCE),
    Hardware("H100", 989e12, 80 * _GIB, 0.25, _ASSUMPTION_SOURCE),
    Hardware("T4", 65e12, 16 * _GIB, 0.25, _ASSUMPTION_SOURCE),
    Hardware("RTX3090", 71e12, 24 * _GIB, 0.25, _ASSUMPTION_SOURCE),
    Hardware("RTX4090", 165e12, 24 * _GIB, 0.25, _ASSUMPTION_SOURCE),
)
HARDWARE = {one.name.lower(): one for one in _KINDS}


def parse_hardware(text: str) -> Hardware:
    """Return what "8xA100" or "A100" names; an unknown kind is refused with the list of those that are known."""
    match = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?(\w+)", text.strip(), re.IGNORECASE)
    kind = HARDWARE.get(match[2].lower()) if match else None
    if match is None or kind is None:
        known = ", ".join(one.name for one in _KINDS)
        raise SettingsError(
            f"there is no hardware '{text}'; write a number and one of: {known}, such as 8xA100, or give the rate of a "
            f"device yourself with --flops 312e12 --devices 8"
        )
    return replace(kind, num_devices=int(match[1] or 1))


def hardware_from_flops(peak_flops: float, num_devices: int, utilisation: float) -> Hardware:
    """Return hardware of which only the peak rate of a device is known."""
    return Hardware(f"{peak_flops:.3g} flop/s", peak_flops, None, utilisation, "as given", num_devices)
