"""The estimators of scikit-learn: its own checks as far as texts allow, Pipeline, GridSearchCV, pickling, errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numeric_estimators import NumericClassifier, NumericRegressor, NumericTransformer
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator
from small_models import write_pretrained

import bertworks
from bertworks.errors import InputError

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::UserWarning")]

TEXTS = ["the film was good", "very good", "the film was bad", "very bad"]
LABELS = ["pos", "pos", "neg", "neg"]
SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 64, "settings": {"max_restarts": 0}}

# Checks of scikit-learn that do not apply, and why.
NOT_APPLICABLE = {
    "check_n_features_in": "texts have no number of features",
    "check_n_features_in_after_fitting": "texts have no number of features",
    "check_transformer_general": "texts have no number of features that `transform` could compare",
    "check_array_api_input": "the array API has no texts",
    "check_classifier_data_not_an_array": "it needs pandas",
    "check_regressor_data_not_an_array": "it needs pandas",
    "check_classifiers_one_label": "a single class is refused: there is nothing to learn",
    "check_fit2d_1sample": "a single example has one class or value only, which is refused",
    "check_classifiers_train": "it asks for an accuracy on numbers, which a random model does not learn in an epoch",
    "check_regressors_train": "it asks for a score on numbers, which a random model does not learn in an epoch",
    "check_transformer_preserve_dtypes": "vectors are float32, whatever the texts",
}
# The transformer loads its model in `fit` and does not look at the texts.
NOT_IN_FIT = {
    "check_complex_data",
    "check_dtype_object",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_estimator_sparse_tag",
    "check_fit1d",
}
# Of the checks that fit an estimator, the suite runs these; `make soak` runs all.
IN_SUITE = {
    NumericClassifier: {"check_dont_overwrite_parameters", "check_methods_subset_invariance"},
    NumericRegressor: {"check_dict_unchanged", "check_supervised_y_2d"},
    NumericTransformer: {"check_estimators_pickle", "check_fit_idempotent", "check_methods_sample_order_invariance"},
}
WITHOUT_FIT = {
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_set_params",
    "check_valid_tag_types",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_pretrained(tmp_path_factory.mktemp("base") / "model"))


def make(kind: type[Any], base: str) -> Any:
    return kind(base) if kind is NumericTransformer else kind(base, **SMALL)


def checks_of(kind: type[Any], base: str) -> Iterator[tuple[str, Callable[[], None]]]:
    for estimator, check in estimator_checks_generator(make(kind, base)):
        name = check.func.__name__
        if name not in NOT_APPLICABLE and not (kind is NumericTransformer and name in NOT_IN_FIT):
            yield name, lambda check=check, estimator=estimator: check(estimator)


@pytest.mark.parametrize("kind", IN_SUITE)
def test_it_passes_the_checks_of_scikit_learn(kind: type[Any], base: str):
    checks = [(name, check) for name, check in checks_of(kind, base) if name in WITHOUT_FIT | IN_SUITE[kind]]
    assert {name for name, _ in checks} >= IN_SUITE[kind] | (WITHOUT_FIT - {"check_requires_y_none"})
    for _, check in checks:
        check()


@pytest.mark.soak
@pytest.mark.parametrize("kind", IN_SUITE)
def test_it_passes_all_checks_of_scikit_learn(kind: type[Any], base: str):
    for _, check in checks_of(kind, base):
        check()


def test_a_classifier_is_searched_scored_and_pickled(base: str):
    search = GridSearchCV(bertworks.BertClassifier(base, **SMALL), {"learning_rate": [1e-9, 3e-3]}, cv=2)
    search.fit(np.array(TEXTS * 2), np.array(LABELS * 2))
    assert search.classes_.tolist() == ["neg", "pos"]
    classifier = search.best_estimator_
    probabilities = classifier.predict_proba(TEXTS)
    assert probabilities.sum(1) == pytest.approx(1.0)
    assert classifier.predict(TEXTS).tolist() == search.classes_[probabilities.argmax(1)].tolist()
    assert classifier.model_.predict(TEXTS[0]).probabilities["pos"] == pytest.approx(probabilities[0, 1], abs=1e-6)
    copy = pickle.loads(pickle.dumps(classifier))
    assert copy.predict_proba(TEXTS).tolist() == probabilities.tolist()
    assert not hasattr(clone(classifier), "classes_")


def test_labels_keep_their_type_and_may_contain_the_separator(base: str):
    classifier = bertworks.BertClassifier(base, **SMALL)
    assert classifier.fit(TEXTS, [10, 9, 10, 9]).classes_.tolist() == [9, 10]
    assert set(classifier.predict(TEXTS).tolist()) <= {9, 10}
    assert classifier.model_.labels == ("9", "10")
    assert set(classifier.fit(TEXTS, ["a|b", "a", "a|b", "a"]).predict(TEXTS)) <= {"a|b", "a"}


def test_a_transformer_feeds_a_linear_model(base: str):
    pipeline = make_pipeline(bertworks.BertTransformer(base, pooling="mean"), LogisticRegression(C=100))
    assert pipeline.fit(TEXTS, LABELS).score(TEXTS, LABELS) == 1.0
    transformer = pipeline[0]
    assert transformer.transform(TEXTS).shape == (4, 24)
    assert transformer.get_feature_names_out()[:2].tolist() == ["bert0", "bert1"]
    assert transformer.transform([[text] for text in TEXTS]).shape == (4, 24)


def test_pairs_are_two_columns(base: str):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    regressor = bertworks.BertRegressor(base, **SMALL).fit(pairs, [0.0, 1.0, 2.0, 3.0])
    assert regressor.predict(pairs).shape == (4,)
    assert regressor.model_.metadata["columns"]["pair"] == "sentence2"


def test_the_folder_of_a_model_is_removed_with_its_estimator(base: str):
    classifier = bertworks.BertClassifier(base, **SMALL).fit(TEXTS, LABELS)
    folder: Path = classifier.model_.folder
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    del classifier
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        (TEXTS, LABELS[:2], ValueError, "inconsistent numbers of samples"),
        ([], [], InputError, "X has no texts"),
        ("a text", ["pos"], InputError, "X is a single text"),
        (np.ones((4, 3)), LABELS, InputError, r"X has the shape \(4, 3\)"),
        ([None, "a", "b", "c"], LABELS, InputError, "row 0: the input is None, not a text"),
        (TEXTS, [0.5, 1.5, 2.5, 3.5], ValueError, "Unknown label type: continuous"),
        (TEXTS, ["a"] * 4, InputError, "have the same label 'a'"),
    ],
)
def test_wrong_input_is_refused(base: str, texts: Any, labels: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        bertworks.BertClassifier(base, **SMALL).fit(texts, labels)


def test_an_estimator_must_be_fitted_first(base: str):
    for call in (
        bertworks.BertClassifier(base).predict,
        bertworks.BertRegressor(base).predict,
        bertworks.BertTransformer(base).transform,
    ):
        with pytest.raises(NotFittedError):
            call(TEXTS)


def test_values_must_be_finite(base: str):
    with pytest.raises(ValueError, match="contains infinity"):
        bertworks.BertRegressor(base, **SMALL).fit(TEXTS, [1.0, np.inf, 2.0, 3.0])


def test_a_generator_may_draw_the_seed():
    first, second = (bertworks.BertClassifier(random_state=np.random.RandomState(7))._seed() for _ in range(2))
    assert first == second == np.random.RandomState(7).randint(2**31 - 1)
    assert bertworks.BertClassifier(random_state=3)._seed() == 3
    assert bertworks.BertClassifier()._seed() is None
