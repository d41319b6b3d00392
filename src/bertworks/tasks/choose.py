"""Multiple choice: a prompt and its endings in, the most probable ending with probabilities out.

Each ending is encoded as a pair with the prompt and scored alone, so that the order of endings has no influence. The
score of an ending with several windows is the mean of theirs. E examples of N endings (N may differ between examples),
U units (all endings of a batch), B sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bertworks.datasets.choices import choices_of
from bertworks.datasets.files import Record, read_records
from bertworks.display.bars import bars_html
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.tasks.attribution import contrast_coefficients, source_text
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
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertworks.encoders.config import EncoderConfig
    from bertworks.sampling.batch import Batch

Floats = npt.NDArray[np.float32]

# Role of a column on the command line -> the field in which `datasets.choices` expects it.
_FIELDS = {"text": "prompt", "prompt": "prompt", "label": "label", "id": "id"}
# Bins of the reliability diagram.
_NUM_BINS = 15
# Scores closer than this are ties: the other sequences of a batch change a score by as much.
_SCORE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample:
    """A prompt and its endings; `label` is the index of the correct one, None if unknown."""

    id: str
    location: str
    prompt: str
    endings: tuple[str, ...]
    label: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.prompt, *self.endings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePrediction:
    """The predicted ending, as index and as text, and the probability of each."""

    id: str
    choice: int
    text: str
    probabilities: tuple[float, ...]
    logits: Floats

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "choice": self.choice, "text": self.text, "probabilities": list(self.probabilities)}

    def _repr_html_(self) -> str:
        return bars_html(self.text, ((str(index), value) for index, value in enumerate(self.probabilities)))

    def __repr__(self) -> str:
        probabilities = ", ".join(f"{probability:.3f}" for probability in self.probabilities)
        return f"ChoicePrediction({self.choice}, {self.text!r}, [{probabilities}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choose:
    """Multiple choice, as SWAG."""

    name: ClassVar[str] = "choose"
    head_kind: ClassVar[str] = "choices"
    default_window_rule: ClassVar[WindowRule] = WindowRule()
    input_fields: ClassVar[tuple[InputFields, ...]] = (InputFields(("prompt", "choices"), min_list_items=2),)
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[ChoiceExample]:
        header = columns.get("header", "")
        roles = {role: column for role, column in columns.items() if role != "header" and column != ""}
        records = (
            _rename_fields(record, roles) for record in read_records(path, header.split(",") if header else None)
        )
        for choice in choices_of(records, Counts() if counts is None else counts):
            yield ChoiceExample(
                id=choice.id,
                location=choice.location,
                prompt=choice.prompt,
                endings=choice.endings,
                label=choice.label,
            )

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[ChoiceExample]:
        for choice in choices_of(_rename_fields(record, columns) for record in records):
            yield ChoiceExample(id=choice.id, location=choice.location, prompt=choice.prompt, endings=choice.endings)

    @classmethod
    def from_examples(cls, examples: Sequence[ChoiceExample], settings: Mapping[str, Any]) -> Choose:
        if not examples:
            raise InputError("there are no training choices; give a file with at least one labelled line")
        for example in examples:
            _target(example)
        return cls()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Choose:
        return cls(temperature=metadata.get("temperature", 1.0))

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        return {}  # transformers' class has one output whatever its config says

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.tasks.heads import PooledHead

        return PooledHead(config.pooled_size, 1, config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "accuracy"

    def featurize(self, example: ChoiceExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        if len(example.endings) < 2:
            raise InputError(
                f"{example.location}: got {len(example.endings)} endings to choose from; give at least two"
            )
        prompt = tokenizer.tokenize(example.prompt)
        sequences: list[InputSequence] = []
        num_truncated = 0
        for unit, ending in enumerate(example.endings):
            windows = make_windows(tokenizer, [prompt, tokenizer.tokenize(ending)], window_rule)
            sequences += [InputSequence.from_window(window, unit) for window in windows.sequences]
            num_truncated += windows.num_truncated
        return Features(
            sequences=tuple(sequences),
            num_units=len(example.endings),
            label=None if example.label is None else _target(example),
            num_truncated=num_truncated,
        )

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        import torch

        return {
            "choice": torch.tensor([example_features.label for example_features in features]),
            "num_units": torch.tensor([example_features.num_units for example_features in features]),
        }

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        import torch.nn.functional as F  # noqa: N812

        from bertworks.tasks.heads import mean_by_group

        scores = mean_by_group(outputs, batch.groups)[:, 0]  # (U,)
        return F.cross_entropy(pad_scores(scores, batch.labels["num_units"]), batch.labels["choice"], reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["choice"])

    def decode(self, example: ChoiceExample, features: Features, outputs: Sequence[Floats]) -> ChoicePrediction:
        units = np.array([sequence.unit for sequence in features.sequences])
        sums = np.bincount(units, weights=np.concatenate(outputs), minlength=features.num_units)
        logits = (sums / np.bincount(units, minlength=features.num_units)).astype(np.float32)  # (N,)
        scaled = logits.astype(np.float64) / self.temperature
        exponentials = np.exp(scaled - scaled.max())
        probabilities = exponentials / exponentials.sum()
        choice = int((logits >= logits.max() - _SCORE_TOLERANCE).argmax())  # the first of equal endings
        return ChoicePrediction(
            id=example.id,
            choice=choice,
            text=example.endings[choice],
            probabilities=tuple(probabilities.tolist()),
            logits=logits,
        )

    def score(self, pairs: Iterable[tuple[ChoiceExample, ChoicePrediction]]) -> TaskScores:
        bins = np.zeros((_NUM_BINS, 3))  # count, sum of confidences, number of correct predictions
        mistakes: list[Mistake] = []
        loss_sum = 0.0
        for example, prediction in pairs:
            expected, confidence = _target(example), max(prediction.probabilities)
            loss_sum -= math.log(max(prediction.probabilities[expected], np.finfo(np.float64).tiny))
            # As in `metrics.calibration`: a bin includes its upper edge and not its lower one.
            bins[math.ceil(confidence * _NUM_BINS) - 1] += 1, confidence, expected == prediction.choice
            if expected != prediction.choice:
                mistake = Mistake(
                    confidence=confidence,
                    texts=(example.prompt,),
                    expected=example.endings[expected],
                    predicted=prediction.text,
                    location=example.location,
                )
                mistakes = worst_mistakes([*mistakes, mistake])
        total, _, num_correct = bins.sum(0)
        if not total:
            raise InputError("there are no choices to score; give a file with at least one labelled line")
        calibration_error = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / total)
        metrics = {"accuracy": float(num_correct / total), "calibration_error": calibration_error}
        details = {"bins": bins, "mistakes": mistakes}
        return TaskScores(metrics=metrics, main_metric=self.main_metric, details=details, loss=loss_sum / float(total))

    def calibrate(self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]) -> Task:
        logits = np.full((len(predictions), max(len(scored.logits) for scored in predictions)), -np.inf)  # (E, N)
        for row, prediction in zip(logits, predictions, strict=True):
            row[: len(prediction.logits)] = prediction.logits
        return replace(self, temperature=fit_temperature(logits, np.array([_target(example) for example in examples])))

    def submission_value(self, prediction: ChoicePrediction) -> int:
        return prediction.choice

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        """Explain an ending, by index or by text, in contrast to the others; by default the predicted one."""
        example: ChoiceExample = context.example
        indices = [str(index) for index in range(len(example.endings))]
        if target is None:
            ending_index = self.decode(example, context.features, context.outputs).choice
        elif target in indices:
            ending_index = indices.index(target)
        elif target in example.endings:
            ending_index = example.endings.index(target)
        else:
            raise InputError(f"there is no ending '{target}' to explain; give an index from 0 to {indices[-1]}")
        units = [sequence.unit for sequence in context.features.sequences]
        by_ending = contrast_coefficients(len(indices), ending_index)
        texts = [("prompt", example.prompt)]
        texts += [(f"ending {index}", ending) for index, ending in zip(indices, example.endings, strict=True)]
        return AttributionTarget(
            f"ending {ending_index}",
            tuple(source_text(title, text, context.tokenizer) for title, text in texts),
            tuple(np.array([by_ending[unit] / units.count(unit)]) for unit in units),
            tuple(((0, 0), (1 + unit, 0)) for unit in units),
        )


def pad_scores(scores: torch.Tensor, num_units: torch.Tensor) -> torch.Tensor:
    """Return (E, N): the scores (U,) with one row per example, padded with -inf where it has fewer endings."""
    import torch

    num_examples, max_units = len(num_units), int(num_units.max())
    rows = torch.repeat_interleave(torch.arange(num_examples, device=scores.device), num_units)  # (U,)
    first_units = torch.cumsum(num_units, 0) - num_units  # (E,)
    columns = torch.arange(len(scores), device=scores.device) - first_units[rows]
    return scores.new_full((num_examples, max_units), float("-inf")).index_put((rows, columns), scores)


def _target(example: ChoiceExample) -> int:
    """Return the index of the correct ending; raise InputError if it is missing or out of range."""
    if example.label is None:
        raise InputError(f"{example.location}: there is no label; give the index of the correct ending as 'label'")
    if not 0 <= example.label < len(example.endings):
        raise InputError(
            f"{example.location}: the label {example.label} is not an index from 0 to {len(example.endings) - 1}; "
            f"correct it"
        )
    return example.label


def _rename_fields(record: Record, columns: Mapping[str, str]) -> Record:
    """Return a record with its columns renamed to the fields that `datasets.choices` expects."""
    fields = dict(record.fields)
    for role, column in columns.items():
        if role not in _FIELDS:
            raise InputError(f"choices have no column '{role}'; name one of: {', '.join(_FIELDS)}")
        if column not in fields:
            names = ", ".join(map(repr, record.fields))
            raise InputError(f"{record.location}: no column '{column}'; there are {names}; name another with --{role}")
        fields[_FIELDS[role]] = fields.pop(column)
    return Record(fields, record.location)
