"""The pure part of tagging. Sentences in, those of a document together out; such a passage in, which of its sentences
stand together in a row, between how much of the document, out; logits of words in, BIO tags and spans out.

S sentences, W words, P pieces, C labels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.datasets.conll import Sentence, repair_tags, spans_of
from bertworks.errors import InputError
from bertworks.metrics.calibration import reliability
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

# Of how many words the sentences are that a case gathers, unless one alone has more: a document of any length is read
# in bounded memory. And how many words of its document such a passage keeps at hand on either side: a word has at least
# one piece, so rows of 4,096 places need no more.
PASSAGE_WORDS, CONTEXT_WORDS = 4_096, 512

NUM_BINS = 15

# Which labels of a model may stand for a tag, in the order of preference: models from elsewhere may know only I- (IOB1
# without two entities side by side), or say BIOES or BMES.
_TAG_FALLBACKS = {"B": "BISU", "I": "IMELB"}


@dataclass(frozen=True, slots=True)
class EntitySpan:
    """An entity: characters `start` up to but not including `end` of the text that was given, verbatim in `text`.

    `probability` is that all its words are labelled right, taken as independent: the product of the probabilities of
    the labels that the model chose for them.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SentenceContext:
    """What is asked, and what stands before and after it in its document, nearest to it in the middle.

    Where it is several sentences, `parts` are these, and `sentence` has the words of all.
    """

    sentence: Sentence
    before: tuple[Sentence, ...] = ()
    after: tuple[Sentence, ...] = ()
    parts: tuple[Sentence, ...] = ()

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        return self.parts or (self.sentence,)

    @property
    def word_edges(self) -> Ints:
        """Return (S + 1,): the first word of each sentence, and how many words there are."""
        return np.cumsum([0, *(len(one.words) for one in self.sentences)])


@dataclass(frozen=True, slots=True)
class WordTokens:
    """Words as pieces, and how many each word has (W,)."""

    tokens: TokenizedText
    counts: Ints


@dataclass(frozen=True, slots=True)
class TokenizedPassage:
    """What a model may read: pieces, context included; where the words that are asked begin (W,), and where each of
    their sentences begins and the last one ends (S + 1,)."""

    tokens: TokenizedText
    first_tokens: Ints
    edges: Ints


@dataclass(frozen=True, slots=True)
class SentenceRange:
    """Sentences `first` up to but not including `stop`, asked together among the pieces `begin` up to `end`."""

    first: int
    stop: int
    begin: int
    end: int


def group_by_document(sentences: Iterable[Sentence]) -> Iterator[SentenceContext]:
    """Yield the sentences of each document together; of a long one, a passage at a time with the words around it."""
    for _, document in itertools.groupby(sentences, key=lambda sentence: sentence.document):
        yield from _passages(document)


def _passages(document: Iterator[Sentence]) -> Iterator[SentenceContext]:
    before: list[Sentence] = []
    held: list[Sentence] = []
    while True:
        missing = PASSAGE_WORDS + CONTEXT_WORDS - _num_words(held)
        while missing > 0 and (sentence := next(document, None)) is not None:
            held.append(sentence)
            missing -= len(sentence.words)
        if not held:
            return
        count = max(1, _num_within(held, PASSAGE_WORDS))
        own, held = held[:count], held[count:]
        yield join_sentences(own, before, held[: _num_within(held, CONTEXT_WORDS) + 1])
        before = [*before, *own]
        del before[: -_num_within(before[::-1], CONTEXT_WORDS) - 1]


def _num_words(sentences: Iterable[Sentence]) -> int:
    return sum(len(sentence.words) for sentence in sentences)


def _num_within(sentences: Sequence[Sentence], num_words: int) -> int:
    """Return how many sentences from the first on have so many words or fewer."""
    ends = itertools.accumulate(len(sentence.words) for sentence in sentences)
    return sum(1 for _ in itertools.takewhile(lambda end: end <= num_words, ends))


def join_sentences(
    sentences: Sequence[Sentence], before: Sequence[Sentence], after: Sequence[Sentence]
) -> SentenceContext:
    """Return sentences that follow one another as a passage: their words as those of one, a line each in its text."""
    around = tuple(before), tuple(after)
    if len(sentences) == 1:
        return SentenceContext(sentences[0], *around)
    texts = [one.text for one in sentences]
    begins = itertools.accumulate((len(text) + 1 for text in texts[:-1]), initial=0)
    offsets = tuple(
        (start + begin, end + begin) for one, begin in zip(sentences, begins, strict=True) for start, end in one.offsets
    )
    words = tuple(word for one in sentences for word in one.words)
    tags = None
    if all(one.tags is not None for one in sentences):
        tags = tuple(tag for one in sentences for tag in one.tags or ())
    whole = Sentence(words, tags, "\n".join(texts), offsets, sentences[0].document, sentences[0].location)
    return SentenceContext(whole, *around, tuple(sentences))


def tokenize_alone(context: SentenceContext, tokenizer: Tokenizer) -> TokenizedPassage:
    """Return the pieces of what is asked and nothing else."""
    return tokenize_in_context(context, tokenizer, 0)


def tokenize_in_context(context: SentenceContext, tokenizer: Tokenizer, margin: int) -> TokenizedPassage:
    """Return the pieces of what is asked between those of its document, at most `margin` of these on either side."""
    own = tokenize_words(_words_with_spaces(context.sentence), tokenizer)
    # A word has at least one piece, so no more words than pieces are wanted.
    before = tokenize_words(_last_words(context.before, margin), tokenizer).tokens
    before = before.between(max(0, len(before) - margin), len(before))
    after = tokenize_words(_first_words(context.after, margin), tokenizer).tokens.between(0, margin)
    begins = np.concatenate([[0], np.cumsum(own.counts)]) + len(before)  # (W + 1,)
    return TokenizedPassage(
        TokenizedText.concatenate([before, own.tokens, after]), begins[:-1], begins[context.word_edges]
    )


def pack_sentences(passage: TokenizedPassage, room: int, margin: int) -> Iterator[SentenceRange]:
    """Yield which sentences stand together: as many as a row has room for beside `margin` pieces of context on either
    side, or all that the document has there.

    A sentence too long for that has what context its row has left; one that is longer than a row has all of it, to
    slide over.
    """
    edges, total = passage.edges.tolist(), len(passage.tokens)

    def context(first: int, stop: int) -> tuple[int, int]:
        return min(margin, edges[first]), min(margin, total - edges[stop])

    first, num_sentences = 0, len(edges) - 1
    while first < num_sentences:
        stop = first + 1
        while stop < num_sentences and edges[stop + 1] - edges[first] + sum(context(first, stop + 1)) <= room:
            stop += 1
        before, after = context(first, stop)
        spare = room - (edges[stop] - edges[first])
        if spare >= 0:
            after = min(after, max(spare // 2, spare - before))
            before = min(before, spare - after)
        yield SentenceRange(first, stop, edges[first] - before, edges[stop] + after)
        first = stop


def separate_sentences(passage: TokenizedPassage) -> Iterator[SentenceRange]:
    """Yield the sentences one by one, with nothing around them."""
    for number, (begin, end) in enumerate(itertools.pairwise(passage.edges.tolist())):
        yield SentenceRange(number, number + 1, begin, end)


def tokenize_words(words: Sequence[str], tokenizer: Tokenizer) -> WordTokens:
    """Return the pieces of words, each cut by itself; a space behind a word tells kinds that care for it.

    A word of which nothing remains, such as a lone control character, is read as the unknown piece: so each has one.
    """
    flat = tokenizer.encode_sentences(words)
    counts = np.diff(flat.sentence_ends, prepend=0).astype(np.int64)
    ids = flat.input_ids.astype(np.int64)
    empty = counts == 0
    if empty.any():
        ids = np.insert(ids, flat.sentence_ends[empty], tokenizer.specials.unknown)
        counts[empty] = 1
    ends = np.cumsum(counts)
    unknown: dict[int, str] = {}
    for number in np.unique(np.searchsorted(ends, np.flatnonzero(ids == tokenizer.specials.unknown), "right")):
        begin = int(ends[number] - counts[number])
        unknown |= {begin + at: written for at, written in tokenizer.tokenize(words[number]).unknown.items()}
    return WordTokens(TokenizedText.from_ids(ids, unknown), counts)


def _words_with_spaces(sentence: Sentence) -> list[str]:
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
        found = _words_with_spaces(sentence) + found
    return found[-count:]


def _first_words(sentences: Sequence[Sentence], count: int) -> list[str]:
    found: list[str] = []
    for sentence in sentences:
        if len(found) >= count:
            break
        found += _words_with_spaces(sentence)
    return found[:count]


def labels_for(types: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a model for these types of entities: O, then B- and I- of each, by the alphabet."""
    return ("O", *(f"{letter}-{kind}" for kind in sorted(types) for letter in "BI"))


@functools.lru_cache(maxsize=64)
def label_ids_of(labels: tuple[str, ...]) -> Mapping[str, int]:
    """Return the number of the label of each BIO tag; labels that are no such tags are refused."""
    # Each alone is legal, so only what is no tag at all is refused.
    for label in labels:
        repair_tags((label,), "the labels of the model")
    known = {label if label == "O" else f"{label[0]}-{label[2:]}": number for number, label in enumerate(labels)}
    found = {"O": known["O"]} if "O" in known else {}
    for kind in {label[2:] for label in labels if label != "O"}:
        for letter, others in _TAG_FALLBACKS.items():
            number = next((known[name] for other in others if (name := f"{other}-{kind}") in known), None)
            if number is not None:
                found[f"{letter}-{kind}"] = number
    return found


def label_id_of(tag: str, labels: tuple[str, ...], location: str) -> int:
    """Return the number of the label of a BIO tag; one that the training sentences lack is refused."""
    number = label_ids_of(labels).get(tag)
    if number is None:
        raise InputError(
            f"{location}: the tag '{tag}' does not occur in the training sentences; known are: {', '.join(labels)}"
        )
    return number


def decode_tags(logits: Floats, labels: Sequence[str], temperature: float) -> tuple[tuple[str, ...], Floats]:
    """Return the legal BIO tags of words from their logits (W, C), and how probable each chosen label is (W,).

    Each word has its likeliest label. What is then illegal is mended from left to right: I-X that continues no X (after
    O, after another type, at the beginning) becomes B-X, and a scheme other than BIO is written as BIO. The
    probability stays that of the label as it was chosen.
    """
    chosen = [labels[number] for number in logits.argmax(axis=1)]
    return repair_tags(chosen)[0], label_probabilities(logits, temperature).max(axis=1)


def spans_in(sentence: Sentence, tags: Sequence[str], probabilities: Floats) -> tuple[EntitySpan, ...]:
    """Return the entities that tags say, as they stand in the text."""
    found = []
    for first, end, label in spans_of(tags):
        start, stop = sentence.offsets[first][0], sentence.offsets[end - 1][1]
        found.append(
            EntitySpan(start, stop, label, sentence.text[start:stop], float(np.prod(probabilities[first:end])))
        )
    return tuple(found)


def label_probabilities(logits: Floats, temperature: float) -> Floats:
    """Return the probability of each label of each word, (W, C)."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def reliability_bins(probabilities: Floats, truth: Ints) -> Floats:
    """Return the bins of a reliability plot as sums that can be added up: how many words, how sure, how many right."""
    bins = reliability(probabilities, truth, NUM_BINS)
    return np.array([[one.count, one.count * one.confidence, one.count * one.accuracy] for one in bins])


def entities_in(sentence: Sentence, tags: Sequence[str]) -> str:
    """Return the entities of a sentence for people to read: "PER: John Smith; LOC: Rome"."""
    offsets = sentence.offsets
    spans = [(label, sentence.text[offsets[first][0] : offsets[end - 1][1]]) for first, end, label in spans_of(tags)]
    return "; ".join(f"{label}: {text}" for label, text in spans) or "nothing"
