"""Integrated gradients: values by hand, weights that add up for every task, the word that decides, and pictures."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bertworks.datasets.conll import Sentence
from bertworks.datasets.labelled_texts import TextExample
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.encoded import BatchLayout, Encoded, create_layout
from bertworks.errors import InputError
from bertworks.inference.attribution import example_from_texts, explain
from bertworks.inference.explanation import Explanation, TextAttribution, WordAttribution
from bertworks.inference.predictor import Predictor
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.answer import Answer, PassageExample
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.choose import ChoiceExample, Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Features, Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import Tag, TagExample
from bertworks.tasks.tag_documents import SentenceContext, join_sentences
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = (*"the film was good bad very long john smith lives in paris who now".split(), "great", "##ness", "##ly")
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
    initializer_range=0.3,
)
RULE = WindowRule(32, 8)


def predictor_of(task: Task, seed: int = 0, rule: WindowRule = RULE) -> Predictor:
    generator = torch.Generator().manual_seed(seed)
    return Predictor(TaskModule(Bert(SIZES, generator), task, generator), TOKENIZER, rule)


def text(*texts: str) -> TextExample:
    return TextExample("1", "the text", texts)


class Table(nn.Module):
    """An encoder of two values a piece and no layers; a mask is (0, 0)."""

    num_at_once, device = 1, torch.device("cpu")

    def __init__(self, rows: dict[str, tuple[float, float]]) -> None:
        super().__init__()
        self.pieces = nn.Embedding(TOKENIZER.vocab_size, 2)
        with torch.no_grad():
            self.pieces.weight.zero_()
            for piece, values in rows.items():
                self.pieces.weight[TOKENIZER.tokens.index(piece)] = torch.tensor(values)

    def laid(self, batch: Batch) -> BatchLayout:
        return create_layout(batch)

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        return self.pieces(batch.input_ids.flatten())

    def through(self, values: torch.Tensor, layout: BatchLayout) -> Encoded:
        return Encoded((values,), None, layout)


@dataclass
class ByHand:
    """A model whose value is a function of the (T, 2) values of a row."""

    encoder: Table
    function: Any
    task: Task

    def head(self, encoded: Encoded, batch: Batch) -> torch.Tensor:
        return self.function(encoded.last_hidden_state.view(*encoded.layout.shape, 2))[:, None]

    def outputs(self, batch: Batch) -> torch.Tensor:
        layout = create_layout(batch)
        return self.head(self.encoder.through(self.encoder.embed(batch, layout), layout), batch)

    def eval(self) -> None:
        self.encoder.eval()


def by_hand(function: Any, **rows: tuple[float, float]) -> Predictor:
    return Predictor(ByHand(Table(rows), function, Regress()), TOKENIZER, RULE)  # type: ignore[arg-type]


def test_weights_of_a_sum_of_squares_by_hand():
    """The slope of x² at a share a of the way is 2ax; its mean over the way times x is x²: each piece's own square."""
    predictor = by_hand(lambda values: (values**2).sum((1, 2)), good=(3.0, 1.0), bad=(0.0, -2.0))
    found = explain(predictor, text("good film bad"))
    assert found.weights.tolist() == pytest.approx([10.0, 0.0, 4.0])
    assert (found.output, found.baseline_output) == (14.0, 0.0)
    assert found.tokens == ("good", "film", "bad")
    assert found.offsets == ((0, 4), (5, 9), (10, 13))
    assert (found.num_steps, found.is_complete) == (32, True)


def test_weights_of_a_product_by_hand():
    """Of x·y both factors have the mean slope of half of the other: either is credited with half of the product."""
    predictor = by_hand(lambda values: values[:, 1, 0] * values[:, 2, 0], good=(3.0, 0.0), bad=(-4.0, 0.0))
    assert explain(predictor, text("good bad")).weights.tolist() == pytest.approx([-6.0, -6.0])


def test_the_number_of_steps_grows_where_the_output_is_steep():
    steep = by_hand(lambda values: torch.tanh(200 * (values[:, 1, 0] - 0.7)), good=(1.0, 0.0))
    found = explain(steep, text("good"))
    assert found.num_steps > 32
    assert found.is_complete
    assert found.weights[0] == pytest.approx(2.0, rel=0.01)


def test_weights_that_do_not_add_up_are_said_to_miss():
    jump = by_hand(lambda values: (values[:, 1, 0] > 0.7).float() + 0.0 * values.sum((1, 2)), good=(1.0, 0.0))
    found = explain(jump, text("good"))
    assert (found.num_steps, found.convergence_delta, found.is_complete) == (864, -1.0, False)
    assert "after 864 steps the weights still miss the difference by -1.000" in found.to_text()


CLASSES = Classify(("awful", "fair", "fine"))
CASES: dict[str, tuple[Task, Any]] = {
    "a class": (CLASSES, text("the film was very good")),
    "a class of a pair": (CLASSES, text("the film was good", "who lives in paris now")),
    "one of several labels": (Classify(("sad", "long"), multi_label=True), text("the film was very bad")),
    "a class of a long text": (CLASSES, text("the film was very good and bad who lives " * 9)),
    "a value": (Regress(), text("the film was good", "the film was bad")),
    "an ending": (
        Choose(),
        ChoiceExample(id="1", location="the text", prompt="the film was", endings=("good", "very bad", "long now")),
    ),
    "a long ending": (
        Choose(),
        ChoiceExample(id="1", location="the text", prompt="the film was", endings=("good " * 40, "bad")),
    ),
    "a word": (Tag(("O", "B-PER", "I-PER")), TagExample.from_text("John Smith lives in Paris.")),
    "a word of a long text": (Tag(("O", "B-PER", "I-PER")), TagExample.from_text("John lives in Paris now " * 12)),
    "an answer": (
        Answer(),
        PassageExample(
            id="1", location="the text", question="who lives in paris", passage="John Smith lives in Paris now"
        ),
    ),
    "no answer": (
        Answer(no_answer=True, null_threshold=-100.0),
        PassageExample(
            id="1", location="the text", question="who lives in paris", passage="John Smith lives in Paris now"
        ),
    ),
    "an answer in a long text": (
        Answer(),
        PassageExample(
            id="1",
            location="the text",
            question="who lives in paris",
            passage="the film was long. John lives in Paris now. " * 6,
        ),
    ),
}


@pytest.mark.parametrize(("task", "case"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_add_up_to_the_difference_of_the_outputs(task: Task, case: Any, seed: int):
    found = explain(predictor_of(task, seed), case)
    missing = found.output - found.baseline_output - found.weights.sum() - found.context_weight
    assert abs(missing) <= 0.01 * np.abs(found.weights).sum()
    assert found.is_complete
    assert abs(found.output - found.baseline_output) > 1e-3  # or there would be nothing to explain
    assert [own.text for own in found.texts] == list(case.texts)
    for own in found.texts:
        assert len(own.tokens) == len(own.offsets) == len(own.weights) == len(own.begins_word)
        assert sum(word.weight for word in own.words) == pytest.approx(own.weights.sum())
        for piece, (start, end) in zip(own.tokens, own.offsets, strict=True):
            assert piece in ("[UNK]", own.text[start:end].lower(), "##" + own.text[start:end].lower())


def outputs_of(predictor: Predictor, case: Any) -> list[Any]:
    return predictor.outputs([predictor.module.task.featurize(case, TOKENIZER, predictor.window_rule)])[0]


def test_a_class_is_explained_against_the_mean_of_the_others():
    predictor, case = predictor_of(CLASSES), text("the film was very good")
    (logits,) = outputs_of(predictor, case)
    found = explain(predictor, case, "fair")
    assert found.target == "'fair'"
    assert found.output == pytest.approx(logits[1] - (logits[0] + logits[2]) / 2, abs=1e-5)
    best = explain(predictor, case)
    assert best.target == f"'{CLASSES.labels[int(logits.argmax())]}'"


def test_one_of_several_labels_is_explained_by_itself():
    task, case = CASES["one of several labels"]
    predictor = predictor_of(task)
    (logits,) = outputs_of(predictor, case)
    assert explain(predictor, case, "long").output == pytest.approx(logits[1], abs=1e-5)


def test_the_value_of_a_long_text_is_explained_over_all_its_windows():
    predictor, case = predictor_of(Regress()), text("the film was very good and bad who lives " * 9)
    outputs = outputs_of(predictor, case)
    assert len(outputs) > 2
    found = explain(predictor, case)
    assert found.output == pytest.approx(np.mean(outputs), abs=1e-5)
    assert np.count_nonzero(found.weights) == len(found.weights) == 81


def test_an_ending_is_explained_against_the_others_whose_words_count_too():
    task, case = CASES["an ending"]
    predictor = predictor_of(task)
    scores = np.concatenate(outputs_of(predictor, case))
    by_number, by_text = explain(predictor, case, "1"), explain(predictor, case, "very bad")
    assert by_number.target == by_text.target == "ending 1"
    assert by_number.output == pytest.approx(scores[1] - (scores[0] + scores[2]) / 2, abs=1e-5)
    assert [own.title for own in by_number.texts] == ["prompt", "ending 0", "ending 1", "ending 2"]
    assert all(np.abs(own.weights).sum() > 0 for own in by_number.texts)


def test_a_word_is_explained_by_number_by_name_and_for_a_label():
    task, case = CASES["a word"]
    predictor = predictor_of(task)
    (logits,) = outputs_of(predictor, case)
    found = explain(predictor, case, "Smith=I-PER")
    assert found.target == "'Smith' as I-PER"
    assert found.output == pytest.approx(logits[1, 2] - (logits[1, 0] + logits[1, 1]) / 2, abs=1e-5)
    assert explain(predictor, case, "1=I-PER").weights.tolist() == found.weights.tolist()
    assert explain(predictor, case, "Paris").target == f"'Paris' as {task.labels[int(logits[4].argmax())]}"


def test_a_word_that_is_no_entity_is_explained_where_it_is_nearest_to_one():
    task, case = CASES["a word"]
    predictor = predictor_of(task)
    with torch.no_grad():  # nothing is an entity
        predictor.module.head.score.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    (logits,) = outputs_of(predictor, case)
    nearest = int((logits[:, 0] - logits[:, 1:].max(1)).argmin())
    assert explain(predictor, case).target == f"'{case.sentence.words[nearest]}' as O"


def test_the_document_around_a_sentence_has_a_weight_of_its_own():
    words = ("John", "lives")
    sentence = Sentence(
        words=words, tags=None, text="John lives", offsets=((0, 4), (5, 10)), document=0, location="toy.txt, line 1"
    )
    before = Sentence(
        words=("Paris", "now"),
        tags=None,
        text="Paris now",
        offsets=((0, 5), (6, 9)),
        document=0,
        location="toy.txt, line 1",
    )
    predictor = predictor_of(Tag(("O", "B-PER", "I-PER")))
    found = explain(predictor, TagExample("1", SentenceContext(sentence, (before,), (before,))), "John")
    assert found.tokens == ("john", "lives")
    assert found.context_weight != 0.0
    assert found.is_complete
    assert f"the document around the sentence adds {found.context_weight:+.3f}" in found.to_text()
    assert explain(predictor, TagExample("1", SentenceContext(sentence)), "John").context_weight == 0.0


def test_words_behind_the_cut_end_of_a_sentence_keep_their_names():
    """Of the first sentence fourteen words fit a row; what is asked next is the first word of the second one."""
    texts = ("the film was good " * 4 + "Paris", "John lives in Paris")
    sentences = [replace(TagExample.from_text(text).sentence, document=1) for text in texts]
    predictor = predictor_of(Tag(("O", "B-PER", "I-PER")), rule=WindowRule(16, 4, truncate=True))
    case = TagExample("1", join_sentences(sentences, (), ()))
    first, second = outputs_of(predictor, case)
    assert (len(first), len(second)) == (14, 4)
    found = explain(predictor, case, "John=B-PER")
    assert found.target == "'John' as B-PER"
    assert found.output == pytest.approx(second[0, 1] - (second[0, 0] + second[0, 2]) / 2, abs=1e-5)
    assert [number for number, weight in enumerate(found.weights) if weight] == [15, 16, 17, 18, 19, 20]  # two before
    assert explain(predictor, case, "17=B-PER").weights.tolist() == found.weights.tolist()
    assert explain(predictor, case, "Paris=O").output == explain(predictor, case, "20=O").output
    logits = np.concatenate([first, second])
    with torch.no_grad():  # nothing is an entity, and the word that is the nearest to one stands behind the cut
        predictor.module.head.score.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    nearest = int((50 + logits[:, 0] - logits[:, 1:].max(1)).argmin())
    words = [*sentences[0].words[:14], *sentences[1].words]
    assert explain(predictor, case).target == f"'{words[nearest]}' as O"
    with pytest.raises(InputError, match="the word '15' was cut off by the model's window rule, and not read"):
        explain(predictor, case, "15")


def test_an_answer_is_explained_where_it_starts_and_ends():
    task, case = CASES["an answer"]
    predictor = predictor_of(task)
    (scores,) = outputs_of(predictor, case)
    ((_, answered),) = predictor.predict([case])
    pieces = ["[CLS]", *"who lives in paris [SEP] john smith lives in paris now [SEP]".split()]
    words = answered.text.lower().split()
    places = (pieces.index(words[0], 6), pieces.index(words[-1], 6))
    others = [np.delete(scores[:, side], place).mean() for side, place in enumerate(places)]
    start, end = (scores[place, side] - others[side] for side, place in enumerate(places))
    assert explain(predictor, case, "start").output == pytest.approx(start, abs=1e-5)
    assert explain(predictor, case, "end").output == pytest.approx(end, abs=1e-5)
    both = explain(predictor, case)
    assert both.output == pytest.approx(start + end, abs=1e-5)
    assert both.target == f"answer '{answered.text}'"
    silent = explain(predictor, case, "no answer")
    assert silent.output == pytest.approx(float((scores[0] - scores[1:].mean(0)).sum()), abs=1e-5)


def test_an_answer_in_a_word_longer_than_a_window_is_explained():
    case = PassageExample(id="1", location="the text", question="who", passage="great" + "ness" * 20)
    for seed in range(4):
        found = explain(predictor_of(Answer(), seed, WindowRule(16, 4)), case)
        assert found.target == f"answer '{case.passage}'"
        assert len(found.tokens) == 1 + 21
        assert found.is_complete


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("a class", "good", "there is no class 'good' to explain; choose one of: awful, fair, fine"),
        ("a value", "fine", "there is no 'fine' to explain: the model gives texts a number"),
        ("an ending", "3", "there is no ending '3' to explain; give a number from 0 to 2"),
        ("a word", "Rome", "there is no word 'Rome' to explain"),
        ("a word", "Paris=B-LOC", "there is no label 'B-LOC'; choose one of: O, B-PER, I-PER"),
        ("an answer", "middle", "there is no 'middle' to explain in an answer; choose one of: start, end"),
    ],
)
def test_a_target_that_is_not_there_is_refused(name: str, target: str, reason: str):
    task, case = CASES[name]
    with pytest.raises(InputError, match=re.escape(reason)):
        explain(predictor_of(task), case, target)


def test_pieces_that_were_cut_off_have_no_weight_and_are_counted():
    found = explain(predictor_of(Regress(), rule=WindowRule(16, 4, truncate=True)), text("the film was good " * 5))
    assert (found.num_truncated, len(found.weights)) == (6, 20)
    assert not found.weights[14:].any()
    assert found.weights[:14].all()
    assert "6 pieces were cut off by the model's window rule" in found.to_text()


def masked(question: Features, generator: np.random.Generator) -> Features:
    """The same with some of its pieces masked, or all, or none."""
    (row,) = question.sequences
    ids = row.input_ids.copy()
    ids[1:-1][generator.random(len(ids) - 2) < generator.uniform(0, 1.2)] = TOKENIZER.specials.mask
    return replace(question, sequences=(replace(row, input_ids=ids),))


def test_what_decides_has_the_largest_weight():
    """A film is liked if it is good and not if it is bad, whatever else is said of it."""
    generator = np.random.default_rng(0)

    def drawn() -> TextExample:
        words = list(generator.choice(["the", "film", "was", "very", "long", "now"], size=generator.integers(3, 9)))
        word, label = (("good", "liked"), ("bad", "disliked"))[generator.integers(2)]
        words.insert(int(generator.integers(len(words) + 1)), word)
        return TextExample("1", "the text", (" ".join(words),), label)

    cases = [drawn() for _ in range(200)]
    task = Classify.from_examples(cases, {})
    predictor = predictor_of(task)
    questions = [task.featurize(case, TOKENIZER, RULE) for case in cases[:160]]

    def draw(phase: int, step: int) -> list[Batch]:
        own = [questions[(step * 16 + number) % 160] for number in range(16)]
        # A pretrained model knows that masked words may be anything; this one has to learn it.
        own += [masked(question, generator) for question in own]
        return [batch_of_features(own, task, TOKENIZER.specials.pad)]

    module = predictor.module
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((150,), 15, 5e-3),
        get_batches=draw,
        seed=0,
    )
    list(train(training, TrainState()))
    assert task.score(predictor.predict(cases[160:])).main_value == 1.0
    for case in cases[160:]:
        found = explain(predictor, case)
        assert found.target == f"'{case.label}'"
        assert found.tokens[int(found.weights.argmax())] in ("good", "bad")
        other = explain(predictor, case, "liked" if case.label == "disliked" else "disliked")
        assert other.tokens[int(other.weights.argmin())] in ("good", "bad")
        assert np.allclose(other.weights, -found.weights, atol=1e-4)  # of two classes one is the other's opposite


def explained(weights: list[float]) -> Explanation:
    own = TextAttribution(
        title="text",
        text="Greatness <& good>, bad!",
        tokens=("great", "##ness", "good", "bad"),
        offsets=((0, 5), (5, 9), (13, 17), (20, 23)),
        begins_word=(True, False, True, True),
        weights=np.array(weights),
    )
    return Explanation(target="'liked'", texts=(own,), output=sum(weights), baseline_output=0.0, num_steps=32)


def test_the_weight_of_a_word_is_the_sum_of_its_pieces():
    (own,) = explained([1.0, 2.0, 0.1, -1.5]).texts
    assert own.words == (WordAttribution(0, 9, 3.0), WordAttribution(13, 17, 0.1), WordAttribution(20, 23, -1.5))


def test_plain_text_has_one_to_three_marks_by_weight():
    assert explained([1.0, 2.0, 0.5, -1.5]).to_text() == (
        "'liked': +2.000, and +0.000 with every word masked\ntext: Greatness[+++] <& good[+]>, bad[--]!"
    )
    assert explained([0.0] * 4).to_text().endswith("text: Greatness <& good>, bad!")


def test_json_tells_words_and_pieces():
    told = json.loads(json.dumps(explained([1.0, 2.0, 0.5, -1.5]).to_dict()))
    assert told["texts"][0]["words"][0] == {"word": "Greatness", "start": 0, "end": 9, "weight": 3.0}
    assert told["texts"][0]["pieces"][1] == {"piece": "##ness", "start": 5, "end": 9, "weight": 2.0}
    assert (told["target"], told["output"], told["baseline_output"], told["steps"]) == ("'liked'", 2.0, 0.0, 32)


def test_texts_become_the_case_of_a_task():
    assert example_from_texts("classify", ["one", "two"]).texts == ("one", "two")
    assert example_from_texts("choose", ["one", "two", "three"]).endings == ("two", "three")
    assert example_from_texts("tag", ["John lives"]).sentence.words == ("John", "lives")
    assert example_from_texts("answer", ["who", "John"]).passage == "John"
    with pytest.raises(InputError, match="a model for 'choose' reads a prompt and its endings; 2 texts were given"):
        example_from_texts("choose", ["one", "two"])
    with pytest.raises(InputError, match="a model for 'tag' reads a text"):
        example_from_texts("tag", [" "])
    with pytest.raises(InputError, match="there is nothing to explain in 'fill'"):
        example_from_texts("fill", ["one"])
