"""Integrated gradients: values by hand, completeness for every task, and the token that decides."""

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
from bertworks.tasks.translate import Translate
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
CONFIG = BertConfig(
    vocab_size=len(TOKENIZER.tokens),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)
WINDOW_RULE = WindowRule(32, 8)


def make_predictor(task: Task, seed: int = 0, rule: WindowRule = WINDOW_RULE) -> Predictor:
    generator = torch.Generator().manual_seed(seed)
    return Predictor(TaskModule(Bert(CONFIG, generator), task, generator), TOKENIZER, rule)


def make_example(*texts: str) -> TextExample:
    return TextExample("1", "the text", texts)


class EmbeddingTable(nn.Module):
    """An encoder with hidden size 2 and no layers; the embedding of [MASK] is (0, 0)."""

    num_parallel_batches, device = 1, torch.device("cpu")

    def __init__(self, embeddings: dict[str, tuple[float, float]]) -> None:
        super().__init__()
        self.token_embeddings = nn.Embedding(TOKENIZER.vocab_size, 2)
        with torch.no_grad():
            self.token_embeddings.weight.zero_()
            for token, values in embeddings.items():
                self.token_embeddings.weight[TOKENIZER.tokens.index(token)] = torch.tensor(values)

    def create_layout(self, batch: Batch) -> BatchLayout:
        return create_layout(batch)

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        return self.token_embeddings(batch.input_ids.flatten())

    def forward_layers(self, values: torch.Tensor, layout: BatchLayout) -> Encoded:
        return Encoded(hidden_states=(values,), pooled=None, layout=layout)

    def transform_for_head(self, encoded: Encoded) -> Encoded:
        return encoded


@dataclass
class FunctionModule:
    """A module whose output is a function of the (T, 2) embeddings of a sequence."""

    encoder: EmbeddingTable
    function: Any
    task: Task

    def head(self, encoded: Encoded, batch: Batch) -> torch.Tensor:
        return self.function(encoded.last_hidden_state.view(*encoded.layout.shape, 2))[:, None]

    def compute_outputs(self, sequences: Any, tokenizer: Tokenizer) -> Any:
        return TaskModule.compute_outputs(self, sequences, tokenizer)  # type: ignore[arg-type]

    def outputs(self, batch: Batch) -> torch.Tensor:
        layout = create_layout(batch)
        return self.head(self.encoder.forward_layers(self.encoder.embed(batch, layout), layout), batch)

    def eval(self) -> None:
        self.encoder.eval()


def make_function_predictor(function: Any, **embeddings: tuple[float, float]) -> Predictor:
    module = FunctionModule(EmbeddingTable(embeddings), function, Regress())
    return Predictor(module, TOKENIZER, WINDOW_RULE)  # type: ignore[arg-type]


def test_weights_of_a_sum_of_squares_by_hand():
    """The gradient of x² at a fraction a of the path is 2ax; its mean times x is x²: each token's own square."""
    predictor = make_function_predictor(lambda values: (values**2).sum((1, 2)), good=(3.0, 1.0), bad=(0.0, -2.0))
    explanation = explain(predictor, make_example("good film bad"))
    assert explanation.weights.tolist() == pytest.approx([10.0, 0.0, 4.0])
    assert (explanation.output, explanation.baseline_output) == (14.0, 0.0)
    assert explanation.tokens == ("good", "film", "bad")
    assert explanation.offsets == ((0, 4), (5, 9), (10, 13))
    assert (explanation.num_steps, explanation.is_complete) == (32, True)


def test_weights_of_a_product_by_hand():
    """Of x·y each factor has a mean gradient of half of the other: each gets half of the product."""
    predictor = make_function_predictor(
        lambda values: values[:, 1, 0] * values[:, 2, 0], good=(3.0, 0.0), bad=(-4.0, 0.0)
    )
    assert explain(predictor, make_example("good bad")).weights.tolist() == pytest.approx([-6.0, -6.0])


def test_the_number_of_steps_grows_until_convergence():
    predictor = make_function_predictor(lambda values: torch.tanh(200 * (values[:, 1, 0] - 0.7)), good=(1.0, 0.0))
    explanation = explain(predictor, make_example("good"))
    assert explanation.num_steps > 32
    assert explanation.is_complete
    assert explanation.weights[0] == pytest.approx(2.0, rel=0.01)


def test_a_large_convergence_delta_is_reported():
    predictor = make_function_predictor(
        lambda values: (values[:, 1, 0] > 0.7).float() + 0.0 * values.sum((1, 2)), good=(1.0, 0.0)
    )
    explanation = explain(predictor, make_example("good"))
    assert (explanation.num_steps, explanation.convergence_delta, explanation.is_complete) == (864, -1.0, False)
    assert "after 864 steps the convergence delta is -1.000" in explanation.to_text()


CLASSES = Classify(labels=("awful", "fair", "fine"))
EXAMPLES: dict[str, tuple[Task, Any]] = {
    "a class": (CLASSES, make_example("the film was very good")),
    "a class of a pair": (CLASSES, make_example("the film was good", "who lives in paris now")),
    "a multi-label class": (Classify(labels=("sad", "long"), multi_label=True), make_example("the film was very bad")),
    "a class of a long text": (CLASSES, make_example("the film was very good and bad who lives " * 9)),
    "a value": (Regress(), make_example("the film was good", "the film was bad")),
    "an ending": (
        Choose(),
        ChoiceExample(id="1", location="the text", prompt="the film was", endings=("good", "very bad", "long now")),
    ),
    "a long ending": (
        Choose(),
        ChoiceExample(id="1", location="the text", prompt="the film was", endings=("good " * 40, "bad")),
    ),
    "a word": (Tag(labels=("O", "B-PER", "I-PER")), TagExample.from_text("John Smith lives in Paris.")),
    "a word of a long text": (
        Tag(labels=("O", "B-PER", "I-PER")),
        TagExample.from_text("John lives in Paris now " * 12),
    ),
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


@pytest.mark.parametrize(("task", "example"), EXAMPLES.values(), ids=EXAMPLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_sum_to_the_difference_of_the_outputs(task: Task, example: Any, seed: int):
    explanation = explain(make_predictor(task, seed), example)
    delta = explanation.output - explanation.baseline_output - explanation.weights.sum() - explanation.context_weight
    assert abs(delta) <= 0.01 * np.abs(explanation.weights).sum()
    assert explanation.is_complete
    assert abs(explanation.output - explanation.baseline_output) > 1e-3  # else there would be nothing to explain
    assert [text.text for text in explanation.texts] == list(example.texts)
    for text in explanation.texts:
        assert len(text.tokens) == len(text.offsets) == len(text.weights) == len(text.begins_word)
        assert sum(word.weight for word in text.words) == pytest.approx(text.weights.sum())
        for token, (start, end) in zip(text.tokens, text.offsets, strict=True):
            assert token in ("[UNK]", text.text[start:end].lower(), "##" + text.text[start:end].lower())


def outputs_of(predictor: Predictor, example: Any) -> list[Any]:
    return predictor.outputs([predictor.module.task.featurize(example, TOKENIZER, predictor.window_rule)])[0]


def test_a_class_is_explained_in_contrast_to_the_others():
    predictor, example = make_predictor(CLASSES), make_example("the film was very good")
    (logits,) = outputs_of(predictor, example)
    explanation = explain(predictor, example, "fair")
    assert explanation.target == "'fair'"
    assert explanation.output == pytest.approx(logits[1] - (logits[0] + logits[2]) / 2, abs=1e-5)
    best = explain(predictor, example)
    assert best.target == f"'{CLASSES.labels[int(logits.argmax())]}'"


def test_a_multi_label_class_is_explained_without_contrast():
    task, example = EXAMPLES["a multi-label class"]
    predictor = make_predictor(task)
    (logits,) = outputs_of(predictor, example)
    assert explain(predictor, example, "long").output == pytest.approx(logits[1], abs=1e-5)


def test_the_value_of_a_long_text_is_explained_over_all_its_windows():
    predictor, example = make_predictor(Regress()), make_example("the film was very good and bad who lives " * 9)
    outputs = outputs_of(predictor, example)
    assert len(outputs) > 2
    explanation = explain(predictor, example)
    assert explanation.output == pytest.approx(np.mean(outputs), abs=1e-5)
    assert np.count_nonzero(explanation.weights) == len(explanation.weights) == 81


def test_an_ending_is_explained_in_contrast_to_the_others():
    task, example = EXAMPLES["an ending"]
    predictor = make_predictor(task)
    scores = np.concatenate(outputs_of(predictor, example))
    by_number, by_text = explain(predictor, example, "1"), explain(predictor, example, "very bad")
    assert by_number.target == by_text.target == "ending 1"
    assert by_number.output == pytest.approx(scores[1] - (scores[0] + scores[2]) / 2, abs=1e-5)
    assert [text.title for text in by_number.texts] == ["prompt", "ending 0", "ending 1", "ending 2"]
    assert all(np.abs(text.weights).sum() > 0 for text in by_number.texts)


def test_a_word_is_explained_by_index_by_text_and_for_a_label():
    task, example = EXAMPLES["a word"]
    predictor = make_predictor(task)
    (logits,) = outputs_of(predictor, example)
    explanation = explain(predictor, example, "Smith=I-PER")
    assert explanation.target == "'Smith' as I-PER"
    assert explanation.output == pytest.approx(logits[1, 2] - (logits[1, 0] + logits[1, 1]) / 2, abs=1e-5)
    assert explain(predictor, example, "1=I-PER").weights.tolist() == explanation.weights.tolist()
    assert explain(predictor, example, "Paris").target == f"'Paris' as {task.labels[int(logits[4].argmax())]}"


def test_without_entities_the_word_nearest_to_one_is_explained():
    task, example = EXAMPLES["a word"]
    predictor = make_predictor(task)
    with torch.no_grad():  # no entities
        predictor.module.head.score.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    (logits,) = outputs_of(predictor, example)
    nearest = int((logits[:, 0] - logits[:, 1:].max(1)).argmin())
    assert explain(predictor, example).target == f"'{example.sentence.words[nearest]}' as O"


def test_the_context_of_a_sentence_has_its_own_weight():
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
    predictor = make_predictor(Tag(labels=("O", "B-PER", "I-PER")))
    explanation = explain(predictor, TagExample("1", SentenceContext(sentence, (before,), (before,))), "John")
    assert explanation.tokens == ("john", "lives")
    assert explanation.context_weight != 0.0
    assert explanation.is_complete
    assert f"the document around the sentence adds {explanation.context_weight:+.3f}" in explanation.to_text()
    assert explain(predictor, TagExample("1", SentenceContext(sentence)), "John").context_weight == 0.0


def test_words_after_a_truncated_sentence_are_resolved():
    """Fourteen words of the first sentence fit; the next predicted word is the first of the second sentence."""
    texts = ("the film was good " * 4 + "Paris", "John lives in Paris")
    sentences = [replace(TagExample.from_text(make_example).sentence, document=1) for make_example in texts]
    predictor = make_predictor(Tag(labels=("O", "B-PER", "I-PER")), rule=WindowRule(16, 4, truncate=True))
    example = TagExample("1", join_sentences(sentences, (), ()))
    first, second = outputs_of(predictor, example)
    assert (len(first), len(second)) == (14, 4)
    explanation = explain(predictor, example, "John=B-PER")
    assert explanation.target == "'John' as B-PER"
    assert explanation.output == pytest.approx(second[0, 1] - (second[0, 0] + second[0, 2]) / 2, abs=1e-5)
    assert [number for number, weight in enumerate(explanation.weights) if weight] == [
        15,
        16,
        17,
        18,
        19,
        20,
    ]  # two before
    assert explain(predictor, example, "17=B-PER").weights.tolist() == explanation.weights.tolist()
    assert explain(predictor, example, "Paris=O").output == explain(predictor, example, "20=O").output
    logits = np.concatenate([first, second])
    with torch.no_grad():  # no entities; the word nearest to one is after the truncated words
        predictor.module.head.score.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    nearest = int((50 + logits[:, 0] - logits[:, 1:].max(1)).argmin())
    words = [*sentences[0].words[:14], *sentences[1].words]
    assert explain(predictor, example).target == f"'{words[nearest]}' as O"
    with pytest.raises(InputError, match="the word '15' was truncated by the model's window rule"):
        explain(predictor, example, "15")


def test_an_answer_is_explained_where_it_starts_and_ends():
    task, example = EXAMPLES["an answer"]
    predictor = make_predictor(task)
    (scores,) = outputs_of(predictor, example)
    ((_, prediction),) = predictor.predict([example])
    tokens = ["[CLS]", *"who lives in paris [SEP] john smith lives in paris now [SEP]".split()]
    words = prediction.text.lower().split()
    positions = (tokens.index(words[0], 6), tokens.index(words[-1], 6))
    others = [np.delete(scores[:, side], position).mean() for side, position in enumerate(positions)]
    start, end = (scores[position, side] - others[side] for side, position in enumerate(positions))
    assert explain(predictor, example, "start").output == pytest.approx(start, abs=1e-5)
    assert explain(predictor, example, "end").output == pytest.approx(end, abs=1e-5)
    both = explain(predictor, example)
    assert both.output == pytest.approx(start + end, abs=1e-5)
    assert both.target == f"answer '{prediction.text}'"
    no_answer = explain(predictor, example, "no answer")
    assert no_answer.output == pytest.approx(float((scores[0] - scores[1:].mean(0)).sum()), abs=1e-5)


def test_an_answer_in_a_word_longer_than_a_window_is_explained():
    example = PassageExample(id="1", location="the text", question="who", passage="great" + "ness" * 20)
    for seed in range(4):
        explanation = explain(make_predictor(Answer(), seed, WindowRule(16, 4)), example)
        assert explanation.target == f"answer '{example.passage}'"
        assert len(explanation.tokens) == 1 + 21
        assert explanation.is_complete


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("a class", "good", "there is no class 'good' to explain; choose one of: awful, fair, fine"),
        ("a value", "fine", "there is no 'fine' to explain: a regression model predicts a number"),
        ("an ending", "3", "there is no ending '3' to explain; give an index from 0 to 2"),
        ("a word", "Rome", "there is no word 'Rome' to explain"),
        ("a word", "Paris=B-LOC", "there is no label 'B-LOC'; choose one of: O, B-PER, I-PER"),
        ("an answer", "middle", "there is no 'middle' to explain in an answer; choose one of: start, end"),
    ],
)
def test_an_unknown_target_raises_an_error(name: str, target: str, reason: str):
    task, example = EXAMPLES[name]
    with pytest.raises(InputError, match=re.escape(reason)):
        explain(make_predictor(task), example, target)


def test_truncated_tokens_have_no_weight_and_are_counted():
    explanation = explain(
        make_predictor(Regress(), rule=WindowRule(16, 4, truncate=True)), make_example("the film was good " * 5)
    )
    assert (explanation.num_truncated, len(explanation.weights)) == (6, 20)
    assert not explanation.weights[14:].any()
    assert explanation.weights[:14].all()
    assert "6 tokens were truncated by the model's window rule" in explanation.to_text()


def mask_randomly(features: Features, generator: np.random.Generator) -> Features:
    """The same features with some, all or none of the tokens masked."""
    (sequence,) = features.sequences
    ids = sequence.input_ids.copy()
    ids[1:-1][generator.random(len(ids) - 2) < generator.uniform(0, 1.2)] = TOKENIZER.specials.mask
    return replace(features, sequences=(replace(sequence, input_ids=ids),))


def test_the_deciding_token_has_the_largest_weight():
    """The label depends on one word, "good" or "bad"."""
    generator = np.random.default_rng(0)

    def sample_example() -> TextExample:
        words = list(generator.choice(["the", "film", "was", "very", "long", "now"], size=generator.integers(3, 9)))
        word, label = (("good", "liked"), ("bad", "disliked"))[generator.integers(2)]
        words.insert(int(generator.integers(len(words) + 1)), word)
        return TextExample("1", "the text", (" ".join(words),), label)

    examples = [sample_example() for _ in range(200)]
    task = Classify.from_examples(examples, {})
    predictor = make_predictor(task)
    all_features = [task.featurize(example, TOKENIZER, WINDOW_RULE) for example in examples[:160]]

    def get_batches(phase: int, step: int) -> list[Batch]:
        batch_features = [all_features[(step * 16 + number) % 160] for number in range(16)]
        # A pretrained model knows [MASK]; this one has to learn it.
        batch_features += [mask_randomly(features, generator) for features in batch_features]
        return [batch_of_features(batch_features, task, TOKENIZER.specials.pad)]

    module = predictor.module
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((150,), 15, 5e-3),
        get_batches=get_batches,
        seed=0,
    )
    list(train(training, TrainState()))
    assert task.score(predictor.predict(examples[160:])).main_value == 1.0
    for example in examples[160:]:
        explanation = explain(predictor, example)
        assert explanation.target == f"'{example.label}'"
        assert explanation.tokens[int(explanation.weights.argmax())] in ("good", "bad")
        other = explain(predictor, example, "liked" if example.label == "disliked" else "disliked")
        assert other.tokens[int(other.weights.argmin())] in ("good", "bad")
        assert np.allclose(other.weights, -explanation.weights, atol=1e-4)  # two classes are each other's opposite


def make_explanation(weights: list[float]) -> Explanation:
    text = TextAttribution(
        title="text",
        text="Greatness <& good>, bad!",
        tokens=("great", "##ness", "good", "bad"),
        offsets=((0, 5), (5, 9), (13, 17), (20, 23)),
        begins_word=(True, False, True, True),
        weights=np.array(weights),
    )
    return Explanation(target="'liked'", texts=(text,), output=sum(weights), baseline_output=0.0, num_steps=32)


def test_the_weight_of_a_word_is_the_sum_over_its_tokens():
    (text,) = make_explanation([1.0, 2.0, 0.1, -1.5]).texts
    assert text.words == (WordAttribution(0, 9, 3.0), WordAttribution(13, 17, 0.1), WordAttribution(20, 23, -1.5))


def test_plain_text_has_one_to_three_marks_by_weight():
    assert make_explanation([1.0, 2.0, 0.5, -1.5]).to_text() == (
        "'liked': +2.000, and +0.000 with every word masked\ntext: Greatness[+++] <& good[+]>, bad[--]!"
    )
    assert make_explanation([0.0] * 4).to_text().endswith("text: Greatness <& good>, bad!")


def test_to_dict_has_words_and_tokens():
    as_json = json.loads(json.dumps(make_explanation([1.0, 2.0, 0.5, -1.5]).to_dict()))
    assert as_json["texts"][0]["words"][0] == {"word": "Greatness", "start": 0, "end": 9, "weight": 3.0}
    assert as_json["texts"][0]["tokens"][1] == {"token": "##ness", "start": 5, "end": 9, "weight": 2.0}
    assert (as_json["target"], as_json["output"], as_json["baseline_output"], as_json["num_steps"]) == (
        "'liked'",
        2.0,
        0.0,
        32,
    )


def test_texts_become_the_example_of_a_task():
    assert example_from_texts(Regress(), ["one", "two"]).texts == ("one", "two")
    assert example_from_texts(Choose(), ["one", "two", "three"]).endings == ("two", "three")
    assert example_from_texts(Tag(labels=("O", "B-PER", "I-PER")), ["John lives"]).sentence.words == ("John", "lives")
    assert example_from_texts(Answer(), ["who", "John"]).passage == "John"
    with pytest.raises(InputError, match=r"got 2 texts; the task 'choose' takes \{\"prompt\": TEXT, \"choices\""):
        example_from_texts(Choose(), ["one", "two"])
    with pytest.raises(InputError, match="text 2 is empty"):
        example_from_texts(Answer(), ["who", " "])


def test_a_task_without_attribution_targets_raises_an_error():
    predictor = Predictor(
        FunctionModule(EmbeddingTable({}), None, Translate()),  # type: ignore[arg-type]
        TOKENIZER,
        WINDOW_RULE,
    )
    with pytest.raises(InputError, match="predictions of 'translate' cannot be explained"):
        explain(predictor, make_example("good"))
