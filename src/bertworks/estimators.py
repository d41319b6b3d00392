"""Estimators of scikit-learn: texts and targets in, predictions or vectors out; for Pipeline and GridSearchCV.

Texts are a list, an array or a Series of strings; two columns are pairs. `fit` fine-tunes a model in a temporary folder
that lasts as long as the estimator; a pickled estimator contains its model.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, column_or_1d

from bertworks.api import finetune
from bertworks.datasets.labelled_texts import LABEL_SEPARATOR
from bertworks.errors import InputError
from bertworks.model import Model, load

Floats = npt.NDArray[np.float32]
_MODEL = "model_"


class BertEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the estimators have in common: the fitted `model_`, a bertworks Model, and how it is pickled."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the files of the model, in place of the model itself."""
        state: dict[str, Any] = dict(super().__getstate__())
        if _MODEL in state:
            folder = state[_MODEL].folder
            files = (file for file in folder.rglob("*") if file.is_file())
            state[_MODEL] = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.get(_MODEL)
        if files is not None:
            folder = temporary_folder(self)
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            state = {**state, _MODEL: load(folder)}
        super().__setstate__(state)


class BertTaskEstimator(BertEstimator):
    """A task that is fine-tuned by `fit`.

    model           a folder, the name of a packaged model or one on the hub, or a loaded Model
    epochs, learning_rate, batch_size, max_length
                    of the recipe; None: by model and data
    random_state    the seed, or a generator to draw it from
    settings        other keys of the recipe: {"optimizer.weight_decay": 0.1}
    device          auto, cpu, cuda
    """

    def __init__(
        self,
        model: str | Path | Model = "en-small",
        *,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.random_state = random_state
        self.settings = settings
        self.device = device

    def _finetune(self, task: str, texts: Sequence[Any], labels: Sequence[Any]) -> Model:
        """Fine-tune in a temporary folder of which only the model is kept."""
        folder = temporary_folder(self)
        finetune(
            task,
            model=self.model,
            train=(texts, labels),
            output=folder / "run",
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            max_length=self.max_length,
            seed=self._seed(),
            settings={"baselines": False, **(self.settings or {})},
            device=self.device,
        )
        (folder / "run" / "model").rename(folder / "model")
        shutil.rmtree(folder / "run")
        return load(folder / "model")

    def _seed(self) -> int | None:
        """Return the seed; one drawn from the generator, if `random_state` is one."""
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        return self.random_state


class BertClassifier(ClassifierMixin, BertTaskEstimator):  # type: ignore[misc]
    """Text classification by a fine-tuned model; see `BertTaskEstimator` for the parameters.

    After `fit`: `classes_`, the labels in order, and `model_`, the fine-tuned Model.
    """

    def fit(self, X: Any, y: Any) -> BertClassifier:
        """Fine-tune the model on texts and their labels."""
        texts, labels = as_texts(X), column_or_1d(y, warn=True)
        check_consistent_length(texts, labels)
        check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        names = self._label_names()
        self.model_ = self._finetune("classify", texts, [names[index] for index in indices])
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class, (N, C), in the order of `classes_`."""
        check_is_fitted(self)
        probabilities = self.model_.predict_proba(as_texts(X))
        order = [self.model_.labels.index(name) for name in self._label_names()]
        return np.asarray(probabilities)[:, order]

    def predict(self, X: Any) -> Any:
        """Return the most probable class of each text."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def _label_names(self) -> list[str]:
        """Return the labels as text; their indices, where that would be ambiguous."""
        names = [str(label) for label in self.classes_]
        is_usable = len(set(names)) == len(names) and all(
            name.strip() and LABEL_SEPARATOR not in name for name in names
        )
        return names if is_usable else [str(index) for index in range(len(names))]


class BertRegressor(RegressorMixin, BertTaskEstimator):  # type: ignore[misc]
    """Text regression by a fine-tuned model; see `BertTaskEstimator` for the parameters."""

    def fit(self, X: Any, y: Any) -> BertRegressor:
        """Fine-tune the model on texts and their values."""
        texts, values = as_texts(X), column_or_1d(y, dtype=np.float64, warn=True)
        assert_all_finite(values, input_name="y")
        check_consistent_length(texts, values)
        self.model_ = self._finetune("regress", texts, values.tolist())
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the predicted value of each text."""
        check_is_fitted(self)
        return np.array([prediction.value for prediction in self.model_.predict(as_texts(X))])


class BertTransformer(TransformerMixin, BertEstimator):  # type: ignore[misc]
    """Texts to vectors: the features of a model that is not trained further.

    pooling    mean, cls, max, …; None: what the model's folder states
    truncate   use the first tokens of a long text only, as sentence-transformers does
    prompt_name   which of the prompts of the model's folder is put before the texts; None: its default
    """

    def __init__(
        self,
        model: str | Path | Model = "en-small",
        *,
        pooling: str | None = None,
        truncate: bool = False,
        prompt_name: str | None = None,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.truncate = truncate
        self.prompt_name = prompt_name

    def fit(self, X: Any, y: Any = None) -> BertTransformer:
        """Load the model; texts and targets are not used."""
        self.model_ = load(self.model) if isinstance(self.model, str | Path) else self.model
        return self

    def transform(self, X: Any) -> Floats:
        """Return one vector per text, (N, D)."""
        check_is_fitted(self)
        vectors: Floats = self.model_.encode(
            as_texts(X), self.pooling, truncate=self.truncate, prompt_name=self.prompt_name
        )
        return vectors

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return the names of the vector components: bert0, bert1, …"""
        check_is_fitted(self)
        size = self.model_.pooling.output_size(self.model_.encoder.config.hidden_size)
        return np.array([f"bert{index}" for index in range(size)], dtype=object)


def as_texts(values: Any) -> list[Any]:
    """Return texts, or pairs of texts, as a list; a table of one column holds texts, one of two columns pairs."""
    if isinstance(values, str):
        raise InputError("X is a single text; give a list of texts")
    rows = np.asarray(values, dtype=object)
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.ndim not in (1, 2) or (rows.ndim == 2 and rows.shape[1] != 2):
        raise InputError(f"X has the shape {rows.shape}; give a list of texts, or two columns of texts")
    if not len(rows):
        raise InputError("X has no texts; give at least one")
    return [tuple(row) for row in rows.tolist()] if rows.ndim == 2 else rows.tolist()


def temporary_folder(owner: object) -> Path:
    """Return a new folder that is removed together with its owner."""
    folder = tempfile.mkdtemp(prefix="bertworks-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
