"""The heads of a model in, what a graph computes of them out; a runtime in, what predicts and fills through it out."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.disk import read_json
from bertworks.encoders.stack import BertConfig
from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder, Runtime, refuse
from bertworks.engines.onnx_graph import LAST_HIDDEN_STATE, LOGITS, GraphHead
from bertworks.engines.processor import check_processor
from bertworks.errors import FolderError, SettingsError
from bertworks.inference.finetuned import is_finetuned, read_task, read_window_rule
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder
from bertworks.objectives.heads import MlmHead
from bertworks.tasks.heads import PooledHead, PositionHead, SpanHead
from bertworks.tasks.module import TaskModule

# The kind of each head in a graph; see `onnx_graph.HEADS`.
HEAD_KINDS: dict[type[nn.Module], str] = {PooledHead: "rows", PositionHead: "places", SpanHead: "spans"}


def graph_head(mlm_head: MlmHead | None, predictor: Predictor | None) -> GraphHead | None:
    """Return the head that a graph computes: that of the task, or else the one that fills blanks, if there is any."""
    if predictor is None:
        return None if mlm_head is None else GraphHead("blanks", _tensors(mlm_head))
    head = predictor.module.head
    if type(head) not in HEAD_KINDS:
        raise SettingsError(
            "a recurrent head on the features of a frozen encoder runs in torch only; leave --engine and export out, "
            "or fine-tune the model without --features"
        )
    return GraphHead(HEAD_KINDS[type(head)], _tensors(head))


def _tensors(head: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    return {name: values.detach().float().cpu().numpy() for name, values in head.state_dict().items()}


class GraphMlmHead(MlmHead):
    """The head that fills blanks, where it is inside a graph: its own `encoder` gives scores instead of vectors."""

    def __init__(self, config: BertConfig, runtime: Runtime) -> None:
        nn.Module.__init__(self)  # not MaskedHead's: it has no weights
        self.encoder = GraphEncoder(config, runtime, HEAD_OUTPUTS["blanks"])

    def transform(self, vectors: torch.Tensor) -> NoReturn:
        refuse(self.encoder.runtime.name)

    def forward(self, vectors: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the scores as they are."""
        return vectors


def read_exported_folder(path: Path) -> ModelFolder:
    """Open a folder that was exported: its settings and its tokenizer, for its weights are in the graph."""
    check_processor(path)
    told = path / "bertworks.json"
    own = read_json(told, "a model folder") if told.is_file() else {}
    return ModelFolder(path, read_json(path / "config.json", "a model folder"), own, {})


def load_graph_parts(
    runtime: Runtime, folder: ModelFolder
) -> tuple[GraphEncoder, GraphMlmHead | None, Predictor | None]:
    """Return the encoder that a runtime computes, what fills blanks and what predicts, as far as the graph has them."""
    wanted = {LAST_HIDDEN_STATE}
    if is_finetuned(folder):
        task = read_task(folder)
        kind = HEAD_KINDS[type(task.head(folder.encoder_config))]
        wanted |= {*HEAD_OUTPUTS[kind].last_hidden_state, *filter(None, [HEAD_OUTPUTS[kind].pooled])}
    if not wanted <= set(runtime.outputs):
        lacking = ", ".join(sorted(wanted - set(runtime.outputs)))
        raise FolderError(f"{folder.path}: the graph does not give {lacking}; make it with `bertworks export`")
    encoder = GraphEncoder(folder.encoder_config, runtime)
    if is_finetuned(folder):
        rule = read_window_rule(folder.metadata, task, folder.encoder_config.max_position_embeddings)
        module = TaskModule(GraphEncoder(folder.encoder_config, runtime, HEAD_OUTPUTS[kind]), task)
        module.head.score = nn.Identity()  # the product is done in the graph: the rest of the head picks
        module.eval()
        return encoder, None, Predictor(module, folder.tokenizer, rule)
    return encoder, GraphMlmHead(folder.encoder_config, runtime) if LOGITS in runtime.outputs else None, None
