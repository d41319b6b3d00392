"""Tagging: features with document context, repair of tags, scores, and a tiny model that learns entities."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.datasets.conll import Sentence, join_words
from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.errors import InputError
from bertworks.inference.predictor import Predictor
from bertworks.metrics.calibration import fit_temperature
from bertworks.models.tensor_names import combine_name_tables, to_hf_names
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_features, batch_of_input_sequences
from bertworks.tasks.contract import Features
from bertworks.tasks.module import TaskModule
from bertworks.tasks.tag import Tag, TagExample, TagFeatures, TagPrediction
from bertworks.tasks.tag_documents import (
    CONTEXT_WORDS,
    PASSAGE_WORDS,
    SentenceContext,
    TokenizedPassage,
    group_by_document,
    join_sentences,
    pack_sentences,
    tokenize_words,
)
from bertworks.tasks.tag_labels import EntitySpan, decode_tags, label_ids_of
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] ann smith saw rome new york in and . , 中 国 人 a b c ##a ##b ##c".split()
TOKEN_IDS = {token: number for number, token in enumerate(TOKENS)}
WINDOW_RULE = WindowRule(16, 4)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("little") / "vocab.txt"
    path.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return Tokenizer.load(path)


def make_sentence(
    words: str | Sequence[str], tags: str | None = None, make_document: int = 0, location: str = "here"
) -> Sentence:
    words = tuple(words.split() if isinstance(words, str) else words)
    text, offsets = join_words(words)
    return Sentence(
        words=words,
        tags=None if tags is None else tuple(tags.split()),
        text=text,
        offsets=offsets,
        document=make_document,
        location=location,
    )


def make_example(words: str | Sequence[str], tags: str | None = None, before: Any = (), after: Any = ()) -> TagExample:
    return TagExample(
        "1",
        SentenceContext(
            make_sentence(words, tags), tuple(map(make_sentence, before)), tuple(map(make_sentence, after))
        ),
    )


def make_document(*sentences: tuple[str, str | None]) -> TagExample:
    """An example of several sentences, each with its tags and its own line."""
    parts = [make_sentence(words, tags, location=f"line {number}") for number, (words, tags) in enumerate(sentences, 1)]
    return TagExample("1", join_sentences(parts, (), ()))


def token_ids(text: str) -> list[int]:
    return [TOKEN_IDS[token] for token in text.split()]


def make_module(task: Tag, vocab_size: int = len(TOKENS), max_positions: int = 64, dropout: float = 0.0) -> TaskModule:
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=max_positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    generator = torch.Generator().manual_seed(0)
    return TaskModule(Bert(config, generator), task, generator)


def logits_of(tags: Sequence[str], logit: float = 2.0) -> np.ndarray:
    """Logits (W, C): `logit` for the label of each word, 0 for the others."""
    logits = np.zeros((len(tags), len(LABELS)), dtype=np.float32)
    logits[np.arange(len(tags)), [LABELS.index(tag) for tag in tags]] = logit
    return logits


# --- reading ---------------------------------------------------------------------------------------------------------

CONLL = """-DOCSTART- -X- O O

Ann NNP B-NP B-PER
saw VBD B-VP O

Rome NNP B-NP I-LOC

-DOCSTART- -X- O O

New NNP B-NP B-LOC
York NNP I-NP I-LOC
"""


def test_the_sentences_of_a_document_are_one_example(tmp_path: Path):
    (tmp_path / "train.txt").write_text(CONLL)
    examples = list(Tag.read(tmp_path / "train.txt", {}))
    assert [one.id for one in examples] == ["1", "2"]
    assert [one.texts for one in examples] == [("Ann saw\nRome",), ("New York",)]
    assert [one.examples for one in examples] == [(("Ann saw",), ("Rome",)), (("New York",),)]
    assert [one.label for one in examples] == [("B-PER", "O", "B-LOC"), ("B-LOC", "I-LOC")]  # the I- was repaired
    assert [one.location for one in examples[0].context.sentences] == ["train.txt, line 3", "train.txt, line 6"]
    passage = examples[0].sentence
    assert tuple(passage.text[start:end] for start, end in passage.offsets) == passage.words == ("Ann", "saw", "Rome")


def test_the_tag_column_can_be_named(tmp_path: Path):
    (tmp_path / "train.txt").write_text(CONLL)
    chunks = list(Tag.read(tmp_path / "train.txt", {"text": "0", "label": "2"}))
    assert chunks[0].label == ("B-NP", "B-VP", "B-NP")


def test_a_long_document_is_read_in_passages_with_context():
    num_read = 0

    def endless() -> Iterator[Sentence]:
        nonlocal num_read
        for num_read in itertools.count(1):
            yield make_sentence([f"w{num_read}", "x"])

    num_sentences, num_context = PASSAGE_WORDS // 2, CONTEXT_WORDS // 2  # sentences of two words
    for number, context in enumerate(itertools.islice(group_by_document(endless()), 4)):
        first = 1 + number * num_sentences
        assert [one.words[0] for one in context.sentences] == [f"w{n}" for n in range(first, first + num_sentences)]
        assert num_read <= (number + 1) * num_sentences + num_context
    assert [one.words[0] for one in context.before] == [f"w{n}" for n in range(first - num_context - 1, first)]
    assert [one.words[0] for one in context.after] == [
        f"w{n}" for n in range(first + num_sentences, first + num_sentences + num_context)
    ]


def test_a_sentence_longer_than_a_passage_is_its_own_passage():
    long = [make_sentence(["w"] * (PASSAGE_WORDS + 1)) for _ in range(2)]
    short = make_sentence("a b")
    passages = [context.sentences for context in group_by_document([short, *long, short])]
    assert passages == [(short,), (long[0],), (long[1],), (short,)]


def test_plain_text_is_split_at_white_space_punctuation_and_ideographs():
    text = "Ann Smith, in New  York.中国"
    one = TagExample.from_text(text)
    assert one.sentence.words == ("Ann", "Smith", ",", "in", "New", "York", ".", "中", "国")
    assert tuple(text[start:end] for start, end in one.sentence.offsets) == one.sentence.words
    assert one.label is None


# --- features ------------------------------------------------------------------------------------------------------


def test_a_word_is_predicted_at_its_first_token(tokenizer: Tokenizer):
    features = Tag(labels=LABELS).featurize(
        make_example("abc saw cab rome", "B-PER O I-PER B-LOC"), tokenizer, WINDOW_RULE
    )
    (sequence,) = features.sequences
    assert sequence.input_ids.tolist() == token_ids("[CLS] a ##b ##c saw c ##a ##b rome [SEP]")
    assert sequence.positions is not None
    assert sequence.targets is not None
    assert sequence.positions.tolist() == [1, 4, 5, 8]
    assert sequence.targets.tolist() == [3, 0, 4, 1]


def test_context_of_the_document_is_encoded_but_not_predicted(tokenizer: Tokenizer):
    one = make_example("rome", "B-LOC", before=["saw and", "in abc"], after=["smith , .", "new"])
    (sequence,) = Tag(labels=LABELS).featurize(one, tokenizer, WindowRule(20, 4)).sequences  # two tokens on either side
    assert sequence.input_ids.tolist() == token_ids("[CLS] ##b ##c rome smith , [SEP]")
    assert sequence.positions is not None
    assert sequence.positions.tolist() == [3]
    (sequence,) = (
        Tag(labels=LABELS).featurize(one, tokenizer, WindowRule(48, 12)).sequences
    )  # six, but there are only five and four
    assert sequence.input_ids.tolist() == token_ids("[CLS] saw and in a ##b ##c rome smith , . new [SEP]")
    (sequence,) = Tag(labels=LABELS).featurize(one, tokenizer, WindowRule(16, 0)).sequences
    assert sequence.input_ids.tolist() == token_ids("[CLS] rome [SEP]")


def test_sentences_share_sequences_and_each_is_predicted_once(tokenizer: Tokenizer):
    one = make_document(
        ("ann saw new york .", "B-PER O B-LOC I-LOC O"),
        ("smith in rome .", "B-PER O B-LOC O"),
        ("and a", "O O"),
        ("ann .", "B-PER O"),
    )
    # A sequence of 16 has room for 14 tokens, two of them context on either side: the first two sentences with their
    # context are 11; with the third it is 13, with the fourth, which has nothing after it, 13 too, so that all fit.
    features = Tag(labels=LABELS).featurize(one, tokenizer, WINDOW_RULE)
    (sequence,) = features.sequences
    assert sequence.input_ids.tolist() == token_ids("[CLS] ann saw new york . smith in rome . and a ann . [SEP]")
    assert sequence.positions is not None
    assert sequence.positions.tolist() == list(range(1, 14))
    assert features.num_examples == 4
    first, second = (
        Tag(labels=LABELS).featurize(one, tokenizer, WindowRule(13, 3)).sequences
    )  # room for 11, one token on either side
    assert first.input_ids.tolist() == token_ids("[CLS] ann saw new york . smith in rome . and [SEP]")
    assert second.input_ids.tolist() == token_ids("[CLS] . and a ann . [SEP]")
    assert first.positions is not None
    assert first.targets is not None
    assert second.positions is not None
    assert second.targets is not None
    assert (first.positions.tolist(), first.targets.tolist()) == (list(range(1, 10)), [3, 0, 1, 2, 0, 3, 0, 1, 0])
    assert (second.positions.tolist(), second.targets.tolist()) == ([2, 3, 4, 5], [0, 0, 3, 0])


def test_training_parts_are_sequences_or_whole_long_sentences(tokenizer: Tokenizer):
    one = make_document(
        ("ann saw", "O O"), ("rome .", "O O"), (" ".join(["rome"] * 40), " ".join(["O"] * 40)), ("a", "O")
    )
    features = Tag(labels=LABELS).featurize(one, tokenizer, WINDOW_RULE)
    assert [part.num_examples for part in features.parts] == [2, 1, 1]
    assert [len(part.sequences) for part in features.parts] == [1, len(features.sequences) - 2, 1]
    assert len(features.parts[1].sequences) > 2
    assert features.training_parts == features.parts
    assert tuple(sequence for part in features.parts for sequence in part.sequences) == features.sequences


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([(14, 2), (30, 4), (14, 0), (62, 8)]),
)
@settings(deadline=None)
def test_context_on_either_side_is_the_margin_or_all_there_is(
    lengths: list[int], before: int, after: int, config: tuple[int, int]
):
    max_tokens, margin = config
    edges = before + np.cumsum([0, *lengths])
    total = int(edges[-1]) + after
    ranges = list(
        pack_sentences(
            TokenizedPassage(TokenizedText.from_ids(np.zeros(total, dtype=np.int64)), edges[:-1], edges),
            max_tokens,
            margin,
        )
    )
    assert [one for each in ranges for one in range(each.first, each.stop)] == list(range(len(lengths)))
    for one in ranges:
        left, right = edges[one.first] - one.begin, one.end - edges[one.stop]
        expected = min(margin, int(edges[one.first])), min(margin, total - int(edges[one.stop]))
        num_tokens = int(edges[one.stop] - edges[one.first])
        if num_tokens > max_tokens or num_tokens + sum(expected) <= max_tokens:
            assert (left, right) == expected
        else:  # a sentence that almost fills its sequence
            assert one.stop == one.first + 1
            assert num_tokens + left + right == max_tokens
            assert min(left, right) >= min(*expected, (max_tokens - num_tokens) // 2)


def test_sequences_of_a_document_have_few_more_tokens_than_it(tokenizer: Tokenizer):
    generator = np.random.default_rng(0)
    parts = [make_sentence(["rome"] * int(count)) for count in generator.integers(3, 40, 200)]
    num_words = sum(len(one.words) for one in parts)
    one = TagExample("1", join_sentences(parts, (), ()))
    for length in (128, 512):
        features = Tag(labels=LABELS).featurize(one, tokenizer, WindowRule(length, length // 4))
        assert features.num_tokens < 1.45 * num_words  # 4 / 3 for the context, and sequences that are not full
    one_by_one = Tag(labels=LABELS, context=False).featurize(one, tokenizer, WINDOW_RULE)
    assert one_by_one.num_examples == len(one_by_one.parts) == 200


def test_without_context_a_sentence_is_encoded_alone(tokenizer: Tokenizer):
    one = make_example("rome", "B-LOC", before=["ann saw"], after=["smith ."])
    (sequence,) = Tag(labels=LABELS, context=False).featurize(one, tokenizer, WINDOW_RULE).sequences
    assert sequence.input_ids.tolist() == token_ids("[CLS] rome [SEP]")
    sequences = (
        Tag(labels=LABELS, context=False)
        .featurize(make_document(("ann saw", None), ("rome", None)), tokenizer, WINDOW_RULE)
        .sequences
    )
    assert [sequence.input_ids.tolist() for sequence in sequences] == [
        token_ids("[CLS] ann saw [SEP]"),
        token_ids("[CLS] rome [SEP]"),
    ]


def test_a_word_without_tokens_becomes_the_unknown_token(tokenizer: Tokenizer):
    word_tokens = tokenize_words(["\u200b", "ann", "\u00ad", "\u200b", "rome", "\u200b"], tokenizer)
    unknown = "[UNK]"
    assert word_tokens.tokens.input_ids.tolist() == token_ids(f"{unknown} ann {unknown} {unknown} rome {unknown}")
    assert word_tokens.tokens.unknown == {}
    assert word_tokens.counts.tolist() == [1] * 6


def test_unknown_words_keep_their_text_in_context(tokenizer: Tokenizer):
    one = make_example("Qué rome", "O B-LOC", before=["ann zz"], after=["smith xx"])
    (sequence,) = Tag(labels=LABELS).featurize(one, tokenizer, WINDOW_RULE).sequences
    assert sequence.input_ids.tolist() == token_ids("[CLS] ann [UNK] [UNK] rome smith [UNK] [SEP]")
    assert sequence.unknown == {2: "zz", 3: "que", 6: "xx"}


def test_a_blank_text_has_no_words_and_no_entities(tokenizer: Tokenizer):
    task = Tag(labels=LABELS)
    predictor = Predictor(make_module(task), tokenizer, WINDOW_RULE)
    predictions = [
        one
        for _, one in predictor.predict(
            [TagExample.from_text(" \n"), TagExample.from_text("ann"), TagExample.from_text("")]
        )
    ]
    assert [one.words for one in predictions] == [(), ("ann",), ()]
    assert [one.tags for one in predictions if not one.words] == [(), ()]
    assert [one.spans for one in predictions if not one.words] == [(), ()]


def predicted_words(features: Features) -> list[int]:
    """The token ids at the target positions, sequence by sequence."""
    sequences = features.sequences
    return [
        number
        for sequence in sequences
        if sequence.positions is not None
        for number in sequence.input_ids[sequence.positions].tolist()
    ]


@given(st.lists(st.sampled_from(["a", "b", "c", "aa", "abc", "cab" * 3, "a" * 40]), min_size=1, max_size=60))
@settings(deadline=None, max_examples=60)
def test_each_word_of_a_long_sentence_is_predicted_once_and_windows_cover_every_token(words: list[str]):
    tokens = [*TOKENS[:5], *"abc", "##a", "##b", "##c"]
    tokenizer = _tokenizer_of(tokens)
    features = Tag(labels=LABELS).featurize(make_example(words, " ".join(["O"] * len(words))), tokenizer, WINDOW_RULE)
    assert predicted_words(features) == [tokens.index(word[0]) for word in words]
    covered: set[int] = set()
    for sequence in features.sequences:
        (span,) = sequence.spans
        covered |= set(range(span.first, span.first + span.count))
    assert covered == set(range(sum(map(len, words))))
    assert features.num_truncated == 0
    assert all(len(sequence) <= WINDOW_RULE.max_length for sequence in features.sequences)


def test_a_byte_level_tokenizer_gets_the_spaces_of_the_text():
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inventory = Inventory(("<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "Ġa"), merges=(("Ġ", "a"),))
    tokenizer = Tokenizer.from_backend(KINDS["byte-bpe"].build(inventory, cased=True))
    text = "a a,a"
    example = TagExample.from_text(text)
    (sequence,) = Tag(labels=LABELS).featurize(example, tokenizer, WINDOW_RULE).sequences
    assert [tokenizer.tokens[number] for number in sequence.input_ids] == ["<s>", "a", "Ġa", ",", "a", "</s>"]
    assert sequence.input_ids[1:-1].tolist() == tokenizer.tokenize(text).input_ids.tolist()


_TOKENIZERS: dict[tuple[str, ...], Tokenizer] = {}


def _tokenizer_of(tokens: list[str]) -> Tokenizer:
    key = tuple(tokens)
    if key not in _TOKENIZERS:
        _TOKENIZERS[key] = Tokenizer.from_backend(wordpiece_backend(tokens, False))
    return _TOKENIZERS[key]


def test_a_word_longer_than_a_window_has_one_tag(tokenizer: Tokenizer):
    task = Tag(labels=LABELS)
    predictor = Predictor(make_module(task), tokenizer, WINDOW_RULE)
    letters, ideographs = "x" * 10_000, "中" * 10_000
    long = make_example(["ann", letters, ideographs, "rome"])
    features = task.featurize(long, tokenizer, WINDOW_RULE)
    assert predicted_words(features) == token_ids("ann [UNK] 中 rome")
    assert len(features.sequences) > 600  # one ideograph is one token
    ((_, prediction),) = predictor.predict([long])
    assert len(prediction.tags) == 4
    assert prediction.logits.shape == (4, 5)


def test_truncated_words_are_tagged_o_and_their_tokens_are_counted(tokenizer: Tokenizer):
    task = Tag(labels=("B-LOC", "O"))
    rule = replace(WINDOW_RULE, truncate=True)
    one = make_example(["rome"] * 12 + ["abc"] * 3, " ".join(["B-LOC"] * 15))
    features = task.featurize(one, tokenizer, rule)
    assert features.num_truncated == 12 + 9 - 14  # a sequence of 16 has room for 14
    assert predicted_words(features) == token_ids("rome " * 12 + "a")
    prediction = task.decode(one, features, [np.array([[1.0, 0.0]] * 13, dtype=np.float32)])
    assert prediction.tags == ("B-LOC",) * 13 + ("O", "O")
    assert len(prediction.spans) == 13


def test_truncation_removes_the_end_of_a_long_sentence_inside_a_document(tokenizer: Tokenizer):
    task = Tag(labels=("B-LOC", "O"))
    tags = " ".join(["B-LOC"] * 16)
    one = make_document(("ann saw", "O O"), (" ".join(["rome"] * 16), tags), ("ann", "O"))
    features = task.featurize(one, tokenizer, replace(WINDOW_RULE, truncate=True))
    assert features.num_truncated == 2
    assert features.word_indices.tolist() == [0, 1, *range(2, 16), 18]
    outputs = [np.array([[1.0, 0.0]] * count, dtype=np.float32) for count in (2, 14, 1)]
    prediction = task.decode(one, features, outputs)
    assert prediction.tags == ("B-LOC",) * 16 + ("O", "O", "B-LOC")
    assert task.score([(one, prediction)]).metrics["recall"] == pytest.approx(14 / 16)
    assert isinstance(task.calibrate([one], [prediction]), Tag)


def test_a_batch_has_the_target_positions_of_all_sentences(tokenizer: Tokenizer):
    task = Tag(labels=LABELS)
    examples = [make_example("rome .", "B-LOC O"), make_example("ann smith saw rome", "B-PER I-PER O B-LOC")]
    batch = batch_of_features([task.featurize(one, tokenizer, WINDOW_RULE) for one in examples], task, 0)
    assert batch.positions is not None
    assert batch.targets is not None
    assert batch.input_ids.flatten()[batch.positions].tolist() == token_ids(
        "ann smith saw rome rome ."
    )  # the longest sequence first
    assert batch.targets.tolist() == [3, 4, 0, 1, 1, 0]
    assert task.num_targets(batch) == 6


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "tags"),
    [
        ("I-PER I-PER O", "B-PER I-PER O"),  # at the beginning
        ("O I-LOC I-LOC", "O B-LOC I-LOC"),  # after O
        ("B-PER I-LOC I-PER", "B-PER B-LOC B-PER"),  # after another type
        ("B-PER I-PER B-PER", "B-PER I-PER B-PER"),
        ("O O O", "O O O"),
    ],
)
def test_an_inside_tag_that_continues_nothing_starts_an_entity(predicted: str, tags: str):
    assert decode_tags(logits_of(predicted.split()), LABELS, 1.0)[0] == tuple(tags.split())


def test_spans_have_offsets_and_the_product_of_their_words_probabilities():
    text = "saw Ann  Smith, New York."
    one = TagExample.from_text(text, name="7")
    logits = logits_of(["O", "I-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"])
    logits[1:3] *= 2
    features = TagFeatures(sequences=(), word_indices=np.arange(7))
    prediction = Tag(labels=LABELS, temperature=2.0).decode(one, features, [logits[:4], logits[4:]])
    assert prediction.tags == ("O", "B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O")
    word_probabilities = np.e / (np.e + 4), np.e**2 / (np.e**2 + 4)  # logits of 2 and of 4, halved, among five labels
    assert [replace(span, probability=0.0) for span in prediction.spans] == [
        EntitySpan(start=4, end=14, label="PER", text="Ann  Smith", probability=0.0),
        EntitySpan(start=16, end=24, label="LOC", text="New York", probability=0.0),
    ]
    assert [text[span.start : span.end] for span in prediction.spans] == ["Ann  Smith", "New York"]
    assert prediction.spans[0].probability == pytest.approx(word_probabilities[1] ** 2)
    assert prediction.spans[1].probability == pytest.approx(word_probabilities[0] ** 2)
    as_json = json.loads(json.dumps(prediction.to_dict()))
    assert as_json["id"] == "7"
    assert as_json["words"] == ["saw", "Ann", "Smith", ",", "New", "York", "."]
    assert as_json["spans"][1]["text"] == "New York"


def test_an_entity_does_not_continue_in_the_next_sentence():
    one = make_document(("saw ann", None), ("smith in", None), ("new york", None))
    logits = logits_of("O B-PER I-PER O B-LOC I-LOC".split())
    prediction = Tag(labels=LABELS).decode(
        one, TagFeatures(sequences=(), word_indices=np.arange(6)), [logits[:2], logits[2:]]
    )
    assert prediction.tags == ("O", "B-PER", "B-PER", "O", "B-LOC", "I-LOC")
    assert [(span.start, span.text) for span in prediction.spans] == [(4, "ann"), (8, "smith"), (17, "new york")]
    assert one.sentence.text == "saw ann\nsmith in\nnew york"


def make_prediction(tags: str, logit: float = 2.0) -> TagPrediction:
    return TagPrediction(id="1", tags=tuple(tags.split()), spans=(), words=(), logits=logits_of(tags.split(), logit))


def test_f1_is_of_whole_entities_and_accuracy_of_words():
    pairs = [
        (
            make_example("ann smith saw rome", "B-PER I-PER O B-LOC"),
            make_prediction("B-PER I-PER O B-LOC"),
        ),  # two correct
        (make_example("new york saw", "B-LOC I-LOC O"), make_prediction("B-LOC O O")),  # one with a wrong end
        (make_example("ann and", "O O"), make_prediction("B-PER O")),  # one that is not an entity
    ]
    scores = Tag(labels=LABELS).score(iter(pairs))
    assert scores.main_metric == Tag(labels=LABELS).main_metric == "f1"
    assert scores.metrics["precision"] == pytest.approx(2 / 4)
    assert scores.metrics["recall"] == pytest.approx(2 / 3)
    assert scores.main_value == pytest.approx(4 / 7)
    assert scores.metrics["accuracy"] == pytest.approx(7 / 9)
    # Every word has the same probability, e² / (e² + 4) = 0.6488; seven of nine are correct.
    assert scores.metrics["calibration_error"] == pytest.approx(7 / 9 - np.e**2 / (np.e**2 + 4), abs=1e-6)
    assert scores.details["types"]["LOC"] == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "num_entities": 2}
    assert scores.details["types"]["PER"]["recall"] == 1.0
    assert scores.details["confusion"].sum() == 9
    assert scores.details["confusion"][LABELS.index("I-LOC"), LABELS.index("O")] == 1
    mistakes = {(mistake.expected, mistake.predicted) for mistake in scores.details["mistakes"]}
    assert mistakes == {("LOC: new york", "LOC: new"), ("nothing", "PER: ann")}


def test_a_document_is_scored_sentence_by_sentence():
    one = make_document(("ann smith", "B-PER I-PER"), ("saw rome", "O B-LOC"), ("new york", "B-LOC I-LOC"))
    scores = Tag(labels=LABELS).score([(one, make_prediction("B-PER I-PER O B-LOC B-LOC O"))])
    separate = [
        make_example("ann smith", "B-PER I-PER"),
        make_example("saw rome", "O B-LOC"),
        make_example("new york", "B-LOC I-LOC"),
    ]
    predictions = [make_prediction("B-PER I-PER"), make_prediction("O B-LOC"), make_prediction("B-LOC O")]
    assert scores.metrics == Tag(labels=LABELS).score(zip(separate, predictions, strict=True)).metrics
    ((mistake),) = scores.details["mistakes"]
    assert (mistake.texts, mistake.expected, mistake.predicted, mistake.location) == (
        ("new york",),
        "LOC: new york",
        "LOC: new",
        "line 3",
    )


def test_the_temperature_is_fitted_on_dev_and_saved():
    examples = [make_example("ann rome", "B-PER B-LOC"), make_example("saw", "O"), make_example("and", "O")]
    predictions = [make_prediction("B-PER B-LOC", 8.0), make_prediction("O", 8.0), make_prediction("B-PER", 8.0)]
    task = Tag(labels=LABELS).calibrate(examples, predictions)
    logits = np.concatenate([one.logits for one in predictions])
    assert isinstance(task, Tag)
    assert task.temperature == pytest.approx(fit_temperature(logits, np.array([3, 1, 0, 0])))
    # Three of four are correct: the best probability is 3/4, where e^(8/t) / (e^(8/t) + 4) = 3/4, so 8/t = log 12.
    assert task.temperature == pytest.approx(8 / np.log(12), rel=1e-3)
    assert Tag.from_metadata(task.metadata(), task.config()) == task
    assert task.score(zip(examples, predictions, strict=True)).metrics["calibration_error"] < 1e-3


# --- labels and folders ----------------------------------------------------------------------------------------------


def test_labels_are_o_and_b_and_i_of_each_training_type():
    task = Tag.from_examples([make_example("ann rome", "B-PER B-LOC"), make_example("saw", "O")], {})
    assert task == Tag(labels=LABELS, context=True)
    assert task.config()["id2label"] == {"0": "O", "1": "B-LOC", "2": "I-LOC", "3": "B-PER", "4": "I-PER"}
    assert Tag.from_examples([make_example("ann", "B-PER")], {"context": False}).context is False


def test_metadata_restores_context_and_other_models_have_none():
    task = Tag(labels=LABELS, context=True, temperature=1.5)
    assert Tag.from_metadata(task.metadata(), task.config()) == task
    assert Tag.from_metadata({}, task.config()) == Tag(labels=LABELS, context=False)


def test_labels_of_other_schemes_map_to_bio_tags():
    iob1 = ("I-LOC", "O", "B_PER", "I_PER")
    assert label_ids_of(iob1) == {"O": 1, "B-LOC": 0, "I-LOC": 0, "B-PER": 2, "I-PER": 3}
    bioes = ("O", "B-X", "I-X", "E-X", "S-X")
    assert label_ids_of(bioes) == {"O": 0, "B-X": 1, "I-X": 2}
    tags, _ = decode_tags(np.eye(5, dtype=np.float32)[[1, 3, 4, 4, 0]], bioes, 1.0)
    assert tags == ("B-X", "I-X", "B-X", "B-X", "O")


@pytest.mark.parametrize(
    ("labels", "predicted", "spans"),
    [
        (("NOUN", "VERB"), (0, 0, 1), [("NOUN", "Ann"), ("NOUN", "Smith"), ("VERB", "saw")]),
        (("O", "PER", "LOC"), (1, 1, 0), [("PER", "Ann Smith")]),
        (("LABEL_0", "LABEL_1"), (1, 0, 0), [("LABEL_1", "Ann"), ("LABEL_0", "Smith"), ("LABEL_0", "saw")]),
    ],
)
def test_a_model_with_other_labels_predicts_them_as_they_are(
    labels: tuple[str, ...], predicted: tuple[int, ...], spans: list[tuple[str, str]]
):
    task = Tag.from_metadata({}, {"id2label": {str(index): label for index, label in enumerate(labels)}})
    logits = 5 * np.eye(len(labels), dtype=np.float32)[list(predicted)]
    features = TagFeatures(sequences=(), word_indices=np.arange(3))
    prediction = task.decode(TagExample.from_text("Ann Smith saw"), features, [logits])
    assert prediction.tags == tuple(labels[index] for index in predicted)
    assert [(span.label, span.text) for span in prediction.spans] == spans


def test_labels_for_bio_tags_must_be_bio():
    example = make_example("ann saw", "B-PER O")
    with pytest.raises(InputError, match="labels of the model: 'NOUN' is not a BIO tag"):
        Tag.from_examples([example], {"labels": ("NOUN", "VERB")})


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_tag_that_is_not_bio_among_bio_tags_raises_an_error_with_its_line(tmp_path: Path):
    (tmp_path / "bad.txt").write_text("Ann B-PER\nin O\nRome LOC\n")
    with pytest.raises(InputError, match=r"bad\.txt, line 3: 'LOC' is not a BIO tag"):
        list(Tag.read(tmp_path / "bad.txt", {}))
    (tmp_path / "bad.txt").write_text("Ann B-PER\nsaw O\n\nRome LOC\n")
    with pytest.raises(InputError, match=r"bad\.txt, line 4: 'LOC' is not a BIO tag"):
        Tag.from_examples(list(Tag.read(tmp_path / "bad.txt", {})), {})


def test_plain_tags_are_labels_as_they_are(tmp_path: Path):
    (tmp_path / "pos.txt").write_text("Ann NOUN\nsaw VERB\n\nRome NOUN\n")
    (tmp_path / "io.jsonl").write_text('{"tokens": ["Ann", "Lee", "saw"], "tags": ["PER", "PER", "O"]}\n')
    examples = list(Tag.read(tmp_path / "pos.txt", {}))
    assert [example.label for example in examples] == [("NOUN", "VERB"), ("NOUN",)]
    assert Tag.from_examples(examples, {}).labels == ("NOUN", "VERB")
    assert Tag.from_examples(list(Tag.read(tmp_path / "io.jsonl", {})), {}).labels == ("O", "PER")


def test_plain_tags_are_scored_by_spans_of_one_label_if_there_is_an_o():
    def score(gold: str, predicted: str, labels: tuple[str, ...]) -> dict[str, Any]:
        example, tags = make_example("ann lee saw rome", gold), tuple(predicted.split())
        logits = np.eye(len(labels), dtype=np.float32)[[labels.index(tag) for tag in tags]]
        prediction = TagPrediction(id="1", tags=tags, spans=(), logits=logits)
        return dict(Tag(labels=labels).score([(example, prediction)]).metrics)

    io = score("PER PER O LOC", "PER PER LOC LOC", ("O", "LOC", "PER"))  # PER is right; LOC is one word too long
    assert (io["precision"], io["recall"], io["f1"], io["accuracy"]) == (0.5, 0.5, 0.5, 0.75)
    pos = score("NOUN NOUN VERB NOUN", "NOUN VERB VERB NOUN", ("NOUN", "VERB"))
    assert (pos["precision"], pos["recall"], pos["f1"], pos["accuracy"]) == (0.75,) * 4


def test_an_unknown_type_in_dev_raises_an_error_with_its_location(tokenizer: Tokenizer):
    task = Tag.from_examples([make_example("ann", "B-PER")], {})
    with pytest.raises(InputError, match=r"here: the tag 'B-LOC' does not occur .* the labels are: O, B-PER, I-PER"):
        task.featurize(make_example("rome", "B-LOC"), tokenizer, WINDOW_RULE)
    with pytest.raises(InputError, match=r"line 2: the tag 'B-LOC' does not occur"):
        task.featurize(make_document(("ann", "B-PER"), ("rome", "B-LOC")), tokenizer, WINDOW_RULE)


def test_a_sentence_without_words_raises_an_error_with_its_line(tmp_path: Path):
    lines = [{"tokens": ["Ann"], "tags": ["B-PER"]}, {"tokens": [], "tags": []}]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: .*no words"):
        list(Tag.read(tmp_path / "bad.jsonl", {}))


@pytest.mark.parametrize("tag", ["O", "NOUN"])
def test_training_sentences_with_one_tag_raise_an_error(tag: str):
    with pytest.raises(InputError, match=f"all words of the 2 training sentences have the tag {tag},"):
        Tag.from_examples([make_example("ann", tag), make_example("saw rome", f"{tag} {tag}")], {})


def test_training_sentences_without_tags_raise_an_error():
    with pytest.raises(InputError, match="here: there are no tags"):
        Tag.from_examples([make_example("ann")], {})
    with pytest.raises(InputError, match="line 2: there are no tags"):
        Tag.from_examples([make_document(("ann", "B-PER"), ("rome", None))], {})


def test_a_column_that_is_not_an_index_raises_an_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"--label ner: .*give an index"):
        list(Tag.read(tmp_path / "train.txt", {"label": "ner"}))


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(3, 3, 3), (1, 9, 4, 2)])
def test_logits_equal_transformers(tokenizer: Tokenizer, lengths: tuple[int, ...]):
    from transformers import BertConfig, BertForTokenClassification

    task = Tag(labels=LABELS)
    module = make_module(task).eval()
    encoder_config = module.encoder.config
    with torch.no_grad():
        for parameter in module.parameters():  # biases too, which are zero at first
            parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    config_dict = config_to_dict(encoder_config, ["BertForTokenClassification"])
    config = BertConfig(**config_dict, **task.config(), attn_implementation="eager")
    peer = BertForTokenClassification(config).eval()
    names = combine_name_tables({"encoder": tensor_names(encoder_config), "head": HEADS["tokens"]})
    load_result = peer.load_state_dict(to_hf_names(module.state_dict(), names), strict=False)
    assert load_result.missing_keys == []
    assert load_result.unexpected_keys == [
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    ]  # their class has no pooler
    words = ["ann", "abc", "rome", "中"]
    examples = [make_example([words[(index + length) % 4] for index in range(length)]) for length in lengths]
    batch = batch_of_input_sequences(
        [task.featurize(one, tokenizer, WindowRule(32, 8)).sequences[0] for one in examples], tokenizer.specials.pad
    )
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    with torch.no_grad():
        theirs = peer(input_ids=batch.input_ids, attention_mask=mask, token_type_ids=batch.token_type_ids).logits
        ours = module.outputs(batch)
    assert ours.shape == (sum(lengths), 5)
    assert batch.positions is not None
    assert float((ours - theirs.flatten(0, 1)[batch.positions]).abs().max()) < 1e-5


def train_predictor(
    task: Tag, examples: Sequence[TagExample], tokenizer: Tokenizer, num_steps: int, rule: WindowRule
) -> Predictor:
    """Train a tiny model on one batch of all examples."""
    module = make_module(task, dropout=0.1)
    batch = batch_of_features([task.featurize(one, tokenizer, rule) for one in examples], task, tokenizer.specials.pad)
    optimizer = BertAdam(module, AdamSettings())
    training = Training(
        module=module,
        trainable=module,
        optimizer=optimizer,
        schedule=StepSchedule((num_steps,), 10, 5e-3),
        get_batches=lambda phase, step: [batch],
        seed=0,
    )
    steps = list(train(training, TrainState()))
    assert steps[-1].losses["task"] < 0.3 * steps[0].losses["task"]
    return Predictor(module, tokenizer, rule)


# The parts of sampled sentences, with their tags.
PARTS = (
    ("ann smith", "B-PER I-PER"),
    ("ann", "B-PER"),
    ("rome", "B-LOC"),
    ("new york", "B-LOC I-LOC"),
    ("saw", "O"),
    ("and", "O"),
    ("in", "O"),
    (".", "O"),
)


def sample_words(part_indices: Sequence[int]) -> tuple[list[str], list[str]]:
    words = " ".join(PARTS[index][0] for index in part_indices).split()
    return words, " ".join(PARTS[index][1] for index in part_indices).split()


@pytest.fixture(scope="module")
def trained(tokenizer: Tokenizer) -> Iterator[Predictor]:
    before = torch.get_num_threads()  # `one_thread` runs only after this
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    examples = [
        make_example(words, " ".join(tags))
        for words, tags in (sample_words(generator.integers(0, len(PARTS), 5)) for _ in range(40))
    ]
    yield train_predictor(Tag.from_examples(examples, {}), examples, tokenizer, 80, WindowRule(32, 8))
    torch.set_num_threads(before)


def test_a_tiny_model_learns_entities(trained: Predictor):
    generator = np.random.default_rng(1)
    new = [
        make_example(words, " ".join(tags))
        for words, tags in (sample_words(generator.integers(0, len(PARTS), 5)) for _ in range(40))
    ]
    task = trained.module.task
    assert task.score(trained.predict(new)).metrics["f1"] > 0.95


def test_entities_in_plain_text_have_offsets(trained: Predictor):
    text = "  In Rome\tand NEW  York ann  Smith saw Ann."
    ((_, prediction),) = trained.predict([TagExample.from_text(text)])
    assert [(span.label, span.text) for span in prediction.spans] == [
        ("LOC", "Rome"),
        ("LOC", "NEW  York"),
        ("PER", "ann  Smith"),
        ("PER", "Ann"),
    ]
    assert all(text[span.start : span.end] == span.text for span in prediction.spans)
    assert all(0.5 < span.probability <= 1.0 for span in prediction.spans)


def test_a_sentence_of_many_windows_has_one_prediction(trained: Predictor):
    words, tags = sample_words(np.random.default_rng(2).integers(0, len(PARTS), 300))
    features = trained.module.task.featurize(make_example(words), trained.tokenizer, trained.window_rule)
    assert len(features.sequences) > 15
    ((_, prediction),) = trained.predict([make_example(words)])
    assert prediction.words == tuple(words)
    assert np.mean([one == other for one, other in zip(prediction.tags, tags, strict=True)]) > 0.98


def test_batching_does_not_change_logits(trained: Predictor):
    examples = [make_example(sample_words(range(count))[0]) for count in (1, 7, 3, 5)]
    together = [prediction.logits for _, prediction in trained.predict(examples)]
    for one, logits in zip(examples, together, strict=True):
        ((_, alone),) = trained.predict([one])
        assert float(np.abs(alone.logits - logits).max()) < 1e-5


def test_the_order_of_documents_does_not_change_logits(trained: Predictor):
    generator = np.random.default_rng(3)
    examples = []
    for count in (1, 9, 4, 2):
        words = [sample_words(generator.integers(0, len(PARTS), 5))[0] for _ in range(count)]
        examples.append(make_document(*((" ".join(sentence_words), None) for sentence_words in words)))
    in_order = [prediction.logits for _, prediction in trained.predict(examples)]
    reversed_order = [prediction.logits for _, prediction in trained.predict(examples[::-1])][::-1]
    for one, other in zip(in_order, reversed_order, strict=True):
        assert float(np.abs(one - other).max()) < 1e-5


def test_context_lets_a_model_learn_what_only_the_document_tells(tokenizer: Tokenizer):
    # The neighbouring sentence decides whether "abc" is a person or a location.
    examples = []
    for index in range(16):
        neighbor, tag = (["ann saw", "B-PER"], ["in rome", "B-LOC"])[index % 2]
        side = {"before": [neighbor]} if index % 4 < 2 else {"after": [neighbor]}
        examples.append(
            make_example("abc ." if index % 8 < 4 else "and abc", f"{tag} O" if index % 8 < 4 else f"O {tag}", **side)
        )
    task = Tag.from_examples(examples, {})
    predictor = train_predictor(task, examples, tokenizer, 60, WINDOW_RULE)
    assert task.score(predictor.predict(examples)).main_value == 1.0
    without_context = replace(task, context=False)
    inputs = {
        tuple(
            map(
                tuple,
                (sequence.input_ids for sequence in without_context.featurize(one, tokenizer, WINDOW_RULE).sequences),
            )
        )
        for one in examples
    }
    assert len(inputs) == 2  # all inputs that a model without context can distinguish
