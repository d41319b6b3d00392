"""OpenVINO: the graph computes what the encoder does, and one run does not write over the results of the last."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.openvino_engine import OpenvinoRuntime
from bertworks.errors import FolderError
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


@pytest.fixture(scope="module")
def encoder() -> Bert:
    return Bert(SIZES, torch.Generator().manual_seed(0)).eval()


@pytest.fixture(scope="module")
def runtime(encoder: Bert) -> OpenvinoRuntime:
    return OpenvinoRuntime.from_encoder(encoder, None, True)


def batch(*lengths: int) -> Batch:
    size = (len(lengths), max(lengths))
    ids = torch.randint(1, 40, size, generator=torch.Generator().manual_seed(1))
    return Batch(ids, torch.zeros(size, dtype=torch.long), torch.tensor(lengths))


def test_the_graph_computes_what_the_encoder_does(encoder: Bert, runtime: OpenvinoRuntime):
    through = GraphEncoder(SIZES, runtime)
    with torch.inference_mode():
        for one in (batch(9, 5, 2), batch(4), batch(7, 7)):
            expected, found = encoder(one), through(one)
            np.testing.assert_allclose(found.to_padded(), expected.to_padded(), atol=2e-5)
            np.testing.assert_allclose(found.pooled, expected.pooled, atol=2e-5)


def test_a_later_run_leaves_earlier_results_alone(runtime: OpenvinoRuntime):
    through = GraphEncoder(SIZES, runtime)
    first = through(batch(5, 5))
    before = first.last.clone()
    through(Batch(batch(5, 5).input_ids.flip(0), batch(5, 5).token_type_ids, torch.tensor([5, 5])))
    assert torch.equal(first.last, before)


def test_its_own_files_compute_the_same(encoder: Bert, runtime: OpenvinoRuntime, tmp_path: Path):
    runtime.save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"openvino_model.xml", "openvino_model.bin"}
    again = OpenvinoRuntime.open(tmp_path)
    assert set(again.outputs) == {"last_hidden_state", "pooler_output"}
    one, other = (GraphEncoder(SIZES, own)(batch(6, 3)) for own in (runtime, again))
    np.testing.assert_allclose(one.to_padded(), other.to_padded(), atol=1e-6)


def test_damaged_files_are_named(tmp_path: Path):
    (tmp_path / "openvino_model.xml").write_text("<net")
    with pytest.raises(FolderError, match=r"openvino_model\.xml cannot be read by OpenVINO"):
        OpenvinoRuntime.open(tmp_path)
