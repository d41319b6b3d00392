"""Distillation from a bag of words: recombined texts by hand, soft targets, and the loss of a batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import CONFIG

from bertworks.datasets.labelled_texts import TextExample
from bertworks.encoders.bert import Bert
from bertworks.encoders.layers import DropoutSeeds
from bertworks.sampling.batch import Batch
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Features, InputSequence
from bertworks.tasks.distillation import Distillation, Recombination, can_distill, held_out_error
from bertworks.tasks.module import TaskModule
from bertworks.tasks.regress import Regress

TASK = Classify(labels=("bad", "good"))


def generator_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def example(text: str, label: str = "bad") -> TextExample:
    return TextExample("", "", (text,), label)


def test_a_recombined_text_is_made_of_spans_of_the_texts():
    texts = ["a1 a2 a3 a4 a5", "b1 b2 b3 b4 b5"]
    made = [Recombination(texts).make_text(generator_of(seed)) for seed in range(200)]
    assert {word for text in made for word in text.split()} == set(" ".join(texts).split())
    assert any({"a", "b"} <= {word[0] for word in text.split()} for text in made)
    for text in made:
        words = text.split()
        starts = [i for i in range(1, len(words)) if words[i] != f"{words[i - 1][0]}{int(words[i - 1][1]) + 1}"]
        lengths = np.diff([0, *starts, len(words)])
        assert len(words) >= 5  # as long as a text
        assert lengths.min() >= 2


def test_long_texts_are_recombined_up_to_a_limit():
    words = " ".join(f"w{number}" for number in range(500))
    lengths = [len(Recombination([words]).make_text(generator_of(seed)).split()) for seed in range(50)]
    assert max(lengths) < 32 + 8
    characters = "".join(chr(0x4E00 + number) for number in range(500))
    lengths = [len(Recombination([characters]).make_text(generator_of(seed))) for seed in range(50)]
    assert 48 <= min(lengths) <= max(lengths) < 48 + 16


def test_the_same_random_numbers_make_the_same_text_and_empty_texts_do_no_harm():
    recombination = Recombination(["one two three", "", "four five six"])
    assert recombination.make_text(generator_of(3)) == recombination.make_text(generator_of(3))
    assert Recombination(["", ""]).make_text(generator_of(0)) == ""


def test_the_teacher_is_the_bag_of_words_of_the_baselines():
    examples = [example("a fine film", "good"), example("a dull film"), example("fine and good", "good")]
    teacher = TASK.fit_teacher(examples)
    probabilities = teacher([example("fine"), example("dull")])
    assert probabilities.sum(1) == pytest.approx([1.0, 1.0])
    assert probabilities[0, 1] > 0.5 > probabilities[1, 1]
    baseline = list(TASK.fit_baselines(examples))[-1]
    predictions = list(baseline.predict([example("fine")]))
    assert predictions[0].probabilities["good"] == pytest.approx(probabilities[0, 1])


def make_distillation(teacher: np.ndarray) -> Distillation:
    def featurize(text: TextExample) -> Features:
        count = len(text.texts[0].split())
        ids = np.array([2, *range(6, 6 + count), 3])
        return Features(sequences=(InputSequence(input_ids=ids, token_type_ids=np.zeros_like(ids), spans=()),))

    return Distillation(
        task=TASK,
        teacher=lambda examples: np.tile(teacher, (len(examples), 1)),
        recombination=Recombination(["a b c"]),
        featurize=featurize,
        pad=0,
    )


def test_the_labels_of_a_batch_are_the_probabilities_of_the_teacher():
    batch = make_distillation(np.array([0.25, 0.75])).make_batch(generator_of(0))
    assert batch.loss_part == "distillation"
    assert batch.labels["class"].dtype == torch.float32
    torch.testing.assert_close(batch.labels["class"], torch.tensor([[0.25, 0.75]]).expand(64, 2))


def test_the_loss_is_the_cross_entropy_with_the_teacher_in_its_own_part():
    generator = torch.Generator().manual_seed(0)
    module = TaskModule(Bert(CONFIG, generator), TASK, generator, r_drop=2.0, distill_weight=3.0).eval()
    batch = make_distillation(np.array([0.25, 0.75])).make_batch(generator_of(0))
    assert module.counts(batch) == {"distillation": 64}
    loss = module(batch, {"distillation": 1 / 64}, DropoutSeeds(torch.tensor(1, dtype=torch.int32)))
    log_probs = module.outputs(batch, DropoutSeeds(torch.tensor(1, dtype=torch.int32))).log_softmax(-1)
    total = -(0.25 * log_probs[:, 0] + 0.75 * log_probs[:, 1]).sum()
    torch.testing.assert_close(loss.parts["distillation"].total, total)
    torch.testing.assert_close(loss.value, 3.0 * total / 64)


def test_soft_targets_of_certain_classes_are_those_classes():
    logits = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    soft, hard = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    losses = [TASK.loss(logits, SimpleNamespace(labels={"class": labels}, groups=None)) for labels in (soft, hard)]
    torch.testing.assert_close(losses[0], losses[1])


def test_single_texts_of_a_classifier_can_be_taught():
    assert can_distill(Classify, [example("one"), example("two")])
    assert not can_distill(Classify, [TextExample("", "", ("one", "two"), "bad")])
    assert not can_distill(Regress, [example("one", "1.0")])


def test_other_batches_belong_to_the_task():
    assert (
        Batch(input_ids=torch.zeros(1, 1), token_type_ids=torch.zeros(1, 1), lengths=torch.ones(1)).loss_part == "task"
    )


def test_the_error_of_a_teacher_is_that_on_examples_that_it_was_not_fitted_to():
    texts = [("good", "a good film"), ("bad", "a bad film")] * 10
    task = Classify.from_examples([TextExample("", "", (text,), label) for label, text in texts], {})
    assert held_out_error(task, [TextExample("", "", (text,), label) for label, text in texts]) == 0.0
    # A word that only one example has teaches nothing about the others: three of these are never predicted.
    odd = [
        TextExample("", "", (text,), label) for label, text in [*texts, *(("good", f"{word} bad") for word in "xyz")]
    ]
    assert held_out_error(task, odd) == pytest.approx(3 / 23)


def test_a_multi_label_prediction_is_wrong_if_any_label_is():
    task = Classify(labels=("a", "b"), multi_label=True)
    examples = [TextExample("", "", ("x",), "a"), TextExample("", "", ("y",), "a|b")]
    assert task.num_wrong(examples, np.array([[0.9, 0.1], [0.9, 0.4]])) == 1
