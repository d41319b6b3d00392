"""Baselines: scores by hand of majority and mean, a bag of words that learns, tasks without baselines."""

from __future__ import annotations

import pytest

from bertworks.datasets.labelled_texts import TextExample
from bertworks.tasks import bag_of_words
from bertworks.tasks.baselines import BaselineScores, BaselineTask, score_baselines
from bertworks.tasks.classify import Classify
from bertworks.tasks.registry import TASKS
from bertworks.tasks.regress import Regress


def examples_of(*rows: tuple[str, str]) -> list[TextExample]:
    return [TextExample(str(index), f"line {index}", (text,), label) for index, (text, label) in enumerate(rows)]


TRAIN = examples_of(
    ("a fine film", "good"), ("so fine", "good"), ("fine music", "good"), ("a dull film", "bad"), ("so dull", "bad")
)
DEV = examples_of(("fine", "good"), ("dull", "bad"), ("dull story", "bad"))


def scored(task: Classify | Regress, train: list[TextExample], dev: list[TextExample]) -> dict[str, BaselineScores]:
    return {baseline.name: baseline for baseline in score_baselines(task, train, {"dev": dev})}


def test_the_majority_baseline_by_hand_and_a_bag_of_words_that_learns():
    baselines = scored(Classify.from_examples(TRAIN, {}), TRAIN, DEV)
    assert list(baselines) == ["majority", "tfidf_logistic_regression"]  # the strongest is the last
    # All of dev is predicted 'good' with probability 3/5, and one of three is: F1 2/4 of good, 0 of bad.
    assert baselines["majority"].metrics() == {
        "dev": pytest.approx({"accuracy": 1 / 3, "macro_f1": 0.25, "calibration_error": 0.6 - 1 / 3})
    }
    assert baselines["tfidf_logistic_regression"].metrics()["dev"]["accuracy"] == 1.0


def test_three_classes_have_probabilities_that_sum_to_one():
    rows = [*((f"{word} film", word) for word in ("red", "green", "blue")), ("blue music", "blue")]
    train = examples_of(*rows)
    task = Classify.from_examples(train, {})
    *_, strongest = task.fit_baselines(train)
    predictions = list(strongest.predict(train))
    assert [prediction.label for prediction in predictions] == [label for _, label in rows]
    assert [sum(prediction.probabilities.values()) for prediction in predictions] == pytest.approx([1.0] * 4)


def test_a_class_that_train_lacks_is_never_predicted():
    train = TRAIN[:3]  # only good
    task = Classify.from_examples(train, {"labels": ("bad", "good", "fair")})
    for baseline in scored(task, train, DEV).values():
        assert baseline.metrics()["dev"]["accuracy"] == pytest.approx(1 / 3)


def test_multi_label_baselines_decide_on_each_label():
    train = examples_of(("red car", "red|car"), ("car", "car"), ("big car", "car"), ("red", "red"), ("sky", ""))
    task = Classify.from_examples(train, {})
    majority, strongest = task.fit_baselines(train)
    # car: 3 of 5, red: 2 of 5
    assert [prediction.label for prediction in majority.predict(train)] == ["car"] * 5
    assert [set(prediction.label.split("|")) for prediction in strongest.predict(train)] == [
        {"red", "car"},
        {"car"},
        {"car"},
        {"red"},
        {""},
    ]


def test_the_mean_has_no_correlation_and_a_bag_of_words_has():
    train = examples_of(("fine film", "5"), ("fine music", "4"), ("dull film", "1"), ("dull music", "2"))
    baselines = scored(Regress.from_examples(train, {}), train, train)
    assert list(baselines) == ["mean", "tfidf_ridge_regression"]
    assert baselines["mean"].metrics()["dev"]["spearman"] == 0.0
    assert baselines["tfidf_ridge_regression"].metrics()["dev"]["spearman"] > 0.8
    mean, _ = Regress().fit_baselines(train)
    assert [prediction.value for prediction in mean.predict(train[:2])] == [3.0, 3.0]


def test_the_title_says_how_many_examples_of_long_texts_it_was_fitted_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bag_of_words, "_MAX_CHARACTERS", 30)  # of 44
    titles = [baseline.title for baseline in scored(Classify.from_examples(TRAIN, {}), TRAIN, DEV).values()]
    assert titles == [
        "majority baseline",
        "bag of words (TF-IDF + logistic regression), fitted to 3 of 5 examples",
    ]


def test_only_tasks_with_baselines_have_scores_and_only_where_something_is_scored():
    assert {name for name, task in TASKS.items() if issubclass(task, BaselineTask)} == {"classify", "regress"}
    task = Classify.from_examples(TRAIN, {})
    assert list(score_baselines(task, TRAIN, {})) == []
    assert list(score_baselines(TASKS["tag"].from_metadata({}, {"id2label": {"0": "O"}}), [], {"dev": []})) == []
