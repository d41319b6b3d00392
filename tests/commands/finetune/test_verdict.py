"""Verdicts on baselines by hand: a model that is better, equal or worse, on dev, on test or on both."""

from __future__ import annotations

import pytest

from bertworks.commands.finetune.verdict import verdict_of
from bertworks.tasks.baselines import BaselineScores
from bertworks.tasks.contract import TaskScores

FIT = "fits: accuracy is 0.900 on train and 0.880 on dev"
BAG = "The bag of words is at least as good on"


def scores_of(**accuracies: float) -> dict[str, TaskScores]:
    return {
        split: TaskScores(metrics={"accuracy": value}, main_metric="accuracy") for split, value in accuracies.items()
    }


MODEL = scores_of(train=0.9, dev=0.88, test=0.85)


def verdict(majority: dict[str, TaskScores], bag: dict[str, TaskScores]) -> str:
    baselines = [BaselineScores("majority", "majority baseline", majority), BaselineScores("bag", "bag of words", bag)]
    return verdict_of("accuracy", MODEL, baselines)


def test_a_model_that_is_better_than_its_baselines_has_a_verdict_without_them():
    assert verdict(scores_of(dev=0.5, test=0.5), scores_of(dev=0.87, test=0.84)) == FIT


@pytest.mark.parametrize(
    ("bag", "sentence"),
    [
        (
            {"dev": 0.9, "test": 0.8},
            f"{BAG} dev, and far cheaper: its accuracy is 0.900 on dev, that of this model 0.880.",
        ),
        (
            {"dev": 0.8, "test": 0.85},
            f"{BAG} test, and far cheaper: its accuracy is 0.850 on test, that of this model 0.850.",
        ),
        (
            {"dev": 0.8799, "test": 0.86},
            f"{BAG} dev and test, and far cheaper: its accuracy is 0.880 on dev and 0.860 on test, that of this model "
            f"0.880 and 0.850.",
        ),
    ],
)
def test_a_bag_of_words_that_is_as_good_is_named_with_both_figures(bag: dict[str, float], sentence: str):
    assert verdict(scores_of(dev=0.5, test=0.5), scores_of(**bag)) == f"{FIT}. {sentence}"


def test_a_majority_baseline_that_is_as_good_is_named_if_the_bag_of_words_is_not():
    text = verdict(scores_of(dev=0.88, test=0.8), scores_of(dev=0.7, test=0.7))
    assert text.startswith(f"{FIT}. The majority baseline is at least as good on dev, and far cheaper: its accuracy is")


def test_without_dev_the_comparison_is_on_test():
    scores = scores_of(train=0.9, test=0.5)
    text = verdict_of("accuracy", scores, [BaselineScores("bag", "bag of words", scores_of(test=0.6))])
    assert text.startswith("no dev set")
    assert text.endswith(
        "The bag of words is at least as good on test, and far cheaper: its accuracy is 0.600 on test, "
        "that of this model 0.500."
    )
