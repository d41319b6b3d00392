"""Bag of words: texts or pairs with targets in; TF-IDF features, and the predictions of linear models on them, out.

scikit-learn and scipy are imported where a model is fitted: that takes a second, and only fine-tuning needs them.

U examples, F features, C labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.datasets.labelled_texts import TextExample
from bertworks.text.languages import scripts_of

# Logistic regression has the inverse regularization strength C, ridge regression the strength alpha.
_LOGISTIC_C, _RIDGE_ALPHA = 10.0, 1.0
# A model is fitted to at most this many characters of text, to fewer if it has many labels: about half a minute.
_MAX_CHARACTERS, _MAX_CHARACTERS_TIMES_LABELS = 8_000_000, 160_000_000
# Scripts that are written without spaces between words.
_UNSPACED_SCRIPTS = ("Han", "Hiragana", "Katakana", "Thai", "Khmer", "Myanmar")

SparseMatrix = Any  # of scipy, in CSR format
Values = npt.NDArray[np.float64]
Predict = Callable[[Sequence[TextExample]], Values]


def sample_within_limit(examples: Sequence[TextExample], num_labels: int = 1) -> Sequence[TextExample]:
    """Return all examples, or evenly spaced ones if all together are too long to be fitted in a short time."""
    total = sum(len(text) for example in examples for text in example.texts)
    limit = min(_MAX_CHARACTERS, _MAX_CHARACTERS_TIMES_LABELS // num_labels)
    if total <= limit:
        return examples
    count = max(1, len(examples) * limit // total)
    return [examples[index * len(examples) // count] for index in range(count)]


def fit_label_probabilities(examples: Sequence[TextExample], targets: npt.NDArray[Any]) -> Predict:
    """Fit a logistic regression for each label, (U, C) of 0 and 1; return what predicts their probabilities, (N, C)."""
    features = TextFeatures(examples)
    models = [_fit_logistic_regression(features.matrix, target) for target in targets.T]

    def predict(others: Sequence[TextExample]) -> Values:
        matrix = features(others)
        return np.stack([model(matrix) for model in models], axis=1)

    return predict


def fit_values(examples: Sequence[TextExample], targets: Values) -> Predict:
    """Fit a ridge regression to targets (U, V); return what predicts values, (N, V)."""
    from sklearn.linear_model import Ridge

    features = TextFeatures(examples)
    model = Ridge(alpha=_RIDGE_ALPHA).fit(features.matrix, targets)
    return lambda others: model.predict(features(others)).reshape(-1, targets.shape[1])


def _fit_logistic_regression(matrix: SparseMatrix, targets: npt.NDArray[Any]) -> Callable[[Any], Values]:
    """Return what predicts the probability of 1; where all targets are equal, there is nothing to fit."""
    if targets.min() == targets.max():
        return lambda other: np.full(other.shape[0], float(targets[0]))
    from sklearn.linear_model import LogisticRegression

    # liblinear's dual coordinate descent with its own tolerance: on sparse features as accurate as other solvers, and
    # the fastest. It visits the examples in a random order.
    model = LogisticRegression(
        C=_LOGISTIC_C, solver="liblinear", dual=True, tol=0.1, max_iter=1_000, random_state=0
    ).fit(matrix, targets)
    return lambda other: model.predict_proba(other)[:, 1]


class TextFeatures:
    """TF-IDF of n-grams, fitted to the texts of examples: called with others, it returns their features, (N, F).

    The n-grams are words and pairs of words, or characters and pairs of characters where the script has no spaces.
    Examples that are pairs have the features of both texts, their absolute differences, and two similarities.
    `matrix` are the features of the examples it was fitted to, (U, F).
    """

    def __init__(self, examples: Sequence[TextExample]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._has_pairs = any(len(example.texts) > 1 for example in examples)
        texts = self._texts(examples)
        units = {"analyzer": "word", "token_pattern": r"\w+"} if has_spaces(texts) else {"analyzer": "char"}
        self._vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **units)
        self.matrix = self._combine(self._vectorizer.fit_transform(texts))

    def __call__(self, examples: Sequence[TextExample]) -> SparseMatrix:
        return self._combine(self._vectorizer.transform(self._texts(examples)))

    def _texts(self, examples: Sequence[TextExample]) -> list[str]:
        """Return the texts of all examples, first of pairs all first texts, then all second ones."""
        second = [" ".join(example.texts[1:]) for example in examples] if self._has_pairs else []
        return [example.texts[0] for example in examples] + second

    def _combine(self, tfidf: SparseMatrix) -> SparseMatrix:
        """Return the features of examples, given those of `_texts`."""
        if not self._has_pairs:
            return tfidf
        from scipy.sparse import hstack

        num_pairs = tfidf.shape[0] // 2
        first, second = tfidf[:num_pairs], tfidf[num_pairs:]
        return hstack([first, second, abs(first - second), _similarities(first, second)], format="csr")


def has_spaces(texts: Sequence[str]) -> bool:
    """Whether most letters are of scripts with spaces between words; False without any letter."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    num_letters = sum(count for character, count in characters.items() if character.isalpha())
    scripts = scripts_of(characters)
    return 2 * sum(scripts[script] for script in _UNSPACED_SCRIPTS) < num_letters


def _similarities(first: SparseMatrix, second: SparseMatrix) -> Values:
    """Return the cosine similarity, and the number of shared n-grams divided by that of all n-grams, (U, 2)."""
    cosines = np.asarray(first.multiply(second).sum(axis=1)).ravel()  # the rows have norm 1
    num_shared = first.astype(bool).multiply(second.astype(bool)).getnnz(axis=1)
    num_all = first.getnnz(axis=1) + second.getnnz(axis=1) - num_shared
    return np.stack([cosines, num_shared / np.maximum(num_all, 1)], axis=1)
