"""Precision: a name and a device in, the compute dtype of matmuls out.

Parameters that are trained, the optimizer's state, norms and softmax are fp32 in every precision.
"""

from __future__ import annotations

import functools
import platform

import torch

from bertworks.errors import SettingsError

CPU = torch.device("cpu")
AUTO = "auto"
# The compute dtype of autocast.
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = (AUTO, *DTYPES)


@functools.cache
def has_native_bf16() -> bool:
    """Whether this processor multiplies bf16 in hardware (AVX-512 BF16, AMX or ARM's BF16) and torch uses it."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_precision(name: str) -> None:
    """Refuse the name of a precision that does not exist."""
    if name not in PRECISIONS:
        raise SettingsError(f"there is no precision '{name}'; choose one of: {', '.join(PRECISIONS)}")


def resolve_precision(name: str, device: torch.device = CPU) -> str:
    """Return the precision of that name; `auto` is bf16 where the device multiplies it in hardware, else fp32."""
    check_precision(name)
    if name != AUTO:
        return name
    is_native = torch.cuda.is_bf16_supported() if device.type == "cuda" else has_native_bf16()
    return "bf16" if is_native and device.type in ("cpu", "cuda") else "fp32"


def describe_precision(requested: str, resolved: str, previous: str | None = None) -> str:
    """Return a sentence on the precision of a run; `previous` is that of the same run before it was resumed."""
    has_hardware = resolve_precision(AUTO) == "bf16"
    if previous is not None and requested == AUTO and resolved == "bf16" and not has_hardware:
        return "precision bf16, as this run began; this processor has no bf16 units, so steps are slower here"
    if previous is not None and requested == AUTO and resolved == "fp32" and has_hardware:
        return "precision fp32, as this run began; this processor would compute a new run in bf16"
    if requested != AUTO:
        return f"precision {resolved}"
    if resolved == "bf16":
        return "precision bf16 (auto: this device multiplies bf16 in hardware; --precision fp32 for full precision)"
    return "precision fp32 (auto: this device has no bf16 units)"
