"""The pure part of tagging. Sentences in, each with its document around it out; a sentence in, its pieces between as
much of the document as fits out; logits of words in, BIO tags and spans out.

W words, P pieces, C labels.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError
from bertworks.tasks.calibration import reliability
from bertworks.tasks.conll import Sentence, repaired, spans_of
from bertworks.vocabulary.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

# How many words of its document a sentence keeps at hand on either side. A word has at least one piece, so a row of 512
# places has never room for more; neighbours share their words, so what is kept are only references to sentences.
CONTEXT_WORDS = 512

NUM_BINS = 15

# Which labels of a model may stand for a tag, in the order of preference: models from elsewhere may know only I- (IOB1
# without two entities side by side), or say BIOES or BMES.
_STAND_FOR = {"B": "BISU", "I": "IMELB"}


@dataclass(frozen=True, slots=True)
class Span:
    """An entity: characters `start` up to but not including `end` of the text that was given, verbatim in `text`.

    `probability` is that all its words are labelled right, taken as independent: the product of the probabilities of
    the labels that the model chose for them.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Around:
    """A sentence and what stands before and after it in its document, nearest to it in the middle."""

    sentence: Sentence
    before: tuple[Sentence, ...] = ()
    after: tuple[Sentence, ...] = ()


@dataclass(frozen=True, slots=True)
class WordPieces:
    """Words as pieces: ids (P,), and how many each word has (W,)."""

    ids: Ints
    counts: Ints


@dataclass(frozen=True, slots=True)
class Read:
    """What a model reads for a sentence: pieces, context included (P,), and where the sentence's words begin (W,)."""

    ids: Ints
    firsts: Ints


def in_documents(sentences: Iterable[Sentence]) -> Iterator[Around]:
    """Yield each sentence with its document around it, holding no more of a document than that."""
    for _, document in itertools.groupby(sentences, key=lambda sentence: sentence.document):
        source = iter(document)
        before: deque[Sentence] = deque()
        after: deque[Sentence] = deque(itertools.islice(source, 1))
        while after:
            sentence = after.popleft()
            while _num_words(after) < CONTEXT_WORDS and (following := next(source, None)) is not None:
                after.append(following)
            yield Around(sentence, tuple(before), tuple(after))
            before.append(sentence)
            while _num_words(before) - len(before[0].words) >= CONTEXT_WORDS:
                before.popleft()


def _num_words(sentences: Iterable[Sentence]) -> int:
    return sum(len(sentence.words) for sentence in sentences)


def read_alone(around: Around, tokenizer: Tokenizer) -> Read:
    """Return the pieces of the sentence and nothing else."""
    own = pieces_of(_spaced(around.sentence), tokenizer)
    return Read(own.ids, np.cumsum(own.counts) - own.counts)


def read_in_context(around: Around, tokenizer: Tokenizer, room: int) -> Read:
    """Return the pieces of the sentence with as many whole words of its document on both sides as `room` pieces hold.

    A sentence that fills the room by itself stays alone.
    """
    own = pieces_of(_spaced(around.sentence), tokenizer)
    left = room - len(own.ids)
    firsts = np.cumsum(own.counts) - own.counts
    if left <= 0:
        return Read(own.ids, firsts)
    # A word has at least one piece, so no more words than places can fit.
    before = pieces_of(_last_words(around.before, left), tokenizer)
    after = pieces_of(_first_words(around.after, left), tokenizer)
    num_before, num_after = fitting(before.counts[::-1], after.counts, left)
    ids = np.concatenate([before.ids[len(before.ids) - num_before :], own.ids, after.ids[:num_after]])
    return Read(ids, firsts + num_before)


def fitting(before: Ints, after: Ints, room: int) -> tuple[int, int]:
    """Return how many pieces on either side fit, whole words only, given how many each word has, the nearest first.

    Either side has half of the room; what it cannot fill is the other's.
    """
    num_after = _reach(after, room // 2)
    num_before = _reach(before, room - num_after)
    return num_before, _reach(after, room - num_before)


def _reach(counts: Ints, room: int) -> int:
    ends = np.concatenate([[0], np.cumsum(counts)])
    return int(ends[np.searchsorted(ends, room, side="right") - 1])


def pieces_of(words: Sequence[str], tokenizer: Tokenizer) -> WordPieces:
    """Return the pieces of words, each cut by itself; a space behind a word tells kinds that care for it.

    A word of which nothing remains, such as a lone control character, is read as the unknown piece: so each has one.
    """
    flat = tokenizer.encode_sentences(words)
    counts = np.diff(flat.sentence_ends, prepend=0).astype(np.int64)
    ids = flat.ids.astype(np.int64)
    empty = counts == 0
    if empty.any():
        ids = np.insert(ids, flat.sentence_ends[empty], tokenizer.specials.unknown)
        counts[empty] = 1
    return WordPieces(ids, counts)


def _spaced(sentence: Sentence) -> list[str]:
    """Return the words, each with a space behind it where one stands in the text."""
    starts = [start for start, _ in sentence.offsets[1:]]
    ends = [end for _, end in sentence.offsets]
    spaces = [" " if end < start else "" for end, start in zip(ends, starts, strict=False)]
    return [word + space for word, space in zip(sentence.words, [*spaces, " "], strict=False)]


def _last_words(sentences: Sequence[Sentence], count: int) -> list[str]:
    found: list[str] = []
    for sentence in reversed(sentences):
        if len(found) >= count:
            break
        found = _spaced(sentence) + found
    return found[-count:]


def _first_words(sentences: Sequence[Sentence], count: int) -> list[str]:
    found: list[str] = []
    for sentence in sentences:
        if len(found) >= count:
            break
        found += _spaced(sentence)
    return found[:count]


def labels_for(types: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a model for these types of entities: O, then B- and I- of each, by the alphabet."""
    return ("O", *(f"{letter}-{kind}" for kind in sorted(types) for letter in "BI"))


@functools.lru_cache(maxsize=64)
def numbers_of(labels: tuple[str, ...]) -> Mapping[str, int]:
    """Return the number of the label of each BIO tag; labels that are no such tags are refused."""
    # Each alone is legal, so only what is no tag at all is refused.
    for label in labels:
        repaired((label,), "the labels of the model")
    known = {label if label == "O" else f"{label[0]}-{label[2:]}": number for number, label in enumerate(labels)}
    found = {"O": known["O"]} if "O" in known else {}
    for kind in {label[2:] for label in labels if label != "O"}:
        for letter, others in _STAND_FOR.items():
            number = next((known[name] for other in others if (name := f"{other}-{kind}") in known), None)
            if number is not None:
                found[f"{letter}-{kind}"] = number
    return found


def number_of(tag: str, labels: tuple[str, ...], place: str) -> int:
    """Return the number of the label of a BIO tag; one that the training sentences lack is refused."""
    number = numbers_of(labels).get(tag)
    if number is None:
        raise InputError(
            f"{place}: the tag '{tag}' does not occur in the training sentences; known are: {', '.join(labels)}"
        )
    return number


def decoded(logits: Floats, labels: Sequence[str], temperature: float) -> tuple[tuple[str, ...], Floats]:
    """Return the legal BIO tags of words from their logits (W, C), and how probable each chosen label is (W,).

    Each word has its likeliest label. What is then illegal is mended from left to right: I-X that continues no X (after
    O, after another type, at the beginning) becomes B-X, and a scheme other than BIO is written as BIO. The
    probability stays that of the label as it was chosen.
    """
    chosen = [labels[number] for number in logits.argmax(axis=1)]
    return repaired(chosen)[0], chances_of(logits, temperature).max(axis=1)


def spans_in(sentence: Sentence, tags: Sequence[str], chances: Floats) -> tuple[Span, ...]:
    """Return the entities that tags say, as they stand in the text."""
    found = []
    for first, end, label in spans_of(tags):
        start, stop = sentence.offsets[first][0], sentence.offsets[end - 1][1]
        found.append(Span(start, stop, label, sentence.text[start:stop], float(np.prod(chances[first:end]))))
    return tuple(found)


def chances_of(logits: Floats, temperature: float) -> Floats:
    """Return the probability of each label of each word, (W, C)."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def binned(chances: Floats, truth: Ints) -> Floats:
    """Return the bins of a reliability plot as sums that can be added up: how many words, how sure, how many right."""
    bins = reliability(chances, truth, NUM_BINS)
    return np.array([[one.count, one.count * one.confidence, one.count * one.accuracy] for one in bins])


def entities_in(sentence: Sentence, tags: Sequence[str]) -> str:
    """Return the entities of a sentence for people to read: "PER: John Smith; LOC: Rome"."""
    offsets = sentence.offsets
    spans = [(label, sentence.text[offsets[first][0] : offsets[end - 1][1]]) for first, end, label in spans_of(tags)]
    return "; ".join(f"{label}: {text}" for label, text in spans) or "nothing"
