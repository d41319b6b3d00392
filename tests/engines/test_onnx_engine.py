"""ONNX Runtime: the graph computes what the encoder does, for every activation and head, and only what is wanted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import ACTIVATIONS
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import GraphHead, build_graph
from bertworks.sampling.batch import Batch

SIZES = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=16,
    initializer_range=0.3,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def encoder_of(sizes: BertConfig = SIZES, seed: int = 0) -> Bert:
    encoder = Bert(sizes, torch.Generator().manual_seed(seed)).eval()
    for parameter in encoder.parameters():  # biases too: what is 0 or 1 hides mistakes
        torch.nn.init.normal_(parameter, 0.1, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return encoder


def batch() -> Batch:
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    segments = (torch.arange(9) >= 4).long().expand(3, 9)
    return Batch(ids, segments, torch.tensor([9, 5, 2]))


@torch.inference_mode()
def assert_same(encoder: Bert, runtime: OnnxRuntime) -> None:
    one, other = encoder(batch()), GraphEncoder(encoder.config, runtime)(batch())
    assert one.pooled is not None
    assert other.pooled is not None
    np.testing.assert_allclose(other.to_padded(), one.to_padded(), atol=2e-5)
    np.testing.assert_allclose(other.pooled, one.pooled, atol=2e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_graph_computes_what_the_encoder_does(activation: str):
    encoder = encoder_of(replace(SIZES, hidden_act=activation))
    assert_same(encoder, OnnxRuntime.from_encoder(encoder, None, True))


def test_the_graph_is_valid_by_the_standard_itself():
    onnx.checker.check_model(build_graph(encoder_of(), None, True), full_check=True)


def test_a_file_computes_the_same(tmp_path: Path):
    encoder = encoder_of()
    (tmp_path / "model.onnx").write_bytes(build_graph(encoder, None, True).SerializeToString())
    assert_same(encoder, OnnxRuntime.open(tmp_path))


def test_without_a_pooler_there_is_no_summary():
    encoder = encoder_of()
    runtime = OnnxRuntime.from_encoder(encoder, None, False)
    assert runtime.outputs == ("last_hidden_state",)
    assert GraphEncoder(SIZES, runtime)(batch()).pooled is None


@pytest.mark.parametrize("kind", ["rows", "places"])
def test_a_head_is_one_product_with_its_bias(kind: str):
    encoder = encoder_of()
    weight, bias = torch.randn(5, 24), torch.randn(5)
    head = GraphHead(kind, {"score.weight": weight.numpy(), "score.bias": bias.numpy()})
    (logits,), _ = GraphEncoder(SIZES, OnnxRuntime.from_encoder(encoder, head, True)).compute_outputs(
        batch(), slice(None), ("logits",)
    )
    with torch.inference_mode():
        encoded = encoder(batch())
        read = encoded.pooled if kind == "rows" else encoded.to_padded()[0]
        expected = read @ weight.t() + bias
    np.testing.assert_allclose(logits if kind == "rows" else logits[0], expected, atol=1e-4)


def test_the_digest_changes_with_a_weight():
    one, other = encoder_of(), encoder_of()
    assert OnnxRuntime.from_encoder(one, None, True).digest == OnnxRuntime.from_encoder(other, None, True).digest
    with torch.no_grad():
        other.layers[1].inner.bias[3] += 1e-3
    assert OnnxRuntime.from_encoder(one, None, True).digest != OnnxRuntime.from_encoder(other, None, True).digest
