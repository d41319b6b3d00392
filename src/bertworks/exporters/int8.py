"""A loaded model and rows in, an ONNX graph of 8-bit products out, at a wanted mean cosine to the original.

Weights have a scale for each column, activations one for each product of a batch, so whatever is far louder than the
rest spoils that scale. In a BERT two things are, and both can be mended without changing the result:

- A few columns of normalised values. They are divided by a factor and the matrix is multiplied by it (smoothing).
- One or two columns inside a feed-forward network, at the special pieces. They are computed apart in full precision.

The products that still lose the most stay in full precision, as few of them as the cosine allows.

N pieces, K rows and M columns of a matrix, D width, L loud columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import write_bytes
from bertworks.embeddings.pooling import read_pooling
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import build_graph
from bertworks.engines.onnx_nodes import GraphNodes, activate, float_linear
from bertworks.engines.optional import import_optional
from bertworks.engines.processor import has_exact_int8_matmul
from bertworks.errors import FolderError
from bertworks.exporters.parity import ParitySample, cosines_of, sequence_vectors
from bertworks.inference.graph_models import graph_head
from bertworks.inference.model import Model
from bertworks.sampling.batch import collate_sequences
from bertworks.sampling.windows import Window

# The products that read normalised values, whose columns are smoothed, and how much of the loudness weights take over.
_SMOOTHED_LINEARS, _SMOOTHING_ALPHA = ("query_key_value", "inner"), 0.7
# Columns above this part of the loudest are loud; if there are more than so many of them, the loudest is no exception.
_OUTLIER_RATIO, _MAX_OUTLIERS = 0.5, 16
# Pieces of which activations are looked at.
_NUM_CALIBRATION_TOKENS = 1_024
# What ONNX Runtime calls its own operators.
_DOMAIN = "com.microsoft"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LinearQuantization:
    """How a product is rounded: its error relative to the result, and the factors (K,) of its columns, if any."""

    error: float
    factors: Floats | None = None


@dataclass(frozen=True, slots=True)
class OutlierChannels:
    """The loud columns of a layer's inner values: their numbers (L,), and what computes them and reads them apart."""

    indices: npt.NDArray[np.intp]
    input_weight: Floats  # (D, L)
    bias: Floats  # (L,)
    output_weight: Floats  # (L, D)


@dataclass(frozen=True, slots=True)
class Int8Quantizer:
    """Computes products of 8-bit numbers, all but those that are kept; weights have 8 bits, or 7 (see `processor`).

    `sides` are by layer. `entering` is filled while a graph is written: what enters each layer's feed-forward network.
    """

    linears: Mapping[str, LinearQuantization]
    outliers: Mapping[str, OutlierChannels]
    activation: str
    bits: int
    fp32_linears: frozenset[str] = frozenset()
    ffn_inputs: dict[str, str] = field(default_factory=dict)

    def linear(self, nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
        """Write one product into a graph."""
        layer, _, role = name.rpartition(".")
        side = None if f"{layer}.outer" in self.fp32_linears else self.outliers.get(layer)
        if side is None or role not in ("inner", "outer"):
            return self._linear(nodes, values, name, matrix, bias)
        matrix, bias = matrix.copy(), bias.copy()
        if role == "inner":
            self.ffn_inputs[layer] = values
            matrix[:, side.indices] = bias[side.indices] = 0
            return self._linear(nodes, values, name, matrix, bias)
        matrix[side.indices] = 0
        loud = float_linear(nodes, self.ffn_inputs[layer], f"{layer}.loud", side.input_weight, side.bias)
        out_of = nodes.weight(f"{layer}.loud.out_of", side.output_weight)
        loud = nodes.op("MatMul", (activate(nodes, loud, self.activation), out_of))
        return nodes.op("Add", (self._linear(nodes, values, name, matrix, bias), loud))

    def _linear(self, nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
        if name in self.fp32_linears:
            return float_linear(nodes, values, name, matrix, bias)
        factors = self.linears[name].factors
        if factors is not None:
            values = nodes.op("Mul", (values, nodes.weight(f"{name}.factors", 1 / factors)))
            matrix = matrix * factors[:, None]
        whole, scales = quantize_weight(matrix, self.bits)
        weights = (nodes.weight(f"{name}.weight", whole), nodes.weight(f"{name}.scales", scales))
        added = nodes.weight(f"{name}.bias", bias)
        # The name left empty is that of zero points: weights have none.
        return nodes.op("DynamicQuantizeMatMul", (values, *weights, "", added), name, {"domain": _DOMAIN})


def write_int8(model: Model, folder: Path, sample: ParitySample, cosine: float) -> dict[str, Any]:
    """Write model.onnx with 8-bit products at a mean cosine of at least `cosine`; return what was tried and chosen.

    Where not a single product can be in 8 bits, there is nothing to export, and that is said.
    """
    how = plan_quantization(model, sample.sequences, 8 if has_exact_int8_matmul() else 7)
    worst_first = sorted(how.linears, key=lambda name: -how.linears[name].error)
    tried: dict[int, float] = {}
    look = _cosine_evaluator(model, sample)

    def passes(num_kept: int) -> bool:
        tried[num_kept] = look(replace(how, fp32_linears=frozenset(worst_first[:num_kept])))
        return tried[num_kept] >= cosine

    num_kept = bisect_smallest(len(worst_first), passes)
    if num_kept == len(worst_first):
        raise FolderError(
            f"the export of {model.folder} to int8 is refused, and nothing is written: the mean cosine is "
            f"{tried[0]:.4f} with all products in 8 bits and stays below {cosine:g} even with one (--cosine); ask for "
            f"less, or export to onnx"
        )
    how = replace(how, fp32_linears=frozenset(worst_first[:num_kept]))
    graph = build_graph(model.encoder, graph_head(model.mlm_head, model.predictor), model.has_pooler, how.linear)
    write_bytes(folder / OnnxRuntime.file, graph.SerializeToString())
    return {
        "precision": "int8",
        "weight_bits": how.bits,
        "activation_bits": "8, with one scale for each product of a batch",
        "products": len(worst_first),
        "kept_in_fp32": worst_first[:num_kept],
        "smoothed": sorted(name for name, one in how.linears.items() if one.factors is not None),
        "loud_columns_apart": {layer: len(side.indices) for layer, side in how.outliers.items()},
        "tried": [{"kept_in_fp32": number, "mean_cosine": found} for number, found in tried.items()],
    }


def plan_quantization(model: Model, sequences: Sequence[Window], bits: int) -> Int8Quantizer:
    """Return how the products of a model are rounded, by what its activations are on these rows."""
    read = _activations(model, sequences)
    state = {name: values.detach().float().numpy() for name, values in model.encoder.state_dict().items()}
    rounded, sides = {}, {}
    for name, (values, matrix) in read.items():
        layer, _, role = name.rpartition(".")
        factors = smoothing_factors(values, matrix) if role in _SMOOTHED_LINEARS else None
        loud = outlier_channels(values) if role == "outer" else np.empty(0, dtype=np.intp)
        if len(loud):
            into, bias = state[f"{layer}.inner.weight"][loud].T, state[f"{layer}.inner.bias"][loud]
            sides[layer] = OutlierChannels(loud, into, bias, matrix[loud])
            values = np.where(np.isin(np.arange(values.shape[1]), loud), np.float32(0), values)
        rounded[name] = LinearQuantization(_quantization_error(values, matrix, factors, bits), factors)
    return Int8Quantizer(rounded, sides, model.encoder.config.hidden_act, bits)


def bisect_smallest(upper: int, passes: Callable[[int], bool]) -> int:
    """Return the smallest number for which `passes` holds, `most` if none smaller does; it is asked few times."""
    if passes(0):
        return 0
    fails, holds = 0, upper
    while holds - fails > 1:
        middle = (fails + holds) // 2
        fails, holds = (fails, middle) if passes(middle) else (middle, holds)
    return holds


def quantize_weight(matrix: Floats, bits: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """Return whole numbers (K, M) of so many bits and the scale (M,) of each column."""
    largest = np.abs(matrix).max(0)
    scales = np.where(largest > 0, largest, 1.0) / (2 ** (bits - 1) - 1)
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


def fake_quantize(values: Floats) -> Floats:
    """Return activations as they are after 8 bits with one scale, as ONNX Runtime does it: 0 stays 0."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = (high - low) / 255 or 1.0
    zero = round(-low / scale)
    found: Floats = ((np.clip(np.rint(values / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)
    return found


def smoothing_factors(values: Floats, matrix: Floats, alpha: float = _SMOOTHING_ALPHA) -> Floats:
    """Return (K,): by what the columns of activations (N, K) are divided and the rows of a matrix multiplied."""
    loud = np.maximum(np.abs(values).max(0), 1e-5)
    heavy = np.maximum(np.abs(matrix).max(1), 1e-5)
    found: Floats = (loud**alpha / heavy ** (1 - alpha)).astype(np.float32)
    return found


def outlier_channels(values: Floats) -> npt.NDArray[np.intp]:
    """Return the few columns of activations (N, K) without which one scale for all would be at least twice as fine."""
    largest = np.abs(values).max(0)
    loud = np.flatnonzero(largest > _OUTLIER_RATIO * largest.max())
    return loud if len(loud) <= min(_MAX_OUTLIERS, values.shape[1] // 4) else loud[:0]


def _quantization_error(values: Floats, matrix: Floats, factors: Floats | None, bits: int) -> float:
    """Return by how much of its own length a piece's result is off, in the mean over pieces."""
    if factors is not None:
        values, matrix = values / factors, matrix * factors[:, None]
    whole, scales = quantize_weight(matrix, bits)
    exact = values @ matrix
    off = np.linalg.norm(fake_quantize(values) @ (whole * scales) - exact, axis=1)
    return float((off / np.maximum(np.linalg.norm(exact, axis=1), 1e-30)).mean())


def _activations(model: Model, sequences: Sequence[Window]) -> dict[str, tuple[Floats, Floats]]:
    """Return for each product of the layers what is multiplied (N, K), on some of the rows, and its matrix (K, M)."""
    onnx = import_optional("onnx", "onnx", "writing an ONNX graph")
    seen: list[tuple[str, str, Floats]] = []

    def product(nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
        seen.append((name, values, matrix))
        return float_linear(nodes, values, name, matrix, bias)

    graph = build_graph(model.encoder, None, False, product)
    for name in {values for _, values, _ in seen}:
        graph.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    encoder = GraphEncoder(model.encoder.config, OnnxRuntime(graph.SerializeToString(), b""))
    batch = collate_sequences(_subsample(sequences), model.tokenizer.specials.pad)
    outputs, real = encoder.compute_outputs(batch, slice(None), [values for _, values, _ in seen])
    found: dict[str, tuple[Floats, Floats]] = {}
    for (name, _, matrix), own in zip(seen, outputs, strict=True):
        # A layer that is passed several times multiplies different values by the same matrix: all of them count.
        before = [found[name][0]] if name in found else []
        found[name] = (np.concatenate([*before, own[real].numpy()]), matrix)
    return found


def _subsample(sequences: Sequence[Window]) -> list[Window]:
    """Return rows from all over the sample, as many as the pieces that are looked at allow."""
    wanted = max(1, round(len(sequences) * min(1.0, _NUM_CALIBRATION_TOKENS / sum(map(len, sequences)))))
    return [sequences[number * len(sequences) // wanted] for number in range(wanted)]


def _cosine_evaluator(model: Model, sample: ParitySample) -> Callable[[Int8Quantizer], float]:
    """Return what tells the mean cosine of the sentence vectors of a way to round."""
    pooling, pad = read_pooling(model.folder), model.tokenizer.specials.pad
    original = sequence_vectors(model.encoder, sample.sequences, pooling, pad)

    def look(how: Int8Quantizer) -> float:
        graph = build_graph(model.encoder, None, False, how.linear).SerializeToString()
        encoder = GraphEncoder(model.encoder.config, OnnxRuntime(graph, b""))
        return float(cosines_of(original, sequence_vectors(encoder, sample.sequences, pooling, pad)).mean())

    return look
