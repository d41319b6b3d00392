"""Classes: labels learned and read back, probabilities, losses and scores by hand."""

import math

import numpy as np
import pytest
import torch

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import TextExample, text_examples
from bertworks.errors import InputError
from bertworks.metrics.classification import Matches
from bertworks.sampling.batch import Batch
from bertworks.tasks.classify import Classify, ClassPrediction, labels_in
from bertworks.tasks.contract import Features


def case(label: str | None, text: str = "some text") -> TextExample:
    return TextExample("1", "train.tsv, line 2", (text,), label)


def test_labels_are_learned_in_the_order_of_numbers_then_words():
    task = Classify.from_examples([case(label) for label in ("10", "9", "b", "a", "9")], {})
    assert task.labels == ("9", "10", "a", "b")
    assert task.main_metric == "accuracy"


def test_labels_and_metrics_of_a_set_go_first():
    task = Classify.from_examples([case("1"), case("0")], {"labels": ("0", "1", "2"), "metrics": ("matthews",)})
    assert (task.labels, task.main_metric) == (("0", "1", "2"), "matthews")


def test_several_labels_are_recognised_by_the_bar_between_them():
    task = Classify.from_examples([case("a|b"), case("c")], {})
    assert (task.multi_label, task.labels, task.main_metric) == (True, ("a", "b", "c"), "micro_f1")


def test_what_is_told_of_a_task_is_read_back():
    task = Classify(("no", "yes"), metrics=("f1", "accuracy"), temperature=1.5)
    assert Classify.from_metadata(task.metadata(), task.config()) == task
    several = Classify(("a", "b"), True, ("micro_f1",))
    assert Classify.from_metadata(several.metadata(), several.config()) == several


def test_labels_of_a_foreign_config():
    assert labels_in({"id2label": {"10": "k", "2": "c", "0": "a"}}) == ("a", "c", "k")
    assert labels_in({"num_labels": 3}) == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_the_loss_is_that_of_the_mean_over_the_windows_of_a_text():
    """Two rows of one text have logits (2, 0) and (0, 0): their mean (1, 0), the loss of class 0 ln(1 + 1/e)."""
    batch = Batch(
        torch.ones(3, 2, dtype=torch.long),
        torch.zeros(3, 2, dtype=torch.long),
        torch.tensor([2, 2, 2]),
        labels={"class": torch.tensor([0, 1])},
        groups=torch.tensor([0, 1, 0]),
    )
    outputs = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    task = Classify(("a", "b"))
    assert float(task.loss(outputs, batch)) == pytest.approx(math.log(1 + math.exp(-1)) + math.log(2))
    assert task.num_targets(batch) == 2


def test_probabilities_are_cooled_by_the_temperature():
    """Logits 2 and 0 at temperature 2 are 1 and 0: e / (e + 1)."""
    task = Classify(("a", "b"), temperature=2.0)
    found = task.decode(case(None), Features(()), [np.array([3.0, 0.0], np.float32), np.array([1.0, 0.0], np.float32)])
    assert found.label == "a"
    assert found.probabilities["a"] == pytest.approx(math.e / (math.e + 1))
    assert found.logits.tolist() == [2.0, 0.0]


def test_of_several_labels_it_is_counted_how_each_was_found():
    task = Classify(("a", "b"), multi_label=True, metrics=("micro_f1",))
    logits = np.zeros(2, dtype=np.float32)
    said = [("a|b", "a"), ("a", "a|b"), ("b", "")]
    pairs = [(case(right), ClassPrediction("1", label, {"a": 0.5, "b": 0.5}, logits)) for right, label in said]
    assert task.score(pairs).details["found"] == (Matches(2, 2, 2), Matches(0, 1, 2))


def test_of_several_labels_those_that_are_likelier_than_not_are_said():
    task = Classify(("a", "b", "c"), multi_label=True)
    found = task.decode(case(None), Features(()), [np.array([1.0, -1.0, 0.1], np.float32)])
    assert found.label == "a|c"
    assert found.probabilities["b"] == pytest.approx(1 / (1 + math.e))


def prediction(label: str, sure: float) -> ClassPrediction:
    other = "b" if label == "a" else "a"
    return ClassPrediction("1", label, {label: sure, other: 1 - sure}, np.zeros(2, np.float32))


def test_scores_calibration_and_mistakes_by_hand():
    """Three right of four. Sure 0.9 twice, one of them right; 0.6 twice, both right: |1.8 - 1| and |1.2 - 2| of 4."""
    pairs = [
        (case("a", "one"), prediction("a", 0.9)),
        (case("a", "two"), prediction("b", 0.9)),
        (case("b", "three"), prediction("b", 0.6)),
        (case("b", "four"), prediction("b", 0.6)),
    ]
    scored = Classify(("a", "b")).score(pairs)
    assert scored.metrics["accuracy"] == scored.main_value == 0.75
    assert scored.metrics["calibration_error"] == pytest.approx(0.8 * 2 / 4)
    assert scored.details["confusion"].tolist() == [[1, 1], [0, 2]]
    (mistake,) = scored.details["mistakes"]
    assert (mistake.texts, mistake.expected, mistake.predicted, mistake.confidence) == (("two",), "a", "b", 0.9)


def test_a_label_that_training_never_saw_is_named():
    with pytest.raises(InputError, match=r"train.tsv, line 2: the label 'c' does not occur.*known are: a, b"):
        Classify(("a", "b")).score([(case("c"), prediction("a", 0.9))])


def test_columns_are_recognised_and_a_role_without_column_is_not_looked_for():
    lines = [Record({"index": "7", "sentence": "so", "other": "x"}, "test.tsv, line 2")]
    (found,) = text_examples(lines, {"label": ""}, "test.tsv")
    assert (found.id, found.texts, found.label) == ("7", ("so",), None)
