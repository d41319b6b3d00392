"""The engines by name: what computes a model besides torch, and how a folder tells that it was exported for one."""

from __future__ import annotations

from pathlib import Path

from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import SettingsError
from bertworks.models.weights import find_weights

TORCH = "torch"
RUNTIMES: dict[str, type[OnnxRuntime] | type[OpenvinoRuntime]] = {"onnx": OnnxRuntime, "openvino": OpenvinoRuntime}
ENGINES = (TORCH, *RUNTIMES)


def find_export_engine(folder: Path) -> str | None:
    """Return the engine for which a folder was exported; None if it has weights for torch."""
    if find_weights(folder) is not None:
        return None
    return next((name for name, runtime in RUNTIMES.items() if (folder / runtime.file).is_file()), None)


def choose_engine(folder: Path, engine: str | None) -> tuple[str, bool]:
    """Return the engine that is to compute a folder, and whether the folder was exported for it."""
    if engine is not None and engine not in ENGINES:
        raise SettingsError(f"there is no engine '{engine}'; choose one of: {', '.join(ENGINES)}")
    own = find_export_engine(folder)
    if own is None:
        return engine or TORCH, False
    if engine not in (None, own):
        raise SettingsError(
            f"{folder} was exported for '{own}' and has nothing for '{engine}'; leave --engine out, or use the folder "
            f"that it was exported from"
        )
    return own, True
