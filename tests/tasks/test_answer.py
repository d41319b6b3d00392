"""Answering questions on passages: rows and their labels, spans and their text, no answer, scores, learning."""

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
from bertworks.datasets.squad import GoldAnswer as RightAnswer
from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
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
COLOURS = ("red", "blue", "green")
ANIMALS = ("cat", "dog", "fox")  # in a passage always two pieces: cat ##s
PIECES = (*SPECIALS, *FILLERS, *COLOURS, *ANIMALS, "##s", "which", "colour", "animal", "who", "?")
TOKENIZER = Tokenizer.from_backend(wordpiece_backend(list(PIECES), cased=False))
SIZES = BertConfig(
    len(PIECES), 32, 2, 2, 64, 64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1
)
RULE = WindowRule(12, 3)


def case(passage: str, answer: str | None = None, question: str = "who", is_impossible: bool = False) -> PassageExample:
    answers = () if answer is None else (RightAnswer(answer, passage.index(answer)),)
    return PassageExample(
        id="q1",
        location="toy.json, article 1, question q1",
        question=question,
        passage=passage,
        answers=answers,
        is_impossible=is_impossible,
    )


def labels_of(question: PassageFeatures) -> list[tuple[int, int]]:
    return [(row.labels["start"], row.labels["end"]) for row in question.sequences]


def pointing(question: PassageFeatures) -> list[npt.NDArray[np.float32]]:
    """Scores as a perfect model gives them: 9 where each row's label says, else 0."""
    outputs = [np.zeros((len(row), 2), dtype=np.float32) for row in question.sequences]
    for output, (start, end) in zip(outputs, labels_of(question), strict=True):
        output[start, 0] += 9
        output[end, 1] += 9
    return outputs


def batch_of(*cases: PassageExample, rule: WindowRule = RULE) -> Batch:
    questions = [Answer().featurize(one, TOKENIZER, rule) for one in cases]
    return batch_of_features(questions, Answer(), TOKENIZER.specials.pad)


# --- Rows and labels -----------------------------------------------------------------------------


def test_question_and_passage_are_a_pair_and_the_label_points_into_the_row():
    question = Answer().featurize(case("the quiet fox saw", "quiet fox"), TOKENIZER, RULE)
    assert [PIECES[number] for number in question.sequences[0].input_ids] == [
        "[CLS]", "who", "[SEP]", "the", "quiet", "fox", "saw", "[SEP]"
    ]  # fmt: skip
    assert labels_of(question) == [(4, 5)]


def test_only_rows_that_hold_the_whole_answer_point_to_it():
    # 12 places less 3 special pieces and 1 of the question leave 8 for the passage: 0..7, 4..11, 8..15 and 12..19.
    words = [FILLERS[number % 10] for number in range(20)]
    words[6:9] = "blue", "fox", "green"
    question = Answer().featurize(case(" ".join(words), "blue fox green"), TOKENIZER, RULE)
    assert [row.spans[1].first for row in question.sequences] == [0, 4, 8, 12]
    assert labels_of(question) == [(0, 0), (5, 7), (0, 0), (0, 0)]


def test_the_first_right_answer_that_stands_in_the_passage_trains():
    one = PassageExample(
        id="1",
        location="here",
        question="who",
        passage="the cat saw the dog",
        answers=(RightAnswer("a bird", None), RightAnswer("dog", 16)),
    )
    assert labels_of(Answer().featurize(one, TOKENIZER, RULE)) == [(7, 7)]


def test_an_impossible_question_points_to_the_first_place_of_every_row():
    question = Answer(no_answer=True).featurize(case("the " * 20, is_impossible=True), TOKENIZER, RULE)
    assert labels_of(question) == [(0, 0)] * 4


def test_a_question_of_which_nothing_is_known_is_not_trained_on():
    question = Answer().featurize(case("the cat"), TOKENIZER, RULE)
    assert labels_of(question) == [(-1, -1)]
    batch = batch_of(case("the cat"), case("the cat saw", "cat"))
    assert Answer().num_targets(batch) == 1


def test_what_truncation_cuts_is_counted():
    question = Answer().featurize(case("the " * 20), TOKENIZER, WindowRule(12, 3, truncate=True))
    assert (len(question.sequences), question.num_truncated) == (1, 12)


def test_windows_cover_every_piece_of_a_long_passage():
    question = Answer().featurize(case("the cat " * 150), TOKENIZER, RULE)
    runs = [row.spans[1] for row in question.sequences]
    assert set().union(*(range(run.first, run.first + run.count) for run in runs)) == set(range(300))
    assert all(len(row) <= RULE.max_length for row in question.sequences)


# --- The loss ------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_of_start_and_end_summed_over_rows():
    batch = batch_of(case("the cat saw", "cat"), case("a dog"))  # 7 places with the label 4; the second has no label
    assert batch.labels["start"].tolist() == [4, -1]
    outputs = torch.zeros(2, 7, 2)
    outputs[0, 4, 0] = math.log(6.0)  # as probable as the 6 others together
    loss = Answer().loss(outputs, batch)
    assert float(loss) == pytest.approx((math.log(2) + math.log(7)) / 2)


def test_padding_gives_no_gradient_and_no_nan():
    batch = batch_of(case("the cat saw a dog", "cat"), case("a dog", "dog"))
    outputs = torch.zeros(2, 9, 2).masked_fill(
        torch.arange(9)[None, :, None] >= batch.lengths[:, None, None], -math.inf
    )
    outputs.requires_grad_()
    Answer().loss(outputs, batch).backward()
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()
    assert outputs.grad[1, 6:].abs().sum() == 0
    assert outputs.grad[1, 4].tolist() == pytest.approx([(1 / 6 - 1) / 2] * 2)


# --- Answers -------------------------------------------------------------------------------------


def test_the_answer_is_the_text_under_the_pieces_as_it_is_written():
    one = case("The  QUIET\tFox saw", "QUIET\tFox")
    found = Answer().decode(one, question := Answer().featurize(one, TOKENIZER, RULE), pointing(question))
    assert (found.text, found.start, found.end) == ("QUIET\tFox", 5, 14)


def test_an_answer_is_never_cut_inside_a_word():
    one = case("the cats saw dogs")  # the cat ##s saw dog ##s
    question = Answer().featurize(one, TOKENIZER, RULE)
    output = np.zeros((len(question.sequences[0]), 2), dtype=np.float32)
    output[4] = 9  # cat, from start to end
    found = Answer().decode(one, question, [output])
    assert found.text == "cats"
    assert "cats" not in [other.text for other in found.runners_up]  # cat, ##s and cat ##s are one answer


def test_probabilities_are_among_the_best_twenty_by_softmax():
    one = case("the cat")
    question = Answer().featurize(one, TOKENIZER, RULE)
    output = np.zeros((len(question.sequences[0]), 2), dtype=np.float32)
    output[3, 0] = math.log(2)  # starts with "the": spans the, the cat 2; cat 1
    found = Answer().decode(one, question, [output])
    assert (found.text, found.probability) == ("the", pytest.approx(0.4))
    assert [(other.text, other.start, other.end) for other in found.runners_up] == [("the cat", 0, 7), ("cat", 4, 7)]
    assert [other.probability for other in found.runners_up] == pytest.approx([0.4, 0.2])
    assert found.null_odds == pytest.approx(-math.log(2))
    long = case("the cat saw a dog by road")
    question = Answer().featurize(long, TOKENIZER, RULE)
    assert len(Answer().decode(long, question, pointing(question)).runners_up) == 19


def test_an_answer_has_at_most_the_pieces_that_are_allowed():
    one = case("the cat saw a dog", "cat saw a dog")
    question = Answer().featurize(one, TOKENIZER, RULE)
    assert Answer().decode(one, question, pointing(question)).text == "cat saw a dog"
    assert len(Answer(max_answer_tokens=3).decode(one, question, pointing(question)).text.split()) <= 3


def test_the_answer_of_a_long_passage_is_found_in_its_window():
    words = [FILLERS[number % 10] for number in range(200)]
    words[137:139] = "blue", "fox"
    one = case(" ".join(words), "blue fox")
    question = Answer().featurize(one, TOKENIZER, RULE)
    assert len(question.sequences) > 30
    found = Answer().decode(one, question, pointing(question))
    assert (found.text, found.start) == ("blue fox", one.passage.index("blue fox"))


def test_no_answer_is_given_where_its_score_is_above_the_threshold():
    one = case("the cat")
    task = Answer(no_answer=True)
    question = task.featurize(one, TOKENIZER, RULE)
    output = np.zeros((len(question.sequences[0]), 2), dtype=np.float32)
    output[0] = 0.5  # no answer: 1 in all
    output[4] = 0.25  # "cat": 0.5 in all
    found = task.decode(one, question, [output])
    assert (found.text, found.start, found.end, found.null_odds) == ("", 0, 0, 0.5)
    assert found.best_text == found.runners_up[0].text == "cat"
    parts = [math.exp(score) for score in (1.0, 0.5, 0.25, 0.0)]  # none, cat, the cat, the
    assert found.probability == pytest.approx(parts[0] / sum(parts))
    bold = Answer(no_answer=True, null_threshold=0.5).decode(one, question, [output])
    assert (bold.text, bold.best_text, bold.probability) == ("cat", "cat", pytest.approx(parts[1] / sum(parts)))
    assert Answer().decode(one, question, [output]).text == "cat"  # a task in which every question has an answer


def test_the_score_of_no_answer_is_the_lowest_of_all_windows():
    one = case("the " * 20)
    question = Answer().featurize(one, TOKENIZER, RULE)
    outputs = [np.zeros((len(row), 2), dtype=np.float32) for row in question.sequences]
    for output, score in zip(outputs, (3.0, -1.0, 2.0, 5.0), strict=True):
        output[0, 0] = score
    assert Answer(no_answer=True).decode(one, question, outputs).null_odds == -1.0


def test_an_answer_as_json_has_all_its_fields():
    found = AnswerPrediction(
        id="q1",
        text="cat",
        start=4,
        end=7,
        probability=0.75,
        runners_up=(AnswerSpan("the cat", 0, 7, 0.25),),
        null_odds=-2.0,
    )
    assert json.loads(json.dumps(found.to_dict())) == {
        "id": "q1", "text": "cat", "start": 4, "end": 7, "probability": 0.75,
        "runners_up": [{"text": "the cat", "start": 0, "end": 7, "probability": 0.25}], "null_odds": -2.0,
    }  # fmt: skip


# --- Verbatim ------------------------------------------------------------------------------------

LETTERS = [*"abcdeéxyz019'-.,，。、中文字典龍"]
BY_LETTER = Tokenizer.from_backend(
    wordpiece_backend([*SPECIALS, *LETTERS, *(f"##{letter}" for letter in "abcdexyz019")], cased=False)
)


def byte_level() -> Tokenizer:
    """A byte-level BPE of single bytes, whose pieces hold the space before a word."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Tokenizer.from_backend(backend)


BY_BYTE = byte_level()
SPACES = " \t\n\u3000\u00a0\u2003"
passages = st.text(st.sampled_from([*LETTERS, *"ABÉ", *SPACES, "\u0301", "\u200b", "\x00", "😀", "ｆ"]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(passage=passages, seed=st.integers(0, 2**32 - 1), tokenizer=st.sampled_from([BY_LETTER, BY_BYTE]))
@example(passage="  abc\u3000中文  x1-y 。\n", seed=0, tokenizer=BY_BYTE)
def test_answers_are_verbatim_substrings_of_whole_words(passage: str, seed: int, tokenizer: Tokenizer):
    one = PassageExample(id="1", location="here", question="ab?", passage=passage)
    try:
        question = Answer().featurize(one, tokenizer, WindowRule(20, 5))
    except InputError:
        assert not any(letter.isalnum() for letter in passage)
        return
    generator = np.random.default_rng(seed)
    outputs = [generator.normal(size=(len(row), 2)).astype(np.float32) for row in question.sequences]
    answered = Answer().decode(one, question, outputs)
    for found in (answered, *answered.runners_up):
        assert found.text
        assert found.text == passage[found.start : found.end] == found.text.strip()
        for edge in (found.start, found.end):
            around = passage[max(edge - 1, 0) : edge + 1]
            assert not (len(around) == 2 and around.isascii() and around.isalnum()), (found.text, around)
    spans = [(found.start, found.end) for found in (answered, *answered.runners_up)]
    assert len(set(spans)) == len(spans) <= 20


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["abc", "x1", "é", "中", "文", "。", ","]), min_size=1, max_size=40), data=st.data()
)
def test_a_right_answer_of_whole_words_comes_back_to_the_letter(parts: list[str], data: st.DataObject):
    spaces = data.draw(
        st.lists(st.sampled_from([" ", "  ", "\t", "\u3000\n"]), min_size=len(parts), max_size=len(parts))
    )
    passage = "".join(part + space for part, space in zip(parts, spaces, strict=True))
    first = data.draw(st.integers(0, len(parts) - 1))
    last = data.draw(st.integers(first, min(len(parts) - 1, first + 2)))  # at most 9 pieces
    begin = sum(map(len, (*parts[:first], *spaces[:first])))
    end = sum(map(len, (*parts[:last], *spaces[:last]))) + len(parts[last])
    one = PassageExample(
        id="1", location="here", question="ab", passage=passage, answers=(RightAnswer(passage[begin:end], begin),)
    )
    question = Answer().featurize(one, BY_LETTER, WindowRule(40, 10))
    found = Answer().decode(one, question, pointing(question))
    assert (found.text, found.start, found.end) == (passage[begin:end], begin, end)


# --- Scores and the threshold --------------------------------------------------------------------


def answered(text: str, null_odds: float = -1.0, best: str = "") -> AnswerPrediction:
    return AnswerPrediction(
        id="q1",
        text=text,
        start=0,
        end=len(text),
        probability=0.5,
        runners_up=(AnswerSpan(best, 0, len(best), 0.2),),
        null_odds=null_odds,
    )


def test_english_is_scored_by_the_words_of_squad():
    pairs = [
        (case("The cat saw", "The cat"), answered("cat")),
        (case("a red fox", "red fox"), answered("fox saw")),
    ]
    scored = Answer().score(iter(pairs))
    assert scored.metrics == {"exact_match": 0.5, "f1": 0.75}
    assert (scored.main_metric, scored.main_value) == ("f1", 0.75)
    (mistake,) = scored.details["mistakes"]
    assert (mistake.expected, mistake.predicted, mistake.texts) == ("red fox", "fox saw", ("who", "a red fox"))


def test_chinese_is_scored_by_the_characters_of_cmrc():
    pairs = [(case("我喜欢北京大学。", "北京大学"), answered("北京"))]
    assert Answer(scoring="cmrc").score(iter(pairs)).metrics == {"exact_match": 0.0, "f1": pytest.approx(2 / 3)}


def test_answers_that_are_not_in_the_passage_still_count_as_right():
    one = PassageExample(
        id="1",
        location="here",
        question="who",
        passage="the cat",
        answers=(RightAnswer("the dog", None), RightAnswer("cat", 4)),
    )
    assert Answer().score(iter([(one, answered("dog"))])).metrics["exact_match"] == 1.0


def test_questions_with_and_without_an_answer_are_also_scored_apart():
    pairs = [
        (case("the cat", "cat"), answered("cat", -2.0)),
        (case("the dog", "dog"), answered("", 1.0, best="dog")),
        (case("the fox", is_impossible=True), answered("", 3.0, best="fox")),
        (case("the fox", is_impossible=True), answered("fox", -1.0)),
    ]
    scored = Answer(no_answer=True).score(iter(pairs))
    assert scored.metrics["exact_match"] == scored.metrics["f1"] == 0.5
    assert scored.metrics["has_answer_f1"] == scored.metrics["no_answer_f1"] == 0.5
    assert len(scored.details["mistakes"]) == 2


def test_the_threshold_is_tuned_on_dev_and_kept_in_the_folder():
    cases = [case("the cat", "cat"), case("the dog", "dog"), case("the fox", is_impossible=True)]
    predictions = [answered("cat", -2.0), answered("", 1.0, best="dog"), answered("", 3.0, best="fox")]
    task = Answer(no_answer=True).calibrate(cases, predictions)
    assert isinstance(task, Answer)
    assert 1.0 <= task.null_threshold < 3.0
    assert task.score(zip(cases, predictions, strict=True)).metrics["f1"] == 1.0
    assert Answer.from_metadata(json.loads(json.dumps(task.metadata())), {}) == task
    assert Answer().calibrate(cases[:2], predictions[:2]) == Answer()


def test_a_folder_of_transformers_is_read_with_the_defaults():
    assert Answer.from_metadata({}, {"architectures": ["BertForQuestionAnswering"]}) == Answer()
    assert Answer.from_metadata({"task": "answer", "window": {}, "no_answer": True}, {}) == Answer(no_answer=True)


# --- What is learned from the cases --------------------------------------------------------------


def test_whether_questions_are_impossible_follows_from_the_cases_or_a_setting():
    some = [case("the cat", "cat"), case("the dog", is_impossible=True)]
    assert Answer.from_examples(some, {}) == Answer(no_answer=True)
    assert Answer.from_examples(some, {"no_answer": False, "max_answer_pieces": 8}) == Answer(max_answer_tokens=8)
    assert Answer.from_examples(some[:1], {}) == Answer()


def test_chinese_questions_bring_their_scoring_and_longer_answers():
    chinese = [case("北京在哪里", "北京", question="哪里？")]
    assert Answer.from_examples(chinese, {}) == Answer(scoring="cmrc", max_answer_tokens=96)
    assert Answer.from_examples(chinese, {"scoring": "squad"}).scoring == "squad"
    impossible = case("北京", question="谁？", is_impossible=True)
    assert Answer.from_examples([*chinese, impossible], {}) == Answer(no_answer=True, max_answer_tokens=96)


# --- Bad input -----------------------------------------------------------------------------------


def test_an_answer_that_is_not_in_its_passage_is_named_counted_and_not_trained_on(tmp_path: Path):
    questions = [
        {"id": "a", "question": "who", "answers": [{"text": "bird", "answer_start": 4}]},
        {"id": "b", "question": "who", "answers": [{"text": "cat", "answer_start": 0}]},
    ]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "the cat", "qas": questions}]}]}))
    counts: Counts = Counter()
    absent, moved = Answer.read(path, {}, counts)
    place = "train.json, article 1, question a: the answer 'bird' is not in its context"
    assert counts == {
        "answers whose offset was mended": 1,
        f"answers that are not in their passage (the first: {place})": 1,
    }
    assert absent.answers == (("bird", None),)
    assert labels_of(Answer().featurize(absent, TOKENIZER, RULE)) == [(-1, -1)]
    assert moved.answers == (("cat", 4),)
    assert labels_of(Answer().featurize(moved, TOKENIZER, RULE)) == [(4, 4)]


@pytest.mark.parametrize(("question", "passage", "part"), [(" \n", "the cat", "question"), ("who", "", "passage")])
def test_an_empty_question_or_passage_is_named(question: str, passage: str, part: str):
    with pytest.raises(InputError, match=rf"article 1, question q1: the {part} is empty; fill it in"):
        Answer().featurize(case(passage, question=question), TOKENIZER, RULE)


def test_a_passage_without_a_single_piece_is_named():
    with pytest.raises(InputError, match=r"question q1: the passage has no words"):
        Answer().featurize(case("\x00\x01"), TOKENIZER, RULE)


@pytest.mark.parametrize("num_words", [1, 3, 40])
def test_a_question_longer_than_the_window_slides_and_its_parts_are_averaged(num_words: int):
    passage = " ".join(FILLERS[number % 10] for number in range(num_words - 1)) + " fox"
    one = case(passage, "fox", question="which colour " * 50 + "?")
    question = Answer().featurize(one, TOKENIZER, RULE)
    for text, length in ((0, 101), (1, num_words)):
        runs = [row.spans[text] for row in question.sequences]
        assert set().union(*(range(run.first, run.first + run.count) for run in runs)) == set(range(length))
    assert all(len(row) <= RULE.max_length for row in question.sequences)
    assert Answer().decode(one, question, pointing(question)).text == "fox"


def test_a_passage_of_a_hundred_thousand_words_is_read_to_its_end():
    words = ["the"] * 100_000
    words[99_990] = "fox"
    one = case(" ".join(words), "fox")
    question = Answer().featurize(one, TOKENIZER, WindowRule(384, 96))
    last = question.sequences[-1].spans[1]
    assert last.first + last.count == 100_000
    found = Answer().decode(one, question, pointing(question))
    assert (found.text, found.start) == ("fox", one.passage.index("fox"))


def test_a_file_without_a_usable_answer_cannot_be_learned_from():
    absent = PassageExample(
        id="1", location="here", question="who", passage="the cat", answers=(RightAnswer("bird", None),)
    )
    with pytest.raises(InputError, match=r"none of the 2 training questions has an answer .* copied from 'context'"):
        Answer.from_examples([absent, case("the dog", is_impossible=True)], {})


def test_a_question_without_a_right_answer_cannot_be_scored():
    with pytest.raises(InputError, match=r"question q1: the question has no answer, so it cannot be scored"):
        Answer(no_answer=True).score(iter([(case("the cat"), answered("cat"))]))
    with pytest.raises(InputError, match=r"is impossible, which this model was not trained for"):
        Answer().score(iter([(case("the cat", is_impossible=True), answered("cat"))]))


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(SettingsError, match="no scoring 'bleu'; choose one of: squad, cmrc"):
        Answer(scoring="bleu")
    with pytest.raises(SettingsError, match="allow at least 1"):
        Answer(max_answer_tokens=0)
    with pytest.raises(SettingsError, match="no rule for questions without an answer"):
        Answer(no_answer=True, scoring="cmrc")


def test_questions_to_predict_come_from_lines_without_answers():
    lines = [Record({"question": "who", "context": "the cat", "id": 7}, "standard input, line 1")]
    (one,) = Answer.read_unlabelled(lines, {})
    assert (one.id, one.texts, one.answers, one.is_impossible) == ("7", ("who", "the cat"), (), False)


# --- The model -----------------------------------------------------------------------------------


def module_of(seed: int = 0) -> TaskModule:
    generator = torch.Generator().manual_seed(seed)
    return TaskModule(Bert(SIZES, generator), Answer(), generator)


@pytest.mark.parametrize("lengths", [(5, 5), (3, 9, 20), (20, 1, 1, 2)], ids=str)
def test_logits_and_loss_equal_those_of_transformers(lengths: Sequence[int]):
    config = transformers.BertConfig(**config_to_dict(SIZES, ["BertForQuestionAnswering"]))
    theirs = transformers.BertForQuestionAnswering(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    ours = module_of().eval()
    encoder = load_into(ours.encoder, theirs.state_dict(), tensor_names(SIZES))
    head = load_into(ours.head, theirs.state_dict(), HEADS["spans"])
    assert head.missing_keys == ()
    assert set(encoder.missing_keys) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}  # they have none
    batch = batch_of(*(case("fox " + "the cat " * length, "fox") for length in lengths), rule=WindowRule(64, 8))
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    with torch.inference_mode():
        found = ours.outputs(batch)
        wanted = theirs(
            input_ids=batch.input_ids,
            token_type_ids=batch.token_type_ids,
            attention_mask=mask,
            start_positions=batch.labels["start"],
            end_positions=batch.labels["end"],
        )
    expected = torch.stack([wanted.start_logits, wanted.end_logits], -1)
    assert (found - expected)[mask.bool()].abs().max() < 1e-5
    assert (found[~mask.bool()] == -math.inf).all()
    if len(set(lengths)) == 1:  # theirs counts padding as a place where an answer may be
        loss = Answer().loss(found, batch) / Answer().num_targets(batch)
        assert float(loss) == pytest.approx(float(wanted.loss), abs=1e-5)


def toy(draw: random.Random, num_words: int) -> PassageExample:
    """A passage with a colour and some animals; the question says which of the two is wanted."""
    words = [draw.choice(FILLERS) for _ in range(num_words)]
    colour, animal = draw.choice(COLOURS), draw.choice(ANIMALS) + "s"
    first, second = draw.sample(range(num_words), 2)
    words[first], words[second] = colour, animal
    wanted, answer = draw.choice([("colour", colour), ("animal", animal)])
    return case(" ".join(words), answer, question=f"which {wanted}?")


@cache
def trained() -> TaskModule:
    """A small model that has seen 120 batches of short passages."""
    draw = random.Random(0)
    module = module_of()

    def batches(phase: int, step: int) -> list[Batch]:
        return [batch_of(*(toy(draw, draw.randint(4, 16)) for _ in range(16)), rule=WindowRule(24, 6))]

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


def test_a_small_model_learns_which_words_answer_a_question():
    draw = random.Random(1)
    predictor = Predictor(trained(), TOKENIZER, WindowRule(24, 6))
    scored = Answer().score(predictor.predict(toy(draw, draw.randint(4, 16)) for _ in range(60)))
    assert scored.metrics["exact_match"] > 0.95


def test_a_model_that_learned_on_short_passages_answers_in_long_ones():
    draw = random.Random(2)
    predictor = Predictor(trained(), TOKENIZER, WindowRule(24, 6))
    cases = [toy(draw, 120) for _ in range(20)]
    assert all(len(Answer().featurize(one, TOKENIZER, predictor.window_rule).sequences) > 5 for one in cases)
    assert Answer().score(predictor.predict(cases)).metrics["exact_match"] > 0.9


def test_predictions_of_a_batch_equal_those_of_each_row_alone():
    draw = random.Random(3)
    module = module_of().eval()
    rows = [
        row
        for length in (4, 9, 30)
        for row in Answer().featurize(toy(draw, length), TOKENIZER, WindowRule(24, 6)).sequences
    ]
    with torch.inference_mode():
        together = module.outputs(batch_of_input_sequences(rows, TOKENIZER.specials.pad))
        for number, row in enumerate(rows):
            alone = module.outputs(batch_of_input_sequences([row], TOKENIZER.specials.pad))[0]
            assert torch.allclose(together[number, : len(row)], alone, atol=1e-5)
