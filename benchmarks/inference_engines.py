"""The engines of `inference.py`, ours and peers: a working folder in, functions from texts to MiniLM's vectors out.

Ours is `bertworks.load(MODEL).encode`, and sentence-transformers' is its `encode`, with their defaults. Every other
peer gets texts sorted by length, in batches, with a few settings of which the fastest is used: batches limited by
sequences or by tokens, one batch on all cores or one per core, the graph as exported or fused, weights in bf16 or
autocast.

B sequences, T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from inference_batches import BATCH_LIMITS, Floats, InputIds, Settings, batched, pad
from inference_llama import llama_cpp
from inference_runtimes import ctranslate2, onnxruntime, openvino, openvino_int8
from inference_torch import pooled_model
from minilm import minilm

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Engine:
    """A precision, and the function that yields the settings of an engine; none if it cannot run here."""

    precision: str
    settings: Callable[[Path], Settings]


def ours(precision: str, work: Path) -> Settings:
    from bertworks.inference.model import load

    yield "default", load(minilm(), precision=precision).encode


def ours_int8(work: Path) -> Settings:
    from bertworks.exporters.export import ExportRequest, export
    from bertworks.inference.model import load

    report = export(ExportRequest(model=str(minilm()), target="int8", output=work / "int8"))
    yield "default", load(report.output).encode


def sentence_transformers(precision: str, work: Path) -> Settings:
    import torch
    from sentence_transformers import SentenceTransformer

    for name, dtype, is_autocast in torch_settings(precision):
        model = SentenceTransformer(str(minilm()), device="cpu").to(dtype)

        def encode(texts: Sequence[str], model: SentenceTransformer = model, is_autocast: bool = is_autocast) -> Floats:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
                return np.asarray(model.encode(list(texts), show_progress_bar=False), dtype=np.float32)

        yield name, encode


def transformers(precision: str, work: Path) -> Settings:
    import torch

    for setting, dtype, is_autocast in torch_settings(precision):
        model = pooled_model().to(dtype)

        @torch.inference_mode()
        def run(sequences: InputIds, model: torch.nn.Module = model, is_autocast: bool = is_autocast) -> Floats:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
                vectors: Floats = model(*map(torch.from_numpy, pad(sequences))).float().numpy()
            return vectors

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {setting}", batched(limits, run)


def torch_settings(precision: str) -> list[tuple[str, torch.dtype, bool]]:
    """Return the ways to compute in a precision: a name, the dtype of the weights, and whether to autocast."""
    import torch

    if precision == "fp32":
        return [("fp32", torch.float32, False)]
    return [("bf16 weights", torch.bfloat16, False), ("autocast", torch.float32, True)]


ENGINES = {
    "ours": Engine("fp32", partial(ours, "fp32")),
    "sentence_transformers": Engine("fp32", partial(sentence_transformers, "fp32")),
    "transformers": Engine("fp32", partial(transformers, "fp32")),
    "onnxruntime": Engine("fp32", onnxruntime),
    "openvino": Engine("fp32", partial(openvino, "f32")),
    "ctranslate2": Engine("fp32", partial(ctranslate2, "float32")),
    "ours_bf16": Engine("bf16", partial(ours, "bf16")),
    "sentence_transformers_bf16": Engine("bf16", partial(sentence_transformers, "bf16")),
    "transformers_bf16": Engine("bf16", partial(transformers, "bf16")),
    "openvino_bf16": Engine("bf16", partial(openvino, "bf16")),
    "ctranslate2_bf16": Engine("bf16", partial(ctranslate2, "bfloat16")),
    "ours_int8": Engine("int8", ours_int8),
    "openvino_int8": Engine("int8", openvino_int8),
    "ctranslate2_int8": Engine("int8", partial(ctranslate2, "int8")),
    "llama_cpp_int8": Engine("int8", llama_cpp),
}
