"""The inference benchmark of other families: its results with values worked out by hand; no engine is started."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertworks.encoders.families import ENCODERS

FOLDER = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    SCRIPT = SimpleNamespace(**runpy.run_path(str(FOLDER / "inference_family.py")))


def test_all_members_are_families() -> None:
    assert set(SCRIPT.MEMBERS) <= set(ENCODERS)


def test_sequences_have_as_many_tokens_as_texts_have_words_and_two_more() -> None:
    sequences = SCRIPT.make_sequences(["It is raining.", "", "word " * 300])
    assert [len(sequence) for sequence in sequences] == [5, 2, 256]


def test_both_sides_are_compared_at_the_same_precision() -> None:
    seconds = {
        ("ours", "fp32"): [2.0, 2.0, 4.0], ("peer", "fp32"): [3.0, 3.0, 8.0],
        ("ours", "bf16"): [1.0, 1.0, 1.0], ("peer", "bf16"): [4.0, 4.0, 2.0],
    }  # fmt: skip
    assert SCRIPT.member_results("mpnet", seconds, 12) == {
        "tokens_per_second_fp32_mpnet": 6.0, "tokens_per_second_fp32_peer_mpnet": 4.0, "ratio_fp32_mpnet": 1.5,
        "tokens_per_second_bf16_mpnet": 12.0, "tokens_per_second_bf16_peer_mpnet": 3.0, "ratio_bf16_mpnet": 4.0,
    }  # fmt: skip


def test_vectors_of_another_model_end_the_benchmark(tmp_path: Path) -> None:
    np.save(tmp_path / "ours-fp32.npy", np.eye(2))
    np.save(tmp_path / "peer-fp32.npy", np.eye(2))
    SCRIPT.check_vectors("mpnet", ["fp32"], tmp_path)
    np.save(tmp_path / "peer-fp32.npy", np.eye(2)[::-1])
    with pytest.raises(SystemExit, match=r"mpnet: the mean cosine of transformers to ours is 0\.00000"):
        SCRIPT.check_vectors("mpnet", ["fp32"], tmp_path)
