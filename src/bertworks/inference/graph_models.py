"""The heads of a model in, what a graph computes of them out; a runtime in, what predicts and fills through it out."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.disk import read_json
from bertworks.encoders.stack import BertSizes
from bertworks.engines.graph_encoder import TAKEN, GraphEncoder, Runtime, refuse
from bertworks.engines.onnx_graph import LAST, LOGITS, GraphHead
from bertworks.engines.processor import check_processor
from bertworks.errors import FolderError, SettingsError
from bertworks.inference.finetuned import is_tuned, rule_in, task_in
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder
from bertworks.objectives.heads import MaskedHead
from bertworks.tasks.heads import PlaceHead, SpanHead, SummaryHead
from bertworks.tasks.module import TaskModule

# The kind of each head in a graph; see `onnx_graph.HEADS`.
KINDS: dict[type[nn.Module], str] = {SummaryHead: "rows", PlaceHead: "places", SpanHead: "spans"}


def graph_head(masked: MaskedHead | None, predictor: Predictor | None) -> GraphHead | None:
    """Return the head that a graph computes: that of the task, or else the one that fills blanks, if there is any."""
    if predictor is None:
        return None if masked is None else GraphHead("blanks", _tensors(masked))
    head = predictor.module.head
    if type(head) not in KINDS:
        raise SettingsError(
            "a recurrent head on the features of a frozen encoder runs in torch only; leave --engine and export out, "
            "or fine-tune the model without --features"
        )
    return GraphHead(KINDS[type(head)], _tensors(head))


def _tensors(head: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    return {name: values.detach().float().cpu().numpy() for name, values in head.state_dict().items()}


class GraphMasked(MaskedHead):
    """The head that fills blanks, where it is inside a graph: its own `encoder` gives scores instead of vectors."""

    def __init__(self, sizes: BertSizes, runtime: Runtime) -> None:
        nn.Module.__init__(self)  # not MaskedHead's: it has no weights
        self.encoder = GraphEncoder(sizes, runtime, TAKEN["blanks"])

    def transform(self, vectors: torch.Tensor) -> NoReturn:
        refuse(self.encoder.runtime.name)

    def forward(self, vectors: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the scores as they are."""
        return vectors


def exported_folder(path: Path) -> ModelFolder:
    """Open a folder that was exported: its settings and its tokenizer, for its weights are in the graph."""
    check_processor(path)
    told = path / "bertworks.json"
    own = read_json(told, "a model folder") if told.is_file() else {}
    return ModelFolder(path, read_json(path / "config.json", "a model folder"), own, {})


def parts_through(runtime: Runtime, folder: ModelFolder) -> tuple[GraphEncoder, GraphMasked | None, Predictor | None]:
    """Return the encoder that a runtime computes, what fills blanks and what predicts, as far as the graph has them."""
    wanted = {LAST}
    if is_tuned(folder):
        task = task_in(folder)
        kind = KINDS[type(task.head(folder.sizes))]
        wanted |= {*TAKEN[kind].last, *filter(None, [TAKEN[kind].summary])}
    if not wanted <= set(runtime.outputs):
        lacking = ", ".join(sorted(wanted - set(runtime.outputs)))
        raise FolderError(f"{folder.path}: the graph does not give {lacking}; make it with `bertworks export`")
    encoder = GraphEncoder(folder.sizes, runtime)
    if is_tuned(folder):
        rule = rule_in(folder.told, task, folder.sizes.positions)
        module = TaskModule(GraphEncoder(folder.sizes, runtime, TAKEN[kind]), task)
        module.head.score = nn.Identity()  # the product is done in the graph: the rest of the head picks
        module.eval()
        return encoder, None, Predictor(module, folder.tokenizer, rule)
    return encoder, GraphMasked(folder.sizes, runtime) if LOGITS in runtime.outputs else None, None
