"""Multiple choice: each ending is scored with its prompt, whatever their number, length and order."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.errors import InputError
from bertworks.inference.predictor import Predictor
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.choose import ChoiceExample, ChoicePrediction, Choose, pad_scores
from bertworks.tasks.contract import Features, Mistake
from bertworks.tasks.module import TaskModule
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("the", "cat", "dog", "purrs", "barks", "swims", "flies", "softly", "now", "again")
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


def make_example(prompt: str, *endings: str, label: int | None = None) -> ChoiceExample:
    return ChoiceExample(id="1", location="toy.csv, line 2", prompt=prompt, endings=endings, label=label)


def make_module(task: Choose = Choose(), seed: int = 0) -> TaskModule:
    generator = torch.Generator().manual_seed(seed)
    return TaskModule(Bert(CONFIG, generator), task, generator)


def make_batch(*examples: ChoiceExample) -> Batch:
    all_features = [Choose().featurize(one, TOKENIZER, WINDOW_RULE) for one in examples]
    return batch_of_features(all_features, Choose(), TOKENIZER.specials.pad)


def test_each_ending_is_encoded_as_a_pair_with_the_prompt():
    features = Choose().featurize(make_example("the cat", "purrs", "barks now", label=1), TOKENIZER, WINDOW_RULE)
    assert [sequence.unit for sequence in features.sequences] == [0, 1]
    assert (features.num_units, features.label, features.num_truncated) == (2, 1, 0)
    tokens = [[TOKENIZER.tokens[index] for index in sequence.input_ids] for sequence in features.sequences]
    assert tokens == [
        ["[CLS]", "the", "cat", "[SEP]", "purrs", "[SEP]"],
        ["[CLS]", "the", "cat", "[SEP]", "barks", "now", "[SEP]"],
    ]
    assert features.sequences[1].token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_scores_are_padded_to_the_largest_number_of_endings():
    table = pad_scores(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.tensor([2, 3, 1]))
    padding = -math.inf
    assert table.tolist() == [[1.0, 2.0, padding], [3.0, 4.0, 5.0], [6.0, padding, padding]]


def test_the_loss_is_cross_entropy_over_each_example_s_endings():
    batch = make_batch(
        make_example("the cat", "purrs", "barks", label=0), make_example("the dog", "swims", "flies", "barks", label=2)
    )
    assert batch.labels["choice"].tolist() == [0, 2]
    assert batch.labels["num_units"].tolist() == [2, 3]
    assert batch.groups is not None
    scores = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0])  # by unit: two of the first example, three of the second
    loss = Choose().loss(scores[batch.groups][:, None], batch)
    expected = math.log(1 + math.e) + math.log(math.exp(2) + 1 + 1)
    assert abs(float(loss) - expected) < 1e-6
    assert Choose().num_targets(batch) == 2


def test_padded_endings_give_no_gradient_and_no_nan():
    scores = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0], requires_grad=True)
    torch.nn.functional.cross_entropy(
        pad_scores(scores, torch.tensor([2, 3])), torch.tensor([1, 0]), reduction="sum"
    ).backward()
    assert scores.grad is not None
    probability = 1 / (1 + math.e)  # the first example has two endings, with scores 0 and 1
    assert torch.allclose(scores.grad[:2], torch.tensor([probability, -probability]))
    assert abs(float(scores.grad[2:].sum())) < 1e-6


def test_the_score_of_an_ending_is_the_mean_over_its_windows():
    long = make_example("the cat", "purrs " * 60, "barks")
    features = Choose().featurize(long, TOKENIZER, WINDOW_RULE)
    num_windows = len(features.sequences) - 1
    assert num_windows == 3
    outputs = [np.array([score], dtype=np.float32) for score in (9.0, 0.0, 0.0, 3.5)]
    prediction = Choose().decode(long, features, outputs)
    assert prediction.logits.tolist() == [3.0, 3.5]
    assert (prediction.choice, prediction.text) == (1, "barks")


def test_the_temperature_changes_probabilities_and_not_the_choice():
    two = make_example("the cat", "purrs", "barks")
    features = Choose().featurize(two, TOKENIZER, WINDOW_RULE)
    outputs = [np.array([2.0], dtype=np.float32), np.array([0.0], dtype=np.float32)]
    plain, soft = Choose().decode(two, features, outputs), Choose(temperature=2.0).decode(two, features, outputs)
    assert plain.choice == soft.choice == 0
    assert plain.probabilities == pytest.approx((1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))))
    assert soft.probabilities == pytest.approx((1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))))
    assert plain.to_dict() == {
        "id": "1", "choice": 0, "text": "purrs", "probabilities": list(plain.probabilities)
    }  # fmt: skip


def test_windows_cover_every_token_of_a_long_prompt_for_every_ending():
    prompt = " ".join(WORDS[index % len(WORDS)] for index in range(150))
    features = Choose().featurize(make_example(prompt, "purrs", "barks now again"), TOKENIZER, WINDOW_RULE)
    for unit, length in ((0, 1), (1, 3)):
        windows = [sequence for sequence in features.sequences if sequence.unit == unit]
        assert len(windows) > 1
        assert set().union(*(range(w.spans[0].first, w.spans[0].first + w.spans[0].count) for w in windows)) == set(
            range(150)
        )
        assert all((w.spans[1].first, w.spans[1].count) == (0, length) for w in windows)
        assert all(len(window) <= WINDOW_RULE.max_length for window in windows)


def test_truncated_tokens_are_counted_for_every_ending():
    features = Choose().featurize(
        make_example("the " * 40, "purrs", "barks now"), TOKENIZER, WindowRule(32, 8, truncate=True)
    )
    assert len(features.sequences) == 2
    assert features.num_truncated == (40 + 1 - 29) + (40 + 2 - 29)


def ending_of(length: int) -> str:
    return " ".join(WORDS[index * length % len(WORDS)] for index in range(length))


@pytest.mark.parametrize("lengths", [((2, 3), (3, 2)), ((1, 9), (4, 17)), ((17, 1), (5, 1))], ids=str)
def test_logits_equal_transformers(lengths: tuple[tuple[int, int], ...]):
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertForMultipleChoice"]))
    torch.manual_seed(0)  # transformers initializes from the global generator
    theirs = transformers.BertForMultipleChoice(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    ours = make_module().eval()
    state = theirs.state_dict()
    report = load_into(ours.encoder, state, tensor_names(CONFIG))
    head = load_into(ours.head, state, HEADS["choices"])
    assert (report.missing_keys, head.missing_keys) == ((), ())
    assert set(report.unexpected_keys) == set(head.loaded_keys)
    examples = [make_example("the dog " * 3, *(ending_of(index) for index in each), label=0) for each in lengths]
    batch = make_batch(*examples)
    assert batch.groups is not None
    order = torch.argsort(batch.groups)  # ours are sorted by length, theirs by example and ending
    shape = (len(examples), 2, -1)
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs(
            batch.input_ids[order].view(shape), mask[order].view(shape), batch.token_type_ids[order].view(shape)
        ).logits
        scores = ours.outputs(batch)[order][:, 0]
        loss = ours.task.loss(ours.outputs(batch), batch)
    assert float((pad_scores(scores, torch.tensor([2] * len(examples))) - expected).abs().max()) < TOLERANCE
    assert float(expected.std()) > 1e-3  # else the comparison would be meaningless
    expected_loss = torch.nn.functional.cross_entropy(expected, torch.tensor([0] * len(examples)), reduction="sum")
    assert abs(float(loss - expected_loss)) < TOLERANCE


def test_a_tiny_model_learns_which_ending_goes_with_which_prompt():
    """The cat purrs and the dog barks: neither an ending nor its index alone is correct."""
    generator = np.random.default_rng(0)

    def sample_example() -> ChoiceExample:
        animal = generator.integers(2)
        correct, wrong = (("purrs", "barks"), ("barks", "purrs"))[animal]
        endings = [wrong, *generator.choice(["swims", "flies"], size=generator.integers(0, 3), replace=False)]
        label = int(generator.integers(len(endings) + 1))
        endings.insert(label, correct)
        prefix = ["", "softly ", "now again "][generator.integers(3)]
        return make_example(f"the {('cat', 'dog')[animal]}", *(prefix + ending for ending in endings), label=label)

    examples = [sample_example() for _ in range(200)]
    assert {len(one.endings) for one in examples} == {2, 3, 4}
    task = Choose.from_examples(examples[:160], {})
    all_features = [task.featurize(one, TOKENIZER, WINDOW_RULE) for one in examples[:160]]

    def get_batches(phase: int, step: int) -> list[Batch]:
        batch_features = [all_features[(step * 16 + index) % 160] for index in range(16)]
        return [batch_of_features(batch_features, task, TOKENIZER.specials.pad)]

    module = make_module(task)
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((150,), 15, 5e-3),
        get_batches=get_batches,
        seed=0,
    )
    steps = list(train(training, TrainState()))
    assert steps[-1].losses["task"] < 0.1
    predictor = Predictor(module, TOKENIZER, WINDOW_RULE)
    scores = task.score(predictor.predict(examples[160:]))
    assert scores.main_metric == "accuracy"
    assert scores.main_value == 1.0


def test_batching_does_not_change_logits():
    examples = [
        make_example("the cat", "purrs", "barks now again"),
        make_example("the dog " * 30, "swims", "flies", "barks"),
    ]
    predictor = Predictor(make_module(seed=3), TOKENIZER, WINDOW_RULE)
    together = [prediction.logits for _, prediction in predictor.predict(examples)]
    alone = [prediction.logits for one in examples for _, prediction in predictor.predict([one])]
    for one, other in zip(together, alone, strict=True):
        assert np.abs(one - other).max() < 1e-6


def make_prediction(choice: int, *probabilities: float) -> ChoicePrediction:
    logits = np.log(np.array(probabilities, dtype=np.float32))
    return ChoicePrediction(
        id="1", choice=choice, text=("cat", "dog", "now")[choice], probabilities=probabilities, logits=logits
    )


def test_accuracy_and_calibration_error_by_hand():
    first, second = make_example("the", "cat", "dog", label=0), make_example("the", "cat", "dog", "now", label=2)
    scores = Choose().score([(first, make_prediction(0, 0.75, 0.25)), (second, make_prediction(1, 0.25, 0.5, 0.25))])
    # Two predictions in separate bins: correct at 0.75, wrong at 0.5.
    assert scores.metrics == {"accuracy": 0.5, "calibration_error": pytest.approx((0.25 + 0.5) / 2)}
    assert (scores.main_metric, scores.main_value) == ("accuracy", 0.5)
    assert scores.details["bins"].sum(0).tolist() == [2, 1.25, 1]
    assert scores.details["mistakes"] == [
        Mistake(confidence=0.5, texts=("the",), expected="now", predicted="dog", location="toy.csv, line 2")
    ]


def test_an_overconfident_model_gets_a_temperature_above_one_even_with_unequal_numbers_of_endings():
    examples = [make_example("the", "cat", "dog", label=0)] * 3 + [make_example("the", "cat", "dog", "now", label=2)]
    predictions = [make_prediction(0, 0.99, 0.01)] * 3 + [make_prediction(0, 0.98, 0.01, 0.01)]
    task = Choose().calibrate(examples, predictions)
    assert isinstance(task, Choose)
    assert 2 < task.temperature < 20
    assert Choose.from_metadata(task.metadata(), {}) == task


def test_a_file_without_labels_is_read_if_the_label_column_is_empty(tmp_path: Path):
    (tmp_path / "test.csv").write_text("prompt,ending0,ending1\nthe cat,purrs,barks\n")
    (example,) = Choose.read(tmp_path / "test.csv", {"label": ""})
    assert (example.endings, example.label) == (("purrs", "barks"), None)


def test_files_are_read_with_named_columns(tmp_path: Path):
    path = tmp_path / "toy.csv"
    path.write_text("q,ending0,ending1,gold\nThe cat,purrs,barks,0\nThe dog,purrs,barks,1\n")
    examples = list(Choose.read(path, {"text": "q", "label": "gold"}))
    assert [(one.prompt, one.endings, one.label) for one in examples] == [
        ("The cat", ("purrs", "barks"), 0),
        ("The dog", ("purrs", "barks"), 1),
    ]
    assert examples[1].texts == ("The dog", "purrs", "barks")
    assert examples[1].location == "toy.csv, line 3"
    path.write_text("The cat,purrs,barks,0\n")
    (one,) = Choose.read(path, {"header": "prompt,ending0,ending1,label"})
    assert (one.prompt, one.endings, one.label) == ("The cat", ("purrs", "barks"), 0)
    path.write_text("q,ending0,ending1,gold\nThe cat,purrs,barks,0\n")
    with pytest.raises(InputError, match=r"toy\.csv, line 2: no column 'prompt2'.*'q'.*--text"):
        list(Choose.read(path, {"text": "prompt2"}))
    with pytest.raises(InputError, match="no column 'pair'"):
        list(Choose.read(path, {"pair": "q"}))


def test_records_with_an_empty_ending_are_skipped_and_counted(tmp_path: Path):
    path = tmp_path / "toy.csv"
    path.write_text("prompt,ending0,ending1,label\nThe cat,,barks,0\nThe dog,purrs,barks,1\n")
    counts: Counter[str] = Counter()
    assert [one.prompt for one in Choose.read(path, {}, counts)] == ["The dog"]
    assert counts.total() == 1


def test_unlabelled_choices_are_featurized_but_not_trained_on():
    unlabelled = make_example("the cat", "purrs", "barks")
    assert Choose().featurize(unlabelled, TOKENIZER, WINDOW_RULE).label is None
    with pytest.raises(InputError, match=r"toy\.csv, line 2: there is no label"):
        Choose.from_examples([unlabelled], {})
    with pytest.raises(InputError, match="there is no label"):
        Choose().score([(unlabelled, make_prediction(0, 0.5, 0.5))])


def test_a_label_out_of_range_raises_an_error():
    with pytest.raises(InputError, match=r"toy\.csv, line 2: the label 2 is not an index from 0 to 1"):
        Choose().featurize(make_example("the cat", "purrs", "barks", label=2), TOKENIZER, WINDOW_RULE)


def test_a_single_ending_or_no_examples_raise_an_error():
    with pytest.raises(InputError, match=r"toy\.csv, line 2: got 1 endings to choose from"):
        Choose().featurize(make_example("the cat", "purrs"), TOKENIZER, WINDOW_RULE)
    with pytest.raises(InputError, match="there are no training choices"):
        Choose.from_examples([], {})
    with pytest.raises(InputError, match="there are no choices to score"):
        Choose().score([])


def test_windows_cover_a_prompt_of_100_000_words():
    features: Features = Choose().featurize(make_example("the cat " * 50_000, "purrs", "barks"), TOKENIZER, WINDOW_RULE)
    assert features.num_truncated == 0
    for unit in (0, 1):
        spans = [sequence.spans[0] for sequence in features.sequences if sequence.unit == unit]
        ends = [span.first + span.count for span in spans]
        assert spans[0].first == 0
        assert ends[-1] == 100_000
        assert all(later.first <= end for later, end in zip(spans[1:], ends, strict=False))
