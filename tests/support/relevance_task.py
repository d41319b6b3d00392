"""A task in one file: is a passage relevant to a query? JSON Lines in, a probability out.

It has input fields, a head kind, a metric and a prediction that no other task has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.datasets.files import Record, read_records
from bertworks.encoders.config import EncoderConfig
from bertworks.errors import InputError
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.tasks.attribution import source_text
from bertworks.tasks.contract import (
    AttributionTarget,
    Features,
    InputFields,
    InputSequence,
    PredictionContext,
    Task,
    TaskScores,
)
from bertworks.tasks.heads import PooledHead, mean_by_group
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RelevanceExample:
    id: str
    location: str
    texts: tuple[str, str]
    label: bool | None = None


@dataclass(frozen=True, slots=True)
class RelevancePrediction:
    id: str
    probability: float

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "is_relevant": self.probability > 0.5, "probability": self.probability}


@dataclass(frozen=True, slots=True)
class Relevance:
    """Binary relevance. `prior` is the fraction of relevant passages in the training file."""

    name: ClassVar[str] = "relevance"
    head_kind: ClassVar[str] = "relevance"
    default_window_rule: ClassVar[WindowRule] = WindowRule(32, 8)
    input_fields: ClassVar[tuple[InputFields, ...]] = (InputFields(("query", "passage")),)
    prior: float = 0.5

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[RelevanceExample]:
        for index, record in enumerate(read_records(path)):
            yield _example(record, index, record.fields.get("relevant"))

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[RelevanceExample]:
        for index, record in enumerate(records):
            yield _example(record, index, None)

    @classmethod
    def from_examples(cls, examples: Sequence[RelevanceExample], settings: Mapping[str, Any]) -> Relevance:
        return cls(sum(bool(example.label) for example in examples) / len(examples))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Relevance:
        return cls(metadata.get("prior", 0.5))

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        return {"prior": self.prior}

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, config: EncoderConfig) -> nn.Module:
        return PooledHead(config.pooled_size, 1, 0.0)

    @property
    def main_metric(self) -> str:
        return "hit_rate"

    def featurize(self, example: RelevanceExample, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        windows = make_windows(tokenizer, [tokenizer.tokenize(text) for text in example.texts], window_rule)
        return Features(
            sequences=tuple(map(InputSequence.from_window, windows.sequences)),
            label=example.label,
            num_truncated=windows.num_truncated,
        )

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {"relevant": torch.tensor([float(one.label) for one in features])}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        logits = mean_by_group(outputs, batch.groups)[:, 0]
        return F.binary_cross_entropy_with_logits(logits, batch.labels["relevant"], reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        return len(batch.labels["relevant"])

    def decode(
        self, example: RelevanceExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> RelevancePrediction:
        return RelevancePrediction(example.id, float(1 / (1 + np.exp(-np.mean(outputs, dtype=np.float64)))))

    def score(self, pairs: Iterable[tuple[RelevanceExample, RelevancePrediction]]) -> TaskScores:
        hits = [(prediction.probability > 0.5) == example.label for example, prediction in pairs]
        return TaskScores(metrics={"hit_rate": sum(hits) / len(hits)}, main_metric="hit_rate")

    def calibrate(self, examples: Sequence[RelevanceExample], predictions: Sequence[RelevancePrediction]) -> Task:
        return self

    def submission_value(self, prediction: RelevancePrediction) -> str:
        return "yes" if prediction.probability > 0.5 else "no"

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        if target not in (None, "relevance"):
            raise InputError(f"there is no '{target}' to explain; omit the target")
        texts = zip(("query", "passage"), context.example.texts, strict=True)
        count = len(context.features.sequences)
        return AttributionTarget(
            "relevance",
            tuple(source_text(title, text, context.tokenizer) for title, text in texts),
            (np.ones(1) / count,) * count,
            (((0, 0), (1, 0)),) * count,
        )


def _example(record: Record, index: int, label: bool | None) -> RelevanceExample:
    for name in ("query", "passage"):
        if not str(record.fields.get(name, "")).strip():
            raise InputError(f"{record.location}: '{name}' is missing or empty; fill it in or remove the line")
    fields = record.fields
    return RelevanceExample(str(fields.get("id", index)), record.location, (fields["query"], fields["passage"]), label)
