"""The verdict on a pretraining run by hand: its loss against step 0 and against the unigram entropy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertworks.records import HeldOutRecord, Records
from bertworks.reports.pretrain_verdict import PretrainVerdict, read_verdict

FINISHED = {"uniform_loss": 10.0, "unigram_entropy": 7.0, "finished": "2026-01-02T05:04:05"}


def held_out(step: int, loss: float, phase: str = "128") -> HeldOutRecord:
    return HeldOutRecord(
        step=step, phase=phase, losses={"mlm": loss}, perplexity=12.34, accuracy=0.25, pair_accuracy=None
    )


def verdict(folder: Path, *records: HeldOutRecord, run_info: dict[str, Any] = FINISHED) -> PretrainVerdict:
    with Records.open(folder, None) as run_records:
        for record in records:
            run_records.add(record)
    (folder / "run.json").write_text(json.dumps(run_info), encoding="utf-8")
    return read_verdict(folder)


@pytest.mark.parametrize(
    ("first", "last", "sentence", "has_failed"),
    [
        (
            9.5,
            4.0,
            "5.50 nats below step 0 (9.50) and 3.00 nats below the unigram entropy (7.00): the model uses",
            False,
        ),
        (
            9.5,
            7.25,
            "2.25 nats below step 0 (9.50), but not below the unigram entropy (7.00): the model has learned nothing "
            "but the frequencies of tokens, it does not use context.",
            True,
        ),
        (7.0, 6.99, "below neither step 0 (7.00) nor the unigram entropy (7.00): the model has learned nothing.", True),
        (9.5, 9.6, "below neither step 0 (9.50) nor the unigram entropy (7.00): the model has learned nothing.", True),
        (
            3.0,
            3.0,
            "4.00 nats below the unigram entropy (7.00), but not below step 0 (3.00): the model has learned nothing in "
            "this run.",
            True,
        ),
        (9.5, math.nan, "Training diverged: the loss is not finite.", True),
    ],
)
def test_the_loss_is_compared_with_step_0_and_the_unigram_entropy(
    tmp_path: Path, first: float, last: float, sentence: str, has_failed: bool
):
    result = verdict(tmp_path, held_out(0, first), held_out(100, last))
    assert result.text.startswith(f"Held-out loss {last:.3f}, MLM accuracy 25.0 %. ")
    assert sentence in result.text
    assert result.has_failed == has_failed


def test_without_an_evaluation_of_step_0_the_uniform_loss_takes_its_place(tmp_path: Path):
    text = verdict(tmp_path, held_out(100, 4.0)).text
    assert "6.00 nats below the uniform loss ln V (10.00) and 3.00 nats below the unigram entropy (7.00)" in text


def test_the_lowest_loss_is_compared_because_its_model_is_kept(tmp_path: Path):
    result = verdict(tmp_path, held_out(0, 9.0), held_out(1_000, 3.0), held_out(2_000, 9.5))
    assert "Held-out loss 9.500" in result.text
    assert "The lowest loss is 3.000, at step 1,000. That is 6.00 nats below step 0" in result.text
    assert not result.has_failed


def test_losses_of_an_earlier_phase_are_not_the_lowest(tmp_path: Path):
    result = verdict(tmp_path, held_out(0, 9.0), held_out(1_000, 3.0), held_out(2_000, 3.5, "512"))
    assert "lowest" not in result.text
    assert "5.50 nats below step 0" in result.text
    records = (held_out(0, 9.0), held_out(1_000, 3.0), held_out(2_000, 3.5, "128 (2)"))  # of the same length
    assert "The lowest loss is 3.000, at step 1,000." in verdict(tmp_path, *records).text


def test_an_unfinished_run_has_learned_nothing_so_far(tmp_path: Path):
    run_info = {key: value for key, value in FINISHED.items() if key != "finished"}
    records = (held_out(0, 9.5), held_out(100, 9.5))
    assert verdict(tmp_path, *records, run_info=run_info).text.endswith("the model has learned nothing so far.")


def test_step_0_alone_says_nothing_about_learning(tmp_path: Path):
    result = verdict(tmp_path, held_out(0, 9.5))
    assert result.text.endswith("There is no evaluation after step 0 yet.")
    assert not result.has_failed


def test_the_loss_over_tokens_counts_whatever_its_name(tmp_path: Path):
    records = [replace(held_out(0, 9.0), losses={"causal": 9.0}), replace(held_out(9, 6.0), losses={"causal": 6.0})]
    text = verdict(tmp_path, *records).text
    assert "Held-out loss 6.000, causal accuracy 25.0 %. That is 3.00 nats below step 0 (9.00)" in text


def test_without_run_json_there_are_only_the_scores(tmp_path: Path):
    assert verdict(tmp_path, held_out(0, 9.0), held_out(1, 8.0), run_info={}) == PretrainVerdict(
        "Held-out loss 8.000, MLM accuracy 25.0 %."
    )
