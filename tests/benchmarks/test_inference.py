"""The inference benchmark: its results with values worked out by hand; no engine is started."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    SCRIPT = SimpleNamespace(**runpy.run_path(str(FOLDER / "inference.py")))
    BATCHES = SimpleNamespace(**runpy.run_path(str(FOLDER / "inference_batches.py")))


def test_sentences_are_grouped_within_their_paragraph() -> None:
    paragraphs = ["It rains. We stay. They left.", "", "Nobody came."]
    assert list(SCRIPT.group_sentences(paragraphs, 2)) == ["It rains.", "We stay. They left.", "Nobody came."]


def test_batch_is_limited_by_sequences_and_by_padded_positions() -> None:
    # Two sequences padded to 10 fill 20 positions; five of length 4 would fit, but three sequences are the maximum.
    assert list(BATCHES.split_batches([4, 3, 2, 1, 0], [10, 9, 4, 3, 3], (3, 20))) == [[4, 3], [2, 1, 0]]
    assert list(BATCHES.split_batches([0, 1], [30, 30], (8, 20))) == [[0], [1]]


def test_sequences_are_padded_to_the_first() -> None:
    input_ids, mask, token_type_ids = BATCHES.pad([[101, 7, 102], [101, 102]])
    assert input_ids.tolist() == [[101, 7, 102], [101, 102, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert not token_type_ids.any()


def test_batches_start_with_the_longest_and_vectors_keep_the_order_of_the_texts() -> None:
    lengths = []

    def run(sequences: list[list[int]]) -> np.ndarray:
        lengths.append([len(sequence) for sequence in sequences])
        return np.array([[len(sequence)] * BATCHES.HIDDEN_SIZE for sequence in sequences], dtype=np.float32)

    for num_parallel in (1, 2):
        vectors = BATCHES.batched((2, 1_000), run, num_parallel)(["Yes.", "It is raining again.", "No, never."])
        assert vectors[:, 0].tolist() == [4, 7, 6]  # with [CLS], [SEP] and punctuation
    assert lengths[:2] == [[7, 6], [4]]


def test_flops_of_one_and_two_tokens() -> None:
    # In each of 6 layers: 4 matmuls with 384 x 384 and 2 with 384 x 1,536, and attention to itself.
    assert SCRIPT.matmul_flops([1]) == 6 * (2 * (4 * 384 * 384 + 2 * 384 * 1536) + 4 * 384)
    assert SCRIPT.matmul_flops([2]) - 2 * SCRIPT.matmul_flops([1]) == 6 * 4 * 384 * 2


SECONDS = {
    "ours": [2.0, 2.0, 4.0], "sentence_transformers": [8.0, 8.0, 8.0], "onnxruntime": [4.0, 4.0, 4.0],
    "openvino": [3.0, 3.0, 9.0], "ours_bf16": [1.0, 1.0, 1.0], "transformers_bf16": [0.25, 0.25, 0.25],
    "openvino_bf16": [1.25, 1.25, 1.25], "ours_int8": [0.5, 0.5, 0.5], "ctranslate2_int8": [0.75, 0.75, 0.75],
    "llama_cpp_int8": [0.25, 0.25, 0.25],
}  # fmt: skip
# Two peers are fast because they compute too coarsely.
COSINES = dict.fromkeys(SECONDS, 1.0) | {"transformers_bf16": 0.99, "llama_cpp_int8": 0.99}


def test_ratios_compare_with_the_fastest_peer_that_is_close_enough() -> None:
    latencies = SECONDS | {"openvino_bf16": [0.2, 0.2, 0.2], "ours_bf16": [0.4, 0.4, 0.4]}
    assert SCRIPT.ratios(SECONDS, latencies, COSINES) == {
        "ratio_fp32": 1.5,  # of OpenVINO: 3/2, 3/2, 9/4
        "peer_fp32": "openvino",
        "ratio_latency_fp32": 1.5,
        "ratio_bf16_peer": 1.25,
        "peer_bf16": "openvino_bf16",
        "ratio_latency_bf16": 0.5,
        "ratio_int8": 1.5,
        "peer_int8": "ctranslate2_int8",
        "ratio_latency_int8": 1.5,
        "ratio_bf16": 3.0,  # of OpenVINO in fp32: 3, 3, 9
        "bf16_over_fp32": 2.0,
        "int8_over_fp32": 4.0,
        "ratio_sentence_transformers": 4.0,
        "ratio_latency": 0.5,
        "ours_latency": "ours_bf16",
        "peer_latency": "openvino_bf16",
    }


def test_without_bf16_there_are_no_ratios_of_bf16() -> None:
    seconds = {name: values for name, values in SECONDS.items() if not name.endswith("bf16")}
    results = SCRIPT.ratios(seconds, seconds, COSINES)
    assert results["ratio_latency"] == 1.5
    assert not [key for key in results if "bf16" in key]


def test_fp32_engine_that_computes_something_else_ends_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    SCRIPT.check_cosines({"ours": 1.0, "transformers_bf16": 0.99})
    assert "it does not count as a peer" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"openvino to ours in fp32 is 0\.99000, below 0\.9999: it computes something"):
        SCRIPT.check_cosines({"openvino": 0.99})


def test_share_of_the_limit_in_each_precision() -> None:
    # 200 FLOPs at 100 and 400 FLOP/s would take 2 s and 0.5 s; ours needs 4 s and 2 s.
    limits, seconds = {"fp32": [100.0], "bf16": [400.0]}, {"ours": [4.0], "ours_bf16": [2.0]}
    assert SCRIPT.limit_results(200.0, limits, seconds) == {
        "product_gflops": 1e-7, "of_limit_fp32": 0.5, "product_gflops_bf16": 4e-7, "of_limit_bf16": 0.25,
    }  # fmt: skip


def test_built_in_texts_need_no_data() -> None:
    texts = [text for text, _ in zip(SCRIPT.built_in_texts(), range(200), strict=False)]
    assert len(texts) == 200
    assert min(map(len, texts)) < 60 < 150 < max(map(len, texts))
