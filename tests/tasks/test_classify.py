"""Classification: labels from examples and folders, probabilities, losses and scores worked out by hand."""

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


def make_example(label: str | None, text: str = "some text") -> TextExample:
    return TextExample("1", "train.tsv, line 2", (text,), label)


def test_labels_are_sorted_numbers_first():
    task = Classify.from_examples([make_example(label) for label in ("10", "9", "b", "a", "9")], {})
    assert task.labels == ("9", "10", "a", "b")
    assert task.main_metric == "accuracy"


def test_settings_override_labels_and_metrics():
    task = Classify.from_examples(
        [make_example("1"), make_example("0")], {"labels": ("0", "1", "2"), "metrics": ("matthews",)}
    )
    assert (task.labels, task.main_metric) == (("0", "1", "2"), "matthews")


def test_a_separator_in_a_label_makes_the_task_multi_label():
    task = Classify.from_examples([make_example("a|b"), make_example("c")], {})
    assert (task.multi_label, task.labels, task.main_metric) == (True, ("a", "b", "c"), "micro_f1")


def test_metadata_and_config_restore_the_task():
    task = Classify(labels=("no", "yes"), metrics=("f1", "accuracy"), temperature=1.5)
    assert Classify.from_metadata(task.metadata(), task.config()) == task
    multi_label_task = Classify(labels=("a", "b"), multi_label=True, metrics=("micro_f1",))
    assert Classify.from_metadata(multi_label_task.metadata(), multi_label_task.config()) == multi_label_task


def test_labels_of_a_transformers_config():
    assert labels_in({"id2label": {"10": "k", "2": "c", "0": "a"}}) == ("a", "c", "k")
    assert labels_in({"num_labels": 3}) == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_the_loss_averages_the_logits_of_a_text_s_windows():
    """Two windows of one text have logits (2, 0) and (0, 0): their mean (1, 0), the loss of class 0 ln(1 + 1/e)."""
    batch = Batch(
        input_ids=torch.ones(3, 2, dtype=torch.long),
        token_type_ids=torch.zeros(3, 2, dtype=torch.long),
        lengths=torch.tensor([2, 2, 2]),
        labels={"class": torch.tensor([0, 1])},
        groups=torch.tensor([0, 1, 0]),
    )
    outputs = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    task = Classify(labels=("a", "b"))
    assert float(task.loss(outputs, batch)) == pytest.approx(math.log(1 + math.exp(-1)) + math.log(2))
    assert task.num_targets(batch) == 2


def test_probabilities_are_scaled_by_the_temperature():
    """Logits 2 and 0 at temperature 2 are 1 and 0: e / (e + 1)."""
    task = Classify(labels=("a", "b"), temperature=2.0)
    prediction = task.decode(
        make_example(None), Features(sequences=()), [np.array([3.0, 0.0], np.float32), np.array([1.0, 0.0], np.float32)]
    )
    assert prediction.label == "a"
    assert prediction.probabilities["a"] == pytest.approx(math.e / (math.e + 1))
    assert prediction.logits.tolist() == [2.0, 0.0]


def test_multi_label_scores_count_matches_of_each_label():
    task = Classify(labels=("a", "b"), multi_label=True, metrics=("micro_f1",))
    logits = np.zeros(2, dtype=np.float32)
    labels = [("a|b", "a"), ("a", "a|b"), ("b", "")]
    pairs = [
        (make_example(expected), ClassPrediction("1", predicted, {"a": 0.5, "b": 0.5}, logits))
        for expected, predicted in labels
    ]
    assert task.score(pairs).details["matches"] == (Matches(2, 2, 2), Matches(0, 1, 2))


def test_multi_label_predicts_labels_above_one_half():
    task = Classify(labels=("a", "b", "c"), multi_label=True)
    prediction = task.decode(make_example(None), Features(sequences=()), [np.array([1.0, -1.0, 0.1], np.float32)])
    assert prediction.label == "a|c"
    assert prediction.probabilities["b"] == pytest.approx(1 / (1 + math.e))


def make_prediction(label: str, confidence: float) -> ClassPrediction:
    other = "b" if label == "a" else "a"
    return ClassPrediction("1", label, {label: confidence, other: 1 - confidence}, np.zeros(2, np.float32))


def test_scores_calibration_and_mistakes_by_hand():
    """Three of four correct. Confidence 0.9: one of two correct; 0.6: both correct: |1.8 - 1| and |1.2 - 2| of 4."""
    pairs = [
        (make_example("a", "one"), make_prediction("a", 0.9)),
        (make_example("a", "two"), make_prediction("b", 0.9)),
        (make_example("b", "three"), make_prediction("b", 0.6)),
        (make_example("b", "four"), make_prediction("b", 0.6)),
    ]
    scores = Classify(labels=("a", "b")).score(pairs)
    assert scores.metrics["accuracy"] == scores.main_value == 0.75
    assert scores.metrics["calibration_error"] == pytest.approx(0.8 * 2 / 4)
    assert scores.details["confusion"].tolist() == [[1, 1], [0, 2]]
    (mistake,) = scores.details["mistakes"]
    assert (mistake.texts, mistake.expected, mistake.predicted, mistake.confidence) == (("two",), "a", "b", 0.9)


def test_an_unknown_label_raises_an_error():
    with pytest.raises(InputError, match=r"train.tsv, line 2: the label 'c' does not occur.*the labels are: a, b"):
        Classify(labels=("a", "b")).score([(make_example("c"), make_prediction("a", 0.9))])


def test_columns_are_recognized_and_a_role_with_an_empty_column_is_ignored():
    records = [Record({"index": "7", "sentence": "so", "other": "x"}, "test.tsv, line 2")]
    (example,) = text_examples(records, {"label": ""}, "test.tsv")
    assert (example.id, example.texts, example.label) == ("7", ("so",), None)


def test_classes_of_one_name_are_told_apart_by_their_ids():
    task = Classify.from_metadata({}, {"id2label": {"0": "other", "1": "good", "2": "other"}})
    assert task.labels == ("other (0)", "good", "other (2)")
    features = Features(sequences=())
    prediction = task.decode(make_example(None), features, [np.array([0.0, 0.0, np.log(2.0)], dtype=np.float32)])
    assert prediction.label == "other (2)"
    assert prediction.probabilities == pytest.approx({"other (0)": 0.25, "good": 0.25, "other (2)": 0.5})


def test_the_name_of_a_class_that_gets_its_id_is_not_that_of_another():
    labels = {"0": "other", "1": "other (2)", "2": "other"}
    assert Classify.from_metadata({}, {"id2label": labels}).labels == ("other (0)", "other (2)", "other (2) (2)")
