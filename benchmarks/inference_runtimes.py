"""Runtimes that `inference.py` compares with: a working folder in, functions from texts to MiniLM's vectors out.

ONNX Runtime in fp32; OpenVINO in fp32, bf16 and int8 (NNCF's static quantization of weights and activations, calibrated
on texts of the benchmark); CTranslate2 in every precision that it supports on this processor.

B sequences, T positions, D hidden size.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.engines.optional import import_optional
from inference_batches import (
    BATCH_LIMITS,
    HIDDEN_SIZE,
    INPUTS,
    Floats,
    InputIds,
    Settings,
    batched,
    make_tokenizer,
    pad,
)
from inference_torch import pooled_model
from minilm import minilm

NUM_CALIBRATION_TEXTS = 96


def export_onnx(work: Path) -> Path:
    """Write transformers' model with pooling as an ONNX graph."""
    import torch

    path = work / "plain.onnx"
    if not path.exists():
        ones = torch.ones(2, 8, dtype=torch.int64)
        axes = {name: {0: "batch", 1: "length"} for name in INPUTS} | {"vectors": {0: "batch"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends another exporter, which needs one more package
            torch.onnx.export(
                pooled_model(), (ones, ones, 0 * ones), str(path), input_names=list(INPUTS), output_names=["vectors"],
                dynamic_axes=axes, opset_version=17, dynamo=False,
            )  # fmt: skip
    return path


def onnxruntime(work: Path) -> Settings:
    import torch

    runtime = import_optional("onnxruntime", "onnx", "measuring ONNX Runtime")
    optimizer = import_optional("onnxruntime.transformers.optimizer", "onnx", "measuring ONNX Runtime")
    plain, fused = export_onnx(work), work / "fused.onnx"
    optimizer.optimize_model(str(plain), "bert", num_heads=12, hidden_size=HIDDEN_SIZE).save_model_to_file(str(fused))
    for graph in (plain, fused):
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]

        def run(sequences: InputIds, session: Any = session, names: list[str] = names) -> Floats:
            inputs = dict(zip(INPUTS, pad(sequences), strict=True))
            vectors: Floats = session.run(None, {name: inputs[name] for name in names})[0]
            return vectors

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {graph.stem} graph", batched(limits, run)


def openvino(precision: str, work: Path) -> Settings:
    """Yield the settings of OpenVINO in its precision f32 or bf16."""
    return _compiled(export_onnx(work), precision)


def openvino_int8(work: Path) -> Settings:
    """Yield the settings of OpenVINO in int8; what is not quantized is computed in f32 or bf16."""
    path = _quantized(work)
    for precision in ("f32", "bf16"):
        for name, encode in _compiled(path, precision):
            yield f"{name}, {precision} beside int8", encode


def _compiled(path: Path, precision: str) -> Settings:
    import torch

    core = import_optional("openvino", "openvino", "measuring OpenVINO").Core()
    model, num_cores = core.read_model(path), torch.get_num_threads()
    for streams in sorted({1, num_cores}):
        settings = {"INFERENCE_NUM_THREADS": num_cores, "NUM_STREAMS": streams, "INFERENCE_PRECISION_HINT": precision}
        compiled = core.compile_model(model, "CPU", settings)
        requests = [compiled.create_infer_request() for _ in range(streams)]

        def run(sequences: InputIds, requests: list[Any] = requests) -> Floats:
            request = requests.pop()
            request.infer(dict(zip(INPUTS, pad(sequences), strict=True)), share_inputs=True)
            vectors: Floats = request.get_output_tensor(0).data.copy()
            requests.append(request)
            return vectors

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {streams} parallel", batched(limits, run, streams)


def _quantized(work: Path) -> Path:
    """Write OpenVINO's model in int8, with weights and activations quantized statically by NNCF."""
    runtime = import_optional("openvino", "openvino", "measuring OpenVINO")
    with contextlib.redirect_stdout(sys.stderr):  # it prints its progress where our answers go
        nncf = import_optional("nncf", "peers", "measuring OpenVINO in int8")
        texts = json.loads((work / "texts.json").read_text(encoding="utf-8"))
        texts = texts[:: -(-len(texts) // NUM_CALIBRATION_TEXTS)]
        inputs = [dict(zip(INPUTS, pad([ids]), strict=True)) for ids in make_tokenizer()(texts)]
        model = nncf.quantize(
            runtime.Core().read_model(export_onnx(work)),
            nncf.Dataset(inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(inputs),
        )
    path = work / "int8.xml"
    runtime.save_model(model, path, compress_to_fp16=False)
    return path


def ctranslate2(compute_type: str, work: Path) -> Settings:
    """Yield the settings of CTranslate2; none if it lacks the compute type on this processor."""
    import torch

    package = import_optional("ctranslate2", "peers", "measuring CTranslate2")
    if compute_type not in package.get_supported_compute_types("cpu"):
        return
    converters = import_optional("ctranslate2.converters", "peers", "measuring CTranslate2")
    folder, num_cores = work / "ctranslate2", torch.get_num_threads()
    if not folder.exists():
        converters.TransformersConverter(str(minilm())).convert(str(folder))
    for num_parallel in sorted({1, num_cores}):
        encoder = package.Encoder(
            str(folder), compute_type=compute_type, inter_threads=num_parallel, intra_threads=num_cores // num_parallel
        )

        def run(sequences: InputIds, encoder: Any = encoder) -> Floats:
            hidden = np.asarray(encoder.forward_batch(sequences).last_hidden_state)  # (B, T, D)
            lengths = np.array([[len(sequence)] for sequence in sequences], dtype=np.float32)
            weights = (np.arange(hidden.shape[1]) < lengths) / lengths  # (B, T)
            means: Floats = (weights[:, None] @ hidden)[:, 0]
            return means / np.linalg.norm(means, axis=1, keepdims=True)

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {num_parallel} parallel", batched(limits, run, num_parallel)
