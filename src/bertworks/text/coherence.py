"""Documents in, the lexical similarity of neighbouring sentences out: high in running text, lost by shuffling.

The similarity of two sentences is the cosine of their TF-IDF vectors (document frequencies within the block); for
scripts without spaces, the terms are character bigrams. Three means are compared:
  near    a sentence and the next one
  far     the same sentences in random pairs across the block
  inside  a sentence and one of the same document, half a document away
In running text near is several times far; in a shuffled list they are equal. If only the sentences within each
document were shuffled, near equals inside.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from bertworks.text.document import Document
from bertworks.text.statistics import TextStatistics

# Per block; enough to separate running text from a shuffled list by 30 standard errors.
_MAX_PAIRS = 1_000
# Fewer pairs cannot be re-paired sensibly.
_MIN_PAIRS = 8
# Shorter documents have no distant sentences.
_MIN_DOCUMENT_SENTENCES = 10
# Scores are summed as integers, so that the sum does not depend on the order of blocks.
SCORE_UNIT = 1_000_000

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3040-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"
_WORDS = re.compile(rf"[{_UNSPACED}]{{2,}}|[^\W\d_{_UNSPACED}]{{3,}}")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")

Pair = tuple[str, str, str | None]
_Terms = frozenset[str]
_Item = TypeVar("_Item")


def measure_coherence(documents: Sequence[Document], statistics: TextStatistics) -> None:
    """Add the similarities of neighbouring sentences, within documents and across the boundary of two documents."""
    _add_scores(_pairs_within(documents), "sentences", statistics)
    _add_scores(_pairs_between(documents), "documents", statistics)


def _pairs_within(documents: Sequence[Document]) -> list[Pair]:
    indices = [
        (number, index) for number, document in enumerate(documents) for index in range(len(document.sentences) - 1)
    ]
    pairs: list[Pair] = []
    for number, index in _subsample(indices):
        sentences = documents[number].sentences
        other = (
            sentences[(index + len(sentences) // 2) % len(sentences)]
            if len(sentences) >= _MIN_DOCUMENT_SENTENCES
            else None
        )
        pairs.append((sentences[index], sentences[index + 1], other))
    return pairs


def _pairs_between(documents: Sequence[Document]) -> list[Pair]:
    pairs = [(document.sentences[-1], following.sentences[0]) for document, following in pairwise(documents)]
    return [(left, right, None) for left, right in _subsample(pairs)]


def _subsample(items: Sequence[_Item]) -> Sequence[_Item]:
    return items[:: -(-len(items) // _MAX_PAIRS) or 1]


def _add_scores(pairs: Sequence[Pair], name: str, statistics: TextStatistics) -> None:
    # Copies say nothing about running text: they are similar wherever they occur.
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    size = len(pairs)
    if size < _MIN_PAIRS:
        return
    lefts, rights = [_terms(left) for left, _, _ in pairs], [_terms(right) for _, right, _ in pairs]
    idf = _IdfWeights(lefts + rights)
    shifts = sorted({size // 2, size // 3, size // 5} - {0})
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        _add(f"neighbouring {name}: near", idf.score(left, right), statistics)
        for shift in shifts:
            _add(f"neighbouring {name}: far", idf.score(left, rights[(number + shift) % size]), statistics)
        other = pairs[number][2]
        if other is not None:
            _add(f"neighbouring {name}: near, long documents", idf.score(left, right), statistics)
            _add(f"neighbouring {name}: inside", idf.score(left, _terms(other)), statistics)


def _add(name: str, score: int, statistics: TextStatistics) -> None:
    statistics.totals[f"{name}, score"] += score
    statistics.totals[f"{name}, squares"] += score * score
    statistics.totals[f"{name}, pairs"] += 1


def _terms(sentence: str) -> _Terms:
    terms: set[str] = set()
    for run in _WORDS.findall(sentence.lower()):
        if _IS_UNSPACED.match(run):
            terms.update(run[index : index + 2] for index in range(len(run) - 1))
        else:
            terms.add(run)
    return frozenset(terms)


class _IdfWeights:
    """Squared inverse document frequencies of the terms of the given sentences."""

    def __init__(self, sentences: Sequence[_Terms]) -> None:
        frequency: Counter[str] = Counter()
        for terms in sentences:
            frequency.update(terms)
        self._weights = {term: math.log(len(sentences) / number) ** 2 for term, number in frequency.items()}
        self._max_weight = math.log(len(sentences)) ** 2

    def score(self, left: _Terms, right: _Terms) -> int:
        """Return the cosine similarity of two sentences in SCORE_UNITs."""
        common_weight = self._sum(left & right)
        return round(SCORE_UNIT * common_weight / math.sqrt(self._sum(left) * self._sum(right))) if common_weight else 0

    def _sum(self, terms: _Terms) -> float:
        # fsum, because the iteration order of a set differs between processes and a plain float sum depends on it.
        return math.fsum(self._weights.get(term, self._max_weight) for term in terms)
