"""The inference benchmark: what its figures are made of, with values worked out by hand; no engine is started."""

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
    """What inference.py defines; as when it is run, its folder is on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(FOLDER), *sys.path])
        return SimpleNamespace(**runpy.run_path(str(FOLDER / "inference.py")))


@pytest.fixture(scope="module")
def engines() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "inference_engines.py")))


def test_sentences_come_alone_and_in_twos_and_stay_in_their_paragraph(script: SimpleNamespace) -> None:
    paragraphs = ["It rains. We stay. They left.", "", "Nobody came."]
    assert list(script.runs(paragraphs, 2)) == ["It rains.", "We stay. They left.", "Nobody came."]


def test_a_batch_ends_where_its_rows_or_its_padded_places_do(engines: SimpleNamespace) -> None:
    # Two rows padded to 10 fill 20 places; of length 4 there would be room for five, but three rows are the most.
    assert list(engines.by_size([4, 3, 2, 1, 0], [10, 9, 4, 3, 3], (3, 20))) == [[4, 3], [2, 1, 0]]
    assert list(engines.by_size([0, 1], [30, 30], (8, 20))) == [[0], [1]]


def test_rows_are_padded_to_the_first(engines: SimpleNamespace) -> None:
    ids, mask, segments = engines.to_padded([[101, 7, 102], [101, 102]])
    assert ids.tolist() == [[101, 7, 102], [101, 102, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert not segments.any()


def test_what_runs_batches_gets_long_rows_first_and_answers_come_in_the_order_of_the_texts(
    engines: SimpleNamespace,
) -> None:
    seen = []

    def run(rows: list[list[int]]) -> np.ndarray:
        seen.append([len(row) for row in rows])
        return np.array([[len(row)] * engines.WIDTH for row in rows], dtype=np.float32)

    for at_once in (1, 2):
        found = engines.in_batches((2, 1_000), run, at_once)(["Yes.", "It is raining again.", "No, never."])
        assert found[:, 0].tolist() == [4, 7, 6]  # with [CLS], [SEP] and the marks
    assert seen[:2] == [[7, 6], [4]]


def test_a_row_of_one_piece_needs_this_many_operations(script: SimpleNamespace) -> None:
    # In each of 6 layers: 4 products of 384 x 384 and 2 of 384 x 1,536, and it reads itself.
    assert script.operations([1]) == 6 * (2 * (4 * 384 * 384 + 2 * 384 * 1536) + 4 * 384)
    assert script.operations([2]) - 2 * script.operations([1]) == 6 * 4 * 384 * 2


def test_ratios_are_of_the_fastest_peer_and_above_one_where_ours_is_faster(script: SimpleNamespace) -> None:
    seconds = {
        "ours": [2.0, 2.0, 4.0], "sentence_transformers": [8.0, 8.0, 8.0], "transformers": [5.0, 5.0, 5.0],
        "onnxruntime": [4.0, 4.0, 4.0], "openvino": [3.0, 3.0, 9.0], "ctranslate2": [4.0, 4.0, 4.0],
        "ours_int8": [1.0, 1.0, 1.0], "ctranslate2_int8": [1.5, 1.5, 1.5],
    }  # fmt: skip
    waits = seconds | {"ctranslate2": [1.0, 1.0, 1.0]}
    assert script.ratios(seconds, waits) == {
        "ratio_fp32": 1.5,  # of OpenVINO: 3/2, 3/2, 9/4
        "ratio_sentence_transformers": 4.0,
        "ratio_int8": 1.5,
        "int8_over_fp32": 2.0,
        "ratio_latency": 0.5,
    }


def test_built_in_texts_are_there_without_any_data(script: SimpleNamespace) -> None:
    texts = [text for text, _ in zip(script.built_in_texts(), range(200), strict=False)]
    assert len(texts) == 200
    assert min(map(len, texts)) < 60 < 150 < max(map(len, texts))
