"""Static vectors: lookup, unknown words, neighbors and analogies with values by hand."""

import numpy as np
import pytest

from bertworks.embeddings.static import StaticVectors
from bertworks.errors import InputError, SettingsError

WORDS = ["man", "woman", "king", "queen", "Paris", "apple"]
TABLE = np.array(
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 2, 0], [1, 1, 2, 0], [0, 0, 0, 3], [-2, 0, 0, 0]], dtype=np.float32
)


@pytest.fixture
def vectors() -> StaticVectors:
    return StaticVectors(WORDS, TABLE)


def test_words_are_looked_up_exactly_then_in_lower_case(vectors: StaticVectors):
    assert vectors.vector("king").tolist() == [1, 0, 2, 0]
    assert vectors.vector("King").tolist() == [1, 0, 2, 0]
    assert vectors.find("paris") is None, "lower case does not match upper case"
    assert vectors.has_vectors(["Paris", "paris", "QUEEN"]).tolist() == [True, False, True]
    assert (len(vectors), vectors.vector_size, "man" in vectors) == (6, 4, True)


def test_an_unknown_word_gets_zeros_or_the_mean_or_an_error_with_similar_words(vectors: StaticVectors):
    result = vectors.vectors(["pear", "man"])
    assert result.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert result.dtype == np.float32
    assert vectors.vectors(["pear"], "mean")[0].tolist() == pytest.approx((TABLE.sum(axis=0) / 6).tolist())
    with pytest.raises(InputError, match=r"'aple' is not among the 6 words with a vector; did you mean apple\?"):
        vectors.vectors(["man", "aple"], "refuse")
    with pytest.raises(SettingsError, match="zeros, mean, refuse"):
        vectors.vectors(["man"], "random")
    assert vectors.vectors([]).shape == (0, 4)


def test_vectors_are_copies(vectors: StaticVectors):
    vectors.vectors(["man"])[:] = 7
    vectors.vector("man")[:] = 7
    assert vectors.vector("man").tolist() == [1, 0, 0, 0]


def test_most_similar_words_are_ranked_by_cosine(vectors: StaticVectors):
    neighbors = vectors.most_similar("man", 5)
    assert [neighbor.word for neighbor in neighbors] == ["woman", "king", "queen", "Paris", "apple"]
    assert [neighbor.cosine for neighbor in neighbors] == pytest.approx([2**-0.5, 5**-0.5, 6**-0.5, 0, -1])
    assert vectors.most_similar("man", 100) == neighbors, "there are no more words"
    assert [neighbor.word for neighbor in vectors.nearest(np.array([0, 0, 0, 1], dtype=np.float32), 1)] == ["Paris"]
    with pytest.raises(SettingsError, match="top is 0"):
        vectors.most_similar("man", 0)


def test_an_analogy_adds_unit_vectors_and_excludes_its_own_words(vectors: StaticVectors):
    neighbors = vectors.analogy("man", "woman", "king", 3)
    assert neighbors[0].word == "queen"
    assert not {neighbor.word for neighbor in neighbors} & {"man", "woman", "king"}
    # woman/|woman| - man + king/|king|, by hand
    query = np.array([2**-0.5 - 1 + 5**-0.5, 2**-0.5, 2 * 5**-0.5, 0])
    queen = TABLE[3] / 6**0.5
    assert neighbors[0].cosine == pytest.approx(query @ queen / np.linalg.norm(query))
    with pytest.raises(InputError, match="'prince' is not among"):
        vectors.analogy("man", "woman", "prince")


def test_a_zero_vector_has_cosine_zero():
    vectors = StaticVectors(["a", "b"], np.array([[0, 0], [1, 0]], dtype=np.float32))
    assert vectors.most_similar("a") == [("b", 0.0)]
