"""int8 export: a loaded model and sample sequences in, an ONNX graph of 8-bit matmuls with a required mean cosine out.

Weights have a scale per column, activations one per matmul of a batch, so outlier channels spoil the latter. A BERT has
two kinds, and both can be removed without changing the result:

- Some channels of normalized values. They are divided by a factor, and the weight is multiplied by it (SmoothQuant).
- One or two channels inside a feed-forward network, at special tokens. They are computed separately in fp32.

The linear layers with the largest remaining error stay in fp32, as few of them as the cosine allows.

N tokens, K input and M output channels of a linear layer, D hidden size, L outlier channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import write_bytes
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import build_graph
from bertworks.engines.onnx_nodes import GraphNodes, activate, float_linear
from bertworks.engines.optional import import_optional
from bertworks.engines.processor import has_exact_int8_matmul
from bertworks.errors import FolderError
from bertworks.exporters.parity import ParitySample, cosines_of, sequence_vectors
from bertworks.inference.graph_heads import graph_head
from bertworks.inference.model import LoadedModel
from bertworks.sampling.padding import pad_sequences
from bertworks.sampling.windows import Window

# The linear layers whose inputs are normalized, and SmoothQuant's alpha: how much of the range moves to the weights.
_SMOOTHED_LINEARS, _SMOOTHING_ALPHA = ("query_key_value", "intermediate"), 0.7
# Channels above this ratio of the largest are outliers, unless there are more than _MAX_OUTLIERS of them.
_OUTLIER_RATIO, _MAX_OUTLIERS = 0.5, 16
# Tokens whose activations are used for calibration.
_NUM_CALIBRATION_TOKENS = 1_024
# The namespace of ONNX Runtime's own operators.
_DOMAIN = "com.microsoft"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LinearQuantization:
    """The quantization of a linear layer: its relative error, and the smoothing factors (K,), if any."""

    error: float
    factors: Floats | None = None


@dataclass(frozen=True, slots=True)
class OutlierChannels:
    """The outlier channels of a feed-forward network: their indices (L,), and the weights that compute them in fp32."""

    indices: npt.NDArray[np.intp]
    input_weight: Floats  # (D, L)
    bias: Floats  # (L,)
    output_weight: Floats  # (L, D)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Quantizer:
    """Writes int8 matmuls, except for `fp32_linears`; weights have 8 bits, or 7 (see `processor`).

    `outliers` are by layer. `ffn_inputs` is filled while a graph is built: the input of each feed-forward network.
    """

    linears: Mapping[str, LinearQuantization]
    outliers: Mapping[str, OutlierChannels]
    activation: str
    bits: int
    fp32_linears: frozenset[str] = frozenset()
    ffn_inputs: dict[str, str] = field(default_factory=dict)

    def linear(self, nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
        """Add one linear layer to a graph."""
        layer, _, role = name.rpartition(".")
        outliers = None if f"{layer}.output" in self.fp32_linears else self.outliers.get(layer)
        if outliers is None or role not in ("intermediate", "output"):
            return self._linear(nodes, values, name, matrix, bias)
        matrix, bias = matrix.copy(), bias.copy()
        if role == "intermediate":
            self.ffn_inputs[layer] = values
            matrix[:, outliers.indices] = bias[outliers.indices] = 0
            return self._linear(nodes, values, name, matrix, bias)
        matrix[outliers.indices] = 0
        prefix = f"{layer}.outliers"
        channels = float_linear(nodes, self.ffn_inputs[layer], prefix, outliers.input_weight, outliers.bias)
        output_weight = nodes.weight(f"{prefix}.output_weight", outliers.output_weight)
        exact = nodes.op("MatMul", (activate(nodes, channels, self.activation), output_weight))
        return nodes.op("Add", (self._linear(nodes, values, name, matrix, bias), exact))

    def _linear(self, nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
        if name in self.fp32_linears:
            return float_linear(nodes, values, name, matrix, bias)
        factors = self.linears[name].factors
        if factors is not None:
            values = nodes.op("Mul", (values, nodes.weight(f"{name}.factors", 1 / factors)))
            matrix = matrix * factors[:, None]
        quantized, scales = quantize_weight(matrix, self.bits)
        weights = (nodes.weight(f"{name}.weight", quantized), nodes.weight(f"{name}.scales", scales))
        # The empty name is that of the zero points: weights have none.
        inputs = (values, *weights, "", nodes.weight(f"{name}.bias", bias))
        return nodes.op("DynamicQuantizeMatMul", inputs, name, {"domain": _DOMAIN})


def write_int8(model: LoadedModel, folder: Path, sample: ParitySample, cosine: float) -> dict[str, Any]:
    """Write model.onnx with int8 matmuls at a mean cosine of at least `cosine`; return the scheme.

    Refused if not a single linear layer can be quantized.
    """
    quantizer = plan_quantization(model, sample.sequences, 8 if has_exact_int8_matmul() else 7)
    worst_first = sorted(quantizer.linears, key=lambda name: -quantizer.linears[name].error)
    cosines: dict[int, float] = {}
    mean_cosine = _cosine_evaluator(model, sample)

    def passes(num_fp32: int) -> bool:
        cosines[num_fp32] = mean_cosine(replace(quantizer, fp32_linears=frozenset(worst_first[:num_fp32])))
        return cosines[num_fp32] >= cosine

    num_fp32 = bisect_smallest(len(worst_first), passes)
    if num_fp32 == len(worst_first):
        raise FolderError(
            f"the export of {model.folder} to int8 is refused, and nothing is written: the mean cosine is "
            f"{cosines[0]:.4f} with all linear layers in int8 and stays below {cosine:g} even with one; lower "
            f"--cosine, or export to onnx"
        )
    quantizer = replace(quantizer, fp32_linears=frozenset(worst_first[:num_fp32]))
    graph = build_graph(model.encoder, graph_head(model.mlm_head, model.predictor), model.has_pooler, quantizer.linear)
    write_bytes(folder / OnnxRuntime.file, graph.SerializeToString())
    return {
        "precision": "int8",
        "weight_bits": quantizer.bits,
        "activation_bits": "8, dynamic, one scale per matmul",
        "linears": len(worst_first),
        "fp32_linears": worst_first[:num_fp32],
        "smoothed_linears": sorted(name for name, linear in quantizer.linears.items() if linear.factors is not None),
        "outlier_channels": {layer: len(outliers.indices) for layer, outliers in quantizer.outliers.items()},
        "attempts": [{"fp32_linears": number, "mean_cosine": value} for number, value in cosines.items()],
    }


def plan_quantization(model: LoadedModel, sequences: Sequence[Window], bits: int) -> Int8Quantizer:
    """Return the quantization of the linear layers of a model, calibrated on the activations of these sequences."""
    activations = _activations(model, sequences)
    state = {name: values.detach().float().numpy() for name, values in model.encoder.state_dict().items()}
    linears, outliers = {}, {}
    for name, (values, matrix) in activations.items():
        layer, _, role = name.rpartition(".")
        factors = smoothing_factors(values, matrix) if role in _SMOOTHED_LINEARS else None
        # A channel of a gated feed-forward network is a product of two, and not computed apart.
        has_channels = role == "output" and len(state[f"{layer}.intermediate.weight"]) == len(matrix)
        indices = outlier_channels(values) if has_channels else np.empty(0, dtype=np.intp)
        if len(indices):
            weight, bias = (
                state[f"{layer}.intermediate.weight"][indices].T,
                state[f"{layer}.intermediate.bias"][indices],
            )
            outliers[layer] = OutlierChannels(indices, weight, bias, matrix[indices])
            values = np.where(np.isin(np.arange(values.shape[1]), indices), np.float32(0), values)
        linears[name] = LinearQuantization(_quantization_error(values, matrix, factors, bits), factors)
    return Int8Quantizer(
        linears=linears, outliers=outliers, activation=model.encoder.config.layer_config.hidden_act, bits=bits
    )


def bisect_smallest(upper: int, passes: Callable[[int], bool]) -> int:
    """Return the smallest number that passes, by bisection; `upper` if no smaller one does."""
    if passes(0):
        return 0
    low, high = 0, upper  # low fails, high passes
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def quantize_weight(matrix: Floats, bits: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """Return the quantized weight (K, M) and the scale of each column (M,)."""
    largest = np.abs(matrix).max(0)
    scales = np.where(largest > 0, largest, 1.0) / (2 ** (bits - 1) - 1)
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


def fake_quantize(values: Floats) -> Floats:
    """Quantize activations to 8 bits with one scale and back, as ONNX Runtime does; zero stays exact."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = (high - low) / 255 or 1.0
    zero_point = round(-low / scale)
    quantized = np.clip(np.rint(values / scale) + zero_point, 0, 255)
    dequantized: Floats = ((quantized - zero_point) * scale).astype(np.float32)
    return dequantized


def smoothing_factors(values: Floats, matrix: Floats, alpha: float = _SMOOTHING_ALPHA) -> Floats:
    """Return the factors (K,) that activations (N, K) are divided by and rows of the matrix (K, M) multiplied by."""
    activation_ranges = np.maximum(np.abs(values).max(0), 1e-5)
    weight_ranges = np.maximum(np.abs(matrix).max(1), 1e-5)
    factors: Floats = (activation_ranges**alpha / weight_ranges ** (1 - alpha)).astype(np.float32)
    return factors


def outlier_channels(values: Floats) -> npt.NDArray[np.intp]:
    """Return the few channels of activations (N, K) without which the scale would be at most half as large."""
    largest = np.abs(values).max(0)
    indices = np.flatnonzero(largest > _OUTLIER_RATIO * largest.max())
    return indices if len(indices) <= min(_MAX_OUTLIERS, values.shape[1] // 4) else indices[:0]


def _quantization_error(values: Floats, matrix: Floats, factors: Floats | None, bits: int) -> float:
    """Return the relative error of the output, as the mean over tokens."""
    if factors is not None:
        values, matrix = values / factors, matrix * factors[:, None]
    quantized, scales = quantize_weight(matrix, bits)
    exact = values @ matrix
    errors = np.linalg.norm(fake_quantize(values) @ (quantized * scales) - exact, axis=1)
    return float((errors / np.maximum(np.linalg.norm(exact, axis=1), 1e-30)).mean())


def _activations(model: LoadedModel, sequences: Sequence[Window]) -> dict[str, tuple[Floats, Floats]]:
    """Return the input (N, K) of each linear layer on some of the sequences, and its matrix (K, M)."""
    onnx = import_optional("onnx", "onnx", "writing an ONNX graph")
    linears: list[tuple[str, str, Floats]] = []

    def recording_linear(nodes: GraphNodes, values: str, name: str, matrix: Floats, bias: Floats) -> str:
        linears.append((name, values, matrix))
        return float_linear(nodes, values, name, matrix, bias)

    graph = build_graph(model.encoder, None, False, recording_linear)
    for name in {values for _, values, _ in linears}:
        graph.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    runtime = OnnxRuntime(graph.SerializeToString(), b"")
    padded = pad_sequences(_subsample(sequences), model.tokenizer.specials.pad)
    inputs = (padded.input_ids, padded.attention_mask, padded.token_type_ids)
    outputs, mask = runtime.run(inputs, [values for _, values, _ in linears]), padded.attention_mask.astype(bool)
    activations: dict[str, tuple[Floats, Floats]] = {}
    for (name, _, matrix), values in zip(linears, outputs, strict=True):
        # A shared layer has several inputs: all of them count.
        previous = [activations[name][0]] if name in activations else []
        activations[name] = (np.concatenate([*previous, values[mask]]), matrix)
    return activations


def _subsample(sequences: Sequence[Window]) -> list[Window]:
    """Return evenly spaced sequences of the sample with about _NUM_CALIBRATION_TOKENS tokens."""
    count = max(1, round(len(sequences) * min(1.0, _NUM_CALIBRATION_TOKENS / sum(map(len, sequences)))))
    return [sequences[number * len(sequences) // count] for number in range(count)]


def _cosine_evaluator(model: LoadedModel, sample: ParitySample) -> Callable[[Int8Quantizer], float]:
    """Return a function from a quantizer to the mean cosine similarity of sentence vectors with the original."""
    pooling, pad = model.pooling, model.tokenizer.specials.pad
    original = sequence_vectors(model.encoder, sample.sequences, pooling, pad)

    def mean_cosine(quantizer: Int8Quantizer) -> float:
        graph = build_graph(model.encoder, None, False, quantizer.linear).SerializeToString()
        encoder = GraphEncoder(model.encoder.config, OnnxRuntime(graph, b""))
        return float(cosines_of(original, sequence_vectors(encoder, sample.sequences, pooling, pad)).mean())

    return mean_cosine
