"""The pretraining benchmark: its results with values worked out by hand; no engine is started."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    SCRIPT = SimpleNamespace(**runpy.run_path(str(FOLDER / "pretraining.py")))

SECONDS = {("ours", "fp32"): 4.0, ("peer", "fp32"): 6.0, ("ours", "bf16"): 2.0, ("peer", "bf16"): 8.0}
GROWTH = {("ours", "fp32"): 10.0, ("peer", "fp32"): 20.0, ("ours", "bf16"): 6.0, ("peer", "bf16"): 24.0}


def test_keys_without_a_precision_are_those_of_fp32() -> None:
    measurement = SCRIPT.Measurement(SECONDS, GROWTH, {"fp32": 1e9, "bf16": 4e9})
    results = SCRIPT.size_results("tiny", measurement)
    flops = results.pop("of_limit_tiny") * 4.0 * 1e9
    assert results.pop("of_limit_bf16_tiny") == pytest.approx(flops / 2.0 / 4e9)
    assert results == {
        "pieces_per_second_tiny": 1024.0, "pieces_per_second_peer_tiny": 32 * 128 / 6, "ratio_tiny": 1.5,
        "seconds_tiny": 4.0, "memory_mib_tiny": 10.0, "memory_mib_peer_tiny": 20.0, "memory_ratio_tiny": 0.5,
        "pieces_per_second_bf16_tiny": 2048.0, "pieces_per_second_bf16_peer_tiny": 512.0, "ratio_bf16_tiny": 4.0,
        "seconds_bf16_tiny": 2.0, "memory_mib_bf16_tiny": 6.0, "memory_mib_bf16_peer_tiny": 24.0,
        "memory_ratio_bf16_tiny": 0.25,
        "bf16_over_fp32_tiny": 2.0,
    }  # fmt: skip


def test_members_of_the_family_are_compared_at_the_fastest_precision_of_each_side() -> None:
    measurement = SCRIPT.Measurement(SECONDS, GROWTH, {"fp32": 1e9, "bf16": 4e9})
    assert SCRIPT.member_results("gpt", measurement, flops=1e9) == {
        "of_limit_gpt": 1e9 / 2.0 / 4e9, "pieces_per_second_gpt": 2048.0, "precision_gpt": "bf16",
        "pieces_per_second_peer_gpt": 32 * 128 / 6, "precision_peer_gpt": "fp32", "ratio_gpt": 3.0,
        "ratio_fp32_gpt": 1.5, "ratio_bf16_gpt": 4.0, "memory_ratio_gpt": 0.3,
    }  # fmt: skip


def test_member_without_a_peer_has_only_a_speed() -> None:
    seconds = {name: value for name, value in SECONDS.items() if name[0] == "ours"}
    measurement = SCRIPT.Measurement(seconds, GROWTH, {"fp32": 1e9, "bf16": 4e9})
    assert set(SCRIPT.member_results("ulmfit", measurement, flops=1e9)) == {
        "of_limit_ulmfit", "pieces_per_second_ulmfit", "precision_ulmfit",
    }  # fmt: skip
