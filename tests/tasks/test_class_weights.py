"""Class weights: balanced ones equal scikit-learn's, given ones are parsed, and the loss of a class is multiplied."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import SettingsError
from bertworks.tasks.class_weights import balanced_weights, parse_class_weights
from bertworks.tasks.classify import Classify


def example(label: str) -> TextExample:
    return TextExample(id="", texts=("a text",), label=label, location="train.tsv, line 2")


def test_balanced_weights_equal_those_of_scikit_learn():
    labels = np.array([0] * 70 + [1] * 25 + [2] * 5)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights(np.bincount(labels), len(labels), multi_label=False) == pytest.approx(tuple(expected))


def test_a_class_without_examples_has_weight_one():
    assert balanced_weights(np.array([30, 10, 0]), 40, multi_label=False) == pytest.approx((2 / 3, 2.0, 1.0))


def test_multi_label_weights_balance_texts_with_and_without_a_label():
    assert balanced_weights(np.array([10, 40, 0]), 40, multi_label=True) == (3.0, 1.0, 1.0)


def test_given_weights():
    assert parse_class_weights("spam=3, ham=0.5", ("ham", "spam", "other")) == (0.5, 3.0, 1.0)
    assert parse_class_weights("a=b=2", ("a=b", "c")) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3,1", 'write it as "ham=2,spam=1" or "balanced"'),
        ("spma=3", "names 'spma', but the classes are: ham, spam"),
        ("spam=many", "the weight of 'spam' is 'many'; give a number"),
        ("spam=0", "the weight of 'spam' is 0; it must be above 0"),
        ("spam=inf", "the weight of 'spam' is inf; it must be above 0"),
    ],
)
def test_invalid_weights_are_refused(text: str, message: str):
    with pytest.raises(SettingsError, match=message):
        parse_class_weights(text, ("ham", "spam"))


def test_the_loss_of_a_class_is_multiplied_by_its_weight():
    task = Classify(labels=("ham", "spam")).with_class_weights("spam=3", [])
    outputs = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    batch = SimpleNamespace(labels={"class": torch.tensor([0, 1])}, groups=None)
    assert task.loss(outputs, batch).item() == pytest.approx(4 * np.log(2))


def test_balanced_weights_of_examples():
    examples = [example(label) for label in ("ham", "ham", "ham", "spam")]
    task = Classify.from_examples(examples, {})
    assert task.with_class_weights("balanced", examples).class_weights == pytest.approx((2 / 3, 2.0))
    examples = [example(label) for label in ("a|b", "a", "a", "b|c")]
    task = Classify.from_examples(examples, {})
    assert task.with_class_weights("balanced", examples).class_weights == pytest.approx((1 / 3, 1.0, 3.0))
