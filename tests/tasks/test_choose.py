"""Choosing an ending: each is scored with its prompt, whatever their number, length and order."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
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


def case(prompt: str, *endings: str, label: int | None = None) -> ChoiceExample:
    return ChoiceExample(id="1", location="toy.csv, line 2", prompt=prompt, endings=endings, label=label)


def module_of(task: Choose = Choose(), seed: int = 0) -> TaskModule:
    generator = torch.Generator().manual_seed(seed)
    return TaskModule(Bert(SIZES, generator), task, generator)


def batch_of(*cases: ChoiceExample) -> Batch:
    questions = [Choose().featurize(one, TOKENIZER, RULE) for one in cases]
    return batch_of_features(questions, Choose(), TOKENIZER.specials.pad)


def test_each_ending_is_a_pair_with_the_prompt():
    question = Choose().featurize(case("the cat", "purrs", "barks now", label=1), TOKENIZER, RULE)
    assert [row.unit for row in question.sequences] == [0, 1]
    assert (question.num_units, question.label, question.num_truncated) == (2, 1, 0)
    pieces = [[TOKENIZER.tokens[number] for number in row.input_ids] for row in question.sequences]
    assert pieces == [
        ["[CLS]", "the", "cat", "[SEP]", "purrs", "[SEP]"],
        ["[CLS]", "the", "cat", "[SEP]", "barks", "now", "[SEP]"],
    ]
    assert question.sequences[1].token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_scores_of_unequal_numbers_of_endings_stand_side_by_side():
    table = pad_scores(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.tensor([2, 3, 1]))
    nothing = -math.inf
    assert table.tolist() == [[1.0, 2.0, nothing], [3.0, 4.0, 5.0], [6.0, nothing, nothing]]


def test_the_loss_is_cross_entropy_over_the_own_endings_of_each_example():
    batch = batch_of(case("the cat", "purrs", "barks", label=0), case("the dog", "swims", "flies", "barks", label=2))
    assert batch.labels["choice"].tolist() == [0, 2]
    assert batch.labels["num_units"].tolist() == [2, 3]
    assert batch.groups is not None
    scores = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0])  # by unit: two of the first example, three of the second
    loss = Choose().loss(scores[batch.groups][:, None], batch)
    expected = math.log(1 + math.e) + math.log(math.exp(2) + 1 + 1)
    assert abs(float(loss) - expected) < 1e-6
    assert Choose().num_targets(batch) == 2


def test_an_ending_that_an_example_does_not_have_gives_no_gradient_and_no_nan():
    scores = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0], requires_grad=True)
    torch.nn.functional.cross_entropy(
        pad_scores(scores, torch.tensor([2, 3])), torch.tensor([1, 0]), reduction="sum"
    ).backward()
    assert scores.grad is not None
    share = 1 / (1 + math.e)  # the first example has two endings, with scores 0 and 1
    assert torch.allclose(scores.grad[:2], torch.tensor([share, -share]))
    assert abs(float(scores.grad[2:].sum())) < 1e-6


def test_windows_of_an_ending_are_averaged_before_endings_are_compared():
    long = case("the cat", "purrs " * 60, "barks")
    question = Choose().featurize(long, TOKENIZER, RULE)
    num_windows = len(question.sequences) - 1
    assert num_windows == 3
    outputs = [np.array([score], dtype=np.float32) for score in (9.0, 0.0, 0.0, 3.5)]
    chosen = Choose().decode(long, question, outputs)
    assert chosen.logits.tolist() == [3.0, 3.5]
    assert (chosen.choice, chosen.text) == (1, "barks")


def test_the_temperature_changes_probabilities_and_not_the_choice():
    two = case("the cat", "purrs", "barks")
    question = Choose().featurize(two, TOKENIZER, RULE)
    outputs = [np.array([2.0], dtype=np.float32), np.array([0.0], dtype=np.float32)]
    plain, soft = Choose().decode(two, question, outputs), Choose(temperature=2.0).decode(two, question, outputs)
    assert plain.choice == soft.choice == 0
    assert plain.probabilities == pytest.approx((1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))))
    assert soft.probabilities == pytest.approx((1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))))
    assert plain.to_dict() == {
        "id": "1", "choice": 0, "text": "purrs", "probabilities": list(plain.probabilities)
    }  # fmt: skip


def test_every_piece_of_a_long_prompt_is_covered_for_every_ending():
    prompt = " ".join(WORDS[number % len(WORDS)] for number in range(150))
    question = Choose().featurize(case(prompt, "purrs", "barks now again"), TOKENIZER, RULE)
    for unit, length in ((0, 1), (1, 3)):
        windows = [row for row in question.sequences if row.unit == unit]
        assert len(windows) > 1
        assert set().union(*(range(w.spans[0].first, w.spans[0].first + w.spans[0].count) for w in windows)) == set(
            range(150)
        )
        assert all((w.spans[1].first, w.spans[1].count) == (0, length) for w in windows)
        assert all(len(window) <= RULE.max_length for window in windows)


def test_what_truncation_cuts_is_counted_for_every_ending():
    question = Choose().featurize(case("the " * 40, "purrs", "barks now"), TOKENIZER, WindowRule(32, 8, truncate=True))
    assert len(question.sequences) == 2
    assert question.num_truncated == (40 + 1 - 29) + (40 + 2 - 29)


def ending_of(length: int) -> str:
    return " ".join(WORDS[number * length % len(WORDS)] for number in range(length))


@pytest.mark.parametrize("lengths", [((2, 3), (3, 2)), ((1, 9), (4, 17)), ((17, 1), (5, 1))], ids=str)
def test_logits_equal_those_of_transformers(lengths: tuple[tuple[int, int], ...]):
    config = transformers.BertConfig(**config_to_dict(SIZES, ["BertForMultipleChoice"]))
    theirs = transformers.BertForMultipleChoice(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    ours = module_of().eval()
    state = theirs.state_dict()
    report = load_into(ours.encoder, state, tensor_names(SIZES))
    head = load_into(ours.head, state, HEADS["choices"])
    assert (report.missing_keys, head.missing_keys) == ((), ())
    assert set(report.unexpected_keys) == set(head.loaded_keys)
    cases = [case("the dog " * 3, *(ending_of(number) for number in each), label=0) for each in lengths]
    batch = batch_of(*cases)
    assert batch.groups is not None
    order = torch.argsort(batch.groups)  # ours lie by length, theirs by example and ending
    shape = (len(cases), 2, -1)
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs(
            batch.input_ids[order].view(shape), mask[order].view(shape), batch.token_type_ids[order].view(shape)
        ).logits
        scores = ours.outputs(batch)[order][:, 0]
        loss = ours.task.loss(ours.outputs(batch), batch)
    assert float((pad_scores(scores, torch.tensor([2] * len(cases))) - expected).abs().max()) < CLOSE
    assert float(expected.std()) > 1e-3  # or the comparison would show nothing
    wanted = torch.nn.functional.cross_entropy(expected, torch.tensor([0] * len(cases)), reduction="sum")
    assert abs(float(loss - wanted)) < CLOSE


def test_a_tiny_model_learns_which_ending_goes_with_which_prompt():
    """The cat purrs and the dog barks: no ending is right by itself, and neither is a place."""
    generator = np.random.default_rng(0)

    def drawn() -> ChoiceExample:
        animal = generator.integers(2)
        right, wrong = (("purrs", "barks"), ("barks", "purrs"))[animal]
        endings = [wrong, *generator.choice(["swims", "flies"], size=generator.integers(0, 3), replace=False)]
        label = int(generator.integers(len(endings) + 1))
        endings.insert(label, right)
        more = ["", "softly ", "now again "][generator.integers(3)]
        return case(f"the {('cat', 'dog')[animal]}", *(more + ending for ending in endings), label=label)

    cases = [drawn() for _ in range(200)]
    assert {len(one.endings) for one in cases} == {2, 3, 4}
    task = Choose.from_examples(cases[:160], {})
    questions = [task.featurize(one, TOKENIZER, RULE) for one in cases[:160]]

    def draw(phase: int, step: int) -> list[Batch]:
        own = [questions[(step * 16 + number) % 160] for number in range(16)]
        return [batch_of_features(own, task, TOKENIZER.specials.pad)]

    module = module_of(task)
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((150,), 15, 5e-3),
        get_batches=draw,
        seed=0,
    )
    steps = list(train(training, TrainState()))
    assert steps[-1].losses["task"] < 0.1
    predictor = Predictor(module, TOKENIZER, RULE)
    scored = task.score(predictor.predict(cases[160:]))
    assert scored.main_metric == "accuracy"
    assert scored.main_value == 1.0


def test_a_batch_and_single_cases_give_the_same_logits():
    cases = [case("the cat", "purrs", "barks now again"), case("the dog " * 30, "swims", "flies", "barks")]
    predictor = Predictor(module_of(seed=3), TOKENIZER, RULE)
    together = [found.logits for _, found in predictor.predict(cases)]
    alone = [found.logits for one in cases for _, found in predictor.predict([one])]
    for one, other in zip(together, alone, strict=True):
        assert np.abs(one - other).max() < 1e-6


def predicted(choice: int, *probabilities: float) -> ChoicePrediction:
    logits = np.log(np.array(probabilities, dtype=np.float32))
    return ChoicePrediction(
        id="1", choice=choice, text=("cat", "dog", "now")[choice], probabilities=probabilities, logits=logits
    )


def test_accuracy_and_calibration_error_by_hand():
    first, second = case("the", "cat", "dog", label=0), case("the", "cat", "dog", "now", label=2)
    scored = Choose().score([(first, predicted(0, 0.75, 0.25)), (second, predicted(1, 0.25, 0.5, 0.25))])
    # Two decisions in bins of their own: right at 0.75, wrong at 0.5.
    assert scored.metrics == {"accuracy": 0.5, "calibration_error": pytest.approx((0.25 + 0.5) / 2)}
    assert (scored.main_metric, scored.main_value) == ("accuracy", 0.5)
    assert scored.details["bins"].sum(0).tolist() == [2, 1.25, 1]
    assert scored.details["mistakes"] == [
        Mistake(confidence=0.5, texts=("the",), expected="now", predicted="dog", location="toy.csv, line 2")
    ]


def test_an_over_sure_model_is_given_a_temperature_above_one_even_with_unequal_numbers_of_endings():
    cases = [case("the", "cat", "dog", label=0)] * 3 + [case("the", "cat", "dog", "now", label=2)]
    sure = [predicted(0, 0.99, 0.01)] * 3 + [predicted(0, 0.98, 0.01, 0.01)]
    task = Choose().calibrate(cases, sure)
    assert isinstance(task, Choose)
    assert 2 < task.temperature < 20
    assert Choose.from_metadata(task.metadata(), {}) == task


def test_a_file_without_labels_is_read_where_none_are_looked_for(tmp_path: Path):
    (tmp_path / "test.csv").write_text("prompt,ending0,ending1\nthe cat,purrs,barks\n")
    (found,) = Choose.read(tmp_path / "test.csv", {"label": ""})
    assert (found.endings, found.label) == (("purrs", "barks"), None)


def test_files_are_read_with_named_columns(tmp_path: Path):
    path = tmp_path / "toy.csv"
    path.write_text("q,ending0,ending1,gold\nThe cat,purrs,barks,0\nThe dog,purrs,barks,1\n")
    cases = list(Choose.read(path, {"text": "q", "label": "gold"}))
    assert [(one.prompt, one.endings, one.label) for one in cases] == [
        ("The cat", ("purrs", "barks"), 0),
        ("The dog", ("purrs", "barks"), 1),
    ]
    assert cases[1].texts == ("The dog", "purrs", "barks")
    assert cases[1].location == "toy.csv, line 3"
    path.write_text("The cat,purrs,barks,0\n")
    (one,) = Choose.read(path, {"header": "prompt,ending0,ending1,label"})
    assert (one.prompt, one.endings, one.label) == ("The cat", ("purrs", "barks"), 0)
    path.write_text("q,ending0,ending1,gold\nThe cat,purrs,barks,0\n")
    with pytest.raises(InputError, match=r"toy\.csv, line 2: no column 'prompt2'.*'q'.*--text"):
        list(Choose.read(path, {"text": "prompt2"}))
    with pytest.raises(InputError, match="no column 'pair'"):
        list(Choose.read(path, {"pair": "q"}))


def test_records_with_an_empty_ending_are_left_out_and_counted(tmp_path: Path):
    path = tmp_path / "toy.csv"
    path.write_text("prompt,ending0,ending1,label\nThe cat,,barks,0\nThe dog,purrs,barks,1\n")
    counts: Counter[str] = Counter()
    assert [one.prompt for one in Choose.read(path, {}, counts)] == ["The dog"]
    assert counts.total() == 1


def test_choices_without_a_label_are_asked_but_not_learned():
    unlabelled = case("the cat", "purrs", "barks")
    assert Choose().featurize(unlabelled, TOKENIZER, RULE).label is None
    with pytest.raises(InputError, match=r"toy\.csv, line 2: there is no label"):
        Choose.from_examples([unlabelled], {})
    with pytest.raises(InputError, match="there is no label"):
        Choose().score([(unlabelled, predicted(0, 0.5, 0.5))])


def test_a_label_that_names_no_ending_is_refused():
    with pytest.raises(InputError, match=r"toy\.csv, line 2: the label 2 is no number from 0 to 1"):
        Choose().featurize(case("the cat", "purrs", "barks", label=2), TOKENIZER, RULE)


def test_one_ending_is_no_choice_and_no_cases_are_nothing_to_learn_from():
    with pytest.raises(InputError, match=r"toy\.csv, line 2: there is nothing to choose among 1 endings"):
        Choose().featurize(case("the cat", "purrs"), TOKENIZER, RULE)
    with pytest.raises(InputError, match="no choices to learn from"):
        Choose.from_examples([], {})
    with pytest.raises(InputError, match="no choice to score"):
        Choose().score([])


def test_a_prompt_of_100_000_words_is_covered_by_windows():
    question: Features = Choose().featurize(case("the cat " * 50_000, "purrs", "barks"), TOKENIZER, RULE)
    assert question.num_truncated == 0
    for unit in (0, 1):
        runs = [row.spans[0] for row in question.sequences if row.unit == unit]
        ends = [run.first + run.count for run in runs]
        assert runs[0].first == 0
        assert ends[-1] == 100_000
        assert all(later.first <= end for later, end in zip(runs[1:], ends, strict=False))
