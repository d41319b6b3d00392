"""OpenVINO export: a loaded model in, a folder with its OpenVINO graph out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.inference.graph_heads import graph_head
from bertworks.inference.model import LoadedModel


def write_openvino(model: LoadedModel, folder: Path) -> dict[str, Any]:
    """Write openvino_model.xml and openvino_model.bin in fp32."""
    OpenvinoRuntime.from_encoder(model.encoder, graph_head(model.mlm_head, model.predictor), model.has_pooler).save(
        folder
    )
    return {"precision": "fp32"}
