"""Documents in, how much neighbouring sentences have in common out: the trace of running text that shuffling removes.

Two sentences are as alike as the cosine of their words, rare words counting more (inverse frequency in the block);
where no spaces stand between words, pairs of characters take their place. Three means are compared:
  near    a sentence and the next one
  far     the same sentences, paired anew across the block
  inside  a sentence and one of the same document, half a document away
In running text near is several times far; in a shuffled list they are equal. Where only the sentences of each document
were shuffled, near equals inside.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from bertworks.text.document import Document
from bertworks.text.tally import TextStatistics

# Of each block: enough to tell running text from a shuffled list with 30 standard errors between.
_MAX_PAIRS = 1_000
# Fewer pairs to choose from cannot be paired anew in a sensible way.
_MIN_PAIRS = 8
# A shorter document has no sentence that is far from another.
_MIN_DOCUMENT_SENTENCES = 10
# Scores are added as integers, so that the sum does not depend on the order of blocks.
SCORE_UNIT = 1_000_000

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3040-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"
_WORDS = re.compile(rf"[{_UNSPACED}]{{2,}}|[^\W\d_{_UNSPACED}]{{3,}}")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")

Pair = tuple[str, str, str | None]
_Terms = frozenset[str]
_Item = TypeVar("_Item")


def measure_coherence(documents: Sequence[Document], statistics: TextStatistics) -> None:
    """Add the scores of neighbours to the tally: inside documents, and where one document ends and the next begins."""
    _add_scores(_pairs_within(documents), "sentences", statistics)
    _add_scores(_pairs_between(documents), "documents", statistics)


def _pairs_within(documents: Sequence[Document]) -> list[Pair]:
    places = [(number, place) for number, one in enumerate(documents) for place in range(len(one.sentences) - 1)]
    pairs: list[Pair] = []
    for number, place in _subsample(places):
        sentences = documents[number].sentences
        other = (
            sentences[(place + len(sentences) // 2) % len(sentences)]
            if len(sentences) >= _MIN_DOCUMENT_SENTENCES
            else None
        )
        pairs.append((sentences[place], sentences[place + 1], other))
    return pairs


def _pairs_between(documents: Sequence[Document]) -> list[Pair]:
    pairs = [(one.sentences[-1], following.sentences[0]) for one, following in pairwise(documents)]
    return [(left, right, None) for left, right in _subsample(pairs)]


def _subsample(items: Sequence[_Item]) -> Sequence[_Item]:
    return items[:: -(-len(items) // _MAX_PAIRS) or 1]


def _add_scores(pairs: Sequence[Pair], name: str, statistics: TextStatistics) -> None:
    # Copies say nothing about running text: a line and its copy are alike wherever they stand.
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    size = len(pairs)
    if size < _MIN_PAIRS:
        return
    lefts, rights = [_terms(left) for left, _, _ in pairs], [_terms(right) for _, right, _ in pairs]
    weigh = _IdfWeights(lefts + rights)
    shifts = sorted({size // 2, size // 3, size // 5} - {0})
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        _add(f"neighbouring {name}: near", weigh.score(left, right), statistics)
        for shift in shifts:
            _add(f"neighbouring {name}: far", weigh.score(left, rights[(number + shift) % size]), statistics)
        other = pairs[number][2]
        if other is not None:
            _add(f"neighbouring {name}: near, long documents", weigh.score(left, right), statistics)
            _add(f"neighbouring {name}: inside", weigh.score(left, _terms(other)), statistics)


def _add(name: str, score: int, statistics: TextStatistics) -> None:
    statistics.totals[f"{name}, score"] += score
    statistics.totals[f"{name}, squares"] += score * score
    statistics.totals[f"{name}, pairs"] += 1


def _terms(sentence: str) -> _Terms:
    found: set[str] = set()
    for run in _WORDS.findall(sentence.lower()):
        if _IS_UNSPACED.match(run):
            found.update(run[place : place + 2] for place in range(len(run) - 1))
        else:
            found.add(run)
    return frozenset(found)


class _IdfWeights:
    """How much each term counts, by how few of the given sentences have it."""

    def __init__(self, sentences: Sequence[_Terms]) -> None:
        frequency: Counter[str] = Counter()
        for terms in sentences:
            frequency.update(terms)
        self._weights = {term: math.log(len(sentences) / number) ** 2 for term, number in frequency.items()}
        self._max_weight = math.log(len(sentences)) ** 2

    def score(self, left: _Terms, right: _Terms) -> int:
        """Return the cosine of two sentences in SCORE_UNITs."""
        shared = self._sum(left & right)
        return round(SCORE_UNIT * shared / math.sqrt(self._sum(left) * self._sum(right))) if shared else 0

    def _sum(self, terms: _Terms) -> float:
        # fsum: the order of a set differs between processes, and a plain sum of floats depends on it.
        return math.fsum(self._weights.get(term, self._max_weight) for term in terms)
