"""The inference benchmark: its results with values worked out by hand; no engine is started."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    """The names of inference.py; as when it is run, its folder is on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(FOLDER), *sys.path])
        return SimpleNamespace(**runpy.run_path(str(FOLDER / "inference.py")))


@pytest.fixture(scope="module")
def engines() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "inference_engines.py")))


def test_sentences_are_grouped_within_their_paragraph(script: SimpleNamespace) -> None:
    paragraphs = ["It rains. We stay. They left.", "", "Nobody came."]
    assert list(script.group_sentences(paragraphs, 2)) == ["It rains.", "We stay. They left.", "Nobody came."]


def test_batch_is_limited_by_sequences_and_by_padded_positions(engines: SimpleNamespace) -> None:
    # Two sequences padded to 10 fill 20 positions; five of length 4 would fit, but three sequences are the maximum.
    assert list(engines.split_batches([4, 3, 2, 1, 0], [10, 9, 4, 3, 3], (3, 20))) == [[4, 3], [2, 1, 0]]
    assert list(engines.split_batches([0, 1], [30, 30], (8, 20))) == [[0], [1]]


def test_sequences_are_padded_to_the_first(engines: SimpleNamespace) -> None:
    input_ids, mask, token_type_ids = engines.pad([[101, 7, 102], [101, 102]])
    assert input_ids.tolist() == [[101, 7, 102], [101, 102, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert not token_type_ids.any()


def test_batches_start_with_the_longest_and_vectors_keep_the_order_of_the_texts(engines: SimpleNamespace) -> None:
    lengths = []

    def run(sequences: list[list[int]]) -> np.ndarray:
        lengths.append([len(sequence) for sequence in sequences])
        return np.array([[len(sequence)] * engines.HIDDEN_SIZE for sequence in sequences], dtype=np.float32)

    for num_parallel in (1, 2):
        vectors = engines.batched((2, 1_000), run, num_parallel)(["Yes.", "It is raining again.", "No, never."])
        assert vectors[:, 0].tolist() == [4, 7, 6]  # with [CLS], [SEP] and punctuation
    assert lengths[:2] == [[7, 6], [4]]


def test_flops_of_one_and_two_tokens(script: SimpleNamespace) -> None:
    # In each of 6 layers: 4 matmuls with 384 x 384 and 2 with 384 x 1,536, and attention to itself.
    assert script.matmul_flops([1]) == 6 * (2 * (4 * 384 * 384 + 2 * 384 * 1536) + 4 * 384)
    assert script.matmul_flops([2]) - 2 * script.matmul_flops([1]) == 6 * 4 * 384 * 2


def test_ratios_compare_with_the_fastest_peer(script: SimpleNamespace) -> None:
    seconds = {
        "ours": [2.0, 2.0, 4.0], "sentence_transformers": [8.0, 8.0, 8.0], "transformers": [5.0, 5.0, 5.0],
        "onnxruntime": [4.0, 4.0, 4.0], "openvino": [3.0, 3.0, 9.0], "ctranslate2": [4.0, 4.0, 4.0],
        "ours_int8": [1.0, 1.0, 1.0], "ctranslate2_int8": [1.5, 1.5, 1.5],
    }  # fmt: skip
    latencies = seconds | {"ctranslate2": [1.0, 1.0, 1.0]}
    assert script.ratios(seconds, latencies) == {
        "ratio_fp32": 1.5,  # of OpenVINO: 3/2, 3/2, 9/4
        "ratio_sentence_transformers": 4.0,
        "ratio_int8": 1.5,
        "int8_over_fp32": 2.0,
        "ratio_latency": 0.5,
    }


def test_built_in_texts_need_no_data(script: SimpleNamespace) -> None:
    texts = [text for text, _ in zip(script.built_in_texts(), range(200), strict=False)]
    assert len(texts) == 200
    assert min(map(len, texts)) < 60 < 150 < max(map(len, texts))
