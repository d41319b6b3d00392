"""Give a text or a pair a number: labelled lines in, values out, as for how alike two sentences are (STS-B).

Where a text takes several windows, its value is the mean of theirs. The head learns values less the mean of those of
train, in units of their deviation, so that prices are learned as well as stars; at the end it takes mean and deviation
into its weights, and says values as they are written. U examples.
"""

from __future__ import annotations

import math
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
from bertworks.datasets.labelled_texts import TextExample, read_texts
from bertworks.encoders.stack import BertConfig
from bertworks.errors import FolderError, InputError
from bertworks.metrics.classification import CorrelationTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.classify import Classify, featurize_text, label_config, labels_in
from bertworks.tasks.contract import Features, Mistake, Task, TaskScores, worst_mistakes
from bertworks.tasks.heads import PooledHead, mean_by_group
from bertworks.tasks.recurrent_head import RecurrentHead
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ValuePrediction:
    """The value of a text."""

    id: str
    value: float

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "value": self.value}


@dataclass(frozen=True, slots=True)
class Regress:
    """Which number? Models are chosen by how alike they and the labels order the texts (Spearman).

    What the head says, times `deviation` and plus `mean`, is a value.
    """

    name: ClassVar[str] = "regress"
    head_kind: ClassVar[str] = "rows"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextExample]:
        return read_texts(path, columns, counts)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
        return Classify.read_unlabelled(records, columns)

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], settings: Mapping[str, Any]) -> Regress:
        if not examples:
            raise InputError("there are no texts to learn from; give a file with at least one labelled line")
        values = np.array([value_of(case) for case in examples])
        if values.min() == values.max():
            raise InputError(
                f"all {len(examples):,} training texts have the same value {examples[0].label}; there is nothing to learn: "
                f"add texts of other values, or name the right column with --label"
            )
        return cls(float(values.mean()), float(values.std()))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Regress:
        labels = labels_in(config)
        if ("id2label" in config or "num_labels" in config) and len(labels) != 1:
            raise FolderError(
                f"config.json states {len(labels)} labels ({', '.join(labels[:5])}), but a score has one; this model "
                f"is for 'classify'"
            )
        return cls(*metadata.get("scale", ()))

    def metadata(self) -> dict[str, Any]:
        """Return nothing of a head that says values as they are written."""
        return {} if self == Regress() else {"scale": [self.mean, self.std]}

    def config(self) -> dict[str, Any]:
        return {**label_config(("value",)), "problem_type": "regression"}

    def head(self, config: BertConfig) -> nn.Module:
        return PooledHead(config.pooled_size, 1, config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "spearman"

    def featurize(self, example: TextExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        return featurize_text(example, tokenizer, window_rule, None if example.label is None else value_of(example))

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        values = np.array([question.label for question in features])
        scaled = (values - self.mean) / self.std  # before it is rounded: years less their mean are few
        return {"value": torch.from_numpy(scaled.astype(np.float32))}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        said = mean_by_group(outputs, batch.groups)[:, 0]  # (U,)
        return F.mse_loss(said, batch.labels["value"], reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["value"])

    def decode(
        self, example: TextExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> ValuePrediction:
        said = float(np.mean(outputs, dtype=np.float64))  # of all windows
        return ValuePrediction(example.id, said * self.std + self.mean)

    def score(self, pairs: Iterable[tuple[TextExample, ValuePrediction]]) -> TaskScores:
        tally = CorrelationTally()
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            wanted = value_of(case)
            tally.add(np.array([prediction.value]), np.array([wanted]))
            distance = abs(prediction.value - wanted)  # a value has no probability: the worst are the farthest
            said = f"{prediction.value:.2f}"
            mistakes = worst_mistakes([*mistakes, Mistake(distance, case.texts, str(case.label), said, case.location)])
        return TaskScores(tally.scores(), self.main_metric, {"mistakes": mistakes})

    def calibrate(self, examples: Sequence[TextExample], predictions: Sequence[ValuePrediction]) -> Task:
        return self  # nothing is tuned on dev

    def unscale(self, head: nn.Module) -> Regress:
        """Take mean and deviation into the last product of the head: then transformers says the same values. A head
        without a bias has no place for the mean, which stays with the task."""
        last = head.body if isinstance(head, RecurrentHead) else head
        assert isinstance(last.score, nn.Linear)
        with torch.no_grad():
            last.score.weight.mul_(self.std)
            bias: torch.Tensor | None = last.score.bias
            if bias is None:
                return replace(self, std=1.0)
            bias.mul_(self.std).add_(self.mean)
        return replace(self, mean=0.0, std=1.0)


def value_of(example: TextExample) -> float:
    """Return the label as a number; refuse one that is none."""
    if example.label is None:
        raise InputError(f"{example.location}: there is no label; name its column with --label")
    try:
        value = float(example.label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{example.location}: the label '{example.label}' is no number; mend it, or name the right column with --label"
        )
    return value
