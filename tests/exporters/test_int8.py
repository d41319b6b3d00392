"""Eight bits: matrices and activations rounded by hand, factors, and a search that asks little."""

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


def test_each_column_of_a_matrix_has_its_own_scale():
    whole, scales = quantize_weight(np.array([[1.0, 100.0, 0.0], [-0.5, 50.0, 0.0]], np.float32), 8)
    assert whole.dtype == np.int8
    assert whole.tolist() == [[127, 127, 0], [-64, 64, 0]]  # -63.5 and 63.5 go to the even neighbour
    np.testing.assert_allclose(scales, [1 / 127, 100 / 127, 1 / 127], rtol=1e-6)


def test_seven_bits_never_exceed_63():
    whole, scales = quantize_weight(np.array([[1.0], [-1.0], [0.25]], np.float32), 7)
    assert whole.tolist() == [[63], [-63], [16]]
    np.testing.assert_allclose(scales, [1 / 63], rtol=1e-6)


def test_activations_share_one_scale_and_zero_stays_zero():
    """From -1 to 254 there are 255 steps of 1: whole numbers stay, 0.4 becomes 0."""
    values = np.array([[-1.0, 0.0, 0.4], [7.0, 100.6, 254.0]], np.float32)
    assert fake_quantize(values).tolist() == [[-1, 0, 0], [7, 101, 254]]


def test_activations_that_are_all_zero_stay_so():
    assert fake_quantize(np.zeros((2, 3), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_factors_share_what_is_large_between_activations_and_weights():
    values, matrix = np.array([[16.0, -1.0]], np.float32), np.array([[1.0, -4.0], [0.25, 0.0]], np.float32)
    np.testing.assert_allclose(smoothing_factors(values, matrix, 0.5), [4 / 2, 1 / 0.5])
    np.testing.assert_allclose(smoothing_factors(values, matrix, 1.0), [16, 1])


def test_loud_columns_are_few_and_above_half_of_the_loudest():
    values = np.ones((3, 20), np.float32)
    assert outlier_channels(values).tolist() == []  # all are equally loud
    values[1, 7], values[2, 3] = -9.0, 5.0
    assert outlier_channels(values).tolist() == [3, 7]
    values[:, :6] = 9.0
    assert outlier_channels(values).tolist() == []  # more than a quarter are no exception


def test_smoothing_changes_no_product_before_rounding():
    generator = np.random.default_rng(1)
    values, matrix = generator.standard_normal((5, 8)), generator.standard_normal((8, 3))
    factors = smoothing_factors(values.astype(np.float32), matrix.astype(np.float32), 0.75)
    np.testing.assert_allclose((values / factors) @ (matrix * factors[:, None]), values @ matrix, rtol=1e-9)


@pytest.mark.parametrize("smallest", range(25))
def test_the_search_finds_the_fewest_and_asks_at_most_six_times_of_24(smallest: int):
    asked: list[int] = []

    def passes(number: int) -> bool:
        asked.append(number)
        return number >= smallest

    assert bisect_smallest(24, passes) == smallest
    assert len(asked) <= 6
    assert len(asked) == len(set(asked))


def test_the_products_that_lose_the_most_are_kept(tmp_path):
    model = load(pretrained(tmp_path / "model"))
    told = write_int8(model, tmp_path, builtin_sample(model), 0.9999)
    cosines = {one["kept_in_fp32"]: one["mean_cosine"] for one in told["tried"]}
    num_kept = len(told["kept_in_fp32"])
    assert all(cosine < 0.9999 for number, cosine in cosines.items() if number < num_kept)
    assert cosines.get(num_kept, 1.0) >= 0.9999
    assert told["weight_bits"] == (8 if has_exact_int8_matmul() else 7)
    assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize("bias", [0.0, 40.0])
def test_loud_columns_are_computed_apart_and_spoil_nothing(tmp_path, bias: float):
    """One inner column is made loud, by its weights or by its bias; its neighbours are rounded as before."""
    model = load(pretrained(tmp_path / "model"))
    sample = builtin_sample(model)
    with torch.no_grad():
        inner = model.encoder.layers[0].inner
        inner.bias[5] = bias
        inner.weight[5] *= 1.0 if bias else 40.0
    how = plan_quantization(model, sample.sequences, 8)
    assert how.outliers["layers.0"].indices.tolist() == [5]
    look = _cosine_evaluator(model, sample)
    others = {layer: side for layer, side in how.outliers.items() if layer != "layers.0"}
    assert look(how) > look(replace(how, outliers=others))
    assert look(replace(how, fp32_linears=frozenset(how.linears))) == pytest.approx(1, abs=1e-6)
    all_but_outer = frozenset(how.linears) - {"layers.0.outer"}
    assert look(replace(how, fp32_linears=all_but_outer)) > 0.999
