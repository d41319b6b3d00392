"""Graphs of every family have the outputs of their encoders, with any attention and pooled position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from family_models import randomize_weights
from graph_batches import sequences_of, tokens_of

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.families import ENCODERS, family_of
from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import GraphHead, build_graph
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import SettingsError
from bertworks.models.folder import load_encoder, read_folder
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("weight", "bias")
SETTINGS = {"ernie": {"use_task_id": True}, "modernbert": {"local_attention": 6}}
MEMBERS = (*(name for name, family in ENCODERS.items() if getattr(family.build, "has_graph", False)), "bert causal")


@pytest.fixture(params=MEMBERS)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """Three layers, every parameter random, so that each of them has an effect."""
    name, _, attention = str(request.param).partition(" ")
    family = family_of(name)
    config = family.config_from_preset("tiny", 40).resized(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96, max_length=16
    )
    config = config.resized(**SETTINGS.get(name, {}))
    encoder = family.build(config, None).eval()
    encoder.attention = attention or encoder.attention
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return encoder


def make_batch(encoder: Encoder) -> Batch:
    input_ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    token_type_ids = (torch.arange(9) >= 4).long().expand(3, 9)
    return Batch(input_ids=input_ids, token_type_ids=token_type_ids, lengths=torch.tensor([9, 5, 2]))


@torch.inference_mode()
def assert_same_outputs(encoder: Encoder, runtime: OnnxRuntime | OpenvinoRuntime) -> None:
    batch = make_batch(encoder)
    expected = encoder(batch)
    actual = GraphEncoder(encoder.config, runtime).encode_sequences(sequences_of(batch), 0)
    assert expected.pooled is not None
    assert actual.pooled is not None
    np.testing.assert_allclose(actual.last_hidden_state, tokens_of(expected, batch), atol=5e-5)
    np.testing.assert_allclose(actual.pooled, expected.pooled, atol=5e-5)


def test_a_graph_has_the_outputs_of_the_encoder(encoder: Encoder):
    graph = build_graph(encoder, None, True)
    onnx.checker.check_model(graph, full_check=True)
    assert_same_outputs(encoder, OnnxRuntime(graph.SerializeToString(), b""))
    assert_same_outputs(encoder, OpenvinoRuntime.from_encoder(encoder, None, True))


def test_a_modernbert_graph_pools_the_mean_and_is_finite_without_a_token():
    config = family_of("modernbert").config_from_preset("tiny", 40)
    config = config.resized(hidden_size=24, num_attention_heads=3, max_length=16, classifier_pooling="mean")
    encoder = randomize_weights(family_of("modernbert").build(config.resized(local_attention=2), None))
    for runtime in (OnnxRuntime.from_encoder(encoder, None, True), OpenvinoRuntime.from_encoder(encoder, None, True)):
        assert_same_outputs(encoder, runtime)
        input_ids = np.ones((2, 9), np.int64)
        mask = np.array([[1] * 3 + [0] * 6, [0] * 9])
        outputs = runtime.run((input_ids, mask, np.zeros_like(input_ids)), ("last_hidden_state", "pooler_output"))
        assert all(np.isfinite(values).all() for values in outputs)


def test_a_shared_layer_has_one_set_of_weights():
    family = family_of("albert")
    graphs = []
    for num_layers in (1, 6):
        config = family.config_from_preset("tiny", 40).resized(num_hidden_layers=num_layers)
        graphs.append(build_graph(family.build(config, None), None, True))
    shallow, deep = ({tensor.name for tensor in graph.graph.initializer} for graph in graphs)
    assert shallow == deep
    assert len(graphs[1].graph.node) > 3 * len(graphs[0].graph.node)


def test_a_head_without_bias_is_one_matmul(encoder: Encoder):
    weight = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    runtime = OnnxRuntime.from_encoder(encoder, GraphHead("sequence", {"score.weight": weight.numpy()}), True)
    batch = make_batch(encoder)
    graph_encoder = GraphEncoder(encoder.config, runtime, HEAD_OUTPUTS["sequence"])
    logits = graph_encoder.encode_sequences(sequences_of(batch), 0).pooled
    assert logits is not None
    with torch.inference_mode():
        pooled = encoder(batch).pooled
    assert pooled is not None
    np.testing.assert_allclose(logits, pooled @ weight.t(), atol=2e-4)


@pytest.mark.parametrize("name", ["elmo", "awd-lstm", "marian"])
def test_families_without_graphs_are_refused(name: str):
    family = family_of(name)
    with pytest.raises(SettingsError, match=f"'{name}' run only in torch and cannot be exported to a graph"):
        build_graph(family.build(family.config_from_preset("tiny", 40), None), None, True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_xlnet_graph_pools_the_last_token_on_either_side_of_the_padding(side: str, tmp_path: Path):
    config = transformers.XLNetConfig(vocab_size=40, d_model=24, n_layer=2, n_head=3, d_inner=48, num_labels=3)
    theirs = randomize_weights(transformers.XLNetForSequenceClassification(config))
    theirs.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    head = GraphHead("sequence", {f"score.{name}": folder.tensors[f"logits_proj.{name}"].numpy() for name in NAMES})
    runtime = OnnxRuntime.from_encoder(load_encoder(folder)[0].eval(), head, True)
    text = torch.randint(1, 40, (1, 6), generator=torch.Generator().manual_seed(2))
    padding = torch.full((1, 3), 5)
    parts = (padding, text) if side == "left" else (text, padding)
    input_ids = torch.cat(parts, 1)
    mask = torch.cat([torch.ones_like(part) if part is text else torch.zeros_like(part) for part in parts], 1)
    token_types = torch.zeros_like(input_ids)
    (logits,) = runtime.run((input_ids.numpy(), mask.numpy(), token_types.numpy()), ("logits",))
    with torch.inference_mode():
        expected = theirs(text).logits
    np.testing.assert_allclose(logits, expected, atol=5e-5)
