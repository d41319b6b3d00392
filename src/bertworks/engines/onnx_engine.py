"""ONNX Runtime: a graph in, its outputs for token sequences out, with as many threads as `parallel.threads` says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import sha256
from bertworks.engines.graph_encoder import Ints
from bertworks.engines.graph_names import INPUTS
from bertworks.engines.optional import import_optional
from bertworks.errors import BertworksError, FolderError
from bertworks.parallel.threads import get_num_threads

if TYPE_CHECKING:
    from bertworks.encoders.encoder import Encoder
    from bertworks.engines.onnx_graph import GraphHead

_QUIET = 3  # errors only: it warns if it finds no accelerator


class OnnxRuntime:
    """A graph in ONNX Runtime."""

    name = "ONNX Runtime"
    file = "model.onnx"

    def __init__(self, graph: str | bytes, digest: bytes) -> None:
        self._runtime = import_optional("onnxruntime", "onnx", "running a model in ONNX Runtime")
        self._graph = graph
        self._sessions: dict[int, Any] = {}
        # By default it computes all outputs, logits over the vocabulary included, whichever are requested.
        self._options = self._runtime.RunOptions()
        self._options.only_execute_path_to_fetches = True
        self.outputs = tuple(output.name for output in self._session().get_outputs())
        self.digest = digest

    @property
    def num_parallel_batches(self) -> int:
        return get_num_threads()

    def _session(self) -> Any:
        """Return the session for the number of threads of the calling thread; created on first use."""
        num_threads = get_num_threads()
        if num_threads not in self._sessions:
            options = self._runtime.SessionOptions()
            options.intra_op_num_threads = num_threads
            options.log_severity_level = _QUIET
            providers = ["CPUExecutionProvider"]
            self._sessions[num_threads] = self._runtime.InferenceSession(self._graph, options, providers=providers)
        return self._sessions[num_threads]

    @classmethod
    def open(cls, folder: Path) -> OnnxRuntime:
        """Load the graph of an exported folder."""
        path = folder / cls.file
        try:
            return cls(str(path), bytes.fromhex(sha256(path)))
        except Exception as error:  # onnxruntime's exceptions have no common base
            if isinstance(error, BertworksError):
                raise
            first_line = (str(error).splitlines() or [""])[0]
            raise FolderError(f"{path} cannot be read by ONNX Runtime ({first_line}); export the model again") from None

    @classmethod
    def from_encoder(cls, encoder: Encoder, head: GraphHead | None, has_pooler: bool) -> OnnxRuntime:
        """Build and load the graph of an encoder with its head."""
        from bertworks.engines.onnx_graph import build_graph  # with PyTorch

        graph = build_graph(encoder, head, has_pooler).SerializeToString()
        return cls(graph, hashlib.sha256(graph).digest())

    def run(self, inputs: tuple[Ints, Ints, Ints], output_names: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Return the named outputs for input_ids, attention_mask and token_type_ids, each (B, T)."""
        outputs: list[Any] = self._session().run(
            list(output_names), dict(zip(INPUTS, inputs, strict=True)), self._options
        )
        return outputs
