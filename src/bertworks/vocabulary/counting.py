"""Count words in streamed text: texts in, how often each different word occurs out.

Memory is bounded by the number of different chunks (about 120 bytes each), never by the amount of text: above
`num_distinct` of them the rarest are forgotten, and `counts` says how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import tokenizers

from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import CONTINUATION_MARK, SPACE_MARK

# About 0.6 GB. English reaches it after several gigabytes of text.
NUM_DISTINCT = 5_000_000
# How many texts are counted between two looks at the limit.
_TEXTS_PER_CHECK = 1_000


def count_words(
    texts: Iterable[str],
    backend: tokenizers.Tokenizer,
    chunks: Callable[[str], list[str]],
    num_distinct: int,
    counts: Counts,
) -> dict[str, int]:
    """How often each word of the reader's normaliser and pre-tokeniser occurs, in the order of the words' text."""
    words: Counter[str] = Counter()
    split = word_splitter(backend)
    for chunk, number in _count_chunks(texts, chunks, num_distinct, counts).items():
        goes_on = chunk.startswith(CONTINUATION_MARK)
        for word in split(chunk):
            words[word.removeprefix(SPACE_MARK) if goes_on else word] += number
    return dict(sorted(words.items()))


def word_splitter(backend: tokenizers.Tokenizer) -> Callable[[str], list[str]]:
    """A function from text to the words of the reader's normaliser and pre-tokeniser."""
    # Both properties are built anew at each access, so they are fetched once.
    normalizer, pre_tokenizer = backend.normalizer, backend.pre_tokenizer

    def split(text: str) -> list[str]:
        text = text.removeprefix(CONTINUATION_MARK)
        clean = text if normalizer is None else normalizer.normalize_str(text)
        if pre_tokenizer is None:
            return [clean] if clean else []
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(clean)]

    return split


def _count_chunks(
    texts: Iterable[str], chunks: Callable[[str], list[str]], num_distinct: int, counts: Counts
) -> Counter[str]:
    seen: Counter[str] = Counter()
    floor = 0
    for several in _text_batches(texts):
        for text in several:
            seen.update(chunks(text))
        while len(seen) > num_distinct:
            # Each round forgets what is one occurrence more frequent than the last time: a word that comes often soon
            # outruns the floor, whenever it appears.
            floor += 1
            seen = _prune(seen, floor, counts)
    return seen


def _text_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while several := list(islice(stream, _TEXTS_PER_CHECK)):
        yield several


def _prune(chunk_counts: Counter[str], floor: int, counts: Counts) -> Counter[str]:
    kept = Counter({chunk: number for chunk, number in chunk_counts.items() if number > floor})
    counts["words forgotten: too many different ones"] += chunk_counts.total() - kept.total()
    return kept
