"""Estimators over numbers, for the checks of scikit-learn: every number is written as a word."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_array, check_is_fitted
from small_models import WORDS

import bertworks


def as_words(values: Any) -> list[str]:
    """Return a text per row of numbers; values that nearly agree have the same word."""
    rows = check_array(values)
    return [" ".join(WORDS[round(4 * float(value)) % len(WORDS)] for value in row[:16]) for row in rows]


class NumericInput:
    """Lets an estimator of texts take tables of numbers."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags


class NumericClassifier(NumericInput, bertworks.BertClassifier):
    """A classifier of rows of numbers."""

    def fit(self, X: Any, y: Any) -> NumericClassifier:
        super().fit(as_words(X), y)
        return self

    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict_proba(as_words(X))


class NumericRegressor(NumericInput, bertworks.BertRegressor):
    """A regression on rows of numbers."""

    def fit(self, X: Any, y: Any) -> NumericRegressor:
        super().fit(as_words(X), y)
        return self

    def predict(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict(as_words(X))


class NumericTransformer(NumericInput, bertworks.BertTransformer):
    """Vectors of rows of numbers."""

    def transform(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().transform(as_words(X))
