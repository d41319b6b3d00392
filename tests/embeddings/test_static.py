"""A table of word vectors: looking words up, what unknown ones get, neighbours and analogies with values by hand."""

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


def test_a_word_is_found_as_it_stands_or_in_small_letters(vectors: StaticVectors):
    assert vectors.vector("king").tolist() == [1, 0, 2, 0]
    assert vectors.vector("King").tolist() == [1, 0, 2, 0]
    assert vectors.find("paris") is None, "small letters do not find capital ones"
    assert vectors.has_vectors(["Paris", "paris", "QUEEN"]).tolist() == [True, False, True]
    assert (len(vectors), vectors.vector_size, "man" in vectors) == (6, 4, True)


def test_an_unknown_word_gets_zeros_or_the_mean_or_is_refused_with_words_spelled_like_it(vectors: StaticVectors):
    rows = vectors.vectors(["pear", "man"])
    assert rows.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert rows.dtype == np.float32
    assert vectors.vectors(["pear"], "mean")[0].tolist() == pytest.approx((TABLE.sum(axis=0) / 6).tolist())
    with pytest.raises(InputError, match=r"'aple' is not among the 6 words that have a vector; did you mean apple\?"):
        vectors.vectors(["man", "aple"], "refuse")
    with pytest.raises(SettingsError, match="zeros, mean, refuse"):
        vectors.vectors(["man"], "guess")
    assert vectors.vectors([]).shape == (0, 4)


def test_rows_are_a_copy(vectors: StaticVectors):
    vectors.vectors(["man"])[:] = 7
    vectors.vector("man")[:] = 7
    assert vectors.vector("man").tolist() == [1, 0, 0, 0]


def test_the_nearest_words_come_by_cosine_and_not_by_length(vectors: StaticVectors):
    near = vectors.most_similar("man", 5)
    assert [one.word for one in near] == ["woman", "king", "queen", "Paris", "apple"]
    assert [one.cosine for one in near] == pytest.approx([2**-0.5, 5**-0.5, 6**-0.5, 0, -1])
    assert vectors.most_similar("man", 100) == near, "there are no more words"
    assert [one.word for one in vectors.nearest(np.array([0, 0, 0, 1], dtype=np.float32), 1)] == ["Paris"]
    with pytest.raises(SettingsError, match="top is 0"):
        vectors.most_similar("man", 0)


def test_an_analogy_adds_directions_and_never_answers_with_a_word_of_the_question(vectors: StaticVectors):
    near = vectors.analogy("man", "woman", "king", 3)
    assert near[0].word == "queen"
    assert not {one.word for one in near} & {"man", "woman", "king"}
    # woman/|woman| - man + king/|king|, by hand
    wanted = np.array([2**-0.5 - 1 + 5**-0.5, 2**-0.5, 2 * 5**-0.5, 0])
    queen = TABLE[3] / 6**0.5
    assert near[0].cosine == pytest.approx(wanted @ queen / np.linalg.norm(wanted))
    with pytest.raises(InputError, match="'prince' is not among"):
        vectors.analogy("man", "woman", "prince")


def test_a_vector_of_zeros_is_near_to_nothing():
    vectors = StaticVectors(["a", "b"], np.array([[0, 0], [1, 0]], dtype=np.float32))
    assert vectors.most_similar("a") == [("b", 0.0)]
