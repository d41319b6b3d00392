"""Classify a text or a pair: labelled lines in, classes with probabilities out; one class of many, or several at once.

U examples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.datasets.files import Record
from bertworks.datasets.labelled_texts import LABEL_SEPARATOR, TextExample, read_texts, text_examples
from bertworks.encoders.stack import BertConfig
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.metrics.classification import ConfusionTally, LabelsTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, make_pair_windows
from bertworks.tasks.contract import Features, InputSequence, Mistake, Task, TaskScores, worst_mistakes
from bertworks.tasks.heads import PooledHead, mean_by_group
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

_METRICS, _MULTI_LABEL_METRICS = ("accuracy", "macro_f1"), ("micro_f1",)
# Of the calibration plot: how sure the model was, in steps of a fifteenth.
_NUM_BINS = 15


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The class of a text (of several at once: all that are likelier than not), and the probability of each class."""

    id: str
    label: str
    probabilities: Mapping[str, float]
    logits: npt.NDArray[np.float32]

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "label": self.label, "probabilities": dict(self.probabilities)}


@dataclass(frozen=True, slots=True)
class Classify:
    """Which class? `several` says that a text may have more than one, written with | between them."""

    name: ClassVar[str] = "classify"
    head_kind: ClassVar[str] = "rows"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    labels: tuple[str, ...]
    multi_label: bool = False
    metrics: tuple[str, ...] = _METRICS
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextExample]:
        return read_texts(path, columns, counts)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
        return text_examples(records, {**columns, "label": ""}, "the input")

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], settings: Mapping[str, Any]) -> Classify:
        several = bool(settings.get("several")) or any(LABEL_SEPARATOR in (case.label or "") for case in examples)
        seen: dict[str, None] = {}
        for case in examples:
            if case.label is None:
                raise InputError(f"{case.location}: there is no label; name its column with --label")
            if not several and not case.label.strip():
                raise InputError(f"{case.location}: the label is empty; fill it or remove the line")
            seen |= dict.fromkeys(
                part for part in (case.label.split(LABEL_SEPARATOR) if several else [case.label]) if part
            )
        labels = tuple(settings.get("labels") or sorted(seen, key=_sort_key))
        if len(labels) < 2 and not several:
            raise InputError(
                f"all {len(examples):,} training texts have the same label '{next(iter(seen), '')}'; there is nothing to "
                f"learn: add texts of other classes, or name the right column with --label"
            )
        metrics = tuple(settings.get("metrics") or (_MULTI_LABEL_METRICS if several else _METRICS))
        return cls(labels, several, metrics)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Classify:
        labels = labels_in(config)
        several = config.get("problem_type") == "multi_label_classification"
        metrics = tuple(metadata.get("metrics", _MULTI_LABEL_METRICS if several else _METRICS))
        return cls(labels, several, metrics, metadata.get("temperature", 1.0))

    def metadata(self) -> dict[str, Any]:
        return {"metrics": list(self.metrics), "temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        kind = "multi_label_classification" if self.multi_label else "single_label_classification"
        return {**label_config(self.labels), "problem_type": kind}

    def head(self, config: BertConfig) -> nn.Module:
        return PooledHead(config.pooled_size, len(self.labels), config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return self.metrics[0]

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        return featurize_text(example, tokenizer, window_rule, None if example.label is None else self._target(example))

    def _target(self, example: TextExample) -> int | npt.NDArray[np.float32]:
        """Return the number of the class, or a one for each of several."""
        if example.label is None:
            raise InputError(f"{example.location}: there is no label; fill it in, or name its column with --label")
        parts = [part for part in example.label.split(LABEL_SEPARATOR) if part] if self.multi_label else [example.label]
        unknown = [part for part in parts if part not in self.labels]
        if unknown:
            raise InputError(
                f"{example.location}: the label '{unknown[0]}' does not occur in the training texts; known are: "
                f"{', '.join(self.labels)}"
            )
        numbers = [self.labels.index(part) for part in parts]
        if not self.multi_label:
            return numbers[0]
        target = np.zeros(len(self.labels), dtype=np.float32)
        target[numbers] = 1.0
        return target

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {"class": torch.from_numpy(np.stack([np.asarray(question.label) for question in features]))}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        wanted = batch.labels["class"]
        outputs = mean_by_group(outputs, batch.groups)  # (U, C)
        if self.multi_label:
            return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / len(self.labels)
        return F.cross_entropy(outputs, wanted, reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["class"])

    def decode(
        self, example: TextExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> ClassPrediction:
        logits = np.stack(outputs).mean(0)  # of all windows
        chances = self._probabilities(logits)
        if self.multi_label:
            label = LABEL_SEPARATOR.join(
                name for name, chance in zip(self.labels, chances, strict=True) if chance > 0.5
            )
        else:
            label = self.labels[int(logits.argmax())]
        return ClassPrediction(example.id, label, dict(zip(self.labels, chances.tolist(), strict=True)), logits)

    def _probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        scaled = logits.astype(np.float64) / self.temperature
        if self.multi_label:
            return 1 / (1 + np.exp(-scaled))
        powers = np.exp(scaled - scaled.max())
        return powers / powers.sum()

    def score(self, pairs: Iterable[tuple[TextExample, ClassPrediction]]) -> TaskScores:
        tally = LabelsTally(len(self.labels)) if self.multi_label else ConfusionTally(len(self.labels))
        bins = np.zeros((_NUM_BINS, 3))  # how many, their confidence, how many right
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            wanted, found = self._target(case), self._target(replace(case, label=prediction.label))
            tally.add(np.asarray(found)[None], np.asarray(wanted)[None])
            sure = max(prediction.probabilities.values())
            bins[min(int(sure * _NUM_BINS), _NUM_BINS - 1)] += 1, sure, np.array_equal(wanted, found)
            if not np.array_equal(wanted, found):
                mistakes = worst_mistakes(
                    [*mistakes, Mistake(sure, case.texts, str(case.label), prediction.label, case.location)]
                )
        scores = tally.scores()
        figures = {name: scores[name] for name in self.metrics}
        if not self.multi_label:
            figures["calibration_error"] = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
        details = {"bins": bins, "mistakes": mistakes, "labels": self.labels}
        if isinstance(tally, ConfusionTally):
            details["confusion"] = tally.counts
        else:
            details["found"] = tally.by_label()
        return TaskScores(figures, self.metrics[0], details)

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[ClassPrediction]) -> Task:
        logits = np.stack([prediction.logits for prediction in predictions])
        truth = np.stack([self._target(case) for case in examples])
        return replace(self, temperature=float(fit_temperature(logits, truth)))


def featurize_text(example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule, label: Any) -> Features:
    """Return the rows of a text or pair: one unit, however many windows and orders it takes."""
    windows = make_pair_windows(tokenizer, [tokenizer.tokenize(text) for text in example.texts], window_rule)
    return Features(
        tuple(InputSequence(row) for row in windows.sequences), label=label, num_truncated=windows.num_truncated
    )


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """Return the labels as transformers' config.json has them."""
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def labels_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels that a config.json states, in the order of their numbers."""
    told = config.get("id2label") or {str(number): f"LABEL_{number}" for number in range(config.get("num_labels", 2))}
    return tuple(told[key] for key in sorted(told, key=int))


def _sort_key(label: str) -> tuple[int, float, str]:
    """Numbers in the order of their size, then words by the alphabet."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
