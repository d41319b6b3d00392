"""Tagging: what is asked where, what is read around it, how tags are mended, and that a tiny model learns it."""

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
from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import InputError
from bertworks.inference.predictor import Predictor
from bertworks.metrics.calibration import fit_temperature
from bertworks.models.tensor_names import combine_name_tables as joined_names
from bertworks.models.tensor_names import to_hf_names
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.batching import batch_of_features, batch_of_input_sequences
from bertworks.tasks.contract import Features
from bertworks.tasks.module import TaskModule
from bertworks.tasks.tag import Tag, TagExample, TagFeatures, TagPrediction
from bertworks.tasks.tag_documents import (
    CONTEXT_WORDS,
    PASSAGE_WORDS,
    EntitySpan,
    SentenceContext,
    TokenizedPassage,
    decode_tags,
    group_by_document,
    join_sentences,
    label_ids_of,
    pack_sentences,
    tokenize_words,
)
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] ann smith saw rome new york in and . , 中 国 人 a b c ##a ##b ##c".split()
ID = {piece: number for number, piece in enumerate(PIECES)}
RULE = WindowRule(16, 4)


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("little") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return Tokenizer.load(path)


def sentence(words: str | Sequence[str], tags: str | None = None, document: int = 0, place: str = "here") -> Sentence:
    words = tuple(words.split() if isinstance(words, str) else words)
    text, offsets = join_words(words)
    return Sentence(
        words=words,
        tags=None if tags is None else tuple(tags.split()),
        text=text,
        offsets=offsets,
        document=document,
        location=place,
    )


def case(words: str | Sequence[str], tags: str | None = None, before: Any = (), after: Any = ()) -> TagExample:
    return TagExample(
        "1", SentenceContext(sentence(words, tags), tuple(map(sentence, before)), tuple(map(sentence, after)))
    )


def document(*sentences: tuple[str, str | None]) -> TagExample:
    """A case of several sentences, each with its tags and on a line of its own."""
    parts = [sentence(words, tags, place=f"line {number}") for number, (words, tags) in enumerate(sentences, 1)]
    return TagExample("1", join_sentences(parts, (), ()))


def ids(pieces: str) -> list[int]:
    return [ID[piece] for piece in pieces.split()]


def module_of(task: Tag, vocabulary: int = len(PIECES), positions: int = 64, dropout: float = 0.0) -> TaskModule:
    sizes = BertConfig(
        vocabulary, 32, 2, 2, 64, positions, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    generator = torch.Generator().manual_seed(0)
    return TaskModule(Bert(sizes, generator), task, generator)


def told_logits(tags: Sequence[str], sure: float = 2.0) -> np.ndarray:
    """Logits under which the words have these labels: `sure` for them, 0 for the others."""
    logits = np.zeros((len(tags), len(LABELS)), dtype=np.float32)
    logits[np.arange(len(tags)), [LABELS.index(tag) for tag in tags]] = sure
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


def test_the_sentences_of_a_document_are_one_case(tmp_path: Path):
    (tmp_path / "train.txt").write_text(CONLL)
    cases = list(Tag.read(tmp_path / "train.txt", {}))
    assert [one.id for one in cases] == ["1", "2"]
    assert [one.texts for one in cases] == [("Ann saw\nRome",), ("New York",)]
    assert [one.examples for one in cases] == [(("Ann saw",), ("Rome",)), (("New York",),)]
    assert [one.label for one in cases] == [("B-PER", "O", "B-LOC"), ("B-LOC", "I-LOC")]  # the I- was mended
    assert [one.location for one in cases[0].context.sentences] == ["train.txt, line 3", "train.txt, line 6"]
    whole = cases[0].sentence
    assert tuple(whole.text[start:end] for start, end in whole.offsets) == whole.words == ("Ann", "saw", "Rome")


def test_the_column_of_the_tags_can_be_named(tmp_path: Path):
    (tmp_path / "train.txt").write_text(CONLL)
    chunks = list(Tag.read(tmp_path / "train.txt", {"text": "0", "label": "2"}))
    assert chunks[0].label == ("B-NP", "B-VP", "B-NP")


def test_a_long_document_is_read_in_passages_that_know_what_is_around_them():
    drawn = 0

    def endless() -> Iterator[Sentence]:
        nonlocal drawn
        for drawn in itertools.count(1):
            yield sentence([f"w{drawn}", "x"])

    own, near = PASSAGE_WORDS // 2, CONTEXT_WORDS // 2  # sentences of two words
    for number, around in enumerate(itertools.islice(group_by_document(endless()), 4)):
        first = 1 + number * own
        assert [one.words[0] for one in around.sentences] == [f"w{n}" for n in range(first, first + own)]
        assert drawn <= (number + 1) * own + near
    assert [one.words[0] for one in around.before] == [f"w{n}" for n in range(first - near - 1, first)]
    assert [one.words[0] for one in around.after] == [f"w{n}" for n in range(first + own, first + own + near)]


def test_a_sentence_longer_than_a_passage_is_a_passage():
    long = [sentence(["w"] * (PASSAGE_WORDS + 1)) for _ in range(2)]
    short = sentence("a b")
    found = [around.sentences for around in group_by_document([short, *long, short])]
    assert found == [(short,), (long[0],), (long[1],), (short,)]


def test_plain_text_is_cut_at_white_space_punctuation_and_ideographs():
    text = "Ann Smith, in New  York.中国"
    one = TagExample.from_text(text)
    assert one.sentence.words == ("Ann", "Smith", ",", "in", "New", "York", ".", "中", "国")
    assert tuple(text[start:end] for start, end in one.sentence.offsets) == one.sentence.words
    assert one.label is None


# --- what is read and asked ------------------------------------------------------------------------------------------


def test_only_the_first_piece_of_a_word_is_asked(little: Tokenizer):
    question = Tag(LABELS).featurize(case("abc saw cab rome", "B-PER O I-PER B-LOC"), little, RULE)
    (row,) = question.sequences
    assert row.input_ids.tolist() == ids("[CLS] a ##b ##c saw c ##a ##b rome [SEP]")
    assert row.positions is not None
    assert row.targets is not None
    assert row.positions.tolist() == [1, 4, 5, 8]
    assert row.targets.tolist() == [3, 0, 4, 1]


def test_a_sentence_is_read_with_its_document_around_it_but_only_its_own_words_are_asked(little: Tokenizer):
    one = case("rome", "B-LOC", before=["saw and", "in abc"], after=["smith , .", "new"])
    (row,) = Tag(LABELS).featurize(one, little, WindowRule(20, 4)).sequences  # two pieces on either side
    assert row.input_ids.tolist() == ids("[CLS] ##b ##c rome smith , [SEP]")
    assert row.positions is not None
    assert row.positions.tolist() == [3]
    (row,) = Tag(LABELS).featurize(one, little, WindowRule(48, 12)).sequences  # six, but there are only five and four
    assert row.input_ids.tolist() == ids("[CLS] saw and in a ##b ##c rome smith , . new [SEP]")
    (row,) = Tag(LABELS).featurize(one, little, WindowRule(16, 0)).sequences
    assert row.input_ids.tolist() == ids("[CLS] rome [SEP]")


def test_sentences_stand_together_and_each_is_asked_in_one_row(little: Tokenizer):
    one = document(
        ("ann saw new york .", "B-PER O B-LOC I-LOC O"),
        ("smith in rome .", "B-PER O B-LOC O"),
        ("and a", "O O"),
        ("ann .", "B-PER O"),
    )
    # A row of 16 has room for 14 pieces, two of them context on either side: the first two sentences with what comes
    # after them are 11; the third would make it 13, the fourth with nothing behind it 13 too, so that all fit.
    question = Tag(LABELS).featurize(one, little, RULE)
    (row,) = question.sequences
    assert row.input_ids.tolist() == ids("[CLS] ann saw new york . smith in rome . and a ann . [SEP]")
    assert row.positions is not None
    assert row.positions.tolist() == list(range(1, 14))
    assert question.num_examples == 4
    first, second = (
        Tag(LABELS).featurize(one, little, WindowRule(13, 3)).sequences
    )  # room for 11, one piece on either side
    assert first.input_ids.tolist() == ids("[CLS] ann saw new york . smith in rome . and [SEP]")
    assert second.input_ids.tolist() == ids("[CLS] . and a ann . [SEP]")
    assert first.positions is not None
    assert first.targets is not None
    assert second.positions is not None
    assert second.targets is not None
    assert (first.positions.tolist(), first.targets.tolist()) == (list(range(1, 10)), [3, 0, 1, 2, 0, 3, 0, 1, 0])
    assert (second.positions.tolist(), second.targets.tolist()) == ([2, 3, 4, 5], [0, 0, 3, 0])


def test_each_row_can_be_learned_from_by_itself_and_a_long_sentence_as_a_whole(little: Tokenizer):
    one = document(("ann saw", "O O"), ("rome .", "O O"), (" ".join(["rome"] * 40), " ".join(["O"] * 40)), ("a", "O"))
    question = Tag(LABELS).featurize(one, little, RULE)
    assert [part.num_examples for part in question.parts] == [2, 1, 1]
    assert [len(part.sequences) for part in question.parts] == [1, len(question.sequences) - 2, 1]
    assert len(question.parts[1].sequences) > 2
    assert question.training_parts == question.parts
    assert tuple(row for part in question.parts for row in part.sequences) == question.sequences


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([(14, 2), (30, 4), (14, 0), (62, 8)]),
)
@settings(deadline=None)
def test_context_on_both_sides_is_a_margin_or_all_there_is(
    lengths: list[int], before: int, after: int, sizes: tuple[int, int]
):
    room, margin = sizes
    edges = before + np.cumsum([0, *lengths])
    total = int(edges[-1]) + after
    stretches = list(
        pack_sentences(
            TokenizedPassage(TokenizedText.from_ids(np.zeros(total, dtype=np.int64)), edges[:-1], edges), room, margin
        )
    )
    assert [one for each in stretches for one in range(each.first, each.stop)] == list(range(len(lengths)))
    for one in stretches:
        left, right = edges[one.first] - one.begin, one.end - edges[one.stop]
        wanted = min(margin, int(edges[one.first])), min(margin, total - int(edges[one.stop]))
        own = int(edges[one.stop] - edges[one.first])
        if own > room or own + sum(wanted) <= room:
            assert (left, right) == wanted
        else:  # a sentence that fills its row but for a little
            assert one.stop == one.first + 1
            assert own + left + right == room
            assert min(left, right) >= min(*wanted, (room - own) // 2)


def test_rows_of_a_document_take_few_more_pieces_than_it_has(little: Tokenizer):
    generator = np.random.default_rng(0)
    parts = [sentence(["rome"] * int(count)) for count in generator.integers(3, 40, 200)]
    text = sum(len(one.words) for one in parts)
    one = TagExample("1", join_sentences(parts, (), ()))
    for length in (128, 512):
        question = Tag(LABELS).featurize(one, little, WindowRule(length, length // 4))
        assert question.num_tokens < 1.45 * text  # 4 / 3 for the context, and rows that no whole sentence fills up
    one_by_one = Tag(LABELS, context=False).featurize(one, little, RULE)
    assert one_by_one.num_examples == len(one_by_one.parts) == 200


def test_without_context_a_sentence_is_read_alone(little: Tokenizer):
    one = case("rome", "B-LOC", before=["ann saw"], after=["smith ."])
    (row,) = Tag(LABELS, context=False).featurize(one, little, RULE).sequences
    assert row.input_ids.tolist() == ids("[CLS] rome [SEP]")
    rows = Tag(LABELS, context=False).featurize(document(("ann saw", None), ("rome", None)), little, RULE).sequences
    assert [row.input_ids.tolist() for row in rows] == [ids("[CLS] ann saw [SEP]"), ids("[CLS] rome [SEP]")]


def test_a_word_of_which_nothing_remains_is_read_as_unknown_and_asked(little: Tokenizer):
    pieces = tokenize_words(["\u200b", "ann", "\u00ad", "\u200b", "rome", "\u200b"], little)
    unknown = "[UNK]"
    assert pieces.tokens.input_ids.tolist() == ids(f"{unknown} ann {unknown} {unknown} rome {unknown}")
    assert pieces.tokens.unknown == {}
    assert pieces.counts.tolist() == [1] * 6


def test_unknown_words_keep_their_writing_between_those_of_the_document(little: Tokenizer):
    one = case("Qué rome", "O B-LOC", before=["ann zz"], after=["smith xx"])
    (row,) = Tag(LABELS).featurize(one, little, RULE).sequences
    assert row.input_ids.tolist() == ids("[CLS] ann [UNK] [UNK] rome smith [UNK] [SEP]")
    assert row.unknown == {2: "zz", 3: "que", 6: "xx"}


def test_a_text_of_nothing_but_white_space_has_no_words_and_no_entities(little: Tokenizer):
    task = Tag(LABELS)
    predictor = Predictor(module_of(task), little, RULE)
    found = [
        one
        for _, one in predictor.predict(
            [TagExample.from_text(" \n"), TagExample.from_text("ann"), TagExample.from_text("")]
        )
    ]
    assert [one.words for one in found] == [(), ("ann",), ()]
    assert [one.tags for one in found if not one.words] == [(), ()]
    assert [one.spans for one in found if not one.words] == [(), ()]


def asked_words(question: Features) -> list[int]:
    """The ids at the places that are asked, row after row."""
    rows = question.sequences
    return [number for row in rows if row.positions is not None for number in row.input_ids[row.positions].tolist()]


@given(st.lists(st.sampled_from(["a", "b", "c", "aa", "abc", "cab" * 3, "a" * 40]), min_size=1, max_size=60))
@settings(deadline=None, max_examples=60)
def test_each_word_of_a_long_sentence_is_asked_once_and_every_piece_is_read(words: list[str]):
    pieces = [*PIECES[:5], *"abc", "##a", "##b", "##c"]
    tokenizer = _tokenizer_of(pieces)
    question = Tag(LABELS).featurize(case(words, " ".join(["O"] * len(words))), tokenizer, RULE)
    assert asked_words(question) == [pieces.index(word[0]) for word in words]
    covered: set[int] = set()
    for row in question.sequences:
        (run,) = row.spans
        covered |= set(range(run.first, run.first + run.count))
    assert covered == set(range(sum(map(len, words))))
    assert question.num_truncated == 0
    assert all(len(row) <= RULE.max_length for row in question.sequences)


def test_a_kind_that_writes_spaces_into_its_pieces_gets_them_as_they_stand_in_the_text():
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inventory = Inventory(("<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "Ġa"), merges=(("Ġ", "a"),))
    tokenizer = Tokenizer.from_backend(KINDS["byte-bpe"].build(inventory, cased=True))
    text = "a a,a"
    own = TagExample.from_text(text)
    (row,) = Tag(LABELS).featurize(own, tokenizer, RULE).sequences
    assert [tokenizer.tokens[number] for number in row.input_ids] == ["<s>", "a", "Ġa", ",", "a", "</s>"]
    assert row.input_ids[1:-1].tolist() == tokenizer.tokenize(text).input_ids.tolist()


_MADE: dict[tuple[str, ...], Tokenizer] = {}


def _tokenizer_of(pieces: list[str]) -> Tokenizer:
    key = tuple(pieces)
    if key not in _MADE:
        _MADE[key] = Tokenizer.from_backend(wordpiece_backend(pieces, False))
    return _MADE[key]


def test_a_word_longer_than_a_window_has_one_tag(little: Tokenizer):
    task = Tag(LABELS)
    predictor = Predictor(module_of(task), little, RULE)
    letters, ideographs = "x" * 10_000, "中" * 10_000
    long = case(["ann", letters, ideographs, "rome"])
    question = task.featurize(long, little, RULE)
    assert asked_words(question) == ids("ann [UNK] 中 rome")
    assert len(question.sequences) > 600  # one ideograph is one piece
    ((_, found),) = predictor.predict([long])
    assert len(found.tags) == 4
    assert found.logits.shape == (4, 5)


def test_words_cut_off_by_request_are_no_entities_and_their_pieces_are_counted(little: Tokenizer):
    task = Tag(("B-LOC", "O"))
    rule = replace(RULE, truncate=True)
    one = case(["rome"] * 12 + ["abc"] * 3, " ".join(["B-LOC"] * 15))
    question = task.featurize(one, little, rule)
    assert question.num_truncated == 12 + 9 - 14  # a row of 16 has room for 14
    assert asked_words(question) == ids("rome " * 12 + "a")
    found = task.decode(one, question, [np.array([[1.0, 0.0]] * 13, dtype=np.float32)])
    assert found.tags == ("B-LOC",) * 13 + ("O", "O")
    assert len(found.spans) == 13


def test_in_the_middle_of_a_document_a_long_sentence_alone_is_cut_at_its_end(little: Tokenizer):
    task = Tag(("B-LOC", "O"))
    tags = " ".join(["B-LOC"] * 16)
    one = document(("ann saw", "O O"), (" ".join(["rome"] * 16), tags), ("ann", "O"))
    question = task.featurize(one, little, replace(RULE, truncate=True))
    assert question.num_truncated == 2
    assert question.word_indices.tolist() == [0, 1, *range(2, 16), 18]
    right = [np.array([[1.0, 0.0]] * count, dtype=np.float32) for count in (2, 14, 1)]
    found = task.decode(one, question, right)
    assert found.tags == ("B-LOC",) * 16 + ("O", "O", "B-LOC")
    assert task.score([(one, found)]).metrics["recall"] == pytest.approx(14 / 16)
    assert isinstance(task.calibrate([one], [found]), Tag)


def test_several_sentences_of_one_batch_are_asked_at_their_own_places(little: Tokenizer):
    task = Tag(LABELS)
    cases = [case("rome .", "B-LOC O"), case("ann smith saw rome", "B-PER I-PER O B-LOC")]
    batch = batch_of_features([task.featurize(one, little, RULE) for one in cases], task, 0)
    assert batch.positions is not None
    assert batch.targets is not None
    assert batch.input_ids.flatten()[batch.positions].tolist() == ids(
        "ann smith saw rome rome ."
    )  # the longest row first
    assert batch.targets.tolist() == [3, 4, 0, 1, 1, 0]
    assert task.num_targets(batch) == 6


# --- what is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "tags"),
    [
        ("I-PER I-PER O", "B-PER I-PER O"),  # at the beginning
        ("O I-LOC I-LOC", "O B-LOC I-LOC"),  # after O
        ("B-PER I-LOC I-PER", "B-PER B-LOC B-PER"),  # after another type
        ("B-PER I-PER B-PER", "B-PER I-PER B-PER"),
        ("O O O", "O O O"),
    ],
)
def test_an_inside_tag_that_continues_nothing_begins_an_entity(chosen: str, tags: str):
    assert decode_tags(told_logits(chosen.split()), LABELS, 1.0)[0] == tuple(tags.split())


def test_spans_have_offsets_into_the_text_and_the_product_of_their_words_probabilities():
    text = "saw Ann  Smith, New York."
    one = TagExample.from_text(text, name="7")
    logits = told_logits(["O", "I-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"])
    logits[1:3] *= 2
    question = TagFeatures(sequences=(), word_indices=np.arange(7))
    found = Tag(LABELS, temperature=2.0).decode(one, question, [logits[:4], logits[4:]])
    assert found.tags == ("O", "B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O")
    one_word = np.e / (np.e + 4), np.e**2 / (np.e**2 + 4)  # logits of 2 and of 4, halved, among five labels
    assert [replace(span, probability=0.0) for span in found.spans] == [
        EntitySpan(start=4, end=14, label="PER", text="Ann  Smith", probability=0.0),
        EntitySpan(start=16, end=24, label="LOC", text="New York", probability=0.0),
    ]
    assert [text[span.start : span.end] for span in found.spans] == ["Ann  Smith", "New York"]
    assert found.spans[0].probability == pytest.approx(one_word[1] ** 2)
    assert found.spans[1].probability == pytest.approx(one_word[0] ** 2)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["id"] == "7"
    assert told["words"] == ["saw", "Ann", "Smith", ",", "New", "York", "."]
    assert told["spans"][1]["text"] == "New York"


def test_an_entity_does_not_go_on_in_the_next_sentence():
    one = document(("saw ann", None), ("smith in", None), ("new york", None))
    logits = told_logits("O B-PER I-PER O B-LOC I-LOC".split())
    found = Tag(LABELS).decode(one, TagFeatures(sequences=(), word_indices=np.arange(6)), [logits[:2], logits[2:]])
    assert found.tags == ("O", "B-PER", "B-PER", "O", "B-LOC", "I-LOC")
    assert [(span.start, span.text) for span in found.spans] == [(4, "ann"), (8, "smith"), (17, "new york")]
    assert one.sentence.text == "saw ann\nsmith in\nnew york"


def tagged(tags: str, sure: float = 2.0) -> TagPrediction:
    return TagPrediction(id="1", tags=tuple(tags.split()), spans=(), words=(), logits=told_logits(tags.split(), sure))


def test_scores_are_of_whole_entities_and_accuracy_of_words():
    pairs = [
        (case("ann smith saw rome", "B-PER I-PER O B-LOC"), tagged("B-PER I-PER O B-LOC")),  # two right
        (case("new york saw", "B-LOC I-LOC O"), tagged("B-LOC O O")),  # one with a wrong end
        (case("ann and", "O O"), tagged("B-PER O")),  # one that is none
    ]
    scored = Tag(LABELS).score(iter(pairs))
    assert scored.main_metric == Tag(LABELS).main_metric == "f1"
    assert scored.metrics["precision"] == pytest.approx(2 / 4)
    assert scored.metrics["recall"] == pytest.approx(2 / 3)
    assert scored.main_value == pytest.approx(4 / 7)
    assert scored.metrics["accuracy"] == pytest.approx(7 / 9)
    # Every word was said with the same probability, e² / (e² + 4) = 0.6488; seven of nine came true.
    assert scored.metrics["calibration_error"] == pytest.approx(7 / 9 - np.e**2 / (np.e**2 + 4), abs=1e-6)
    assert scored.details["types"]["LOC"] == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "num_entities": 2}
    assert scored.details["types"]["PER"]["recall"] == 1.0
    assert scored.details["confusion"].sum() == 9
    assert scored.details["confusion"][LABELS.index("I-LOC"), LABELS.index("O")] == 1
    mistakes = {(wrong.expected, wrong.predicted) for wrong in scored.details["mistakes"]}
    assert mistakes == {("LOC: new york", "LOC: new"), ("nothing", "PER: ann")}


def test_a_document_is_scored_sentence_by_sentence():
    one = document(("ann smith", "B-PER I-PER"), ("saw rome", "O B-LOC"), ("new york", "B-LOC I-LOC"))
    scored = Tag(LABELS).score([(one, tagged("B-PER I-PER O B-LOC B-LOC O"))])
    apart = [case("ann smith", "B-PER I-PER"), case("saw rome", "O B-LOC"), case("new york", "B-LOC I-LOC")]
    said = [tagged("B-PER I-PER"), tagged("O B-LOC"), tagged("B-LOC O")]
    assert scored.metrics == Tag(LABELS).score(zip(apart, said, strict=True)).metrics
    ((wrong),) = scored.details["mistakes"]
    assert (wrong.texts, wrong.expected, wrong.predicted, wrong.place) == (
        ("new york",),
        "LOC: new york",
        "LOC: new",
        "line 3",
    )


def test_temperature_is_fitted_on_the_words_of_dev_and_kept():
    cases = [case("ann rome", "B-PER B-LOC"), case("saw", "O"), case("and", "O")]
    predictions = [tagged("B-PER B-LOC", 8.0), tagged("O", 8.0), tagged("B-PER", 8.0)]
    task = Tag(LABELS).calibrate(cases, predictions)
    logits = np.concatenate([one.logits for one in predictions])
    assert isinstance(task, Tag)
    assert task.temperature == pytest.approx(fit_temperature(logits, np.array([3, 1, 0, 0])))
    # Three of four are right: the best probability is 3/4, where e^(8/t) / (e^(8/t) + 4) = 3/4, so 8/t = log 12.
    assert task.temperature == pytest.approx(8 / np.log(12), rel=1e-3)
    assert Tag.from_metadata(task.metadata(), task.config()) == task
    assert task.score(zip(cases, predictions, strict=True)).metrics["calibration_error"] < 1e-3


# --- labels and folders ----------------------------------------------------------------------------------------------


def test_labels_are_o_and_a_pair_for_each_type_in_the_training_sentences():
    task = Tag.from_examples([case("ann rome", "B-PER B-LOC"), case("saw", "O")], {})
    assert task == Tag(LABELS, context=True)
    assert task.config()["id2label"] == {"0": "O", "1": "B-LOC", "2": "I-LOC", "3": "B-PER", "4": "I-PER"}
    assert Tag.from_examples([case("ann", "B-PER")], {"context": False}).context is False


def test_a_folder_keeps_whether_context_is_read_and_one_from_elsewhere_reads_none():
    task = Tag(LABELS, context=True, temperature=1.5)
    assert Tag.from_metadata(task.metadata(), task.config()) == task
    assert Tag.from_metadata({}, task.config()) == Tag(LABELS, context=False)


def test_labels_of_other_schemes_stand_for_bio_tags():
    iob1 = ("I-LOC", "O", "B_PER", "I_PER")
    assert label_ids_of(iob1) == {"O": 1, "B-LOC": 0, "I-LOC": 0, "B-PER": 2, "I-PER": 3}
    bioes = ("O", "B-X", "I-X", "E-X", "S-X")
    assert label_ids_of(bioes) == {"O": 0, "B-X": 1, "I-X": 2}
    found, _ = decode_tags(np.eye(5, dtype=np.float32)[[1, 3, 4, 4, 0]], bioes, 1.0)
    assert found == ("B-X", "I-X", "B-X", "B-X", "O")


def test_a_model_whose_labels_are_no_tags_is_refused():
    with pytest.raises(InputError, match="labels of the model: 'NOUN' is no BIO tag"):
        Tag.from_metadata({}, {"id2label": {"0": "NOUN", "1": "VERB"}})


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_tag_that_is_no_bio_tag_is_named_with_its_line(tmp_path: Path):
    (tmp_path / "bad.txt").write_text("Ann B-PER\nsaw O\n\nRome LOC\n")
    with pytest.raises(InputError, match=r"bad\.txt, line 4: 'LOC' is no BIO tag"):
        list(Tag.read(tmp_path / "bad.txt", {}))


def test_a_type_seen_only_in_dev_is_named_with_its_place(little: Tokenizer):
    task = Tag.from_examples([case("ann", "B-PER")], {})
    with pytest.raises(InputError, match=r"here: the tag 'B-LOC' does not occur .* known are: O, B-PER, I-PER"):
        task.featurize(case("rome", "B-LOC"), little, RULE)
    with pytest.raises(InputError, match=r"line 2: the tag 'B-LOC' does not occur"):
        task.featurize(document(("ann", "B-PER"), ("rome", "B-LOC")), little, RULE)


def test_a_sentence_without_words_is_named_with_its_line(tmp_path: Path):
    lines = [{"tokens": ["Ann"], "tags": ["B-PER"]}, {"tokens": [], "tags": []}]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: .*no words"):
        list(Tag.read(tmp_path / "bad.jsonl", {}))


def test_training_sentences_without_any_entity_are_refused():
    with pytest.raises(InputError, match="none of the 2 training sentences has an entity"):
        Tag.from_examples([case("ann", "O"), case("saw rome", "O O")], {})


def test_training_sentences_without_tags_are_refused():
    with pytest.raises(InputError, match="here: there are no tags"):
        Tag.from_examples([case("ann")], {})
    with pytest.raises(InputError, match="line 2: there are no tags"):
        Tag.from_examples([document(("ann", "B-PER"), ("rome", None))], {})


def test_a_column_that_is_no_number_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"--label ner: .*give a number"):
        list(Tag.read(tmp_path / "train.txt", {"label": "ner"}))


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(3, 3, 3), (1, 9, 4, 2)])
def test_logits_equal_those_of_transformers(little: Tokenizer, lengths: tuple[int, ...]):
    from transformers import BertConfig, BertForTokenClassification

    task = Tag(LABELS)
    module = module_of(task).eval()
    sizes = module.encoder.sizes
    with torch.no_grad():
        for parameter in module.parameters():  # biases too, which are zero at first
            parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    told = config_to_dict(sizes, ["BertForTokenClassification"])
    config = BertConfig(**told, **task.config(), attn_implementation="eager")
    peer = BertForTokenClassification(config).eval()
    names = joined_names({"encoder": tensor_names(sizes), "head": HEADS["places"]})
    found = peer.load_state_dict(to_hf_names(module.state_dict(), names), strict=False)
    assert found.missing_keys == []
    assert found.unexpected_keys == ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]  # theirs has no pooler
    words = ["ann", "abc", "rome", "中"]
    cases = [case([words[(at + length) % 4] for at in range(length)]) for length in lengths]
    batch = batch_of_input_sequences(
        [task.featurize(one, little, WindowRule(32, 8)).sequences[0] for one in cases], little.specials.pad
    )
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    with torch.no_grad():
        theirs = peer(input_ids=batch.input_ids, attention_mask=mask, token_type_ids=batch.token_type_ids).logits
        ours = module.outputs(batch)
    assert ours.shape == (sum(lengths), 5)
    assert batch.positions is not None
    assert float((ours - theirs.flatten(0, 1)[batch.positions]).abs().max()) < 1e-5


def learned_by(
    task: Tag, cases: Sequence[TagExample], tokenizer: Tokenizer, num_steps: int, rule: WindowRule
) -> Predictor:
    """Train a tiny model on all cases at once, step after step."""
    module = module_of(task, dropout=0.1)
    batch = batch_of_features([task.featurize(one, tokenizer, rule) for one in cases], task, tokenizer.specials.pad)
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


# What may stand in a toy sentence: each part with its tags.
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


def toy(numbers: Sequence[int]) -> tuple[list[str], list[str]]:
    words = " ".join(PARTS[number][0] for number in numbers).split()
    return words, " ".join(PARTS[number][1] for number in numbers).split()


@pytest.fixture(scope="module")
def trained(little: Tokenizer) -> Iterator[Predictor]:
    before = torch.get_num_threads()  # `one_thread` comes only after this
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    cases = [
        case(words, " ".join(tags)) for words, tags in (toy(generator.integers(0, len(PARTS), 5)) for _ in range(40))
    ]
    yield learned_by(Tag.from_examples(cases, {}), cases, little, 80, WindowRule(32, 8))
    torch.set_num_threads(before)


def test_a_tiny_model_learns_entities(trained: Predictor):
    generator = np.random.default_rng(1)
    new = [
        case(words, " ".join(tags)) for words, tags in (toy(generator.integers(0, len(PARTS), 5)) for _ in range(40))
    ]
    task = trained.module.task
    assert task.score(trained.predict(new)).metrics["f1"] > 0.95


def test_entities_are_found_in_plain_text_where_they_stand(trained: Predictor):
    text = "  In Rome\tand NEW  York ann  Smith saw Ann."
    ((_, found),) = trained.predict([TagExample.from_text(text)])
    assert [(span.label, span.text) for span in found.spans] == [
        ("LOC", "Rome"),
        ("LOC", "NEW  York"),
        ("PER", "ann  Smith"),
        ("PER", "Ann"),
    ]
    assert all(text[span.start : span.end] == span.text for span in found.spans)
    assert all(0.5 < span.probability <= 1.0 for span in found.spans)


def test_a_sentence_of_many_windows_is_tagged_as_one(trained: Predictor):
    words, tags = toy(np.random.default_rng(2).integers(0, len(PARTS), 300))
    question = trained.module.task.featurize(case(words), trained.tokenizer, trained.window_rule)
    assert len(question.sequences) > 15
    ((_, found),) = trained.predict([case(words)])
    assert found.words == tuple(words)
    assert np.mean([one == other for one, other in zip(found.tags, tags, strict=True)]) > 0.98


def test_a_sentence_alone_and_among_longer_ones_has_the_same_logits(trained: Predictor):
    cases = [case(toy(range(count))[0]) for count in (1, 7, 3, 5)]
    together = [found.logits for _, found in trained.predict(cases)]
    for one, logits in zip(cases, together, strict=True):
        ((_, alone),) = trained.predict([one])
        assert float(np.abs(alone.logits - logits).max()) < 1e-5


def test_documents_are_tagged_alike_in_whatever_order_they_come(trained: Predictor):
    generator = np.random.default_rng(3)
    cases = []
    for count in (1, 9, 4, 2):
        words = [toy(generator.integers(0, len(PARTS), 5))[0] for _ in range(count)]
        cases.append(document(*((" ".join(own), None) for own in words)))
    ahead = [found.logits for _, found in trained.predict(cases)]
    back = [found.logits for _, found in trained.predict(cases[::-1])][::-1]
    for one, other in zip(ahead, back, strict=True):
        assert float(np.abs(one - other).max()) < 1e-5


def test_what_only_the_document_tells_is_learned_with_context_and_not_without(little: Tokenizer):
    # "abc" is a person where the sentence before says so, and a place where it says otherwise.
    cases = []
    for at in range(16):
        near, tag = (["ann saw", "B-PER"], ["in rome", "B-LOC"])[at % 2]
        side = {"before": [near]} if at % 4 < 2 else {"after": [near]}
        cases.append(case("abc ." if at % 8 < 4 else "and abc", f"{tag} O" if at % 8 < 4 else f"O {tag}", **side))
    task = Tag.from_examples(cases, {})
    aware = learned_by(task, cases, little, 60, RULE)
    assert task.score(aware.predict(cases)).main_value == 1.0
    alone = replace(task, context=False)
    questions = {
        tuple(map(tuple, (row.input_ids for row in alone.featurize(one, little, RULE).sequences))) for one in cases
    }
    assert len(questions) == 2  # all that a model without context could tell apart
