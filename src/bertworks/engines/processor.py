"""This machine's processor in, whether it multiplies 8-bit numbers without overflow out; and whether a folder needs it.

x86 processors without VNNI add two products of 8-bit numbers in 16 bits and cut off what does not fit. Weights of 7
bits always fit; weights of 8 bits only where there is VNNI.
"""

from __future__ import annotations

import platform
from pathlib import Path

from bertworks.disk import read_json
from bertworks.errors import FolderError

CERTIFICATE = "certificate.json"
_X86 = ("x86_64", "amd64", "i386", "i686")
_FLAGS = ("avx512_vnni", "avx_vnni", "amx_int8")
_CPUINFO = Path("/proc/cpuinfo")  # only Linux has it; elsewhere the careful answer is given


def has_exact_int8_matmul() -> bool:
    """Whether sums of products of 8-bit numbers are exact here."""
    if platform.machine().lower() not in _X86:
        return True
    told = _CPUINFO.read_text(encoding="utf-8").split() if _CPUINFO.is_file() else []
    return any(flag in told for flag in _FLAGS)


def check_processor(folder: Path) -> None:
    """Refuse a folder with weights of 8 bits on a processor that would compute them wrongly."""
    if not (folder / CERTIFICATE).is_file():
        return
    certificate = read_json(folder / CERTIFICATE, "an exported folder")
    scheme = certificate.get("scheme") if isinstance(certificate, dict) else None
    if isinstance(scheme, dict) and scheme.get("weight_bits") == 8 and not has_exact_int8_matmul():
        raise FolderError(
            f"{folder} was exported with 8-bit weights for a processor with VNNI, which this one lacks: its numbers "
            f"would be wrong here; export the model on this machine, where weights of 7 bits are chosen"
        )
