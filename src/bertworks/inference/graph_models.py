"""Models whose graph runs in ONNX Runtime or OpenVINO: a runtime in, an encoder, a masked-LM head or a predictor out.

All of it computes in numpy: neither this file nor what it imports needs PyTorch.

P masked positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder, GraphOutputs, Runtime
from bertworks.engines.graph_names import LOGITS
from bertworks.errors import FolderError
from bertworks.inference.finetuned import read_task, task_window_rule
from bertworks.inference.predictor import Predictor
from bertworks.sampling.padding import TokenSequence
from bertworks.tasks.contract import InputSequence, Outputs, Task
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertworks.encoders.config import EncoderConfig
    from bertworks.models.exported_folder import ExportedFolder
    from bertworks.models.folder import ModelFolder
    from bertworks.models.graph_config import GraphConfig
    from bertworks.tasks.module import TaskModule

Ints = npt.NDArray[np.int64]
PreHook = Callable[[Any, Any], None]


class GraphMlmHead:
    """A masked-LM head inside a graph."""

    def __init__(self, config: EncoderConfig | GraphConfig, runtime: Runtime) -> None:
        self.encoder = GraphEncoder(config, runtime, HEAD_OUTPUTS["mlm"])
        self._hooks: list[PreHook] = []

    def logits_at(
        self, encoder: object, sequences: Sequence[TokenSequence], positions: Sequence[Ints], pad: int
    ) -> npt.NDArray[np.float32]:
        """Return the logits (P, V) at the positions of each sequence; as `MlmHead.logits_at`."""
        for hook in self._hooks:
            hook(self, ())
        return self.encoder.mlm_logits(sequences, positions, pad)

    def register_forward_pre_hook(self, hook: PreHook) -> HookHandle:
        """Call `hook` before every run, as that of a torch module."""
        self._hooks.append(hook)
        return HookHandle(self._hooks, hook)


@dataclass(frozen=True, slots=True)
class HookHandle:
    """Removes a hook."""

    hooks: list[PreHook]
    hook: PreHook

    def remove(self) -> None:
        self.hooks.remove(self.hook)


class GraphTaskModule:
    """A task whose encoder and head are a graph: input sequences in, the outputs of the head out; see `TaskModule`."""

    def __init__(self, encoder: GraphEncoder, task: Task) -> None:
        self.encoder = encoder
        self.task = task

    @property
    def reads_positions(self) -> bool:
        """Whether the head scores the target positions of a sequence, as that of tags does."""
        return self.encoder.graph_outputs is HEAD_OUTPUTS["tokens"]

    def eval(self) -> GraphTaskModule:
        """Do nothing: a graph has no training mode."""
        return self

    def compute_outputs(self, sequences: Sequence[InputSequence], tokenizer: Tokenizer) -> list[Outputs]:
        """Return the output of the head for each sequence, as `Task.decode` takes it."""
        encoded = self.encoder.encode_sequences(sequences, tokenizer.specials.pad)
        if encoded.pooled is not None:
            return list(encoded.pooled)
        scores = encoded.last_hidden_state  # (N, C)
        outputs = []
        for sequence, start in zip(sequences, encoded.starts, strict=True):
            own_scores = scores[start : start + len(sequence)]
            outputs.append(own_scores if sequence.positions is None else own_scores[sequence.positions])
        return outputs


def load_graph_parts(
    runtime: Runtime, folder: ExportedFolder | ModelFolder, head_kind: str
) -> tuple[GraphEncoder, GraphMlmHead | None, Predictor | None]:
    """Return the encoder of a runtime, and its masked-LM head or predictor, as `head_kind` says; "" for neither."""
    encoder = GraphEncoder(folder.encoder_config, runtime)
    if head_kind not in ("", "mlm"):
        outputs = HEAD_OUTPUTS[head_kind]
        _check_outputs(folder.path, runtime, encoder.graph_outputs.last_hidden_state, outputs)
        task = read_task(folder)
        module = GraphTaskModule(GraphEncoder(folder.encoder_config, runtime, outputs), task)
        window_rule = task_window_rule(folder.metadata, task, folder.encoder_config.max_length)
        columns = folder.metadata.get("columns", {})
        return encoder, None, Predictor(cast("TaskModule", module), folder.tokenizer, window_rule, columns)
    _check_outputs(folder.path, runtime, encoder.graph_outputs.last_hidden_state)
    has_logits = LOGITS in runtime.outputs
    return encoder, GraphMlmHead(folder.encoder_config, runtime) if has_logits else None, None


def _check_outputs(
    path: Path, runtime: Runtime, last_hidden_state: tuple[str, ...], head: GraphOutputs = GraphOutputs((), None)
) -> None:
    missing = {*last_hidden_state, *head.names} - set(runtime.outputs)
    if missing:
        names = ", ".join(sorted(missing))
        raise FolderError(f"{path}: the graph has no output {names}; export the model with `bertworks export`")
