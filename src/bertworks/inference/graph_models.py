"""Models whose graph runs in ONNX Runtime or OpenVINO: heads in, graph heads out; a runtime in, model parts out."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import family_of
from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder, Runtime, refuse
from bertworks.engines.onnx_graph import LAST_HIDDEN_STATE, LOGITS, GraphHead
from bertworks.engines.processor import check_processor
from bertworks.errors import FolderError, SettingsError
from bertworks.inference.finetuned import is_finetuned, read_task, task_window_rule
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder, with_special_token_rows
from bertworks.models.metadata import read_config, read_metadata
from bertworks.models.next_sentence import as_classifier_config
from bertworks.objectives.heads import MlmHead
from bertworks.tasks.heads import PooledHead, PositionHead, SpanHead
from bertworks.tasks.module import TaskModule

# The kind of each task head in a graph; see `onnx_graph.HEADS`.
HEAD_KINDS: dict[type[nn.Module], str] = {PooledHead: "sequence", PositionHead: "tokens", SpanHead: "spans"}


def graph_head(mlm_head: MlmHead | None, predictor: Predictor | None) -> GraphHead | None:
    """Return the head to include in a graph: the task head, else the masked-LM head, if there is one."""
    if predictor is None:
        return None if mlm_head is None else GraphHead("mlm", _tensors(mlm_head))
    head = predictor.module.head
    if type(head) not in HEAD_KINDS:
        raise SettingsError(
            "a recurrent head runs only in torch and cannot be exported; omit --engine, or fine-tune without "
            "feature_layers"
        )
    return GraphHead(HEAD_KINDS[type(head)], _tensors(head))


def _tensors(head: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    return {name: values.detach().float().cpu().numpy() for name, values in head.state_dict().items()}


class GraphMlmHead(MlmHead):
    """A masked-LM head inside a graph: its `encoder` returns logits instead of hidden states."""

    def __init__(self, config: EncoderConfig, runtime: Runtime) -> None:
        nn.Module.__init__(self)  # not MlmHead's: the weights are in the graph
        self.encoder = GraphEncoder(config, runtime, HEAD_OUTPUTS["mlm"])

    def transform(self, vectors: torch.Tensor) -> NoReturn:
        refuse(self.encoder.runtime.name)

    def forward(self, vectors: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the graph's logits unchanged."""
        return vectors


def read_exported_folder(path: Path) -> ModelFolder:
    """Open an exported folder: its config, metadata and tokenizer; the weights are in the graph.

    Files are compared with the hashes of the folder, if it has them.
    """
    metadata = read_metadata(path)
    check_processor(path)
    config = read_config(path / "config.json")
    try:
        family = family_of(config.get("model_type"))
        family.config_from_dict(config)
    except SettingsError as error:
        raise FolderError(f"{path / 'config.json'}: {error}") from None
    folder = ModelFolder(path, as_classifier_config(config, family), metadata, {})
    return with_special_token_rows(folder) if family.can_lack_special_tokens else folder


def load_graph_parts(
    runtime: Runtime, folder: ModelFolder
) -> tuple[GraphEncoder, GraphMlmHead | None, Predictor | None]:
    """Return the encoder of a runtime, and its masked-LM head and predictor if the graph has them."""
    required = {LAST_HIDDEN_STATE}
    if is_finetuned(folder):
        task = read_task(folder)
        with torch.device("meta"):
            kind = HEAD_KINDS[type(task.head(folder.encoder_config))]
        required |= {*HEAD_OUTPUTS[kind].last_hidden_state, *filter(None, [HEAD_OUTPUTS[kind].pooled])}
    if not required <= set(runtime.outputs):
        missing = ", ".join(sorted(required - set(runtime.outputs)))
        raise FolderError(f"{folder.path}: the graph has no output {missing}; export the model with `bertworks export`")
    encoder = GraphEncoder(folder.encoder_config, runtime)
    if is_finetuned(folder):
        window_rule = task_window_rule(folder.metadata, task, folder.encoder_config.max_length)
        task_encoder = GraphEncoder(folder.encoder_config, runtime, HEAD_OUTPUTS[kind])
        with torch.device("meta"):
            module = TaskModule(task_encoder, task)
        module.head.score = nn.Identity()  # the linear layer is in the graph: only the selection of positions is left
        module.eval()
        return encoder, None, Predictor(module, folder.tokenizer, window_rule, folder.metadata.get("columns", {}))
    return encoder, GraphMlmHead(folder.encoder_config, runtime) if LOGITS in runtime.outputs else None, None
