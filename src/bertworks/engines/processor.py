"""int8 support of the processor: nothing in, whether 8-bit matmuls are exact out; and a check of exported folders.

x86 processors without VNNI add two 8-bit products in 16 bits, with saturation. Weights of 7 bits always fit; weights of
8 bits need VNNI.
"""

from __future__ import annotations

import platform
from pathlib import Path

from bertworks.disk import read_json
from bertworks.errors import FolderError

CERTIFICATE = "certificate.json"
_X86 = ("x86_64", "amd64", "i386", "i686")
_FLAGS = ("avx512_vnni", "avx_vnni", "amx_int8")
_CPUINFO = Path("/proc/cpuinfo")  # Linux only; elsewhere VNNI is assumed to be missing


def has_exact_int8_matmul() -> bool:
    """Return whether int8 matmuls are exact on this processor."""
    if platform.machine().lower() not in _X86:
        return True
    flags = _CPUINFO.read_text(encoding="utf-8").split() if _CPUINFO.is_file() else []
    return any(flag in flags for flag in _FLAGS)


def check_processor(folder: Path) -> None:
    """Refuse a folder with 8-bit weights on a processor where they would overflow."""
    if not (folder / CERTIFICATE).is_file():
        return
    certificate = read_json(folder / CERTIFICATE, "an exported folder")
    scheme = certificate.get("scheme") if isinstance(certificate, dict) else None
    if isinstance(scheme, dict) and scheme.get("weight_bits") == 8 and not has_exact_int8_matmul():
        raise FolderError(
            f"{folder} was exported with 8-bit weights for a processor with VNNI, which this one lacks: results would "
            f"be wrong; export the model on this machine, which uses 7-bit weights"
        )
