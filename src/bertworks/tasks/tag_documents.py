"""Documents of a tagging model: sentences in, grouped by document out; such a group in, its tokens and sequences out.

S sentences, W words, P tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bertworks.datasets.conll import Sentence
from bertworks.sampling.windows import WindowRule, Windows, make_windows
from bertworks.tasks.contract import InputSequence
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

Ints = npt.NDArray[np.int64]

# How many words the sentences of one example have, unless a single sentence has more: documents of any length are read
# in bounded memory. And how many words of its document an example keeps as context on either side: a word has at least
# one token, so sequences of 4,096 positions need no more.
PASSAGE_WORDS, CONTEXT_WORDS = 4_096, 512


@dataclass(frozen=True, slots=True)
class SentenceContext:
    """Sentences to tag, and those before and after them in their document.

    If there are several, they are `parts`, and `sentence` has the words of all.
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
        """Return (S + 1,): the first word of each sentence, and the number of words."""
        return np.cumsum([0, *(len(sentence.words) for sentence in self.sentences)])


@dataclass(frozen=True, slots=True)
class WordTokens:
    """The tokens of words, and how many each word has (W,)."""

    tokens: TokenizedText
    counts: Ints


@dataclass(frozen=True, slots=True)
class TokenizedPassage:
    """Tokens, context included; the first token of each word to tag (W,), and where each of their sentences begins and
    the last one ends (S + 1,)."""

    tokens: TokenizedText
    first_tokens: Ints
    edges: Ints


@dataclass(frozen=True, slots=True)
class SentenceRange:
    """Sentences `first` to `stop`, exclusive, tagged together in a sequence of the tokens `begin` to `end`."""

    first: int
    stop: int
    begin: int
    end: int


def group_by_document(sentences: Iterable[Sentence]) -> Iterator[SentenceContext]:
    """Yield the sentences of each document together; a long document in passages with the words around them."""
    for _, document in itertools.groupby(sentences, key=lambda sentence: sentence.document):
        yield from _passages(document)


def _passages(document: Iterator[Sentence]) -> Iterator[SentenceContext]:
    before: list[Sentence] = []
    buffer: list[Sentence] = []
    while True:
        num_missing = PASSAGE_WORDS + CONTEXT_WORDS - _num_words(buffer)
        while num_missing > 0 and (sentence := next(document, None)) is not None:
            buffer.append(sentence)
            num_missing -= len(sentence.words)
        if not buffer:
            return
        count = max(1, _num_within(buffer, PASSAGE_WORDS))
        passage, buffer = buffer[:count], buffer[count:]
        yield join_sentences(passage, before, buffer[: _num_within(buffer, CONTEXT_WORDS) + 1])
        before = [*before, *passage]
        del before[: -_num_within(before[::-1], CONTEXT_WORDS) - 1]


def _num_words(sentences: Iterable[Sentence]) -> int:
    return sum(len(sentence.words) for sentence in sentences)


def _num_within(sentences: Sequence[Sentence], num_words: int) -> int:
    """Return how many sentences, from the first on, have at most so many words together."""
    ends = itertools.accumulate(len(sentence.words) for sentence in sentences)
    return sum(1 for _ in itertools.takewhile(lambda end: end <= num_words, ends))


def join_sentences(
    sentences: Sequence[Sentence], before: Sequence[Sentence], after: Sequence[Sentence]
) -> SentenceContext:
    """Return consecutive sentences as one passage: its text has one line per sentence."""
    if len(sentences) == 1:
        return SentenceContext(sentences[0], tuple(before), tuple(after))
    texts = [sentence.text for sentence in sentences]
    begins = itertools.accumulate((len(text) + 1 for text in texts[:-1]), initial=0)
    offsets = tuple(
        (start + begin, end + begin)
        for sentence, begin in zip(sentences, begins, strict=True)
        for start, end in sentence.offsets
    )
    tags = None
    if all(sentence.tags is not None for sentence in sentences):
        tags = tuple(tag for sentence in sentences for tag in sentence.tags or ())
    passage = Sentence(
        words=tuple(word for sentence in sentences for word in sentence.words),
        tags=tags,
        text="\n".join(texts),
        offsets=offsets,
        document=sentences[0].document,
        location=sentences[0].location,
    )
    return SentenceContext(passage, tuple(before), tuple(after), tuple(sentences))


def tokenize_alone(context: SentenceContext, tokenizer: Tokenizer) -> TokenizedPassage:
    """Tokenize the sentences to tag without their document."""
    return tokenize_in_context(context, tokenizer, 0)


def tokenize_in_context(context: SentenceContext, tokenizer: Tokenizer, margin: int) -> TokenizedPassage:
    """Tokenize the sentences to tag with at most `margin` tokens of their document on either side."""
    word_tokens = tokenize_words(_words_with_spaces(context.sentence), tokenizer)
    # A word has at least one token, so `margin` words are enough.
    before = tokenize_words(_last_words(context.before, margin), tokenizer).tokens
    before = before.between(max(0, len(before) - margin), len(before))
    after = tokenize_words(_first_words(context.after, margin), tokenizer).tokens.between(0, margin)
    begins = np.concatenate([[0], np.cumsum(word_tokens.counts)]) + len(before)  # (W + 1,)
    return TokenizedPassage(
        TokenizedText.concatenate([before, word_tokens.tokens, after]), begins[:-1], begins[context.word_edges]
    )


def pack_sentences(passage: TokenizedPassage, max_tokens: int, margin: int) -> Iterator[SentenceRange]:
    """Yield which sentences share a sequence: as many as fit beside `margin` tokens of context on either side, or
    beside what the document has there.

    A sentence too long for that gets the context that still fits; one longer than a sequence gets all of it, to be
    split into windows.
    """
    edges, total = passage.edges.tolist(), len(passage.tokens)

    def context(first: int, stop: int) -> tuple[int, int]:
        return min(margin, edges[first]), min(margin, total - edges[stop])

    first, num_sentences = 0, len(edges) - 1
    while first < num_sentences:
        stop = first + 1
        while stop < num_sentences and edges[stop + 1] - edges[first] + sum(context(first, stop + 1)) <= max_tokens:
            stop += 1
        before, after = context(first, stop)
        spare = max_tokens - (edges[stop] - edges[first])
        if spare >= 0:
            after = min(after, max(spare // 2, spare - before))
            before = min(before, spare - after)
        yield SentenceRange(first, stop, edges[first] - before, edges[stop] + after)
        first = stop


def separate_sentences(passage: TokenizedPassage) -> Iterator[SentenceRange]:
    """Yield the sentences one by one, without context."""
    for index, (begin, end) in enumerate(itertools.pairwise(passage.edges.tolist())):
        yield SentenceRange(index, index + 1, begin, end)


def windows_of_range(
    passage: TokenizedPassage, sentence_range: SentenceRange, tokenizer: Tokenizer, window_rule: WindowRule
) -> tuple[int, Windows]:
    """Return the first token of a range and its windows."""
    begin, end = sentence_range.begin, sentence_range.end
    if window_rule.truncate and end - begin > window_rule.max_length - tokenizer.num_special_tokens(1):
        # Without context, so that truncation removes the end of the sentence itself.
        begin, end = passage.edges[[sentence_range.first, sentence_range.stop]].tolist()
    return begin, make_windows(tokenizer, [passage.tokens.between(begin, end)], window_rule)


def input_sequences_of(
    windows: Windows, begin: int, first_tokens: Ints, targets: Ints | None
) -> tuple[InputSequence, ...]:
    """Return sequences that predict each word once, at its first token; truncated words are not predicted."""
    owners = windows.owners(0)  # (tokens that were not truncated,)
    first_tokens = first_tokens[first_tokens - begin < len(owners)] - begin
    sequences = []
    for index, window in enumerate(windows.sequences):
        (span,) = window.spans
        words = np.flatnonzero(owners[first_tokens] == index)
        sequences.append(
            InputSequence.from_window(
                replace(window, spans=(replace(span, first=begin + span.first),)),
                positions=first_tokens[words] - span.first + span.position,
                targets=None if targets is None else targets[words],
            )
        )
    return tuple(sequences)


def tokenize_words(words: Sequence[str], tokenizer: Tokenizer) -> WordTokens:
    """Tokenize each word by itself; a space after a word matters to byte-level tokenizers.

    A word without tokens, such as a lone control character, becomes the unknown token: each word has at least one.
    """
    flat = tokenizer.encode_sentences(words)
    counts = np.diff(flat.sentence_ends, prepend=0).astype(np.int64)
    input_ids = flat.input_ids.astype(np.int64)
    is_empty = counts == 0
    if is_empty.any():
        input_ids = np.insert(input_ids, flat.sentence_ends[is_empty], tokenizer.specials.unknown)
        counts[is_empty] = 1
    ends = np.cumsum(counts)
    unknown: dict[int, str] = {}
    for index in np.unique(np.searchsorted(ends, np.flatnonzero(input_ids == tokenizer.specials.unknown), "right")):
        begin = int(ends[index] - counts[index])
        unknown |= {begin + position: surface for position, surface in tokenizer.tokenize(words[index]).unknown.items()}
    return WordTokens(TokenizedText.from_ids(input_ids, unknown), counts)


def tokenize_with_offsets(context: SentenceContext, tokenizer: Tokenizer) -> TokenizedText:
    """Return the tokens of sentences that are tokenized word by word, with offsets into their text."""
    passage, sentence = tokenize_alone(context, tokenizer), context.sentence
    counts = np.diff(passage.first_tokens, append=len(passage.tokens))
    offsets: list[tuple[int, int]] = []
    for word, (start, end), count in zip(sentence.words, sentence.offsets, counts.tolist(), strict=True):
        word_offsets = tokenizer.tokenize(word).offsets
        # The unknown token of a word without tokens covers all of it.
        offsets += (word_offsets + start).tolist() if len(word_offsets) == count else [(start, end)] * count
    begins_word = np.zeros(len(passage.tokens), dtype=np.bool_)
    begins_word[passage.first_tokens] = True
    return TokenizedText(passage.tokens.input_ids, np.array(offsets, dtype=np.int64).reshape(-1, 2), begins_word)


def _words_with_spaces(sentence: Sentence) -> list[str]:
    """Return the words, each followed by a space where the text has one."""
    starts = [start for start, _ in sentence.offsets[1:]]
    ends = [end for _, end in sentence.offsets]
    spaces = [" " if end < start else "" for end, start in zip(ends, starts, strict=False)]
    return [word + space for word, space in zip(sentence.words, [*spaces, " "], strict=False)]


def _last_words(sentences: Sequence[Sentence], count: int) -> list[str]:
    words: list[str] = []
    for sentence in reversed(sentences):
        if len(words) >= count:
            break
        words = _words_with_spaces(sentence) + words
    return words[-count:]


def _first_words(sentences: Sequence[Sentence], count: int) -> list[str]:
    words: list[str] = []
    for sentence in sentences:
        if len(words) >= count:
            break
        words += _words_with_spaces(sentence)
    return words[:count]
