"""Giving texts numbers: squared error, correlations, the mean of windows, and labels that are no numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.datasets.labelled_texts import TextExample
from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import FolderError, InputError
from bertworks.inference.predictor import Predictor
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.module import TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.tasks.regress import Regress, ValuePrediction
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("the", "cat", "dog", "bird", "purrs", "barks", "sings", "and", "now", "again")
TOKENIZER = Tokenizer.from_backend(
    wordpiece_backend(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], cased=False)
)
SIZES = BertConfig(
    len(TOKENIZER.tokens),
    16,
    2,
    2,
    32,
    64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,
)
RULE = WindowRule(32, 8)
CLOSE = 1e-5


def case(*texts: str, label: str | None = None) -> TextExample:
    return TextExample("1", "toy.tsv, line 2", texts, label)


def module_of(seed: int = 0) -> TaskModule:
    generator = torch.Generator().manual_seed(seed)
    return TaskModule(Bert(SIZES, generator), Regress(), generator)


def batch_of(*cases: TextExample) -> Batch:
    questions = [Regress().featurize(one, TOKENIZER, RULE) for one in cases]
    return batch_of_features(questions, Regress(), TOKENIZER.specials.pad)


def test_the_loss_is_the_squared_error_summed_over_examples_not_rows():
    batch = batch_of(case("the cat", label="2.5"), case("the dog " * 25, label="-1"))
    assert batch.groups is not None
    assert batch.groups.tolist() == [1, 1, 0]  # two windows of the second text, then the short one
    assert batch.labels["value"].tolist() == [2.5, -1.0]
    loss = Regress().loss(torch.tensor([[1.0], [2.0], [0.5]]), batch)
    assert float(loss) == (0.5 - 2.5) ** 2 + (1.5 + 1.0) ** 2
    assert Regress().num_targets(batch) == 2


def test_the_value_of_a_long_text_is_the_mean_of_its_windows_and_every_piece_is_covered():
    text = " ".join(WORDS[number * number % 7] for number in range(70))
    long = case(text)
    question = Regress().featurize(long, TOKENIZER, RULE)
    covered = [range(row.spans[0].first, row.spans[0].first + row.spans[0].count) for row in question.sequences]
    assert set().union(*covered) == set(range(70))
    predictor = Predictor(module_of(), TOKENIZER, RULE)
    ((_, found),) = predictor.predict([long])
    (outputs,) = predictor.outputs([question])
    assert len(outputs) == len(question.sequences) == 3
    assert len({float(output[0]) for output in outputs}) == 3
    assert abs(found.value - sum(float(output[0]) for output in outputs) / 3) < 1e-6


@pytest.mark.parametrize("lengths", [(6, 6, 6), (20, 3, 1, 9), (1,)], ids=str)
def test_values_equal_those_of_transformers(lengths: tuple[int, ...]):
    config = transformers.BertConfig(**config_to_dict(SIZES, ["BertForSequenceClassification"]), **Regress().config())
    assert (config.num_labels, config.problem_type) == (1, "regression")
    theirs = transformers.BertForSequenceClassification(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    ours = module_of().eval()
    report = load_into(ours.encoder, theirs.state_dict(), tensor_names(SIZES))
    head = load_into(ours.head, theirs.state_dict(), HEADS["rows"])
    assert (report.missing_keys, head.missing_keys) == ((), ())
    assert set(report.unexpected_keys) == set(head.loaded_keys)
    texts = [" ".join(WORDS[number * length % len(WORDS)] for number in range(length)) for length in lengths]
    batch = batch_of(*(case(text, "the bird sings", label=str(at)) for at, text in enumerate(texts)))
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    assert batch.groups is not None
    wanted = batch.labels["value"][batch.groups]
    with torch.no_grad():
        expected = theirs(batch.input_ids, mask, batch.token_type_ids, labels=wanted)
        found = ours.outputs(batch)
    assert found.shape == expected.logits.shape == (len(lengths), 1)
    assert float((found - expected.logits).abs().max()) < CLOSE
    assert abs(float(ours.task.loss(found, batch)) / len(lengths) - float(expected.loss)) < CLOSE


def test_a_tiny_model_learns_to_count():
    """The value is how often a cat is named, at whatever place."""
    generator = np.random.default_rng(0)

    def drawn() -> TextExample:
        words = generator.choice(["cat", "dog", "bird", "and"], size=generator.integers(3, 9))
        return case(" ".join(words), label=str(int((words == "cat").sum())))

    cases = [drawn() for _ in range(240)]
    task = Regress.from_examples(cases[:200], {})
    questions = [task.featurize(one, TOKENIZER, RULE) for one in cases[:200]]

    def draw(phase: int, step: int) -> list[Batch]:
        own = [questions[(step * 20 + number) % 200] for number in range(20)]
        return [batch_of_features(own, task, TOKENIZER.specials.pad)]

    module = module_of()
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((300,), 30, 5e-3),
        get_batches=draw,
        seed=0,
    )
    steps = list(train(training, TrainState()))
    assert steps[-1].losses["task"] < 0.1 < steps[0].losses["task"]
    scored = task.score(Predictor(module, TOKENIZER, RULE).predict(cases[200:]))
    assert scored.metrics["pearson"] > 0.97
    # Equal counts have unequal predictions, whose ranks nobody could guess: a perfect model, too, stays below 1.
    assert scored.main_value == scored.metrics["spearman"] > 0.9


def test_values_are_learned_less_their_mean_in_units_of_their_deviation():
    cases = [case("the", label=label) for label in ("10000", "14000", "10000", "14000")]
    task = Regress.from_examples(cases, {})
    assert (task.mean, task.std) == (12_000.0, 2_000.0)
    questions = [task.featurize(one, TOKENIZER, RULE) for one in cases]
    assert questions[1].label == 14_000.0
    assert task.collate_labels(questions)["value"].tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert task.decode(cases[0], questions[0], [np.array([0.5], dtype=np.float32)]).value == 13_000.0
    assert Regress.from_metadata(task.metadata(), task.config()) == task


@pytest.mark.parametrize("recurrent", [None, RecurrentSettings("last", 8)], ids=["plain", "features"])
def test_in_the_end_the_head_says_values_as_they_are_written(recurrent: RecurrentSettings | None):
    task = Regress(12_000.0, 2_000.0)
    generator = torch.Generator().manual_seed(0)
    module = TaskModule(Bert(SIZES, generator), task, generator, recurrent=recurrent)
    cases = [case("the cat purrs"), case("the dog barks " * 20)]
    before = [one.value for _, one in Predictor(module, TOKENIZER, RULE).predict(cases)]
    module.task = task.unscale(module.head)
    assert module.task == Regress()
    assert module.task.metadata() == {}
    found = [one.value for _, one in Predictor(module, TOKENIZER, RULE).predict(cases)]
    assert found == pytest.approx(before, rel=1e-6)
    (outputs,) = Predictor(module, TOKENIZER, RULE).outputs([module.task.featurize(cases[0], TOKENIZER, RULE)])
    assert float(outputs[0][0]) == pytest.approx(found[0], rel=1e-6)


def test_correlations_and_the_farthest_values_by_hand():
    wanted, found = ("1", "2", "3", "4"), (1.0, 3.0, 2.0, 10.0)
    pairs = [(case("the", label=one), ValuePrediction("1", other)) for one, other in zip(wanted, found, strict=True)]
    scored = Regress().score(pairs)
    # Ranks 1 3 2 4 against 1 2 3 4: 1 - 6 * (1 + 1) / (4 * 15). Values: 13 / sqrt(5 * 50).
    assert scored.metrics == {"spearman": pytest.approx(0.8), "pearson": pytest.approx(13 / 250**0.5)}
    assert scored.main_metric == Regress().main_metric == "spearman"
    first = scored.details["mistakes"][0]
    assert (first.expected, first.predicted, first.confidence) == ("4", "10.00", 6.0)


def test_a_prediction_and_the_task_survive_a_model_folder():
    assert ValuePrediction("7", 2.5).to_dict() == {"id": "7", "value": 2.5}
    assert Regress.from_metadata(Regress().metadata(), Regress().config()) == Regress()
    assert Regress().calibrate([], []) == Regress()


def test_a_model_with_several_classes_is_refused():
    with pytest.raises(FolderError, match=r"3 labels \(bad, fair, good\).*'classify'"):
        Regress.from_metadata({}, {"id2label": {"0": "bad", "1": "fair", "2": "good"}})


@pytest.mark.parametrize("label", ["", "high", "nan", "inf", "1,5"])
def test_a_label_that_is_no_number_is_refused_with_its_line(tmp_path: Path, label: str):
    path = tmp_path / "toy.tsv"
    path.write_text(f"sentence1\tsentence2\tscore\nThe cat\tThe dog\t4.5\nThe bird\tThe cat\t{label}\n")
    columns = {"text": "sentence1", "pair": "sentence2", "label": "score"}
    cases = list(Regress.read(path, columns))
    assert [one.texts for one in cases] == [("The cat", "The dog"), ("The bird", "The cat")]
    with pytest.raises(InputError, match=r"toy\.tsv, line 3: the label '.*' is no number.*--label"):
        Regress.from_examples(cases, {})
    with pytest.raises(InputError, match=r"toy\.tsv, line 3"):
        Regress().featurize(cases[1], TOKENIZER, RULE)


def test_what_cannot_be_learned_from_is_refused():
    with pytest.raises(InputError, match="no texts to learn from"):
        Regress.from_examples([], {})
    with pytest.raises(InputError, match=r"all 2 training texts have the same value 1; there is nothing to learn"):
        Regress.from_examples([case("the", label="1"), case("cat", label="1.0")], {})
    with pytest.raises(InputError, match=r"toy\.tsv, line 2: there is no label"):
        Regress.from_examples([case("the")], {})
    assert Regress().featurize(case("the"), TOKENIZER, RULE).label is None
