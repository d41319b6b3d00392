"""Graphs of the family: each computes what its encoder does, whatever pieces read and wherever a row is summed up."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.families import family_of
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import GraphHead, build_graph
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
# A BERT that learned to read to the left is read so by its graph, too.
MEMBERS = ("roberta", "albert", "openai-gpt", "xlnet", "bert to the left")


@pytest.fixture(params=MEMBERS)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """Three layers, every parameter drawn anew, so that none of them is without effect."""
    name, _, reads = str(request.param).partition(" ")
    family = family_of(name)
    sizes = family.config_from_preset("tiny", 40).resized(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96, max_length=16
    )
    found = family.build(sizes, None).eval()
    found.attention = "left" if reads else found.attention
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return found


def batch(segments: int) -> Batch:
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    kinds = (torch.arange(9) >= 4).long().expand(3, 9) if segments > 1 else torch.zeros_like(ids)
    return Batch(ids, kinds, torch.tensor([9, 5, 2]))


@torch.inference_mode()
def assert_same(encoder: Encoder, runtime: OnnxRuntime | OpenvinoRuntime) -> None:
    given = batch(encoder.config.type_vocab_size)
    one, other = encoder(given), GraphEncoder(encoder.config, runtime)(given)
    assert one.pooled is not None
    assert other.pooled is not None
    np.testing.assert_allclose(other.to_padded(), one.to_padded(), atol=5e-5)
    np.testing.assert_allclose(other.pooled, one.pooled, atol=5e-5)


def test_a_graph_computes_what_the_encoder_does(encoder: Encoder):
    graph = build_graph(encoder, None, True)
    onnx.checker.check_model(graph, full_check=True)
    assert_same(encoder, OnnxRuntime(graph.SerializeToString(), b""))
    assert_same(encoder, OpenvinoRuntime.from_encoder(encoder, None, True))


def test_a_layer_that_is_shared_is_written_once():
    family = family_of("albert")
    graphs = []
    for num_layers in (1, 6):
        sizes = family.config_from_preset("tiny", 40).resized(num_hidden_layers=num_layers)
        graphs.append(build_graph(family.build(sizes, None), None, True))
    few, many = ({one.name for one in graph.graph.initializer} for graph in graphs)
    assert few == many
    assert len(graphs[1].graph.node) > 3 * len(graphs[0].graph.node)


def test_a_head_without_a_bias_is_one_product(encoder: Encoder):
    weight = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    runtime = OnnxRuntime.from_encoder(encoder, GraphHead("rows", {"score.weight": weight.numpy()}), True)
    given = batch(encoder.config.type_vocab_size)
    (logits,), _ = GraphEncoder(encoder.config, runtime).compute_outputs(given, slice(None), ("logits",))
    with torch.inference_mode():
        summary = encoder(given).pooled
    assert summary is not None
    np.testing.assert_allclose(logits, summary @ weight.t(), atol=2e-4)


@pytest.mark.parametrize("name", ["elmo", "awd-lstm", "marian"])
def test_others_are_refused_with_the_reason(name: str):
    family = family_of(name)
    with pytest.raises(SettingsError, match=f"'{name}' runs in torch only: graphs are written of Bert, Albert, Gpt"):
        build_graph(family.build(family.config_from_preset("tiny", 40), None), None, True)
