"""Regression on a text or a pair: labelled records in, values out, such as the similarity of two sentences (STS-B).

The value of a text with several windows is the mean of theirs. The head is trained on standardized labels, so that
prices are learned as well as stars; at the end mean and deviation are folded into its weights, and it outputs values in
the scale of the labels. U examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import TextExample, read_texts, text_columns
from bertworks.errors import FolderError, InputError
from bertworks.metrics.classification import CorrelationTally
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.attribution import text_target
from bertworks.tasks.bag_of_words import Values, fit_values, sample_within_limit
from bertworks.tasks.baselines import Baseline
from bertworks.tasks.classify import (
    Classify,
    featurize_text,
    is_regression,
    label_config,
    labels_in,
    unique_labels,
)
from bertworks.tasks.contract import (
    AttributionTarget,
    Features,
    InputFields,
    Mistake,
    PredictionContext,
    Task,
    TaskScores,
    worst_mistakes,
)
from bertworks.tasks.inputs import PAIR, TEXT
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertworks.encoders.config import EncoderConfig
    from bertworks.sampling.batch import Batch

_SINGLE = ("value",)
_NAMELESS = (*_SINGLE, "LABEL_0")


@dataclass(frozen=True, slots=True)
class ValuePrediction:
    """The predicted value, with its name if the model has one for it."""

    id: str
    value: float
    name: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "value": self.value, **({"name": self.name} if self.name else {})}

    def __repr__(self) -> str:
        return f"ValuePrediction({self.value:.4g})"


@dataclass(frozen=True, slots=True)
class ValuesPrediction:
    """The predicted values of a model of others with several, by name."""

    id: str
    values: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "values": dict(self.values)}

    def __repr__(self) -> str:
        return f"ValuesPrediction({', '.join(f'{name}={value:.4g}' for name, value in self.values.items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regress:
    """Text regression. Models are selected by Spearman correlation.

    The predicted value is the head's output times `std` plus `mean`. `value_names` are the labels of config.json. A
    model of others may have several values: it predicts and explains them, but is neither trained nor scored here.
    """

    name: ClassVar[str] = "regress"
    head_kind: ClassVar[str] = "sequence"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    input_fields: ClassVar[tuple[InputFields, ...]] = (TEXT, PAIR)
    mean: float = 0.0
    std: float = 1.0
    value_names: tuple[str, ...] = _SINGLE

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextExample]:
        return read_texts(path, columns, counts)

    @classmethod
    def columns_in(cls, path: Path, columns: Mapping[str, str]) -> dict[str, str]:
        return text_columns(path, columns)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
        return Classify.read_unlabelled(records, columns)

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], settings: Mapping[str, Any]) -> Regress:
        if not examples:
            raise InputError("there are no training texts; give a file with at least one labelled line")
        values = np.array([value_of(example) for example in examples])
        if values.min() == values.max():
            raise InputError(
                f"all {len(examples):,} training texts have the same value {examples[0].label}, so there is nothing to "
                f"learn; add texts of other values, or name the right column with --label"
            )
        return cls(mean=float(values.mean()), std=float(values.std()))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Regress:
        labels = labels_in(config) if "id2label" in config or "num_labels" in config else _SINGLE
        if len(labels) != 1 and config.get("problem_type") != "regression":
            raise FolderError(
                f"config.json has {len(labels)} labels ({', '.join(labels[:5])}), but a regression model has one; this "
                f"model is for 'classify'"
            )
        mean, std = metadata.get("scale", (0.0, 1.0))
        return cls(mean=mean, std=std, value_names=unique_labels(labels))

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return is_regression(config)

    def metadata(self) -> dict[str, Any]:
        """Return nothing once the scale is in the head's weights."""
        return {} if (self.mean, self.std) == (0.0, 1.0) else {"scale": [self.mean, self.std]}

    def config(self) -> dict[str, Any]:
        return {**label_config(self.value_names), "problem_type": "regression"}

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.tasks.heads import PooledHead

        return PooledHead(config.pooled_size, len(self.value_names), config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "spearman"

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        if example.label is not None and len(self.value_names) > 1:
            raise InputError(
                f"{example.location}: a model of {len(self.value_names)} values predicts, but is not scored or trained "
                f"here; leave out the label"
            )
        return featurize_text(example, tokenizer, window_rule, None if example.label is None else value_of(example))

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        import torch

        values = np.array([example_features.label for example_features in features])
        # Standardized in double precision: years minus their mean need few digits.
        standardized = (values - self.mean) / self.std
        return {"value": torch.from_numpy(standardized.astype(np.float32))}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        import torch.nn.functional as F  # noqa: N812

        from bertworks.tasks.heads import mean_by_group

        values = mean_by_group(outputs, batch.groups)[:, 0]  # (U,)
        return F.mse_loss(values, batch.labels["value"], reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["value"])

    def decode(
        self, example: TextExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> ValuePrediction | ValuesPrediction:
        mean_output = np.stack(outputs).astype(np.float64).mean(0)  # over all windows
        values: list[float] = (mean_output * self.std + self.mean).tolist()
        if len(values) == 1:
            return ValuePrediction(example.id, values[0], self._name)
        return ValuesPrediction(example.id, dict(zip(self.value_names, values, strict=True)))

    @property
    def _name(self) -> str:
        """The name of a single value; empty if it has only that of every regression."""
        return "" if self.value_names[0] in _NAMELESS else self.value_names[0]

    def score(self, pairs: Iterable[tuple[TextExample, ValuePrediction]]) -> TaskScores:
        tally = CorrelationTally()
        mistakes: list[Mistake] = []
        for example, prediction in pairs:
            expected = value_of(example)
            tally.add(np.array([prediction.value]), np.array([expected]))
            mistake = Mistake(
                confidence=abs(prediction.value - expected),
                texts=example.texts,
                expected=str(example.label),
                predicted=f"{prediction.value:.2f}",
                location=example.location,
            )
            mistakes = worst_mistakes([*mistakes, mistake])
        return TaskScores(
            metrics=tally.scores(),
            main_metric=self.main_metric,
            details={"mistakes": mistakes},
            confidence_label="absolute error",
        )

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[ValuePrediction]) -> Task:
        return self

    def fit_baselines(self, examples: Sequence[TextExample]) -> Iterator[Baseline]:
        """Yield the mean of the labels, and ridge regression on TF-IDF features."""
        mean = float(np.mean([value_of(example) for example in examples]))
        yield Baseline(
            "mean",
            "mean baseline",
            lambda others: _predictions(others, np.full(len(others), mean)),
            len(examples),
        )
        sample = sample_within_limit(examples)
        predict = fit_values(sample, np.array([value_of(example) for example in sample]))
        yield Baseline(
            "tfidf_ridge_regression",
            "bag of words (TF-IDF + ridge regression)",
            lambda others: _predictions(others, predict(others)),
            len(sample),
        )

    def submission_value(self, prediction: ValuePrediction) -> float:
        return prediction.value

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        if target is not None and target not in self.value_names:
            names = "a number; omit the target" if len(self.value_names) == 1 else ", ".join(self.value_names)
            raise InputError(f"there is no '{target}' to explain: a regression model predicts {names}")
        name = self.value_names[0] if target is None else target
        return text_target(context, name, np.eye(len(self.value_names))[self.value_names.index(name)])

    def unscale(self, head: nn.Module) -> Regress:
        """Fold mean and deviation into the head's last linear layer, so that transformers predicts the same values.

        If that layer has no bias, the mean stays with the task.
        """
        import torch
        from torch import nn

        from bertworks.tasks.recurrent_head import RecurrentHead

        last = head.body if isinstance(head, RecurrentHead) else head
        assert isinstance(last.score, nn.Linear)
        with torch.no_grad():
            last.score.weight.mul_(self.std)
            bias: torch.Tensor | None = last.score.bias
            if bias is None:
                return replace(self, std=1.0)
            bias.mul_(self.std).add_(self.mean)
        return replace(self, mean=0.0, std=1.0)


def _predictions(examples: Sequence[TextExample], values: Values) -> Iterator[ValuePrediction]:
    return (ValuePrediction(example.id, value) for example, value in zip(examples, values.tolist(), strict=True))


def value_of(example: TextExample) -> float:
    """Return the label as a finite number."""
    if example.label is None:
        raise InputError(f"{example.location}: there is no label; name its column with --label")
    try:
        value = float(example.label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{example.location}: the label '{example.label}' is not a number; correct it, or name the right column "
            f"with --label"
        )
    return value
