"""Bag of words: features and similarities by hand, equal to a pipeline of scikit-learn, defined for any texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from bertworks.datasets.labelled_texts import TextExample
from bertworks.tasks import bag_of_words
from bertworks.tasks.bag_of_words import TextFeatures, fit_label_probabilities, fit_values, sample_within_limit

TEXTS = ["a good film", "good music, good story", "a dull film", "dull and poor", "so poor a story", "the film is good"]
LABELS = np.array([1, 1, 0, 0, 0, 1])


def examples_of(*texts: str | tuple[str, str]) -> list[TextExample]:
    return [TextExample(str(index), "", (text,) if isinstance(text, str) else text) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("text", "num_features"),
    [
        ("not so good", 5),  # not, so, good, not so, so good
        ("I isn't", 5),  # i, isn, t, i isn, isn t: one-letter words count
        ("не так хорошо", 5),
        ("不好吃", 5),  # 不, 好, 吃, 不好, 好吃
        ("ます", 3),
        ("ok不好吃", 9),  # mostly Han: five characters and four pairs
        ("!?", 3),  # no letters: characters
        ("١٢", 3),
    ],
)
def test_n_grams_are_of_words_or_where_the_script_has_no_spaces_of_characters(text: str, num_features: int):
    assert TextFeatures(examples_of(text)).matrix.shape == (1, num_features)


def test_similarities_of_pairs_by_hand():
    matrix = TextFeatures(examples_of(("red car", "red car"), ("red car", "big dog"), ("red car", "red dog"))).matrix
    cosines, overlaps = matrix.toarray()[:, -2:].T
    assert cosines[:2] == pytest.approx([1, 0])
    assert 0 < cosines[2] < 1
    assert overlaps == pytest.approx([1, 0, 1 / 5])  # red of red, car, dog, red car, red dog


def test_features_of_pairs_are_both_texts_and_their_absolute_difference():
    features = TextFeatures(examples_of(("red car", "big dog")))
    matrix = features.matrix.toarray()[0]
    assert matrix.shape == (3 * 6 + 2,)  # red, car, red car, big, dog, big dog; cosine and overlap
    first, second, difference = matrix[:18].reshape(3, 6)
    assert difference == pytest.approx(abs(first - second))
    assert np.linalg.norm(first) == pytest.approx(1)
    assert features(examples_of(("red car", "big dog"))).toarray()[0] == pytest.approx(matrix)
    assert not features(examples_of("red car")).toarray()[0, 6:12].any()  # there is no second text


def test_probabilities_equal_a_pipeline_of_scikit_learn():
    vectorizer = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), sublinear_tf=True)
    pipeline = make_pipeline(vectorizer, LogisticRegression(C=10, tol=1e-8)).fit(TEXTS, LABELS)
    predict = fit_label_probabilities(examples_of(*TEXTS), LABELS[:, None])
    others = ["a dull story", "good", "unseen words"]
    expected = pipeline.predict_proba(others)[:, 1]
    # liblinear regularizes the intercept, too, and stops early.
    assert predict(examples_of(*others))[:, 0] == pytest.approx(expected, abs=0.05)
    assert (predict(examples_of(*TEXTS))[:, 0] > 0.5).astype(int).tolist() == LABELS.tolist()


def test_values_equal_a_pipeline_of_scikit_learn():
    vectorizer = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), sublinear_tf=True)
    values = np.stack([1_000.0 * LABELS, LABELS - 1.0], axis=1)
    pipeline = make_pipeline(vectorizer, Ridge()).fit(TEXTS, values)
    predict = fit_values(examples_of(*TEXTS), values)
    assert predict(examples_of("a dull story", "good")) == pytest.approx(pipeline.predict(["a dull story", "good"]))


def test_each_label_has_its_own_probability_and_a_constant_one_is_kept():
    targets = np.stack([LABELS, 1 - LABELS, np.zeros(6), np.ones(6)], axis=1)
    probabilities = fit_label_probabilities(examples_of(*TEXTS), targets)(examples_of("good", "dull"))
    assert (probabilities[:, :2] > 0.5).tolist() == [[True, False], [False, True]]
    assert probabilities[:, 2:].tolist() == [[0, 1], [0, 1]]


def test_the_same_examples_give_the_same_bits():
    first, second = (
        fit_label_probabilities(examples_of(*TEXTS), LABELS[:, None])(examples_of(*TEXTS)) for _ in range(2)
    )
    assert first.tobytes() == second.tobytes()


def test_long_texts_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bag_of_words, "_MAX_CHARACTERS", 30)
    monkeypatch.setattr(bag_of_words, "_MAX_CHARACTERS_TIMES_LABELS", 60)
    examples = examples_of(*["0123456789"] * 12)
    assert sample_within_limit(examples[:3]) == examples[:3]
    assert [example.id for example in sample_within_limit(examples)] == ["0", "4", "8"]
    assert [example.id for example in sample_within_limit(examples, 3)] == ["0", "6"]  # 60 / 3 labels: 20 characters


@given(
    st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.booleans()), min_size=1, max_size=6),
    st.lists(st.text(), min_size=1, max_size=3),
)
@settings(max_examples=60)
def test_any_texts_have_probabilities(labelled: list[tuple[str, bool]], others: list[str]):
    targets = np.array([[label] for _, label in labelled])
    predict = fit_label_probabilities(examples_of(*(text for text, _ in labelled)), targets)
    probabilities = predict(examples_of(*others))
    assert probabilities.shape == (len(others), 1)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
