"""Question answering: features and labels, spans and their text, no answer, scores, and a model that learns."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
import torch
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertworks.datasets.files import Record
from bertworks.datasets.squad import GoldAnswer
from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.errors import InputError, SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.answer import Answer, AnswerPrediction, AnswerSpan, PassageExample, PassageFeatures
from bertworks.tasks.batching import batch_of_features, batch_of_input_sequences
from bertworks.tasks.module import TaskModule
from bertworks.text.document import Counts
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FILLERS = ("the", "a", "walked", "by", "and", "saw", "over", "road", "then", "quiet")
COLORS = ("red", "blue", "green")
ANIMALS = ("cat", "dog", "fox")  # in a passage always two tokens: cat ##s
TOKENS = (*SPECIALS, *FILLERS, *COLORS, *ANIMALS, "##s", "which", "color", "animal", "who", "?")
TOKENIZER = Tokenizer.from_backend(wordpiece_backend(list(TOKENS), cased=False))
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
)
WINDOW_RULE = WindowRule(12, 3)


def make_example(
    passage: str, answer: str | None = None, question: str = "who", is_impossible: bool = False
) -> PassageExample:
    answers = () if answer is None else (GoldAnswer(answer, passage.index(answer)),)
    return PassageExample(
        id="q1",
        location="toy.json, article 1, question q1",
        question=question,
        passage=passage,
        answers=answers,
        is_impossible=is_impossible,
    )


def labels_of(features: PassageFeatures) -> list[tuple[int, int]]:
    return [(sequence.labels["start"], sequence.labels["end"]) for sequence in features.sequences]


def perfect_outputs(features: PassageFeatures) -> list[npt.NDArray[np.float32]]:
    """The outputs of a perfect model: 9 at each sequence's labels, else 0."""
    outputs = [np.zeros((len(sequence), 2), dtype=np.float32) for sequence in features.sequences]
    for output, (start, end) in zip(outputs, labels_of(features), strict=True):
        output[start, 0] += 9
        output[end, 1] += 9
    return outputs


def make_batch(*examples: PassageExample, rule: WindowRule = WINDOW_RULE) -> Batch:
    all_features = [Answer().featurize(one, TOKENIZER, rule) for one in examples]
    return batch_of_features(all_features, Answer(), TOKENIZER.specials.pad)


# --- Features and labels -----------------------------------------------------------------------------


def test_question_and_passage_are_a_pair_and_labels_are_positions():
    features = Answer().featurize(make_example("the quiet fox saw", "quiet fox"), TOKENIZER, WINDOW_RULE)
    assert [TOKENS[index] for index in features.sequences[0].input_ids] == [
        "[CLS]", "who", "[SEP]", "the", "quiet", "fox", "saw", "[SEP]"
    ]  # fmt: skip
    assert labels_of(features) == [(4, 5)]


def test_only_windows_with_the_whole_answer_have_it_as_label():
    # 12 positions minus 3 special tokens and 1 of the question leave 8 for the passage: 0..7, 4..11, 8..15, 12..19.
    words = [FILLERS[index % 10] for index in range(20)]
    words[6:9] = "blue", "fox", "green"
    features = Answer().featurize(make_example(" ".join(words), "blue fox green"), TOKENIZER, WINDOW_RULE)
    assert [sequence.spans[1].first for sequence in features.sequences] == [0, 4, 8, 12]
    assert labels_of(features) == [(0, 0), (5, 7), (0, 0), (0, 0)]


def test_the_first_gold_answer_in_the_passage_is_the_target():
    one = PassageExample(
        id="1",
        location="here",
        question="who",
        passage="the cat saw the dog",
        answers=(GoldAnswer("a bird", None), GoldAnswer("dog", 16)),
    )
    assert labels_of(Answer().featurize(one, TOKENIZER, WINDOW_RULE)) == [(7, 7)]


def test_an_impossible_question_has_the_first_position_as_label():
    features = Answer(no_answer=True).featurize(make_example("the " * 20, is_impossible=True), TOKENIZER, WINDOW_RULE)
    assert labels_of(features) == [(0, 0)] * 4


def test_an_unlabelled_question_is_not_trained_on():
    features = Answer().featurize(make_example("the cat"), TOKENIZER, WINDOW_RULE)
    assert labels_of(features) == [(-1, -1)]
    batch = make_batch(make_example("the cat"), make_example("the cat saw", "cat"))
    assert Answer().num_targets(batch) == 1


def test_truncated_tokens_are_counted():
    features = Answer().featurize(make_example("the " * 20), TOKENIZER, WindowRule(12, 3, truncate=True))
    assert (len(features.sequences), features.num_truncated) == (1, 12)


def test_windows_cover_every_token_of_a_long_passage():
    features = Answer().featurize(make_example("the cat " * 150), TOKENIZER, WINDOW_RULE)
    spans = [sequence.spans[1] for sequence in features.sequences]
    assert set().union(*(range(span.first, span.first + span.count) for span in spans)) == set(range(300))
    assert all(len(sequence) <= WINDOW_RULE.max_length for sequence in features.sequences)


# --- The loss ------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_of_start_and_end_summed_over_sequences():
    batch = make_batch(
        make_example("the cat saw", "cat"), make_example("a dog")
    )  # 7 positions with label 4; the second has no label
    assert batch.labels["start"].tolist() == [4, -1]
    outputs = torch.zeros(2, 7, 2)
    outputs[0, 4, 0] = math.log(6.0)  # as probable as the 6 others together
    loss = Answer().loss(outputs, batch)
    assert float(loss) == pytest.approx((math.log(2) + math.log(7)) / 2)


def test_padding_gives_no_gradient_and_no_nan():
    batch = make_batch(make_example("the cat saw a dog", "cat"), make_example("a dog", "dog"))
    outputs = torch.zeros(2, 9, 2).masked_fill(
        torch.arange(9)[None, :, None] >= batch.lengths[:, None, None], -math.inf
    )
    outputs.requires_grad_()
    Answer().loss(outputs, batch).backward()
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()
    assert outputs.grad[1, 6:].abs().sum() == 0
    assert outputs.grad[1, 4].tolist() == pytest.approx([(1 / 6 - 1) / 2] * 2)


# --- Predictions -------------------------------------------------------------------------------------


def test_the_answer_is_verbatim_text():
    one = make_example("The  QUIET\tFox saw", "QUIET\tFox")
    prediction = Answer().decode(
        one, features := Answer().featurize(one, TOKENIZER, WINDOW_RULE), perfect_outputs(features)
    )
    assert (prediction.text, prediction.start, prediction.end) == ("QUIET\tFox", 5, 14)


def test_an_answer_never_ends_inside_a_word():
    one = make_example("the cats saw dogs")  # the cat ##s saw dog ##s
    features = Answer().featurize(one, TOKENIZER, WINDOW_RULE)
    output = np.zeros((len(features.sequences[0]), 2), dtype=np.float32)
    output[4] = 9  # cat, as start and end
    prediction = Answer().decode(one, features, [output])
    assert prediction.text == "cats"
    assert "cats" not in [other.text for other in prediction.runners_up]  # cat, ##s and cat ##s are one answer


def test_probabilities_are_a_softmax_over_the_best_twenty():
    one = make_example("the cat")
    features = Answer().featurize(one, TOKENIZER, WINDOW_RULE)
    output = np.zeros((len(features.sequences[0]), 2), dtype=np.float32)
    output[3, 0] = math.log(2)  # starts with "the": spans the, the cat 2; cat 1
    prediction = Answer().decode(one, features, [output])
    assert (prediction.text, prediction.probability) == ("the", pytest.approx(0.4))
    assert [(other.text, other.start, other.end) for other in prediction.runners_up] == [
        ("the cat", 0, 7),
        ("cat", 4, 7),
    ]
    assert [other.probability for other in prediction.runners_up] == pytest.approx([0.4, 0.2])
    assert prediction.null_odds == pytest.approx(-math.log(2))
    long = make_example("the cat saw a dog by road")
    features = Answer().featurize(long, TOKENIZER, WINDOW_RULE)
    assert len(Answer().decode(long, features, perfect_outputs(features)).runners_up) == 19


def test_an_answer_has_at_most_max_answer_tokens():
    one = make_example("the cat saw a dog", "cat saw a dog")
    features = Answer().featurize(one, TOKENIZER, WINDOW_RULE)
    assert Answer().decode(one, features, perfect_outputs(features)).text == "cat saw a dog"
    assert len(Answer(max_answer_tokens=3).decode(one, features, perfect_outputs(features)).text.split()) <= 3


def test_the_answer_of_a_long_passage_is_found_in_its_window():
    words = [FILLERS[index % 10] for index in range(200)]
    words[137:139] = "blue", "fox"
    one = make_example(" ".join(words), "blue fox")
    features = Answer().featurize(one, TOKENIZER, WINDOW_RULE)
    assert len(features.sequences) > 30
    prediction = Answer().decode(one, features, perfect_outputs(features))
    assert (prediction.text, prediction.start) == ("blue fox", one.passage.index("blue fox"))


def test_no_answer_is_predicted_above_the_threshold():
    one = make_example("the cat")
    task = Answer(no_answer=True)
    features = task.featurize(one, TOKENIZER, WINDOW_RULE)
    output = np.zeros((len(features.sequences[0]), 2), dtype=np.float32)
    output[0] = 0.5  # no answer: 1 in all
    output[4] = 0.25  # "cat": 0.5 in all
    prediction = task.decode(one, features, [output])
    assert (prediction.text, prediction.start, prediction.end, prediction.null_odds) == ("", 0, 0, 0.5)
    assert prediction.best_text == prediction.runners_up[0].text == "cat"
    exponentials = [math.exp(score) for score in (1.0, 0.5, 0.25, 0.0)]  # none, cat, the cat, the
    assert prediction.probability == pytest.approx(exponentials[0] / sum(exponentials))
    lenient = Answer(no_answer=True, null_threshold=0.5).decode(one, features, [output])
    assert (lenient.text, lenient.best_text, lenient.probability) == (
        "cat",
        "cat",
        pytest.approx(exponentials[1] / sum(exponentials)),
    )
    assert Answer().decode(one, features, [output]).text == "cat"  # a task where every question has an answer


def test_the_score_of_no_answer_is_the_minimum_over_windows():
    one = make_example("the " * 20)
    features = Answer().featurize(one, TOKENIZER, WINDOW_RULE)
    outputs = [np.zeros((len(sequence), 2), dtype=np.float32) for sequence in features.sequences]
    for output, score in zip(outputs, (3.0, -1.0, 2.0, 5.0), strict=True):
        output[0, 0] = score
    assert Answer(no_answer=True).decode(one, features, outputs).null_odds == -1.0


def test_to_dict_has_all_fields():
    prediction = AnswerPrediction(
        id="q1",
        text="cat",
        start=4,
        end=7,
        probability=0.75,
        runners_up=(AnswerSpan("the cat", 0, 7, 0.25),),
        null_odds=-2.0,
    )
    assert json.loads(json.dumps(prediction.to_dict())) == {
        "id": "q1", "text": "cat", "start": 4, "end": 7, "probability": 0.75,
        "runners_up": [{"text": "the cat", "start": 0, "end": 7, "probability": 0.25}], "null_odds": -2.0,
    }  # fmt: skip


# --- Verbatim ------------------------------------------------------------------------------------

LETTERS = [*"abcdeéxyz019'-.,，。、中文字典龍"]
LETTER_TOKENIZER = Tokenizer.from_backend(
    wordpiece_backend([*SPECIALS, *LETTERS, *(f"##{letter}" for letter in "abcdexyz019")], cased=False)
)


def byte_level() -> Tokenizer:
    """A byte-level BPE of single bytes, whose tokens include the space before a word."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Tokenizer.from_backend(backend)


BYTE_TOKENIZER = byte_level()
SPACES = " \t\n\u3000\u00a0\u2003"
passages = st.text(st.sampled_from([*LETTERS, *"ABÉ", *SPACES, "\u0301", "\u200b", "\x00", "😀", "ｆ"]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(passage=passages, seed=st.integers(0, 2**32 - 1), tokenizer=st.sampled_from([LETTER_TOKENIZER, BYTE_TOKENIZER]))
@example(passage="  abc\u3000中文  x1-y 。\n", seed=0, tokenizer=BYTE_TOKENIZER)
def test_answers_are_verbatim_substrings_of_whole_words(passage: str, seed: int, tokenizer: Tokenizer):
    one = PassageExample(id="1", location="here", question="ab?", passage=passage)
    try:
        features = Answer().featurize(one, tokenizer, WindowRule(20, 5))
    except InputError:
        assert not any(letter.isalnum() for letter in passage)
        return
    generator = np.random.default_rng(seed)
    outputs = [generator.normal(size=(len(sequence), 2)).astype(np.float32) for sequence in features.sequences]
    prediction = Answer().decode(one, features, outputs)
    for answer in (prediction, *prediction.runners_up):
        assert answer.text
        assert answer.text == passage[answer.start : answer.end] == answer.text.strip()
        for edge in (answer.start, answer.end):
            around = passage[max(edge - 1, 0) : edge + 1]
            assert not (len(around) == 2 and around.isascii() and around.isalnum()), (answer.text, around)
    spans = [(answer.start, answer.end) for answer in (prediction, *prediction.runners_up)]
    assert len(set(spans)) == len(spans) <= 20


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["abc", "x1", "é", "中", "文", "。", ","]), min_size=1, max_size=40), data=st.data()
)
def test_a_gold_answer_of_whole_words_is_restored_verbatim(parts: list[str], data: st.DataObject):
    spaces = data.draw(
        st.lists(st.sampled_from([" ", "  ", "\t", "\u3000\n"]), min_size=len(parts), max_size=len(parts))
    )
    passage = "".join(part + space for part, space in zip(parts, spaces, strict=True))
    first = data.draw(st.integers(0, len(parts) - 1))
    last = data.draw(st.integers(first, min(len(parts) - 1, first + 2)))  # at most 9 tokens
    begin = sum(map(len, (*parts[:first], *spaces[:first])))
    end = sum(map(len, (*parts[:last], *spaces[:last]))) + len(parts[last])
    one = PassageExample(
        id="1", location="here", question="ab", passage=passage, answers=(GoldAnswer(passage[begin:end], begin),)
    )
    features = Answer().featurize(one, LETTER_TOKENIZER, WindowRule(40, 10))
    prediction = Answer().decode(one, features, perfect_outputs(features))
    assert (prediction.text, prediction.start, prediction.end) == (passage[begin:end], begin, end)


# --- Scores and the threshold --------------------------------------------------------------------


def make_prediction(text: str, null_odds: float = -1.0, best: str = "") -> AnswerPrediction:
    return AnswerPrediction(
        id="q1",
        text=text,
        start=0,
        end=len(text),
        probability=0.5,
        runners_up=(AnswerSpan(best, 0, len(best), 0.2),),
        null_odds=null_odds,
    )


def test_english_is_scored_by_squad_s_rule():
    pairs = [
        (make_example("The cat saw", "The cat"), make_prediction("cat")),
        (make_example("a red fox", "red fox"), make_prediction("fox saw")),
    ]
    scores = Answer().score(iter(pairs))
    assert scores.metrics == {"exact_match": 0.5, "f1": 0.75}
    assert (scores.main_metric, scores.main_value) == ("f1", 0.75)
    (mistake,) = scores.details["mistakes"]
    assert (mistake.expected, mistake.predicted, mistake.texts) == ("red fox", "fox saw", ("who", "a red fox"))


def test_chinese_is_scored_by_cmrc_s_rule():
    pairs = [(make_example("我喜欢北京大学。", "北京大学"), make_prediction("北京"))]
    assert Answer(scoring="cmrc").score(iter(pairs)).metrics == {"exact_match": 0.0, "f1": pytest.approx(2 / 3)}


def test_gold_answers_that_are_not_in_the_passage_are_scored():
    one = PassageExample(
        id="1",
        location="here",
        question="who",
        passage="the cat",
        answers=(GoldAnswer("the dog", None), GoldAnswer("cat", 4)),
    )
    assert Answer().score(iter([(one, make_prediction("dog"))])).metrics["exact_match"] == 1.0


def test_questions_with_and_without_an_answer_are_also_scored_separately():
    pairs = [
        (make_example("the cat", "cat"), make_prediction("cat", -2.0)),
        (make_example("the dog", "dog"), make_prediction("", 1.0, best="dog")),
        (make_example("the fox", is_impossible=True), make_prediction("", 3.0, best="fox")),
        (make_example("the fox", is_impossible=True), make_prediction("fox", -1.0)),
    ]
    scores = Answer(no_answer=True).score(iter(pairs))
    assert scores.metrics["exact_match"] == scores.metrics["f1"] == 0.5
    assert scores.metrics["has_answer_f1"] == scores.metrics["no_answer_f1"] == 0.5
    assert len(scores.details["mistakes"]) == 2


def test_the_null_threshold_is_tuned_on_dev_and_saved():
    examples = [
        make_example("the cat", "cat"),
        make_example("the dog", "dog"),
        make_example("the fox", is_impossible=True),
    ]
    predictions = [
        make_prediction("cat", -2.0),
        make_prediction("", 1.0, best="dog"),
        make_prediction("", 3.0, best="fox"),
    ]
    task = Answer(no_answer=True).calibrate(examples, predictions)
    assert isinstance(task, Answer)
    assert 1.0 <= task.null_threshold < 3.0
    assert task.score(zip(examples, predictions, strict=True)).metrics["f1"] == 1.0
    assert Answer.from_metadata(json.loads(json.dumps(task.metadata())), {}) == task
    assert Answer().calibrate(examples[:2], predictions[:2]) == Answer()


def test_a_transformers_config_gives_the_defaults():
    assert Answer.from_metadata({}, {"architectures": ["BertForQuestionAnswering"]}) == Answer()
    assert Answer.from_metadata({"task": "answer", "window": {}, "no_answer": True}, {}) == Answer(no_answer=True)


# --- Settings from the examples --------------------------------------------------------------


def test_no_answer_follows_from_the_examples_or_a_setting():
    some = [make_example("the cat", "cat"), make_example("the dog", is_impossible=True)]
    assert Answer.from_examples(some, {}) == Answer(no_answer=True)
    assert Answer.from_examples(some, {"no_answer": False, "max_answer_tokens": 8}) == Answer(max_answer_tokens=8)
    assert Answer.from_examples(some[:1], {}) == Answer()


def test_chinese_questions_use_cmrc_scoring_and_longer_answers():
    chinese = [make_example("北京在哪里", "北京", question="哪里？")]
    assert Answer.from_examples(chinese, {}) == Answer(scoring="cmrc", max_answer_tokens=96)
    assert Answer.from_examples(chinese, {"scoring": "squad"}).scoring == "squad"
    impossible = make_example("北京", question="谁？", is_impossible=True)
    assert Answer.from_examples([*chinese, impossible], {}) == Answer(no_answer=True, max_answer_tokens=96)


# --- Bad input -----------------------------------------------------------------------------------


def test_an_answer_that_is_not_in_its_passage_is_counted_and_not_trained_on(tmp_path: Path):
    questions = [
        {"id": "a", "question": "who", "answers": [{"text": "bird", "answer_start": 4}]},
        {"id": "b", "question": "who", "answers": [{"text": "cat", "answer_start": 0}]},
    ]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "the cat", "qas": questions}]}]}))
    counts: Counts = Counter()
    absent, repaired = Answer.read(path, {}, counts)
    location = "train.json, article 1, question a: the answer 'bird' is not in its context"
    assert counts == {
        "answers with a repaired offset": 1,
        f"answers that are not in their passage (the first: {location})": 1,
    }
    assert absent.answers == (("bird", None),)
    assert labels_of(Answer().featurize(absent, TOKENIZER, WINDOW_RULE)) == [(-1, -1)]
    assert repaired.answers == (("cat", 4),)
    assert labels_of(Answer().featurize(repaired, TOKENIZER, WINDOW_RULE)) == [(4, 4)]


@pytest.mark.parametrize(("question", "passage", "part"), [(" \n", "the cat", "question"), ("who", "", "passage")])
def test_an_empty_question_or_passage_raises_an_error(question: str, passage: str, part: str):
    with pytest.raises(InputError, match=rf"article 1, question q1: the {part} is empty; fill it in"):
        Answer().featurize(make_example(passage, question=question), TOKENIZER, WINDOW_RULE)


def test_a_passage_without_tokens_raises_an_error():
    with pytest.raises(InputError, match=r"question q1: the passage has no words"):
        Answer().featurize(make_example("\x00\x01"), TOKENIZER, WINDOW_RULE)


@pytest.mark.parametrize("num_words", [1, 3, 40])
def test_a_question_longer_than_a_window_is_split_and_its_parts_are_averaged(num_words: int):
    passage = " ".join(FILLERS[index % 10] for index in range(num_words - 1)) + " fox"
    one = make_example(passage, "fox", question="which color " * 50 + "?")
    features = Answer().featurize(one, TOKENIZER, WINDOW_RULE)
    for text, length in ((0, 101), (1, num_words)):
        spans = [sequence.spans[text] for sequence in features.sequences]
        assert set().union(*(range(span.first, span.first + span.count) for span in spans)) == set(range(length))
    assert all(len(sequence) <= WINDOW_RULE.max_length for sequence in features.sequences)
    assert Answer().decode(one, features, perfect_outputs(features)).text == "fox"


def test_windows_cover_a_passage_of_a_hundred_thousand_words():
    words = ["the"] * 100_000
    words[99_990] = "fox"
    one = make_example(" ".join(words), "fox")
    features = Answer().featurize(one, TOKENIZER, WindowRule(384, 96))
    last = features.sequences[-1].spans[1]
    assert last.first + last.count == 100_000
    prediction = Answer().decode(one, features, perfect_outputs(features))
    assert (prediction.text, prediction.start) == ("fox", one.passage.index("fox"))


def test_training_questions_without_an_answer_in_a_passage_raise_an_error():
    absent = PassageExample(
        id="1", location="here", question="who", passage="the cat", answers=(GoldAnswer("bird", None),)
    )
    with pytest.raises(InputError, match=r"none of the 2 training questions has an answer .* copied from 'context'"):
        Answer.from_examples([absent, make_example("the dog", is_impossible=True)], {})


def test_scoring_a_question_without_a_gold_answer_raises_an_error():
    with pytest.raises(InputError, match=r"question q1: the question has no answer, so it cannot be scored"):
        Answer(no_answer=True).score(iter([(make_example("the cat"), make_prediction("cat"))]))
    with pytest.raises(InputError, match=r"is impossible, which this model was not trained for"):
        Answer().score(iter([(make_example("the cat", is_impossible=True), make_prediction("cat"))]))


def test_invalid_settings_raise_an_error():
    with pytest.raises(SettingsError, match="no scoring 'bleu'; choose one of: squad, cmrc"):
        Answer(scoring="bleu")
    with pytest.raises(SettingsError, match="max_answer_tokens is 0; give at least 1"):
        Answer(max_answer_tokens=0)
    with pytest.raises(SettingsError, match="does not score questions without an answer"):
        Answer(no_answer=True, scoring="cmrc")


def test_unlabelled_records_are_questions_without_answers():
    records = [Record({"question": "who", "context": "the cat", "id": 7}, "standard input, line 1")]
    (one,) = Answer.read_unlabelled(records, {})
    assert (one.id, one.texts, one.answers, one.is_impossible) == ("7", ("who", "the cat"), (), False)


# --- The model -----------------------------------------------------------------------------------


def make_module(seed: int = 0) -> TaskModule:
    generator = torch.Generator().manual_seed(seed)
    return TaskModule(Bert(CONFIG, generator), Answer(), generator)


@pytest.mark.parametrize("lengths", [(5, 5), (3, 9, 20), (20, 1, 1, 2)], ids=str)
def test_logits_and_loss_equal_transformers(lengths: Sequence[int]):
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertForQuestionAnswering"]))
    theirs = transformers.BertForQuestionAnswering(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    ours = make_module().eval()
    encoder = load_into(ours.encoder, theirs.state_dict(), tensor_names(CONFIG))
    head = load_into(ours.head, theirs.state_dict(), HEADS["spans"])
    assert head.missing_keys == ()
    assert set(encoder.missing_keys) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}  # their class has none
    batch = make_batch(
        *(make_example("fox " + "the cat " * length, "fox") for length in lengths), rule=WindowRule(64, 8)
    )
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    with torch.inference_mode():
        outputs = ours.outputs(batch)
        reference = theirs(
            input_ids=batch.input_ids,
            token_type_ids=batch.token_type_ids,
            attention_mask=mask,
            start_positions=batch.labels["start"],
            end_positions=batch.labels["end"],
        )
    expected = torch.stack([reference.start_logits, reference.end_logits], -1)
    assert (outputs - expected)[mask.bool()].abs().max() < 1e-5
    assert (outputs[~mask.bool()] == -math.inf).all()
    if len(set(lengths)) == 1:  # theirs allows an answer in padding
        loss = Answer().loss(outputs, batch) / Answer().num_targets(batch)
        assert float(loss) == pytest.approx(float(reference.loss), abs=1e-5)


def sample_example(generator: random.Random, num_words: int) -> PassageExample:
    """A passage with a color and some animals; the question asks for one of the two."""
    words = [generator.choice(FILLERS) for _ in range(num_words)]
    color, animal = generator.choice(COLORS), generator.choice(ANIMALS) + "s"
    first, second = generator.sample(range(num_words), 2)
    words[first], words[second] = color, animal
    kind, answer = generator.choice([("color", color), ("animal", animal)])
    return make_example(" ".join(words), answer, question=f"which {kind}?")


@cache
def train_module() -> TaskModule:
    """A small model trained on 120 batches of short passages."""
    generator = random.Random(0)
    module = make_module()

    def batches(phase: int, step: int) -> list[Batch]:
        return [
            make_batch(
                *(sample_example(generator, generator.randint(4, 16)) for _ in range(16)), rule=WindowRule(24, 6)
            )
        ]

    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((120,), 10, 3e-3),
        get_batches=batches,
        seed=0,
    )
    steps = list(train(training, TrainState()))
    assert steps[-1].losses["task"] < 0.1 * steps[0].losses["task"]
    return module


def test_a_small_model_learns_to_answer():
    generator = random.Random(1)
    predictor = Predictor(train_module(), TOKENIZER, WindowRule(24, 6))
    scores = Answer().score(predictor.predict(sample_example(generator, generator.randint(4, 16)) for _ in range(60)))
    assert scores.metrics["exact_match"] > 0.95


def test_a_model_trained_on_short_passages_answers_in_long_ones():
    generator = random.Random(2)
    predictor = Predictor(train_module(), TOKENIZER, WindowRule(24, 6))
    examples = [sample_example(generator, 120) for _ in range(20)]
    assert all(len(Answer().featurize(one, TOKENIZER, predictor.window_rule).sequences) > 5 for one in examples)
    assert Answer().score(predictor.predict(examples)).metrics["exact_match"] > 0.9


def test_batching_does_not_change_outputs():
    generator = random.Random(3)
    module = make_module().eval()
    sequences = [
        sequence
        for length in (4, 9, 30)
        for sequence in Answer().featurize(sample_example(generator, length), TOKENIZER, WindowRule(24, 6)).sequences
    ]
    with torch.inference_mode():
        together = module.outputs(batch_of_input_sequences(sequences, TOKENIZER.specials.pad))
        for index, sequence in enumerate(sequences):
            alone = module.outputs(batch_of_input_sequences([sequence], TOKENIZER.specials.pad))[0]
            assert torch.allclose(together[index, : len(sequence)], alone, atol=1e-5)
