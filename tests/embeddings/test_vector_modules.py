"""Dense modules by hand, and those that are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bertworks.embeddings.vector_modules import read_dense, read_layer_norm
from bertworks.errors import FolderError

WEIGHT, BIAS = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.0]]), torch.tensor([0.5, 0.0, -1.0])
VECTOR = np.array([[1.0, -2.0]], dtype=np.float32)  # W x + b = (-2.5, 2, 2)


def write_dense(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors or {"linear.weight": WEIGHT, "linear.bias": BIAS}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("torch.nn.modules.linear.Identity", [-2.5, 2.0, 2.0]),
        ("torch.nn.modules.activation.ReLU", [0.0, 2.0, 2.0]),
        ("torch.nn.modules.activation.Tanh", [-0.986614, 0.964028, 0.964028]),
        ("torch.nn.modules.activation.Sigmoid", [0.075858, 0.880797, 0.880797]),
        ("torch.nn.modules.activation.SiLU", [-0.189646, 1.761594, 1.761594]),
        ("torch.nn.modules.activation.GELU", [-0.015524, 1.954500, 1.954500]),
    ],
)
def test_a_dense_layer_by_hand(tmp_path: Path, activation: str, expected: list[float]):
    module = read_dense(write_dense(tmp_path / "2_Dense", activation_function=activation))
    assert (module.input_size, module.output_size) == (2, 3)
    assert module.apply(VECTOR)[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_residual_connection_and_a_layer_without_bias(tmp_path: Path):
    residual = torch.ones(3, 2)  # 1 - 2 = -1 is added to each value
    tensors = {"linear.weight": WEIGHT, "residual.weight": residual}
    folder = write_dense(tmp_path / "dense", tensors, activation_function="a.Identity", use_residual=True)
    assert read_dense(folder).apply(VECTOR)[0].tolist() == [-4.0, 1.0, 2.0]


def test_the_name_depends_on_the_weights(tmp_path: Path):
    first = read_dense(write_dense(tmp_path / "2_Dense"))
    assert first == read_dense(tmp_path / "2_Dense")
    other = {"linear.weight": WEIGHT + 1, "linear.bias": BIAS}
    assert first != read_dense(write_dense(tmp_path / "2_Dense", other))
    assert first.name.startswith("2_Dense (")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "my.Swish"}, "activation_function 'my.Swish' is not supported"),
        ({"module_input_name": "token_embeddings"}, "other values than the sentence embedding"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str):
    with pytest.raises(FolderError, match=message):
        read_dense(write_dense(tmp_path / "dense", **settings))


def test_missing_weights_are_refused(tmp_path: Path):
    with pytest.raises(FolderError, match="has no weights"):
        read_dense(tmp_path)
    with pytest.raises(FolderError, match=r"has no matrix 'linear\.weight'"):
        read_dense(write_dense(tmp_path / "dense", {"other": WEIGHT}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"linear.bias": torch.ones(1)}, r"'linear.bias' should have shape \(3,\), but has \(1,\)"),
        ({"residual.weight": torch.ones(2, 3)}, r"'residual.weight' should have shape \(3, 2\), but has \(2, 3\)"),
        ({}, "has no 'residual.weight', which use_residual needs"),
    ],
)
def test_tensors_of_a_dense_layer_that_do_not_fit_are_refused(tmp_path: Path, tensors: dict, message: str):
    folder = write_dense(tmp_path / "dense", {"linear.weight": WEIGHT, **tensors}, use_residual=True)
    with pytest.raises(FolderError, match=message):
        read_dense(folder)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.ones(2), torch.ones(3), r"'norm.bias' should have shape \(2,\), but has \(3,\)"),
        (torch.ones(1, 2), torch.ones(2), r"'norm.weight' should have shape \(2,\), but has \(1, 2\)"),
    ],
)
def test_tensors_of_a_norm_that_do_not_fit_are_refused(
    tmp_path: Path, weight: torch.Tensor, bias: torch.Tensor, message: str
):
    save_file({"norm.weight": weight, "norm.bias": bias}, tmp_path / "model.safetensors")
    with pytest.raises(FolderError, match=message):
        read_layer_norm(tmp_path)
