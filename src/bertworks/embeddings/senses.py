"""A word in many sentences and a model in, where its vectors lie out: one point of a static model, clusters of others.

N sentences, D width.
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
# Cosines that differ by less are alike: one vector computed in batches of other shapes.
_COSINE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class WordUse:
    """A word in a sentence: what it means there, the sentence, and where in it the word stands."""

    sense: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SenseGeometry:
    """Where the vectors of a word lie.

    points       (N, 2) in the plane in which they are spread the most
    shown        the share of their spread that the plane shows; 1 where there is none
    num_places   how many different vectors there are
    within       the mean cosine of two sentences of the same sense, and `across` of two different ones
    told_apart   the share of sentences whose nearest other one has the same sense; of equally near ones each counts for
                 its share, so that a single vector tells as much as chance
    """

    points: Points
    explained_variance_ratio: float
    num_distinct_vectors: int
    within_similarity: float
    across_similarity: float
    nearest_neighbor_accuracy: float


def find_word(word: str, text: str) -> tuple[int, int] | None:
    """Return where a word first stands in a text, in capital or small letters, and not within a longer one."""
    pattern = re.escape(word)
    if not IDEOGRAPH.search(word):  # Chinese has no spaces: there every place counts
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    found = re.search(pattern, text, re.IGNORECASE)
    return None if found is None else found.span()


def embed_uses(engine: TorchEngine, uses: Sequence[WordUse], extraction: Extraction) -> Floats:
    """Return (N, D): the vector of the word in each sentence, the mean of its pieces where it has several."""
    assert extraction.unit == "pieces"
    found: list[Floats] = []
    for portion in extract_vectors(engine, (use.text for use in uses), extraction):
        ends = np.cumsum(portion.num_rows)
        for start, end in zip(ends - portion.num_rows, ends, strict=True):
            use = uses[len(found)]
            offsets = portion.offsets[start:end]
            own = (offsets[:, 0] < use.end) & (offsets[:, 1] > use.start)
            if not own.any():
                raise InputError(f"the word is cut off in '{use.text}'; shorten the sentence")
            found.append(portion.vectors[start:end][own].mean(axis=0))
    return np.stack(found)


def measure_senses(vectors: Floats, senses: Sequence[str]) -> SenseGeometry:
    """Return where vectors (N, D) lie; all are taken at length 1, for their angles count."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = (vectors / np.maximum(lengths, np.float32(1e-12))).astype(np.float64)
    cosines = directions @ directions.T
    names = np.array(senses)
    same = names[:, None] == names
    others = ~np.eye(len(names), dtype=np.bool_)
    points, shown = _project(directions)
    return SenseGeometry(
        points,
        shown,
        _count_distinct(cosines),
        float(cosines[same & others].mean()) if (same & others).any() else 1.0,
        float(cosines[~same].mean()) if (~same).any() else 1.0,
        _neighbor_accuracy(np.where(others, cosines, -np.inf), same),
    )


def _project(directions: Points) -> tuple[Points, float]:
    """Return (N, 2): the two main components of directions (N, D), and the share of the spread in them."""
    centred = directions - directions.mean(axis=0)
    spread = float((centred**2).sum())
    if spread < len(directions) * _COSINE_TOLERANCE**2:
        return np.zeros((len(directions), 2)), 1.0
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    # of the two signs that a component may have, the one with which its largest number is positive
    signs = np.sign(right[np.arange(2), np.abs(right[:2]).argmax(axis=1)])
    return left[:, :2] * values[:2] * signs, float((values[:2] ** 2).sum()) / spread


def _count_distinct(cosines: Points) -> int:
    first = (cosines > 1 - _COSINE_TOLERANCE).argmax(axis=1)  # the first sentence with the same vector
    return len(np.unique(first))


def _neighbor_accuracy(cosines: Points, same: npt.NDArray[np.bool_]) -> float:
    nearest = cosines > cosines.max(axis=1, keepdims=True) - _COSINE_TOLERANCE
    return float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).mean())
