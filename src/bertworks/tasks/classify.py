"""Classify a text or a pair: labelled records in, classes with probabilities out; single-label or multi-label.

U examples, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import LABEL_SEPARATOR, TextExample, read_texts, text_columns, text_examples
from bertworks.display.bars import bars_html
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.metrics.classification import ConfusionTally, LabelsTally
from bertworks.sampling.windows import WindowRule, make_pair_windows
from bertworks.tasks.attribution import contrast_coefficients, text_target
from bertworks.tasks.bag_of_words import Predict, Values, fit_label_probabilities, sample_within_limit
from bertworks.tasks.baselines import Baseline
from bertworks.tasks.class_weights import BALANCED, balanced_weights, parse_class_weights
from bertworks.tasks.contract import (
    AttributionTarget,
    Features,
    InputFields,
    InputSequence,
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

_METRICS, _MULTI_LABEL_METRICS = ("accuracy", "macro_f1"), ("micro_f1",)
# Bins of the reliability diagram.
_NUM_BINS = 15
# Classes in the repr of a prediction.
_NUM_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The predicted class (multi-label: all whose probability is above 1/2), and the probability of each class."""

    id: str
    label: str
    probabilities: Mapping[str, float]
    logits: npt.NDArray[np.float32]

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "label": self.label, "probabilities": dict(self.probabilities)}

    def _repr_html_(self) -> str:
        return bars_html(self.label, sorted(self.probabilities.items(), key=lambda item: -item[1]))

    def __repr__(self) -> str:
        best = sorted(self.probabilities.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{label!r}: {probability:.3f}" for label, probability in best[:_NUM_SHOWN])
        return f"ClassPrediction({self.label!r}, {{{shown}{', …' if len(best) > _NUM_SHOWN else ''}}})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Classify:
    """Text classification. With `multi_label` a text may have several labels, separated by |.

    class_weights   (C,) factors of the classes in the loss, of multi-label classes where a text has them; (): all 1
    """

    name: ClassVar[str] = "classify"
    head_kind: ClassVar[str] = "sequence"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    input_fields: ClassVar[tuple[InputFields, ...]] = (TEXT, PAIR)
    labels: tuple[str, ...]
    multi_label: bool = False
    metrics: tuple[str, ...] = _METRICS
    temperature: float = 1.0
    class_weights: tuple[float, ...] = ()

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextExample]:
        return read_texts(path, columns, counts)

    @classmethod
    def columns_in(cls, path: Path, columns: Mapping[str, str]) -> dict[str, str]:
        return text_columns(path, columns)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
        return text_examples(records, {**columns, "label": ""}, "the input")

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], settings: Mapping[str, Any]) -> Classify:
        multi_label = bool(settings.get("multi_label")) or any(
            LABEL_SEPARATOR in (example.label or "") for example in examples
        )
        train_labels: dict[str, None] = {}
        for example in examples:
            if example.label is None:
                raise InputError(f"{example.location}: there is no label; name its column with --label")
            if not multi_label and not example.label.strip():
                raise InputError(f"{example.location}: the label is empty; fill it in or remove the line")
            parts = example.label.split(LABEL_SEPARATOR) if multi_label else [example.label]
            train_labels |= dict.fromkeys(part for part in parts if part)
        labels = tuple(settings.get("labels") or sorted(train_labels, key=_sort_key))
        if len(labels) < 2 and not multi_label:
            raise InputError(
                f"all {len(examples):,} training texts have the same label '{next(iter(train_labels), '')}', so there "
                f"is nothing to learn; add texts of other classes, or name the right column with --label"
            )
        metrics = tuple(settings.get("metrics") or (_MULTI_LABEL_METRICS if multi_label else _METRICS))
        return cls(labels=labels, multi_label=multi_label, metrics=metrics)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Classify:
        labels = unique_labels(labels_in(config))
        multi_label = config.get("problem_type") == "multi_label_classification"
        metrics = tuple(metadata.get("metrics", _MULTI_LABEL_METRICS if multi_label else _METRICS))
        temperature = metadata.get("temperature", 1.0)
        return cls(labels=labels, multi_label=multi_label, metrics=metrics, temperature=temperature)

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return not is_regression(config)

    def metadata(self) -> dict[str, Any]:
        return {"metrics": list(self.metrics), "temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        problem_type = "multi_label_classification" if self.multi_label else "single_label_classification"
        return {**label_config(self.labels), "problem_type": problem_type}

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.tasks.heads import PooledHead

        return PooledHead(config.pooled_size, len(self.labels), config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return self.metrics[0]

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        return featurize_text(example, tokenizer, window_rule, None if example.label is None else self._target(example))

    def _target(self, example: TextExample) -> int | npt.NDArray[np.float32]:
        """Return the index of the class; multi-label: a 0/1 vector (C,)."""
        if example.label is None:
            raise InputError(f"{example.location}: there is no label; fill it in, or name its column with --label")
        parts = [part for part in example.label.split(LABEL_SEPARATOR) if part] if self.multi_label else [example.label]
        unknown = [part for part in parts if part not in self.labels]
        if unknown:
            raise InputError(
                f"{example.location}: the label '{unknown[0]}' does not occur in the training texts; the labels are: "
                f"{', '.join(self.labels)}"
            )
        indices = [self.labels.index(part) for part in parts]
        if not self.multi_label:
            return indices[0]
        target = np.zeros(len(self.labels), dtype=np.float32)
        target[indices] = 1.0
        return target

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        import torch

        return {
            "class": torch.from_numpy(np.stack([np.asarray(example_features.label) for example_features in features]))
        }

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        import torch.nn.functional as F  # noqa: N812

        from bertworks.tasks.heads import mean_by_group

        targets = batch.labels["class"]
        logits = mean_by_group(outputs, batch.groups)  # (U, C)
        weights = logits.new_tensor(self.class_weights) if self.class_weights else None
        if self.multi_label:
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum", pos_weight=weights)
            return losses / len(self.labels)
        return F.cross_entropy(logits, targets, weights, reduction="sum")

    def divergence(self, outputs: torch.Tensor, others: torch.Tensor, batch: Batch) -> torch.Tensor:
        from bertworks.tasks.divergence import divergence_of_classes, divergence_of_labels
        from bertworks.tasks.heads import mean_by_group

        logits, other_logits = mean_by_group(outputs, batch.groups), mean_by_group(others, batch.groups)  # (U, C)
        if self.multi_label:
            return divergence_of_labels(logits, other_logits) / len(self.labels)
        return divergence_of_classes(logits, other_logits)

    def with_class_weights(self, weights: str, examples: Sequence[TextExample]) -> Classify:
        if weights != BALANCED:
            return replace(self, class_weights=parse_class_weights(weights, self.labels))
        targets = np.stack([self._target(example) for example in examples])  # (U,) or (U, C)
        counts = targets.sum(0) if self.multi_label else np.bincount(targets, minlength=len(self.labels))
        return replace(self, class_weights=balanced_weights(counts, len(examples), self.multi_label))

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["class"])

    def decode(
        self, example: TextExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> ClassPrediction:
        logits = np.stack(outputs).mean(0)  # over all windows
        return self._predict(example, self._probabilities(logits), logits)

    def _predict(self, example: TextExample, probabilities: Values, logits: npt.NDArray[np.float32]) -> ClassPrediction:
        if self.multi_label:
            label = LABEL_SEPARATOR.join(
                name for name, probability in zip(self.labels, probabilities, strict=True) if probability > 0.5
            )
        else:
            label = self.labels[int(logits.argmax())]
        return ClassPrediction(example.id, label, dict(zip(self.labels, probabilities.tolist(), strict=True)), logits)

    def _probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        scaled = logits.astype(np.float64) / self.temperature
        if self.multi_label:
            return 1 / (1 + np.exp(-scaled))
        exponentials = np.exp(scaled - scaled.max())
        return exponentials / exponentials.sum()

    def score(self, pairs: Iterable[tuple[TextExample, ClassPrediction]]) -> TaskScores:
        tally = LabelsTally(len(self.labels)) if self.multi_label else ConfusionTally(len(self.labels))
        bins = np.zeros((_NUM_BINS, 3))  # count, sum of confidences, number of correct predictions
        mistakes: list[Mistake] = []
        losses: list[float] = []
        for example, prediction in pairs:
            expected, predicted = self._target(example), self._target(replace(example, label=prediction.label))
            losses.append(_loss(np.array(list(prediction.probabilities.values())), expected))
            tally.add(np.asarray(predicted)[None], np.asarray(expected)[None])
            confidence = max(prediction.probabilities.values())
            is_correct = np.array_equal(expected, predicted)
            bins[min(int(confidence * _NUM_BINS), _NUM_BINS - 1)] += 1, confidence, is_correct
            if not is_correct:
                mistake = Mistake(
                    confidence=confidence,
                    texts=example.texts,
                    expected=str(example.label),
                    predicted=prediction.label,
                    location=example.location,
                )
                mistakes = worst_mistakes([*mistakes, mistake])
        all_metrics = tally.scores()
        metrics = {name: all_metrics[name] for name in self.metrics}
        if not self.multi_label:
            metrics["calibration_error"] = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
        details = {"bins": bins, "mistakes": mistakes, "labels": self.labels}
        if isinstance(tally, ConfusionTally):
            details["confusion"] = tally.counts
        else:
            details["matches"] = tally.by_label()
        return TaskScores(
            metrics=metrics,
            main_metric=self.metrics[0],
            details=details,
            loss=float(np.mean(losses)) if losses else None,
        )

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[ClassPrediction]) -> Task:
        logits = np.stack([prediction.logits for prediction in predictions])
        targets = np.stack([self._target(example) for example in examples])
        return replace(self, temperature=float(fit_temperature(logits, targets)))

    def fit_baselines(self, examples: Sequence[TextExample]) -> Iterator[Baseline]:
        """Yield the majority class, or each label's own majority, and logistic regression on TF-IDF features."""
        ratios = self._one_hot(examples).mean(0)  # (C,)
        yield Baseline(
            "majority",
            "majority baseline",
            lambda others: self._from_probabilities(others, np.tile(ratios, (len(others), 1))),
            len(examples),
        )
        sample = sample_within_limit(examples, len(self.labels))
        predict = self.fit_teacher(sample)
        yield Baseline(
            "tfidf_logistic_regression",
            "bag of words (TF-IDF + logistic regression)",
            lambda others: self._from_probabilities(others, predict(others)),
            len(sample),
        )

    def fit_teacher(self, examples: Sequence[TextExample]) -> Predict:
        sample = sample_within_limit(examples, len(self.labels))
        targets = self._one_hot(sample)
        is_binary = len(self.labels) == 2 and not self.multi_label
        predict = fit_label_probabilities(sample, targets[:, 1:] if is_binary else targets)
        return lambda others: self._normalize(predict(others))

    def num_wrong(self, examples: Sequence[TextExample], probabilities: Values) -> int:
        targets = np.stack([self._target(example) for example in examples])
        if self.multi_label:
            return int(((probabilities > 0.5) != targets).any(1).sum())
        return int((probabilities.argmax(1) != targets).sum())

    def _one_hot(self, examples: Sequence[TextExample]) -> npt.NDArray[np.float32]:
        """Return a 0/1 vector for each example, (U, C)."""
        targets = np.stack([self._target(example) for example in examples])
        return targets if self.multi_label else np.eye(len(self.labels), dtype=np.float32)[targets]

    def _normalize(self, probabilities: Values) -> Values:
        """Return probabilities that sum to 1 unless it is multi-label; of two classes only the second one is given."""
        if self.multi_label:
            return probabilities
        if probabilities.shape[1] == 1:
            return np.hstack([1 - probabilities, probabilities])
        return probabilities / probabilities.sum(1, keepdims=True)

    def _from_probabilities(self, examples: Sequence[TextExample], rows: Values) -> Iterator[ClassPrediction]:
        """Yield the predictions of a model that outputs probabilities, (U, C)."""
        logits = np.log(np.maximum(rows, 1e-12)).astype(np.float32)
        return map(self._predict, examples, rows, logits)

    def submission_value(self, prediction: ClassPrediction) -> str:
        return prediction.label

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        """Explain a class, by default the most probable one; multi-label classes are independent: no contrast."""
        probabilities = self.decode(context.example, context.features, context.outputs).probabilities
        label = target if target is not None else max(self.labels, key=lambda name: probabilities[name])
        if label not in self.labels:
            raise InputError(f"there is no class '{label}' to explain; choose one of: {', '.join(self.labels)}")
        index, count = self.labels.index(label), len(self.labels)
        coefficients = np.eye(count)[index] if self.multi_label else contrast_coefficients(count, index)
        return text_target(context, f"'{label}'", coefficients)


def _loss(probabilities: npt.NDArray[np.float64], target: int | npt.NDArray[np.float32]) -> float:
    """Return the negative log probability of the gold class; multi-label: the mean over the classes."""
    if isinstance(target, int):
        correct = probabilities[[target]]
    else:
        correct = np.where(target > 0, probabilities, 1 - probabilities)
    return float(-np.log(np.maximum(correct, np.finfo(np.float64).tiny)).mean())


def featurize_text(example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule, label: Any) -> Features:
    """Return the features of a text or pair: one unit, however many windows and pair orders it has."""
    windows = make_pair_windows(tokenizer, [tokenizer.tokenize(text) for text in example.texts], window_rule)
    return Features(
        sequences=tuple(map(InputSequence.from_window, windows.sequences)),
        label=label,
        num_truncated=windows.num_truncated,
    )


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """Return the label keys of transformers' config.json."""
    return {
        "id2label": {str(index): name for index, name in enumerate(labels)},
        "label2id": {name: index for index, name in enumerate(labels)},
    }


def labels_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of a config.json, in the order of their ids."""
    num_labels = config.get("num_labels")
    id2label = config.get("id2label") or {
        str(index): f"LABEL_{index}" for index in range(2 if num_labels is None else num_labels)
    }
    return tuple(id2label[key] for key in sorted(id2label, key=int))


def unique_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return names that differ: a name that stands for several classes gets their ids, as "other (3)"."""
    counts = Counter(labels)
    used = {name for name in labels if counts[name] == 1}
    unique = []
    for index, name in enumerate(labels):
        label = name
        while counts[name] > 1 and (label == name or label in used):
            label = f"{label} ({index})"
        used.add(label)
        unique.append(label)
    return tuple(unique)


def is_regression(config: Mapping[str, Any]) -> bool:
    """Whether a sequence classification config of transformers is a regression: it says so, or has a single label."""
    return config.get("problem_type") == "regression" or len(labels_in(config)) == 1


def _sort_key(label: str) -> tuple[int, float, str]:
    """Numbers by value, then other labels alphabetically."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
