"""OpenVINO: the graph has the outputs of the encoder, and a run does not overwrite earlier results."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_batches import sequences_of, tokens_of

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import FolderError
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


@pytest.fixture(scope="module")
def encoder() -> Bert:
    return Bert(CONFIG, torch.Generator().manual_seed(0)).eval()


@pytest.fixture(scope="module")
def runtime(encoder: Bert) -> OpenvinoRuntime:
    return OpenvinoRuntime.from_encoder(encoder, None, True)


def batch(*lengths: int) -> Batch:
    shape = (len(lengths), max(lengths))
    input_ids = torch.randint(1, 40, shape, generator=torch.Generator().manual_seed(1))
    return Batch(
        input_ids=input_ids, token_type_ids=torch.zeros(shape, dtype=torch.long), lengths=torch.tensor(lengths)
    )


def test_the_graph_has_the_outputs_of_the_encoder(encoder: Bert, runtime: OpenvinoRuntime):
    graph_encoder = GraphEncoder(CONFIG, runtime)
    with torch.inference_mode():
        for inputs in (batch(9, 5, 2), batch(4), batch(7, 7)):
            expected, actual = encoder(inputs), graph_encoder.encode_sequences(sequences_of(inputs), 0)
            np.testing.assert_allclose(actual.last_hidden_state, tokens_of(expected, inputs), atol=2e-5)
            np.testing.assert_allclose(actual.pooled, expected.pooled, atol=2e-5)


def test_a_later_run_does_not_overwrite_earlier_results(runtime: OpenvinoRuntime):
    graph_encoder = GraphEncoder(CONFIG, runtime)
    first = graph_encoder.encode_sequences(sequences_of(batch(5, 5)), 0)
    before = first.last_hidden_state.copy()
    graph_encoder.encode_sequences(sequences_of(batch(5, 5))[::-1], 0)
    assert np.array_equal(first.last_hidden_state, before)


def test_saved_files_have_the_same_outputs(encoder: Bert, runtime: OpenvinoRuntime, tmp_path: Path):
    runtime.save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"openvino_model.xml", "openvino_model.bin"}
    loaded = OpenvinoRuntime.open(tmp_path)
    assert set(loaded.outputs) == {"last_hidden_state", "pooler_output"}
    sequences = sequences_of(batch(6, 3))
    expected, actual = (GraphEncoder(CONFIG, each).encode_sequences(sequences, 0) for each in (runtime, loaded))
    np.testing.assert_allclose(actual.last_hidden_state, expected.last_hidden_state, atol=1e-6)


def test_damaged_files_are_named(tmp_path: Path):
    (tmp_path / "openvino_model.xml").write_text("<net")
    with pytest.raises(FolderError, match=r"openvino_model\.xml cannot be read by OpenVINO"):
        OpenvinoRuntime.open(tmp_path)


def test_a_signal_after_the_last_use_of_openvino_is_handled():
    script = """
import faulthandler, gc, os, signal, torch
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.openvino_engine import OpenvinoRuntime
import numpy as np

faulthandler.enable()  # it asks for a stack of its own for signals, which OpenVINO replaces
encoder = Bert(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
runtimes = [OpenvinoRuntime.from_encoder(encoder, None, True) for _ in range(2)]
for runtime in runtimes:
    runtime.run((np.ones((1, 2), dtype=np.int64),) * 3, runtime.outputs[:1])
del runtime
while runtimes:
    del runtimes[0]
    gc.collect()
signal.signal(signal.SIGTERM, lambda number, frame: print("handled"))
os.kill(os.getpid(), signal.SIGTERM)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "handled\n"
