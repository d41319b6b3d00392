"""Geometry of word senses: a word in many sentences and a model in, the layout of its vectors out.

A static model has one vector per word; a contextual model has one per sentence, in clusters. N sentences, D vector
size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.vectors import Extraction, Floats, extract_vectors
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError
from bertworks.vocabulary.characters import IDEOGRAPH

Points = npt.NDArray[np.float64]
# Cosines that differ by less are equal: the same vector computed in batches of different shapes.
_COSINE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class WordUse:
    """A word in a sentence: its sense, the sentence, and the offsets of the word."""

    sense: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SenseGeometry:
    """The layout of the vectors of a word.

    points                      (N, 2) on the first two principal components
    explained_variance_ratio    of these components; 1 if there is no variance
    num_distinct_vectors        number of distinct vectors
    within_similarity           mean cosine between sentences of the same sense
    across_similarity           mean cosine between sentences of different senses
    nearest_neighbor_accuracy   ratio of sentences whose nearest neighbor has the same sense; ties count fractionally,
                                so a single vector is as accurate as chance
    """

    points: Points
    explained_variance_ratio: float
    num_distinct_vectors: int
    within_similarity: float
    across_similarity: float
    nearest_neighbor_accuracy: float


def find_word(word: str, text: str) -> tuple[int, int] | None:
    """Return the offsets of the first occurrence of a word in a text, ignoring case and parts of longer words."""
    pattern = re.escape(word)
    if not IDEOGRAPH.search(word):  # Chinese has no spaces: every occurrence counts
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    match = re.search(pattern, text, re.IGNORECASE)
    return None if match is None else match.span()


def embed_uses(engine: TorchEngine, uses: Sequence[WordUse], extraction: Extraction) -> Floats:
    """Return (N, D): the vector of the word in each sentence, the mean over its tokens."""
    assert extraction.unit == "tokens"
    vectors: list[Floats] = []
    for batch in extract_vectors(engine, (use.text for use in uses), extraction):
        ends = np.cumsum(batch.num_rows)
        for start, end in zip(ends - batch.num_rows, ends, strict=True):
            use = uses[len(vectors)]
            offsets = batch.offsets[start:end]
            in_word = (offsets[:, 0] < use.end) & (offsets[:, 1] > use.start)
            if not in_word.any():
                raise InputError(f"the word is truncated in '{use.text}'; shorten the sentence")
            vectors.append(batch.vectors[start:end][in_word].mean(axis=0))
    return np.stack(vectors)


def measure_senses(vectors: Floats, senses: Sequence[str]) -> SenseGeometry:
    """Return the geometry of vectors (N, D), which are normalized to length 1 first."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = (vectors / np.maximum(lengths, np.float32(1e-12))).astype(np.float64)
    cosines = directions @ directions.T
    names = np.array(senses)
    is_same = names[:, None] == names
    is_other = ~np.eye(len(names), dtype=np.bool_)
    points, explained_ratio = _project(directions)
    return SenseGeometry(
        points=points,
        explained_variance_ratio=explained_ratio,
        num_distinct_vectors=_count_distinct(cosines),
        within_similarity=float(cosines[is_same & is_other].mean()) if (is_same & is_other).any() else 1.0,
        across_similarity=float(cosines[~is_same].mean()) if (~is_same).any() else 1.0,
        nearest_neighbor_accuracy=_neighbor_accuracy(np.where(is_other, cosines, -np.inf), is_same),
    )


def _project(directions: Points) -> tuple[Points, float]:
    """Return the first two principal components (N, 2) of directions (N, D), and their explained variance ratio."""
    centered = directions - directions.mean(axis=0)
    variance = float((centered**2).sum())
    if variance < len(directions) * _COSINE_TOLERANCE**2:
        return np.zeros((len(directions), 2)), 1.0
    left, values, right = np.linalg.svd(centered, full_matrices=False)
    # the sign of a component is chosen so that its largest coefficient is positive
    signs = np.sign(right[np.arange(2), np.abs(right[:2]).argmax(axis=1)])
    return left[:, :2] * values[:2] * signs, float((values[:2] ** 2).sum()) / variance


def _count_distinct(cosines: Points) -> int:
    first = (cosines > 1 - _COSINE_TOLERANCE).argmax(axis=1)  # the first sentence with the same vector
    return len(np.unique(first))


def _neighbor_accuracy(cosines: Points, is_same: npt.NDArray[np.bool_]) -> float:
    is_nearest = cosines > cosines.max(axis=1, keepdims=True) - _COSINE_TOLERANCE
    return float(((is_nearest & is_same).sum(axis=1) / is_nearest.sum(axis=1)).mean())
