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

from bertworks.datasets.files import Line
from bertworks.datasets.labelled_texts import TextCase, read_texts
from bertworks.encoders.stack import BertSizes
from bertworks.errors import FolderError, InputError
from bertworks.metrics.classification import CorrelationTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.classify import Classify, ask_text, label_config, labels_in
from bertworks.tasks.contract import Mistake, Question, Scored, Task, worst
from bertworks.tasks.heads import SummaryHead, mean_by_group
from bertworks.tasks.recurrent_head import RecurrentHead
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Rated:
    """The value of a text."""

    id: str
    value: float

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "value": self.value}


@dataclass(frozen=True, slots=True)
class Regress:
    """Which number? Models are chosen by how alike they and the labels order the texts (Spearman).

    What the head says, times `deviation` and plus `mean`, is a value.
    """

    name: ClassVar[str] = "regress"
    head_kind: ClassVar[str] = "rows"
    default_rule: ClassVar[WindowRule] = WindowRule()
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TextCase]:
        return read_texts(path, columns, counts)

    @classmethod
    def unlabelled(cls, lines: Iterable[Line], columns: Mapping[str, str]) -> Iterator[TextCase]:
        return Classify.unlabelled(lines, columns)

    @classmethod
    def learned(cls, cases: Sequence[TextCase], settings: Mapping[str, Any]) -> Regress:
        if not cases:
            raise InputError("there are no texts to learn from; give a file with at least one labelled line")
        values = np.array([value_of(case) for case in cases])
        if values.min() == values.max():
            raise InputError(
                f"all {len(cases):,} training texts have the same value {cases[0].label}; there is nothing to learn: "
                f"add texts of other values, or name the right column with --label"
            )
        return cls(float(values.mean()), float(values.std()))

    @classmethod
    def told(cls, told: Mapping[str, Any], config: Mapping[str, Any]) -> Regress:
        labels = labels_in(config)
        if ("id2label" in config or "num_labels" in config) and len(labels) != 1:
            raise FolderError(
                f"config.json states {len(labels)} labels ({', '.join(labels[:5])}), but a score has one; this model "
                f"is for 'classify'"
            )
        return cls(*told.get("scale", ()))

    def tell(self) -> dict[str, Any]:
        """Return nothing of a head that says values as they are written."""
        return {} if self == Regress() else {"scale": [self.mean, self.deviation]}

    def config(self) -> dict[str, Any]:
        return {**label_config(("value",)), "problem_type": "regression"}

    def head(self, sizes: BertSizes) -> nn.Module:
        return SummaryHead(sizes.summary_width, 1, sizes.dropout)

    @property
    def main(self) -> str:
        return "spearman"

    def ask(self, case: TextCase, tokenizer: Tokenizer, rule: WindowRule) -> Question:
        return ask_text(case, tokenizer, rule, None if case.label is None else value_of(case))

    def labels_of(self, questions: Sequence[Question]) -> dict[str, torch.Tensor]:
        values = np.array([question.label for question in questions])
        scaled = (values - self.mean) / self.deviation  # before it is rounded: years less their mean are few
        return {"value": torch.from_numpy(scaled.astype(np.float32))}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        said = mean_by_group(outputs, batch.groups)[:, 0]  # (U,)
        return F.mse_loss(said, batch.labels["value"], reduction="sum")

    def num_answers(self, batch: Batch) -> int:
        return len(batch.labels["value"])

    def answer(self, case: TextCase, question: Question, outputs: Sequence[npt.NDArray[np.float32]]) -> Rated:
        said = float(np.mean(outputs, dtype=np.float64))  # of all windows
        return Rated(case.id, said * self.deviation + self.mean)

    def score(self, pairs: Iterable[tuple[TextCase, Rated]]) -> Scored:
        tally = CorrelationTally()
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            wanted = value_of(case)
            tally.add(np.array([prediction.value]), np.array([wanted]))
            distance = abs(prediction.value - wanted)  # a value has no probability: the worst are the farthest
            said = f"{prediction.value:.2f}"
            mistakes = worst([*mistakes, Mistake(distance, case.texts, str(case.label), said, case.place)])
        return Scored(tally.scores(), self.main, {"mistakes": mistakes})

    def calibrated(self, cases: Sequence[TextCase], predictions: Sequence[Rated]) -> Task:
        return self  # nothing is tuned on dev

    def unscaled(self, head: nn.Module) -> Regress:
        """Take mean and deviation into the last product of the head: then transformers says the same values. A head
        without a bias has no place for the mean, which stays with the task."""
        last = head.body if isinstance(head, RecurrentHead) else head
        assert isinstance(last.score, nn.Linear)
        with torch.no_grad():
            last.score.weight.mul_(self.deviation)
            bias: torch.Tensor | None = last.score.bias
            if bias is None:
                return replace(self, deviation=1.0)
            bias.mul_(self.deviation).add_(self.mean)
        return replace(self, mean=0.0, deviation=1.0)


def value_of(case: TextCase) -> float:
    """Return the label as a number; refuse one that is none."""
    if case.label is None:
        raise InputError(f"{case.place}: there is no label; name its column with --label")
    try:
        value = float(case.label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{case.place}: the label '{case.label}' is no number; mend it, or name the right column with --label"
        )
    return value
