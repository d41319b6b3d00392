"""Graphs of the family: each computes what its encoder does, whatever pieces read and wherever a row is summed up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from bertworks.encoders.families import family_of
from bertworks.encoders.stack import Stack
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import GraphHead, graph_of
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
# A BERT that learned to read to the left is read so by its graph, too.
MEMBERS = ("roberta", "albert", "openai-gpt", "xlnet", "bert to the left")


@pytest.fixture(params=MEMBERS)
def encoder(request: pytest.FixtureRequest) -> Stack:
    """Three layers, every parameter drawn anew, so that none of them is without effect."""
    name, _, reads = str(request.param).partition(" ")
    family = family_of(name)
    sizes = replace(family.released("tiny", 40), width=24, num_layers=3, num_heads=3, inner=96, positions=16)
    found = family.build(sizes, None).eval()
    found.own_reads = "left" if reads else found.own_reads
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return found


def batch(segments: int) -> Batch:
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    kinds = (torch.arange(9) >= 4).long().expand(3, 9) if segments > 1 else torch.zeros_like(ids)
    return Batch(ids, kinds, torch.tensor([9, 5, 2]))


@torch.inference_mode()
def assert_same(encoder: Stack, runtime: OnnxRuntime | OpenvinoRuntime) -> None:
    given = batch(encoder.sizes.segments)
    one, other = encoder(given), GraphEncoder(encoder.sizes, runtime)(given)
    assert one.summary is not None
    assert other.summary is not None
    np.testing.assert_allclose(other.padded(), one.padded(), atol=5e-5)
    np.testing.assert_allclose(other.summary, one.summary, atol=5e-5)


def test_a_graph_computes_what_the_encoder_does(encoder: Stack):
    graph = graph_of(encoder, None, True)
    onnx.checker.check_model(graph, full_check=True)
    assert_same(encoder, OnnxRuntime(graph.SerializeToString(), b""))
    assert_same(encoder, OpenvinoRuntime.of(encoder, None, True))


def test_a_layer_that_is_shared_is_written_once():
    family = family_of("albert")
    graphs = []
    for num_layers in (1, 6):
        sizes = replace(family.released("tiny", 40), num_layers=num_layers)
        graphs.append(graph_of(family.build(sizes, None), None, True))
    few, many = ({one.name for one in graph.graph.initializer} for graph in graphs)
    assert few == many
    assert len(graphs[1].graph.node) > 3 * len(graphs[0].graph.node)


def test_a_head_without_a_bias_is_one_product(encoder: Stack):
    weight = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    runtime = OnnxRuntime.of(encoder, GraphHead("rows", {"score.weight": weight.numpy()}), True)
    given = batch(encoder.sizes.segments)
    (logits,), _ = GraphEncoder(encoder.sizes, runtime).outputs(given, slice(None), ("logits",))
    with torch.inference_mode():
        summary = encoder(given).summary
    assert summary is not None
    np.testing.assert_allclose(logits, summary @ weight.t(), atol=2e-4)


@pytest.mark.parametrize("name", ["elmo", "awd-lstm", "marian"])
def test_others_are_refused_with_the_reason(name: str):
    family = family_of(name)
    with pytest.raises(SettingsError, match=f"'{name}' runs in torch only: graphs are written of Bert, Albert, Gpt"):
        graph_of(family.build(family.released("tiny", 40), None), None, True)
