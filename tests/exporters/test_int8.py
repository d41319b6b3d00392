"""int8 quantization: weights and activations by hand, smoothing, outlier channels and the bisection."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from exported_models import pretrained

from bertworks.engines.processor import has_exact_int8_matmul
from bertworks.exporters.int8 import (
    _cosine_evaluator,
    bisect_smallest,
    fake_quantize,
    outlier_channels,
    plan_quantization,
    quantize_weight,
    smoothing_factors,
    write_int8,
)
from bertworks.exporters.parity import builtin_sample
from bertworks.inference.model import load

pytestmark = pytest.mark.usefixtures("one_thread")


def test_each_column_of_a_weight_has_its_own_scale():
    quantized, scales = quantize_weight(np.array([[1.0, 100.0, 0.0], [-0.5, 50.0, 0.0]], np.float32), 8)
    assert quantized.dtype == np.int8
    assert quantized.tolist() == [[127, 127, 0], [-64, 64, 0]]  # -63.5 and 63.5 are rounded to even
    np.testing.assert_allclose(scales, [1 / 127, 100 / 127, 1 / 127], rtol=1e-6)


def test_seven_bits_never_exceed_63():
    quantized, scales = quantize_weight(np.array([[1.0], [-1.0], [0.25]], np.float32), 7)
    assert quantized.tolist() == [[63], [-63], [16]]
    np.testing.assert_allclose(scales, [1 / 63], rtol=1e-6)


def test_activations_share_one_scale_and_zero_stays_zero():
    """From -1 to 254 there are 255 steps of 1: integers are exact, 0.4 becomes 0."""
    values = np.array([[-1.0, 0.0, 0.4], [7.0, 100.6, 254.0]], np.float32)
    assert fake_quantize(values).tolist() == [[-1, 0, 0], [7, 101, 254]]


def test_activations_that_are_all_zero_stay_zero():
    assert fake_quantize(np.zeros((2, 3), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_smoothing_factors_by_hand():
    values, matrix = np.array([[16.0, -1.0]], np.float32), np.array([[1.0, -4.0], [0.25, 0.0]], np.float32)
    np.testing.assert_allclose(smoothing_factors(values, matrix, 0.5), [4 / 2, 1 / 0.5])
    np.testing.assert_allclose(smoothing_factors(values, matrix, 1.0), [16, 1])


def test_outlier_channels_are_few_and_above_half_of_the_largest():
    values = np.ones((3, 20), np.float32)
    assert outlier_channels(values).tolist() == []  # all have the same range
    values[1, 7], values[2, 3] = -9.0, 5.0
    assert outlier_channels(values).tolist() == [3, 7]
    values[:, :6] = 9.0
    assert outlier_channels(values).tolist() == []  # more than a quarter are no outliers


def test_smoothing_does_not_change_the_exact_product():
    generator = np.random.default_rng(1)
    values, matrix = generator.standard_normal((5, 8)), generator.standard_normal((8, 3))
    factors = smoothing_factors(values.astype(np.float32), matrix.astype(np.float32), 0.75)
    np.testing.assert_allclose((values / factors) @ (matrix * factors[:, None]), values @ matrix, rtol=1e-9)


@pytest.mark.parametrize("smallest", range(25))
def test_bisection_finds_the_smallest_of_24_in_at_most_six_calls(smallest: int):
    calls: list[int] = []

    def passes(number: int) -> bool:
        calls.append(number)
        return number >= smallest

    assert bisect_smallest(24, passes) == smallest
    assert len(calls) <= 6
    assert len(calls) == len(set(calls))


def test_the_linears_with_the_largest_error_stay_in_fp32(tmp_path):
    model = load(pretrained(tmp_path / "model"))
    scheme = write_int8(model, tmp_path, builtin_sample(model), 0.9999)
    cosines = {attempt["fp32_linears"]: attempt["mean_cosine"] for attempt in scheme["attempts"]}
    num_fp32 = len(scheme["fp32_linears"])
    assert all(cosine < 0.9999 for number, cosine in cosines.items() if number < num_fp32)
    assert cosines.get(num_fp32, 1.0) >= 0.9999
    assert scheme["weight_bits"] == (8 if has_exact_int8_matmul() else 7)
    assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize("bias", [0.0, 40.0])
def test_outlier_channels_are_computed_separately(tmp_path, bias: float):
    """One channel gets a large range, by its weights or its bias; the quantization of the others is unchanged."""
    model = load(pretrained(tmp_path / "model"))
    sample = builtin_sample(model)
    with torch.no_grad():
        intermediate = model.encoder.layers[0].intermediate
        intermediate.bias[5] = bias
        intermediate.weight[5] *= 1.0 if bias else 40.0
    quantizer = plan_quantization(model, sample.sequences, 8)
    assert quantizer.outliers["layers.0"].indices.tolist() == [5]
    mean_cosine = _cosine_evaluator(model, sample)
    others = {layer: outliers for layer, outliers in quantizer.outliers.items() if layer != "layers.0"}
    assert mean_cosine(quantizer) > mean_cosine(replace(quantizer, outliers=others))
    all_linears = frozenset(quantizer.linears)
    assert mean_cosine(replace(quantizer, fp32_linears=all_linears)) == pytest.approx(1, abs=1e-6)
    assert mean_cosine(replace(quantizer, fp32_linears=all_linears - {"layers.0.output"})) > 0.999
