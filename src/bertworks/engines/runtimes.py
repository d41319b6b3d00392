"""Engines by name: a folder and an optional engine name in, the engine to use out."""

from __future__ import annotations

from pathlib import Path

from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import SettingsError
from bertworks.models.weight_files import find_weights

TORCH = "torch"
RUNTIMES: dict[str, type[OnnxRuntime] | type[OpenvinoRuntime]] = {"onnx": OnnxRuntime, "openvino": OpenvinoRuntime}
ENGINES = (TORCH, *RUNTIMES)


def find_export_engine(folder: Path) -> str | None:
    """Return the engine that a folder was exported for; None if it has weights for torch."""
    if find_weights(folder) is not None:
        return None
    return next((name for name, runtime in RUNTIMES.items() if (folder / runtime.file).is_file()), None)


def choose_engine(folder: Path, engine: str | None) -> tuple[str, bool]:
    """Return the engine for a folder, and whether the folder was exported for it."""
    if engine is not None and engine not in ENGINES:
        raise SettingsError(f"there is no engine '{engine}'; choose one of: {', '.join(ENGINES)}")
    export_engine = find_export_engine(folder)
    if export_engine is None:
        return engine or TORCH, False
    if engine not in (None, export_engine):
        raise SettingsError(
            f"{folder} was exported for '{export_engine}' and cannot run in '{engine}'; leave --engine out, or use the "
            f"folder that it was exported from"
        )
    return export_engine, True
