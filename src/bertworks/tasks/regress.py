"""Regression on a text or a pair: labelled records in, values out, such as the similarity of two sentences (STS-B).

A text may have several values: "0.5|0.2" or, with names, "valence=0.5|arousal=0.2". The values of a text with several
windows are the means of theirs. The head is trained on standardized labels, so that prices are learned as well as
stars; at the end means and deviations are folded into its weights, and it outputs values in the scale of the labels.

U examples, V values of each.
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
from bertworks.datasets.labelled_texts import LABEL_SEPARATOR, TextExample, read_texts, text_columns
from bertworks.display.bars import table_html
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

    def _repr_html_(self) -> str:
        return table_html([(self.name or "value", f"{self.value:.4g}")])

    def __repr__(self) -> str:
        return f"ValuePrediction({self.value:.4g})"


@dataclass(frozen=True, slots=True)
class ValuesPrediction:
    """The predicted values of a model with several, by name."""

    id: str
    values: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "values": dict(self.values)}

    def _repr_html_(self) -> str:
        return table_html((name, f"{value:.4g}") for name, value in self.values.items())

    def __repr__(self) -> str:
        return f"ValuesPrediction({', '.join(f'{name}={value:.4g}' for name, value in self.values.items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regress:
    """Text regression. Models are selected by Spearman correlation, of several values by its mean.

    The predicted values are the head's outputs times `std` plus `mean`. `value_names` are the labels of config.json.
    """

    name: ClassVar[str] = "regress"
    head_kind: ClassVar[str] = "sequence"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    input_fields: ClassVar[tuple[InputFields, ...]] = (TEXT, PAIR)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
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
        names = names_of(examples[0])
        values = np.array([values_of(example, names) for example in examples])  # (U, V)
        if (values.min(0) == values.max(0)).any():
            index = int((values.min(0) == values.max(0)).argmax())
            raise InputError(
                f"all {len(examples):,} training texts have the same value {values[0, index]:g}, so there is nothing "
                f"to learn; add texts of other values, or name the right column with --label"
            )
        return cls(mean=tuple(values.mean(0).tolist()), std=tuple(values.std(0).tolist()), value_names=names)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Regress:
        labels = labels_in(config) if "id2label" in config or "num_labels" in config else _SINGLE
        if len(labels) != 1 and config.get("problem_type") != "regression":
            raise FolderError(
                f"config.json has {len(labels)} labels ({', '.join(labels[:5])}), but a regression model has one; this "
                f"model is for 'classify'"
            )
        scale = tuple(metadata.get("scale", (0.0, 1.0)))
        half = len(scale) // 2
        if half not in (1, len(labels)):
            raise FolderError(f"bertworks.json has the scale of {half} values, but config.json names {len(labels)}")
        return cls(mean=scale[:half], std=scale[half:], value_names=unique_labels(labels))

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return is_regression(config)

    def metadata(self) -> dict[str, Any]:
        """Return the scale, all means and then all deviations; nothing once it is in the head's weights."""
        return {} if not any(self.mean) and set(self.std) == {1.0} else {"scale": [*self.mean, *self.std]}

    def config(self) -> dict[str, Any]:
        return {**label_config(self.value_names), "problem_type": "regression"}

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.tasks.heads import PooledHead

        return PooledHead(config.pooled_size, len(self.value_names), config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "spearman"

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        label = None if example.label is None else values_of(example, self.value_names)
        return featurize_text(example, tokenizer, window_rule, label)

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        import torch

        values = np.array([example_features.label for example_features in features])  # (U, V)
        # Standardized in double precision: years minus their mean need few digits.
        standardized = (values - self.mean) / self.std
        return {"value": torch.from_numpy(standardized.astype(np.float32))}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        import torch.nn.functional as F  # noqa: N812

        from bertworks.tasks.heads import mean_by_group

        values = mean_by_group(outputs, batch.groups)  # (U, V)
        return F.mse_loss(values, batch.labels["value"], reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return batch.labels["value"].numel()

    def decode(
        self, example: TextExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> ValuePrediction | ValuesPrediction:
        mean_output = np.stack(outputs).astype(np.float64).mean(0)  # over all windows
        return self._prediction(example, mean_output * self.std + self.mean)

    def _prediction(self, example: TextExample, values: Values) -> ValuePrediction | ValuesPrediction:
        if len(values) == 1:
            return ValuePrediction(example.id, float(values[0]), self._name)
        return ValuesPrediction(example.id, dict(zip(self.value_names, values.tolist(), strict=True)))

    @property
    def _name(self) -> str:
        """The name of a single value; empty if it has only that of every regression."""
        return "" if self.value_names[0] in _NAMELESS else self.value_names[0]

    def score(self, pairs: Iterable[tuple[TextExample, ValuePrediction | ValuesPrediction]]) -> TaskScores:
        """Return Pearson's and Spearman's correlation; of several values their means, then those of each value."""
        tallies = {name: CorrelationTally() for name in self.value_names}
        mistakes: list[Mistake] = []
        for example, prediction in pairs:
            expected, predicted = np.array(values_of(example, self.value_names)), _values_in(prediction)
            for index, tally in enumerate(tallies.values()):
                tally.add(predicted[index : index + 1], expected[index : index + 1])
            mistake = Mistake(
                confidence=float(np.abs(predicted - expected).max()),
                texts=example.texts,
                expected=str(example.label),
                predicted=LABEL_SEPARATOR.join(f"{value:.2f}" for value in predicted),
                location=example.location,
            )
            mistakes = worst_mistakes([*mistakes, mistake])
        scores = {name: tally.scores() for name, tally in tallies.items()}
        metrics = {name: float(np.mean([one[name] for one in scores.values()])) for name in ("pearson", "spearman")}
        if len(scores) > 1:
            metrics |= {f"{metric}_{name}": one[metric] for name, one in scores.items() for metric in one}
        return TaskScores(
            metrics=metrics,
            main_metric=self.main_metric,
            details={"mistakes": mistakes},
            confidence_label="absolute error",
        )

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[ValuePrediction]) -> Task:
        return self

    def fit_baselines(self, examples: Sequence[TextExample]) -> Iterator[Baseline]:
        """Yield the means of the labels, and ridge regression on TF-IDF features."""
        mean = np.mean([values_of(example, self.value_names) for example in examples], axis=0)
        yield Baseline(
            "mean",
            "mean baseline",
            lambda others: (self._prediction(example, mean) for example in others),
            len(examples),
        )
        sample = sample_within_limit(examples)
        predict = fit_values(sample, np.array([values_of(example, self.value_names) for example in sample]))
        yield Baseline(
            "tfidf_ridge_regression",
            "bag of words (TF-IDF + ridge regression)",
            lambda others: map(self._prediction, others, predict(others)),
            len(sample),
        )

    def submission_value(self, prediction: ValuePrediction | ValuesPrediction) -> float | str:
        values = _values_in(prediction).tolist()
        return values[0] if len(values) == 1 else LABEL_SEPARATOR.join(map(str, values))

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
        std, mean = (torch.tensor(part, dtype=torch.float64) for part in (self.std, self.mean))
        ones, zeros = (1.0,) * len(self.std), (0.0,) * len(self.mean)
        with torch.no_grad():
            last.score.weight.mul_(std[:, None])
            bias: torch.Tensor | None = last.score.bias
            if bias is None:
                return replace(self, std=ones)
            bias.mul_(std).add_(mean)
        return replace(self, mean=zeros, std=ones)


def names_of(example: TextExample) -> tuple[str, ...]:
    """Return the names of the values in a label: those that are written, or LABEL_0, LABEL_1, … for several."""
    names = [name for name, _ in _parts_of(example)]
    if names == [""]:
        return _SINGLE
    return tuple(name or f"LABEL_{index}" for index, name in enumerate(names))


def values_of(example: TextExample, names: Sequence[str]) -> tuple[float, ...]:
    """Return the values of the label, finite numbers, in the order of their names."""
    parts = _parts_of(example)
    if len(parts) != len(names):
        raise InputError(
            f"{example.location}: the label '{example.label}' has {len(parts)} values, but the model has {len(names)}; "
            f"correct it, or name the right column with --label"
        )
    values = {name or names[index]: _number(text, example) for index, (name, text) in enumerate(parts)}
    if values.keys() != set(names):
        raise InputError(
            f"{example.location}: the label '{example.label}' has the values {', '.join(values)}, but the model has "
            f"{', '.join(names)}; correct it"
        )
    return tuple(values[name] for name in names)


def _parts_of(example: TextExample) -> list[tuple[str, str]]:
    """Return the name, "" where it has none, and the number of each value in the label, as text."""
    if example.label is None:
        raise InputError(f"{example.location}: there is no label; name its column with --label")
    parts = [part.rpartition("=") for part in example.label.split(LABEL_SEPARATOR)]
    return [(name.strip(), number) for name, _, number in parts]


def _number(text: str, example: TextExample) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{example.location}: the label '{example.label}' is not a number; correct it, or name the right column "
            f"with --label"
        )
    return value


def _values_in(prediction: ValuePrediction | ValuesPrediction) -> Values:
    values = [prediction.value] if isinstance(prediction, ValuePrediction) else list(prediction.values.values())
    return np.array(values, dtype=np.float64)
