"""Choose one of several endings of a prompt: files of choices in, the chosen ending with probabilities out.

Each ending is read as a pair with its prompt and scored alone, so that the order of endings says nothing. Where a pair
takes several windows, the score of the ending is the mean of theirs. E examples of N endings (N may differ between
examples), U units (all endings of a batch), B rows.
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

from bertworks.datasets.choices import choices_of
from bertworks.datasets.files import Line, read_lines
from bertworks.encoders.stack import BertSizes
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, windows_of
from bertworks.tasks.contract import Asked, Mistake, Question, Scored, Task, worst
from bertworks.tasks.heads import SummaryHead, mean_by_group
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

Floats = npt.NDArray[np.float32]

# What a person calls a column on the command line -> the field under which `choices` looks for it.
_FIELDS = {"text": "prompt", "prompt": "prompt", "label": "label", "id": "id"}
# Of the calibration plot: how sure the model was, in steps of a fifteenth.
_NUM_BINS = 15
# Scores that differ by less are the same: what else is computed with a row changes as much.
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class ChoiceCase:
    """A prompt and its endings; `label` is the number of the right one from 0, None where it is not known."""

    id: str
    place: str
    prompt: str
    endings: tuple[str, ...]
    label: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.prompt, *self.endings)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The ending that was chosen, by number and as text, and the probability of each."""

    id: str
    choice: int
    text: str
    probabilities: tuple[float, ...]
    logits: Floats

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "choice": self.choice, "text": self.text, "probabilities": list(self.probabilities)}


@dataclass(frozen=True, slots=True)
class Choose:
    """Which ending?"""

    name: ClassVar[str] = "choose"
    head_kind: ClassVar[str] = "choices"
    default_rule: ClassVar[WindowRule] = WindowRule()
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[ChoiceCase]:
        names = columns.get("header", "")
        wanted = {role: column for role, column in columns.items() if role != "header" and column != ""}
        lines = (_renamed(line, wanted) for line in read_lines(path, names.split(",") if names else None))
        for one in choices_of(lines, Counts() if counts is None else counts):
            yield ChoiceCase(one.id, one.place, one.prompt, one.endings, one.label)

    @classmethod
    def unlabelled(cls, lines: Iterable[Line], columns: Mapping[str, str]) -> Iterator[ChoiceCase]:
        for one in choices_of(_renamed(line, columns) for line in lines):
            yield ChoiceCase(one.id, one.place, one.prompt, one.endings)

    @classmethod
    def learned(cls, cases: Sequence[ChoiceCase], settings: Mapping[str, Any]) -> Choose:
        if not cases:
            raise InputError("there are no choices to learn from; give a file with at least one labelled line")
        for case in cases:
            _target(case)
        return cls()

    @classmethod
    def told(cls, told: Mapping[str, Any], config: Mapping[str, Any]) -> Choose:
        return cls(told.get("temperature", 1.0))

    def tell(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        return {}  # transformers' class has one output whatever its config says

    def head(self, sizes: BertSizes) -> nn.Module:
        return SummaryHead(sizes.summary_width, 1, sizes.dropout)

    @property
    def main(self) -> str:
        return "accuracy"

    def ask(self, case: ChoiceCase, tokenizer: Tokenizer, rule: WindowRule) -> Question:
        if len(case.endings) < 2:
            raise InputError(f"{case.place}: there is nothing to choose among {len(case.endings)} endings; give two")
        prompt = tokenizer.cut(case.prompt)
        rows: list[Asked] = []
        num_cut = 0
        for unit, ending in enumerate(case.endings):
            windows = windows_of(tokenizer, [prompt, tokenizer.cut(ending)], rule)
            rows += [Asked(window, unit) for window in windows.rows]
            num_cut += windows.num_cut
        label = None if case.label is None else _target(case)
        return Question(tuple(rows), len(case.endings), label, num_cut)

    def labels_of(self, questions: Sequence[Question]) -> dict[str, torch.Tensor]:
        return {
            "choice": torch.tensor([question.label for question in questions]),
            "num_units": torch.tensor([question.num_units for question in questions]),
        }

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        scores = mean_by_group(outputs, batch.groups)[:, 0]  # (U,)
        return F.cross_entropy(side_by_side(scores, batch.labels["num_units"]), batch.labels["choice"], reduction="sum")

    def num_answers(self, batch: Batch) -> int:
        return len(batch.labels["choice"])

    def answer(self, case: ChoiceCase, question: Question, outputs: Sequence[Floats]) -> Chosen:
        units = np.array([row.unit for row in question.rows])
        sums = np.bincount(units, weights=np.concatenate(outputs), minlength=question.num_units)
        logits = (sums / np.bincount(units, minlength=question.num_units)).astype(np.float32)  # (N,)
        scaled = logits.astype(np.float64) / self.temperature
        powers = np.exp(scaled - scaled.max())
        chances = powers / powers.sum()
        # Of endings that are alike the first, whatever rounding made of their scores.
        choice = int((logits >= logits.max() - _ROUNDING).argmax())
        return Chosen(case.id, choice, case.endings[choice], tuple(chances.tolist()), logits)

    def score(self, pairs: Iterable[tuple[ChoiceCase, Chosen]]) -> Scored:
        bins = np.zeros((_NUM_BINS, 3))  # how many, their confidence, how many right
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            wanted, sure = _target(case), max(prediction.probabilities)
            # As in `calibration`: a bin holds its upper edge and not its lower one.
            bins[math.ceil(sure * _NUM_BINS) - 1] += 1, sure, wanted == prediction.choice
            if wanted != prediction.choice:
                right = case.endings[wanted]
                mistakes = worst([*mistakes, Mistake(sure, (case.prompt,), right, prediction.text, case.place)])
        total, _, came = bins.sum(0)
        if not total:
            raise InputError("there is no choice to score; give a file with at least one labelled line")
        error = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / total)
        figures = {"accuracy": float(came / total), "calibration_error": error}
        return Scored(figures, self.main, {"bins": bins, "mistakes": mistakes})

    def calibrated(self, cases: Sequence[ChoiceCase], predictions: Sequence[Chosen]) -> Task:
        logits = np.full((len(predictions), max(len(one.logits) for one in predictions)), -np.inf)  # (E, N)
        for row, one in zip(logits, predictions, strict=True):
            row[: len(one.logits)] = one.logits
        return replace(self, temperature=fit_temperature(logits, np.array([_target(case) for case in cases])))


def side_by_side(scores: torch.Tensor, num_units: torch.Tensor) -> torch.Tensor:
    """Return (E, N): the scores (U,) of each example in a row, minus infinity where it has no more endings."""
    num_examples, most = len(num_units), int(num_units.max())
    rows = torch.repeat_interleave(torch.arange(num_examples, device=scores.device), num_units)  # (U,)
    firsts = torch.cumsum(num_units, 0) - num_units  # (E,)
    columns = torch.arange(len(scores), device=scores.device) - firsts[rows]
    return scores.new_full((num_examples, most), float("-inf")).index_put((rows, columns), scores)


def _target(case: ChoiceCase) -> int:
    """Return the number of the right ending; refuse a case that does not tell it, or tells one that is not there."""
    if case.label is None:
        raise InputError(f"{case.place}: there is no label; give the number of the right ending, from 0, as 'label'")
    if not 0 <= case.label < len(case.endings):
        raise InputError(
            f"{case.place}: the label {case.label} is no number from 0 to {len(case.endings) - 1}; mend it"
        )
    return case.label


def _renamed(line: Line, columns: Mapping[str, str]) -> Line:
    """Return a line whose fields have the names under which they are looked for."""
    fields = dict(line.fields)
    for role, column in columns.items():
        if role not in _FIELDS:
            raise InputError(f"choices have no column '{role}'; name one of: {', '.join(_FIELDS)}")
        if column not in fields:
            known = ", ".join(map(repr, line.fields))
            raise InputError(f"{line.place}: no column '{column}'; there are {known}; name another with --{role}")
        fields[_FIELDS[role]] = fields.pop(column)
    return Line(fields, line.place)
