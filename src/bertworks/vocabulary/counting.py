"""Word counts of streamed text: texts in, the number of occurrences of each word out.

Memory is bounded by the number of distinct chunks (about 120 bytes each), never by the amount of text: above
`num_distinct` of them the rarest are discarded, and `counts` records how many.
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
# The limit is checked after this many texts.
_TEXTS_PER_CHECK = 1_000


def count_words(
    texts: Iterable[str],
    backend: tokenizers.Tokenizer,
    chunks: Callable[[str], list[str]],
    num_distinct: int,
    counts: Counts,
) -> dict[str, int]:
    """Return word -> count, sorted by word; words are those of the backend's normalizer and pre-tokenizer."""
    words: Counter[str] = Counter()
    split = word_splitter(backend)
    for chunk, count in _count_chunks(texts, chunks, num_distinct, counts).items():
        is_continuation = chunk.startswith(CONTINUATION_MARK)
        for word in split(chunk):
            words[word.removeprefix(SPACE_MARK) if is_continuation else word] += count
    return dict(sorted(words.items()))


def word_splitter(backend: tokenizers.Tokenizer) -> Callable[[str], list[str]]:
    """Return a function from text to the words of the backend's normalizer and pre-tokenizer."""
    # Each access to these properties builds a new object.
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
    chunk_counts: Counter[str] = Counter()
    floor = 0
    for batch in _text_batches(texts):
        for text in batch:
            chunk_counts.update(chunks(text))
        while len(chunk_counts) > num_distinct:
            # The floor rises by one occurrence per round: a frequent word soon exceeds it, whenever it first appears.
            floor += 1
            chunk_counts = _prune(chunk_counts, floor, counts)
    return chunk_counts


def _text_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while batch := list(islice(stream, _TEXTS_PER_CHECK)):
        yield batch


def _prune(chunk_counts: Counter[str], floor: int, counts: Counts) -> Counter[str]:
    remaining = Counter({chunk: count for chunk, count in chunk_counts.items() if count > floor})
    counts["words left out: too many distinct words"] += chunk_counts.total() - remaining.total()
    return remaining
