"""Regression: squared error, correlations, the mean over windows, and labels that are not numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bertworks
from bertworks.datasets.labelled_texts import TextExample
from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
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
CONFIG = BertConfig(
    vocab_size=len(TOKENIZER.tokens),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,
)
WINDOW_RULE = WindowRule(32, 8)
TOLERANCE = 1e-5


def make_example(*texts: str, label: str | None = None) -> TextExample:
    return TextExample("1", "toy.tsv, line 2", texts, label)


def make_module(seed: int = 0) -> TaskModule:
    generator = torch.Generator().manual_seed(seed)
    return TaskModule(Bert(CONFIG, generator), Regress(), generator)


def make_batch(*examples: TextExample) -> Batch:
    all_features = [Regress().featurize(one, TOKENIZER, WINDOW_RULE) for one in examples]
    return batch_of_features(all_features, Regress(), TOKENIZER.specials.pad)


def test_the_loss_sums_squared_errors_over_examples_not_windows():
    batch = make_batch(make_example("the cat", label="2.5"), make_example("the dog " * 25, label="-1"))
    assert batch.groups is not None
    assert batch.groups.tolist() == [1, 1, 0]  # two windows of the second text, then the short one
    assert batch.labels["value"].tolist() == [[2.5], [-1.0]]
    loss = Regress().loss(torch.tensor([[1.0], [2.0], [0.5]]), batch)
    assert float(loss) == (0.5 - 2.5) ** 2 + (1.5 + 1.0) ** 2
    assert Regress().num_targets(batch) == 2


def test_the_value_of_a_long_text_is_the_mean_over_windows_that_cover_every_token():
    text = " ".join(WORDS[index * index % 7] for index in range(70))
    long = make_example(text)
    features = Regress().featurize(long, TOKENIZER, WINDOW_RULE)
    covered = [
        range(sequence.spans[0].first, sequence.spans[0].first + sequence.spans[0].count)
        for sequence in features.sequences
    ]
    assert set().union(*covered) == set(range(70))
    predictor = Predictor(make_module(), TOKENIZER, WINDOW_RULE)
    ((_, prediction),) = predictor.predict([long])
    (outputs,) = predictor.outputs([features])
    assert len(outputs) == len(features.sequences) == 3
    assert len({float(output[0]) for output in outputs}) == 3
    assert abs(prediction.value - sum(float(output[0]) for output in outputs) / 3) < 1e-6


@pytest.mark.parametrize("lengths", [(6, 6, 6), (20, 3, 1, 9), (1,)], ids=str)
def test_values_equal_transformers(lengths: tuple[int, ...]):
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertForSequenceClassification"]), **Regress().config())
    assert (config.num_labels, config.problem_type) == (1, "regression")
    theirs = transformers.BertForSequenceClassification(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    ours = make_module().eval()
    report = load_into(ours.encoder, theirs.state_dict(), tensor_names(CONFIG))
    head = load_into(ours.head, theirs.state_dict(), HEADS["sequence"])
    assert (report.missing_keys, head.missing_keys) == ((), ())
    assert set(report.unexpected_keys) == set(head.loaded_keys)
    texts = [" ".join(WORDS[word * length % len(WORDS)] for word in range(length)) for length in lengths]
    batch = make_batch(*(make_example(text, "the bird sings", label=str(index)) for index, text in enumerate(texts)))
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    assert batch.groups is not None
    targets = batch.labels["value"][batch.groups]
    with torch.no_grad():
        reference = theirs(batch.input_ids, mask, batch.token_type_ids, labels=targets)
        outputs = ours.outputs(batch)
    assert outputs.shape == reference.logits.shape == (len(lengths), 1)
    assert float((outputs - reference.logits).abs().max()) < TOLERANCE
    assert abs(float(ours.task.loss(outputs, batch)) / len(lengths) - float(reference.loss)) < TOLERANCE


def test_a_tiny_model_learns_to_count():
    """The value is the number of cats, at any position."""
    generator = np.random.default_rng(0)

    def sample_example() -> TextExample:
        words = generator.choice(["cat", "dog", "bird", "and"], size=generator.integers(3, 9))
        return make_example(" ".join(words), label=str(int((words == "cat").sum())))

    examples = [sample_example() for _ in range(240)]
    task = Regress.from_examples(examples[:200], {})
    all_features = [task.featurize(one, TOKENIZER, WINDOW_RULE) for one in examples[:200]]

    def get_batches(phase: int, step: int) -> list[Batch]:
        batch_features = [all_features[(step * 20 + index) % 200] for index in range(20)]
        return [batch_of_features(batch_features, task, TOKENIZER.specials.pad)]

    module = make_module()
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((300,), 30, 5e-3),
        get_batches=get_batches,
        seed=0,
    )
    steps = list(train(training, TrainState()))
    assert steps[-1].losses["task"] < 0.1 < steps[0].losses["task"]
    scores = task.score(Predictor(module, TOKENIZER, WINDOW_RULE).predict(examples[200:]))
    assert scores.metrics["pearson"] > 0.97
    # Equal counts have unequal predictions, whose order is arbitrary: even a perfect model is below 1.
    assert scores.main_value == scores.metrics["spearman"] > 0.9


def test_labels_are_standardized():
    examples = [make_example("the", label=label) for label in ("10000", "14000", "10000", "14000")]
    task = Regress.from_examples(examples, {})
    assert (task.mean, task.std) == ((12_000.0,), (2_000.0,))
    all_features = [task.featurize(one, TOKENIZER, WINDOW_RULE) for one in examples]
    assert all_features[1].label == (14_000.0,)
    assert task.collate_labels(all_features)["value"].tolist() == [[-1.0], [1.0], [-1.0], [1.0]]
    assert task.decode(examples[0], all_features[0], [np.array([0.5], dtype=np.float32)]).value == 13_000.0
    assert Regress.from_metadata(task.metadata(), task.config()) == task


@pytest.mark.parametrize("recurrent", [None, RecurrentSettings("last", 8)], ids=["plain", "features"])
def test_unscale_folds_mean_and_deviation_into_the_head(recurrent: RecurrentSettings | None):
    task = Regress(mean=(12_000.0,), std=(2_000.0,))
    generator = torch.Generator().manual_seed(0)
    module = TaskModule(Bert(CONFIG, generator), task, generator, recurrent=recurrent)
    examples = [make_example("the cat purrs"), make_example("the dog barks " * 20)]
    scaled_values = [one.value for _, one in Predictor(module, TOKENIZER, WINDOW_RULE).predict(examples)]
    module.task = task.unscale(module.head)
    assert module.task == Regress()
    assert module.task.metadata() == {}
    values = [one.value for _, one in Predictor(module, TOKENIZER, WINDOW_RULE).predict(examples)]
    assert values == pytest.approx(scaled_values, rel=1e-6)
    (outputs,) = Predictor(module, TOKENIZER, WINDOW_RULE).outputs(
        [module.task.featurize(examples[0], TOKENIZER, WINDOW_RULE)]
    )
    assert float(outputs[0][0]) == pytest.approx(values[0], rel=1e-6)


def test_correlations_and_worst_mistakes_by_hand():
    expected, predicted = ("1", "2", "3", "4"), (1.0, 3.0, 2.0, 10.0)
    pairs = [
        (make_example("the", label=label), ValuePrediction("1", value))
        for label, value in zip(expected, predicted, strict=True)
    ]
    scores = Regress().score(pairs)
    # Ranks 1 3 2 4 against 1 2 3 4: 1 - 6 * (1 + 1) / (4 * 15). Values: 13 / sqrt(5 * 50).
    assert scores.metrics == {"spearman": pytest.approx(0.8), "pearson": pytest.approx(13 / 250**0.5)}
    assert scores.main_metric == Regress().main_metric == "spearman"
    first = scores.details["mistakes"][0]
    assert (first.expected, first.predicted, first.confidence) == ("4", "10.00", 6.0)


def test_metadata_restores_the_task_and_predictions_have_json():
    assert ValuePrediction("7", 2.5).to_dict() == {"id": "7", "value": 2.5}
    assert Regress.from_metadata(Regress().metadata(), Regress().config()) == Regress()
    assert Regress().calibrate([], []) == Regress()


def test_a_classification_config_raises_an_error():
    with pytest.raises(FolderError, match=r"3 labels \(bad, fair, good\).*'classify'"):
        Regress.from_metadata({}, {"id2label": {"0": "bad", "1": "fair", "2": "good"}})


@pytest.mark.parametrize("label", ["", "high", "nan", "inf", "1,5"])
def test_a_label_that_is_not_a_number_raises_an_error_with_its_line(tmp_path: Path, label: str):
    path = tmp_path / "toy.tsv"
    path.write_text(f"sentence1\tsentence2\tscore\nThe cat\tThe dog\t4.5\nThe bird\tThe cat\t{label}\n")
    columns = {"text": "sentence1", "pair": "sentence2", "label": "score"}
    examples = list(Regress.read(path, columns))
    assert [one.texts for one in examples] == [("The cat", "The dog"), ("The bird", "The cat")]
    with pytest.raises(InputError, match=r"toy\.tsv, line 3: the label '.*' is not a number.*--label"):
        Regress.from_examples(examples, {})
    with pytest.raises(InputError, match=r"toy\.tsv, line 3"):
        Regress().featurize(examples[1], TOKENIZER, WINDOW_RULE)


def test_examples_without_distinct_labels_raise_an_error():
    with pytest.raises(InputError, match="there are no training texts"):
        Regress.from_examples([], {})
    with pytest.raises(InputError, match=r"all 2 training texts have the same value 1, so there is nothing to learn"):
        Regress.from_examples([make_example("the", label="1"), make_example("cat", label="1.0")], {})
    with pytest.raises(InputError, match=r"toy\.tsv, line 2: there is no label"):
        Regress.from_examples([make_example("the")], {})
    assert Regress().featurize(make_example("the"), TOKENIZER, WINDOW_RULE).label is None


def test_a_model_of_several_values_predicts_them_as_transformers(tmp_path: Path):
    config = transformers.BertConfig(
        **config_to_dict(CONFIG, []), id2label={0: "joy", 1: "fear", 2: "pain"}, problem_type="regression"
    )
    torch.manual_seed(1)
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    model = bertworks.load(tmp_path)
    (prediction,) = model.predict(["the cat purrs"])
    with torch.inference_mode():
        logits = theirs(torch.tensor([TOKENIZER.encode("the cat purrs").input_ids])).logits[0].tolist()
    assert prediction.to_dict()["values"] == pytest.approx(
        dict(zip(("joy", "fear", "pain"), logits, strict=True)), abs=TOLERANCE
    )
    task = model.predictor.module.task
    with pytest.raises(InputError, match="line 2: the label '1' has 1 values, but the model has 3"):
        task.featurize(make_example("the cat", label="1"), TOKENIZER, WINDOW_RULE)
    with pytest.raises(InputError, match="the values joy, fear, hope, but the model has joy, fear, pain"):
        task.featurize(make_example("the cat", label="joy=1|fear=2|hope=3"), TOKENIZER, WINDOW_RULE)


def test_several_values_are_learned_scored_and_named(tmp_path: Path):
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(200):
        words = generator.choice(["cat", "dog", "bird", "and"], size=generator.integers(3, 9))
        label = {"cats": int((words == "cat").sum()), "dogs": 100 * int((words == "dog").sum())}
        lines.append(json.dumps({"text": " ".join(words), "label": label}) + "\n")
    (tmp_path / "train.jsonl").write_text("".join(lines[:160]))
    (tmp_path / "dev.jsonl").write_text("".join(lines[160:]))
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**config_to_dict(CONFIG, []))).save_pretrained(tmp_path / "base")
    TOKENIZER.save(tmp_path / "base")
    model = bertworks.finetune(
        "regress",
        model=tmp_path / "base",
        train=tmp_path / "train.jsonl",
        dev=tmp_path / "dev.jsonl",
        output=tmp_path / "run",
        epochs=40,
        learning_rate=5e-3,
        batch_size=20,
    )
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]["dev"]
    with pytest.raises(FolderError, match=r"the scale of 2 values, but config\.json names 3"):
        Regress.from_metadata({"scale": (0.0, 0.0, 1.0, 1.0)}, Regress(value_names=("a", "b", "c")).config())
    means = [np.mean([scores[f"{metric}_{name}"] for name in ("cats", "dogs")]) for metric in ("pearson", "spearman")]
    assert [scores["pearson"], scores["spearman"]] == pytest.approx(means)
    assert scores["spearman"] > 0.8
    values = bertworks.load(tmp_path / "run" / "model").predict("cat dog dog and").values
    assert values == pytest.approx(model.predict("cat dog dog and").values, rel=1e-3)
    assert values == pytest.approx({"cats": 1, "dogs": 200}, rel=0.3)


def test_the_loss_of_several_values_equals_transformers():
    config = transformers.BertConfig(**config_to_dict(CONFIG, []), num_labels=2, problem_type="regression")
    theirs = transformers.BertForSequenceClassification(config).eval()
    task = Regress(value_names=("joy", "fear"))
    examples = [make_example("the cat", label="1|2"), make_example("the dog", label="fear=0.5|joy=-1")]
    features = [task.featurize(one, TOKENIZER, WINDOW_RULE) for one in examples]
    batch = batch_of_features(features, task, TOKENIZER.specials.pad)
    assert batch.labels["value"].tolist() == [[1.0, 2.0], [-1.0, 0.5]]
    with torch.no_grad():
        reference = theirs(batch.input_ids, token_type_ids=batch.token_type_ids, labels=batch.labels["value"])
    loss = float(task.loss(reference.logits, batch)) / task.num_targets(batch)
    assert loss == pytest.approx(float(reference.loss), rel=1e-6)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"id2label": {"0": "toxicity"}}, {"name": "toxicity"}),
        ({"id2label": {"0": "LABEL_0"}}, {}),
        ({"id2label": None, "num_labels": 1}, {}),
    ],
)
def test_a_single_output_of_transformers_is_a_value_with_its_name(
    tmp_path: Path, labels: dict[str, Any], expected: dict[str, str]
):
    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig(**config_to_dict(CONFIG, []), num_labels=1)
    ).eval()
    theirs.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **labels}))
    (prediction,) = bertworks.load(tmp_path).predict(["the cat purrs"])
    with torch.inference_mode():
        (logit,) = theirs(torch.tensor([TOKENIZER.encode("the cat purrs").input_ids])).logits[0].tolist()
    assert prediction.to_dict() == {"id": "0", "value": pytest.approx(logit, abs=TOLERANCE), **expected}
