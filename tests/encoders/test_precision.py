"""Precision by name: what auto resolves to, what is refused, and how far bf16 is from fp32 in use."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.encoders import precision
from bertworks.encoders.precision import describe_precision, resolve_precision
from bertworks.errors import SettingsError
from bertworks.inference.model import load
from bertworks.sampling.batch import collate_sequences

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "Where is the nearest railway station?",
    "The committee postponed its decision until the report had been read by everyone who signed it.",
    "a quietly moving film",
    "Water boils at a lower temperature on a mountain, because the pressure of the air is lower there.",
    "No.",
    "She sold the house, the boat and, in the end, even the piano that her grandmother had brought from Vienna. " * 3,
]


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_processor_multiplies_it(monkeypatch, native: bool, expected: str):
    monkeypatch.setattr(precision, "has_native_bf16", lambda: native)
    assert resolve_precision("auto") == expected
    assert describe_precision("auto", expected).startswith(f"precision {expected} (auto: this device")


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_named_precision_is_taken_on_any_processor(name: str):
    assert resolve_precision(name) == name
    assert describe_precision(name, name) == f"precision {name}"


def test_a_precision_that_does_not_exist_is_refused(minilm: Path):
    with pytest.raises(SettingsError, match="no precision 'half'; choose one of: auto, fp32, bf16, fp16"):
        resolve_precision("half")
    with pytest.raises(SettingsError, match="no precision 'half'"):
        load(minilm, precision="half")


def test_a_model_in_bf16_has_half_the_bytes_in_its_layers_and_nearly_the_same_vectors(minilm: Path):
    exact, rounded = load(minilm, precision="fp32"), load(minilm, precision="bf16")
    assert (exact.precision, rounded.precision) == ("fp32", "bf16")
    sizes = [
        sum(tensor.numel() * tensor.itemsize for tensor in model.encoder.layers.parameters())
        for model in (exact, rounded)
    ]
    assert sizes[1] < 0.51 * sizes[0]
    vectors, expected = rounded.encode(TEXTS), exact.encode(TEXTS)
    assert vectors.dtype == np.float32
    cosines = (vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.mean() > 0.9999
    assert cosines.min() > 0.9998


def test_hidden_states_are_fp32_and_gradients_flow_through_an_encoder_in_bf16(minilm: Path):
    model = load(minilm, precision="bf16")
    batch = model.tokenizer.encode(TEXTS[0])
    encoded = model.encoder(collate_sequences([batch], 0))
    assert {states.dtype for states in encoded.hidden_states} == {torch.float32}
    encoded.last_hidden_state.sum().backward()
    assert model.encoder.token_embeddings.weight.grad is not None
