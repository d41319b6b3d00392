"""OpenVINO: a graph in, its outputs for token sequences out, with as many threads as `parallel.threads` says."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import check_space, sha256
from bertworks.engines.graph_encoder import Ints
from bertworks.engines.graph_names import INPUTS
from bertworks.engines.optional import import_optional
from bertworks.errors import FolderError
from bertworks.parallel.threads import get_num_threads

if TYPE_CHECKING:
    from bertworks.encoders.encoder import Encoder
    from bertworks.engines.onnx_graph import GraphHead

_PURPOSE = "running a model in OpenVINO"
# The graph without its weights is smaller.
_MAX_XML_BYTES = 2**21


class OpenvinoRuntime:
    """A graph in OpenVINO. It always computes a whole graph, so each selection of outputs is compiled separately."""

    name = "OpenVINO"
    file = "openvino_model.xml"
    num_parallel_batches = 1  # an infer request is not thread-safe

    def __init__(self, model: Any, digest: bytes) -> None:
        self._model = model
        self._results = {output.get_any_name(): output for output in model.outputs}
        self._inputs = {port.get_any_name() for port in model.inputs}  # unused inputs are removed
        self._requests: dict[tuple[str, ...], Any] = {}
        self._lock = threading.Lock()
        self._num_threads = get_num_threads()
        self.outputs = tuple(self._results)
        self.digest = digest

    @classmethod
    def open(cls, folder: Path) -> OpenvinoRuntime:
        """Load the graph of an exported folder."""
        path = folder / cls.file
        weights = path.with_suffix(".bin")
        try:
            model = _core().read_model(path)
            digest = hashlib.sha256(f"{sha256(path)} {sha256(weights)}".encode()).digest()
        except (RuntimeError, OSError) as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise FolderError(f"{path} cannot be read by OpenVINO ({first_line}); export the model again") from None
        return cls(model, digest)

    @classmethod
    def from_encoder(cls, encoder: Encoder, head: GraphHead | None, has_pooler: bool) -> OpenvinoRuntime:
        """Build and load the graph of an encoder with its head."""
        from bertworks.engines.onnx_graph import build_graph  # with PyTorch

        graph = build_graph(encoder, head, has_pooler).SerializeToString()
        return cls(_core().read_model(graph), hashlib.sha256(graph).digest())

    def save(self, folder: Path) -> None:
        """Write the graph in OpenVINO's format, in fp32."""
        openvino = import_optional("openvino", "openvino", _PURPOSE)
        weights = (node for node in self._model.get_ops() if node.get_type_name() == "Constant")
        weights_file = (folder / self.file).with_suffix(".bin")
        num_bytes = _MAX_XML_BYTES + sum(node.get_byte_size() for node in weights)
        check_space(weights_file, num_bytes)  # on a full disk OpenVINO has no error, or one without the reason
        try:
            openvino.save_model(self._model, folder / self.file, compress_to_fp16=False)
        except RuntimeError as error:
            check_space(weights_file, num_bytes)
            first_line = (str(error).splitlines() or [""])[0]
            raise FolderError(f"OpenVINO cannot write {folder / self.file} ({first_line}); check the disk") from None

    def run(self, inputs: tuple[Ints, Ints, Ints], output_names: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Return the named outputs for input_ids, attention_mask and token_type_ids, each (B, T)."""
        with self._lock:
            request = self._request(tuple(output_names))
            request.infer({name: values for name, values in zip(INPUTS, inputs, strict=True) if name in self._inputs})
            # Copies, because the next run overwrites the memory.
            return [np.array(request.get_output_tensor(number).data) for number in range(len(output_names))]

    def _request(self, output_names: tuple[str, ...]) -> Any:
        """Return the infer request for these outputs; compiled on first use."""
        if output_names not in self._requests:
            openvino = import_optional("openvino", "openvino", _PURPOSE)
            results = [self._results[name].get_node() for name in output_names]
            settings = {
                "INFERENCE_NUM_THREADS": self._num_threads,
                "INFERENCE_PRECISION_HINT": "f32",  # some CPUs would use bf16 silently
                "PERFORMANCE_HINT": "LATENCY",
            }
            model = openvino.Model(results, self._model.get_parameters(), "bert")
            self._requests[output_names] = _core().compile_model(model, "CPU", settings).create_infer_request()
        return self._requests[output_names]


@functools.cache
def _core() -> Any:
    """Return OpenVINO's core, one for the process: each replaces the stack on which signals are handled, and at its end
    puts the one before back, even if that is freed; every later Ctrl-C or SIGTERM is then a segmentation fault."""
    return import_optional("openvino", "openvino", _PURPOSE).Core()
