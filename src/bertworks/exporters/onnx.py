"""ONNX export: a loaded model in, a folder with its ONNX graph out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertworks.disk import write_bytes
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import build_graph
from bertworks.inference.graph_heads import graph_head
from bertworks.inference.model import LoadedModel


def write_onnx(model: LoadedModel, folder: Path) -> dict[str, Any]:
    """Write model.onnx in fp32."""
    graph = build_graph(model.encoder, graph_head(model.mlm_head, model.predictor), model.has_pooler)
    write_bytes(folder / OnnxRuntime.file, graph.SerializeToString())
    return {"precision": "fp32"}
