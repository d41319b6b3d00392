"""ONNX Runtime: the graph computes the outputs of the encoder, for every activation and head."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from graph_batches import sequences_of, tokens_of

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import ACTIVATIONS
from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder
from bertworks.engines.onnx_engine import OnnxRuntime
from bertworks.engines.onnx_graph import GraphHead, build_graph
from bertworks.sampling.batch import Batch

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=16,
    initializer_range=0.3,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def random_encoder(config: BertConfig = CONFIG, seed: int = 0) -> Bert:
    encoder = Bert(config, torch.Generator().manual_seed(seed)).eval()
    for parameter in encoder.parameters():  # biases and norms, too: values of 0 or 1 would hide mistakes
        torch.nn.init.normal_(parameter, 0.1, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return encoder


def batch() -> Batch:
    input_ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    token_type_ids = (torch.arange(9) >= 4).long().expand(3, 9)
    return Batch(input_ids=input_ids, token_type_ids=token_type_ids, lengths=torch.tensor([9, 5, 2]))


@torch.inference_mode()
def assert_same_outputs(encoder: Bert, runtime: OnnxRuntime) -> None:
    expected = encoder(batch())
    actual = GraphEncoder(encoder.config, runtime).encode_sequences(sequences_of(batch()), 0)
    assert expected.pooled is not None
    assert actual.pooled is not None
    np.testing.assert_allclose(actual.last_hidden_state, tokens_of(expected, batch()), atol=2e-5)
    np.testing.assert_allclose(actual.pooled, expected.pooled, atol=2e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_graph_has_the_outputs_of_the_encoder(activation: str):
    encoder = random_encoder(replace(CONFIG, hidden_act=activation))
    assert_same_outputs(encoder, OnnxRuntime.from_encoder(encoder, None, True))


def test_the_graph_is_valid_onnx():
    onnx.checker.check_model(build_graph(random_encoder(), None, True), full_check=True)


def test_a_graph_file_has_the_outputs_of_the_encoder(tmp_path: Path):
    encoder = random_encoder()
    (tmp_path / "model.onnx").write_bytes(build_graph(encoder, None, True).SerializeToString())
    assert_same_outputs(encoder, OnnxRuntime.open(tmp_path))


def test_without_a_pooler_there_is_no_pooled_output():
    encoder = random_encoder()
    runtime = OnnxRuntime.from_encoder(encoder, None, False)
    assert runtime.outputs == ("last_hidden_state",)
    assert GraphEncoder(CONFIG, runtime).encode_sequences(sequences_of(batch()), 0).pooled is None


@pytest.mark.parametrize("kind", ["sequence", "tokens"])
def test_a_head_is_one_linear_with_bias(kind: str):
    encoder = random_encoder()
    weight, bias = torch.randn(5, 24), torch.randn(5)
    head = GraphHead(kind, {"score.weight": weight.numpy(), "score.bias": bias.numpy()})
    graph_encoder = GraphEncoder(CONFIG, OnnxRuntime.from_encoder(encoder, head, True), HEAD_OUTPUTS[kind])
    graph_outputs = graph_encoder.encode_sequences(sequences_of(batch()), 0)
    with torch.inference_mode():
        encoded = encoder(batch())
        vectors = encoded.pooled if kind == "sequence" else encoded.to_padded()[0]
        expected = vectors @ weight.t() + bias
    logits = graph_outputs.pooled if kind == "sequence" else graph_outputs.last_hidden_state[:9]
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_the_digest_changes_with_a_weight():
    encoder = random_encoder()
    digest = OnnxRuntime.from_encoder(random_encoder(), None, True).digest
    assert OnnxRuntime.from_encoder(encoder, None, True).digest == digest
    with torch.no_grad():
        encoder.layers[1].intermediate.bias[3] += 1e-3
    assert OnnxRuntime.from_encoder(encoder, None, True).digest != digest
