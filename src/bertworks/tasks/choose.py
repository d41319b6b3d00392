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
from bertworks.datasets.files import Record, read_records
from bertworks.encoders.stack import BertConfig
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.tasks.contract import Features, InputSequence, Mistake, Task, TaskScores, worst_mistakes
from bertworks.tasks.heads import PooledHead, mean_by_group
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
class ChoiceExample:
    """A prompt and its endings; `label` is the number of the right one from 0, None where it is not known."""

    id: str
    location: str
    prompt: str
    endings: tuple[str, ...]
    label: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.prompt, *self.endings)


@dataclass(frozen=True, slots=True)
class ChoicePrediction:
    """The ending that was chosen, by number and as text, and the probability of each."""

    id: str
    choice: int
    text: str
    probabilities: tuple[float, ...]
    logits: Floats

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "choice": self.choice, "text": self.text, "probabilities": list(self.probabilities)}


@dataclass(frozen=True, slots=True)
class Choose:
    """Which ending?"""

    name: ClassVar[str] = "choose"
    head_kind: ClassVar[str] = "choices"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[ChoiceExample]:
        names = columns.get("header", "")
        wanted = {role: column for role, column in columns.items() if role != "header" and column != ""}
        lines = (_rename_fields(line, wanted) for line in read_records(path, names.split(",") if names else None))
        for one in choices_of(lines, Counts() if counts is None else counts):
            yield ChoiceExample(one.id, one.location, one.prompt, one.endings, one.label)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[ChoiceExample]:
        for one in choices_of(_rename_fields(line, columns) for line in records):
            yield ChoiceExample(one.id, one.location, one.prompt, one.endings)

    @classmethod
    def from_examples(cls, examples: Sequence[ChoiceExample], settings: Mapping[str, Any]) -> Choose:
        if not examples:
            raise InputError("there are no choices to learn from; give a file with at least one labelled line")
        for case in examples:
            _target(case)
        return cls()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Choose:
        return cls(metadata.get("temperature", 1.0))

    def metadata(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        return {}  # transformers' class has one output whatever its config says

    def head(self, config: BertConfig) -> nn.Module:
        return PooledHead(config.pooled_size, 1, config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "accuracy"

    def featurize(self, example: ChoiceExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        if len(example.endings) < 2:
            raise InputError(
                f"{example.location}: there is nothing to choose among {len(example.endings)} endings; give two"
            )
        prompt = tokenizer.tokenize(example.prompt)
        rows: list[InputSequence] = []
        num_cut = 0
        for unit, ending in enumerate(example.endings):
            windows = make_windows(tokenizer, [prompt, tokenizer.tokenize(ending)], window_rule)
            rows += [InputSequence(window, unit) for window in windows.sequences]
            num_cut += windows.num_truncated
        label = None if example.label is None else _target(example)
        return Features(tuple(rows), len(example.endings), label, num_cut)

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {
            "choice": torch.tensor([question.label for question in features]),
            "num_units": torch.tensor([question.num_units for question in features]),
        }

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        scores = mean_by_group(outputs, batch.groups)[:, 0]  # (U,)
        return F.cross_entropy(pad_scores(scores, batch.labels["num_units"]), batch.labels["choice"], reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["choice"])

    def decode(self, example: ChoiceExample, features: Features, outputs: Sequence[Floats]) -> ChoicePrediction:
        units = np.array([row.unit for row in features.sequences])
        sums = np.bincount(units, weights=np.concatenate(outputs), minlength=features.num_units)
        logits = (sums / np.bincount(units, minlength=features.num_units)).astype(np.float32)  # (N,)
        scaled = logits.astype(np.float64) / self.temperature
        powers = np.exp(scaled - scaled.max())
        chances = powers / powers.sum()
        # Of endings that are alike the first, whatever rounding made of their scores.
        choice = int((logits >= logits.max() - _ROUNDING).argmax())
        return ChoicePrediction(example.id, choice, example.endings[choice], tuple(chances.tolist()), logits)

    def score(self, pairs: Iterable[tuple[ChoiceExample, ChoicePrediction]]) -> TaskScores:
        bins = np.zeros((_NUM_BINS, 3))  # how many, their confidence, how many right
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            wanted, sure = _target(case), max(prediction.probabilities)
            # As in `calibration`: a bin holds its upper edge and not its lower one.
            bins[math.ceil(sure * _NUM_BINS) - 1] += 1, sure, wanted == prediction.choice
            if wanted != prediction.choice:
                right = case.endings[wanted]
                mistakes = worst_mistakes(
                    [*mistakes, Mistake(sure, (case.prompt,), right, prediction.text, case.location)]
                )
        total, _, came = bins.sum(0)
        if not total:
            raise InputError("there is no choice to score; give a file with at least one labelled line")
        error = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / total)
        figures = {"accuracy": float(came / total), "calibration_error": error}
        return TaskScores(figures, self.main_metric, {"bins": bins, "mistakes": mistakes})

    def calibrate(self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]) -> Task:
        logits = np.full((len(predictions), max(len(one.logits) for one in predictions)), -np.inf)  # (E, N)
        for row, one in zip(logits, predictions, strict=True):
            row[: len(one.logits)] = one.logits
        return replace(self, temperature=fit_temperature(logits, np.array([_target(case) for case in examples])))


def pad_scores(scores: torch.Tensor, num_units: torch.Tensor) -> torch.Tensor:
    """Return (E, N): the scores (U,) of each example in a row, minus infinity where it has no more endings."""
    num_examples, most = len(num_units), int(num_units.max())
    rows = torch.repeat_interleave(torch.arange(num_examples, device=scores.device), num_units)  # (U,)
    firsts = torch.cumsum(num_units, 0) - num_units  # (E,)
    columns = torch.arange(len(scores), device=scores.device) - firsts[rows]
    return scores.new_full((num_examples, most), float("-inf")).index_put((rows, columns), scores)


def _target(example: ChoiceExample) -> int:
    """Return the number of the right ending; refuse a case that does not tell it, or tells one that is not there."""
    if example.label is None:
        raise InputError(
            f"{example.location}: there is no label; give the number of the right ending, from 0, as 'label'"
        )
    if not 0 <= example.label < len(example.endings):
        raise InputError(
            f"{example.location}: the label {example.label} is no number from 0 to {len(example.endings) - 1}; mend it"
        )
    return example.label


def _rename_fields(record: Record, columns: Mapping[str, str]) -> Record:
    """Return a line whose fields have the names under which they are looked for."""
    fields = dict(record.fields)
    for role, column in columns.items():
        if role not in _FIELDS:
            raise InputError(f"choices have no column '{role}'; name one of: {', '.join(_FIELDS)}")
        if column not in fields:
            known = ", ".join(map(repr, record.fields))
            raise InputError(f"{record.location}: no column '{column}'; there are {known}; name another with --{role}")
        fields[_FIELDS[role]] = fields.pop(column)
    return Record(fields, record.location)
