"""Baselines in a report: bars and numbers of every model by split, all metrics, text escaped."""

from __future__ import annotations

import re

from outline import outline

from bertworks.reports.baselines import baselines_part
from bertworks.tasks.baselines import BaselineScores
from bertworks.tasks.contract import TaskScores


def scores_of(dev: float, test: float) -> dict[str, TaskScores]:
    return {
        split: TaskScores(metrics={"accuracy": value, "macro_f1": value / 2}, main_metric="accuracy")
        for split, value in (("dev", dev), ("test", test))
    }


MODEL = {"train": scores_of(1.0, 1.0)["dev"], **scores_of(0.9, 0.85)}
BASELINES = [
    BaselineScores("majority", "majority baseline", scores_of(0.5, 0.4)),
    BaselineScores("bag", "<b>bag</b> of words", scores_of(0.8, 0.75)),
]


def test_each_model_has_a_row_with_numbers_and_bars():
    part = baselines_part(MODEL, BASELINES)
    words = outline(part).words
    assert "accuracy on dev accuracy on test majority baseline 0.500 0.400 <b>bag</b> of words 0.800 0.750" in words
    assert "this model 0.900 0.850" in words
    assert re.findall(r'<u style="width:([\d.]+)%">', part) == ["50.0", "40.0", "80.0", "75.0", "90.0", "85.0"]
    assert part.count('class="own"') == 2


def test_all_metrics_are_in_a_table():
    words = outline(baselines_part(MODEL, BASELINES)).words
    assert "dev accuracy 0.500 0.800 0.900 dev macro f1 0.250 0.400 0.450 test accuracy 0.400 0.750 0.850" in words


def test_a_negative_correlation_has_no_bar():
    scores = {"dev": TaskScores(metrics={"spearman": -0.25}, main_metric="spearman")}
    part = baselines_part(scores, [BaselineScores("mean", "mean baseline", scores)])
    assert re.findall(r'<span>([-\d.]+)</span><i><u style="width:([\d.]+)%">', part) == [("-0.250", "0.0")] * 2


def test_without_baselines_there_is_no_part():
    assert baselines_part(MODEL, []) == ""
