"""Intrinsic evaluation of word vectors: vectors and human-made lists in, similarity and analogy scores out.

A similarity list has two words and a score per line, separated by tabs, commas or spaces. An analogy list has four
words per line, and lines such as ": family" that begin a section. Words without a vector are counted, not guessed.

V words, Q questions at a time, D vector size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertworks.embeddings.static import StaticVectors
from bertworks.errors import InputError
from bertworks.metrics.classification import spearman
from bertworks.text.compression import decompress, open_raw

# Q: there are Q x V cosines in memory.
_BATCH_SIZE = 256
_FORMATS = "two words and a score, or four words"


class WordPair(NamedTuple):
    """Two words and their similarity as judged by people."""

    first: str
    second: str
    score: float


class AnalogyQuestion(NamedTuple):
    """`first` is to `second` as `third` is to `answer`."""

    section: str
    first: str
    second: str
    third: str
    answer: str


@dataclass(frozen=True, slots=True)
class Similarity:
    """Spearman's correlation of cosines with human scores, over pairs whose words both have a vector."""

    num_pairs: int
    num_known: int
    spearman: float


@dataclass(frozen=True, slots=True)
class SectionScore:
    """The questions of a section: all, those whose words all have a vector, and those answered correctly."""

    section: str
    num_questions: int
    num_known: int
    num_correct: int

    @property
    def accuracy(self) -> float:
        """The fraction of correct answers among questions whose words are known; 0 if there are none."""
        return self.num_correct / self.num_known if self.num_known else 0.0


def read_word_list(path: Path) -> list[WordPair] | list[AnalogyQuestion]:
    """Read a similarity or an analogy list; which of the two is seen from its content."""
    lines = list(_lines(path))
    if lines[0][1].startswith(":") or _is_question(lines[-1][1]):  # the first line of pairs may be a header
        word_list: list[WordPair] | list[AnalogyQuestion] = list(_questions(path.name, lines))
    else:
        word_list = list(_pairs(path.name, lines))
    if not word_list:
        raise InputError(f"{path.name} has no pairs or questions; give {_FORMATS} per line")
    return word_list


def similarity(vectors: StaticVectors, pairs: Sequence[WordPair]) -> Similarity:
    """Score vectors on similarity pairs; pairs with an unknown word are skipped and counted."""
    known_pairs = [pair for pair in pairs if pair.first in vectors and pair.second in vectors]
    if len(known_pairs) < 2:
        return Similarity(len(pairs), len(known_pairs), 0.0)
    first, second = (
        vectors.unit_vectors[[vectors.row(word) for word in words]]
        for words in zip(*(pair[:2] for pair in known_pairs), strict=True)
    )
    cosines = np.einsum("nd,nd->n", first, second, dtype=np.float64)
    scores = np.array([pair.score for pair in known_pairs])
    return Similarity(len(pairs), len(known_pairs), spearman(cosines, scores))


def analogies(vectors: StaticVectors, questions: Sequence[AnalogyQuestion]) -> list[SectionScore]:
    """Score vectors on analogies by section: 3CosAdd over all words but the three of the question."""
    return [
        _score_section(vectors, name, list(group))
        for name, group in groupby(questions, lambda question: question.section)
    ]


def total(scores: Sequence[SectionScore], section: str = "all") -> SectionScore:
    """Return the sum of several sections."""
    return SectionScore(
        section,
        sum(score.num_questions for score in scores),
        sum(score.num_known for score in scores),
        sum(score.num_correct for score in scores),
    )


def _score_section(vectors: StaticVectors, name: str, questions: Sequence[AnalogyQuestion]) -> SectionScore:
    word_rows = [[vectors.find(word) for word in question[1:]] for question in questions]
    rows = np.array(
        [question_rows for question_rows in word_rows if None not in question_rows], dtype=np.int64
    ).reshape(-1, 4)
    num_correct = 0
    for start in range(0, len(rows), _BATCH_SIZE):
        first, second, third, answer = rows[start : start + _BATCH_SIZE].T
        unit_vectors = vectors.unit_vectors
        targets = unit_vectors[second] - unit_vectors[first] + unit_vectors[third]  # (Q, D)
        cosines = targets @ unit_vectors.T  # (Q, V), up to the norms of `targets`, which do not change the order
        cosines[np.arange(len(answer))[:, None], np.stack([first, second, third], axis=1)] = -np.inf
        num_correct += int(np.count_nonzero(cosines.argmax(axis=1) == answer))
    return SectionScore(name, len(questions), len(rows), num_correct)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_raw(str(path), str(path)) as raw:
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        data = b"".join(iter(lambda: stream.read(2**20), b""))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 text ({error.reason} at byte {error.start}); convert it") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path.name} is empty; give {_FORMATS} per line")
    yield from lines


def _questions(name: str, lines: Sequence[tuple[int, str]]) -> Iterator[AnalogyQuestion]:
    section = "all"
    for number, text in lines:
        if text.startswith(":"):
            section = text[1:].strip()
            continue
        words = text.split()
        if len(words) != 4:
            raise InputError(f"{name}, line {number}: {len(words)} words instead of four; correct or remove it")
        yield AnalogyQuestion(section, *words)


def _pairs(name: str, lines: Sequence[tuple[int, str]]) -> Iterator[WordPair]:
    """Yield pairs. The score is the first number after the words: SimLex-999 has the part of speech before it."""
    for index, (number, text) in enumerate(lines):
        separator = next((candidate for candidate in "\t," if candidate in text), None)
        first, second, *fields = [field.strip() for field in text.split(separator)] + ["", ""]
        score = next((float(field) for field in fields if _is_number(field)), None)
        if score is not None:
            yield WordPair(first, second, score)
        elif index:  # the first line may be a header
            raise InputError(f"{name}, line {number}: not {_FORMATS}; correct or remove it")


def _is_question(text: str) -> bool:
    words = text.split()
    return len(words) == 4 and not any(map(_is_number, words))


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
