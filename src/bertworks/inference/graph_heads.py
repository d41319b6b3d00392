"""Heads for a graph: the heads of a model in PyTorch in, their kind and tensors for the graph out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import nn

from bertworks.engines.onnx_graph import GraphHead
from bertworks.errors import SettingsError
from bertworks.inference.graph_models import GraphMlmHead
from bertworks.inference.predictor import Predictor
from bertworks.objectives.heads import MlmHead
from bertworks.tasks.heads import PooledHead, PositionHead, SpanHead

# The kind of each task head in a graph; see `onnx_graph.HEADS`.
HEAD_KINDS: dict[type[nn.Module], str] = {PooledHead: "sequence", PositionHead: "tokens", SpanHead: "spans"}


def graph_head(mlm_head: MlmHead | GraphMlmHead | None, predictor: Predictor | None) -> GraphHead | None:
    """Return the head to include in a graph: the task head, else the masked-LM head, if there is one."""
    if predictor is None:
        return GraphHead("mlm", _tensors(mlm_head)) if isinstance(mlm_head, MlmHead) else None
    head = predictor.module.head
    if type(head) not in HEAD_KINDS:
        raise SettingsError(
            "a recurrent head runs only in torch and cannot be exported; omit --engine, or fine-tune without "
            "feature_layers"
        )
    return GraphHead(HEAD_KINDS[type(head)], _tensors(head))


def _tensors(head: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    return {name: values.detach().float().cpu().numpy() for name, values in head.state_dict().items()}
