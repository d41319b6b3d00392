"""What a task is: labelled files in, rows with questions out; what a head answers in, Predictions and scores out.

A task is one frozen dataclass in one file and one line in `tasks.table.TASKS`. It knows its labels and nothing of
files' hashes, loops, learning rates or servers. B rows of T places, N pieces, U units (an example, or one of its
choices), P places that are asked, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.datasets.files import Record
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Window, WindowRule
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


class TaskExample(Protocol):
    """One labelled example as its task reads it, before pieces. Each task has its own frozen dataclass."""

    @property
    def id(self) -> str: ...
    @property
    def location(self) -> str:
        """Where it comes from, such as "train.tsv, line 5"."""
        ...

    @property
    def texts(self) -> tuple[str, ...]:
        """All its texts, to look for the same example in two files."""
        ...

    @property
    def label(self) -> Any:
        """What is right, None where it is not known."""
        ...


@runtime_checkable
class ExampleGroup(Protocol):
    """A case that gathers several examples, as a document does its sentences: `examples` are the texts of each."""

    @property
    def examples(self) -> tuple[tuple[str, ...], ...]: ...


def examples_in(example: Any) -> tuple[tuple[str, ...], ...]:
    """Return the texts of each example in a case; most cases are one."""
    return example.examples if isinstance(example, ExampleGroup) else (example.texts,)


@dataclass(frozen=True, slots=True)
class InputSequence:
    """A row and what is asked there.

    unit      which unit of the example the row belongs to (always 0 but for choices)
    labels    what the whole row is asked, by name: {"start": 7}
    places    (P,) places of the row that are asked one by one, and `targets` (P,) what stands there
    target    of a row that is to be said in other words: what is said, as far as it is known; its places are asked
    """

    window: Window
    unit: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    positions: npt.NDArray[np.int64] | None = None
    targets: npt.NDArray[np.int64] | None = None
    target: Window | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.window) + (0 if self.target is None else len(self.target))

    @property
    def num_positions(self) -> int:
        return 0 if self.positions is None else len(self.positions)


@dataclass(frozen=True, slots=True)
class Features:
    """A case ready for batches: its rows, how many units they form, its label, and how many pieces were cut off.

    num_examples   how many examples are asked in the rows: more than one where a case gathers several
    parts          what can be learned from by itself, together all the rows; empty where nothing less than all can be
    teaches        whether there is something to learn from: not where a pair is too long to be read together
    """

    sequences: tuple[InputSequence, ...]
    num_units: int = 1
    label: Any = None
    num_truncated: int = 0
    num_examples: int = 1
    parts: tuple[Features, ...] = ()
    is_trainable: bool = True

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.sequences)

    @property
    def training_parts(self) -> tuple[Features, ...]:
        """What training draws one by one."""
        return self.parts or ((self,) if self.is_trainable else ())


@dataclass(frozen=True, slots=True)
class TaskScores:
    """How good predictions are: named figures, of which `main` is the one to choose models by (higher is better).

    A model whose main figure stays below `low` on its own training examples has not learned them.
    """

    metrics: Mapping[str, float]
    main_metric: str
    details: Mapping[str, Any] = field(default_factory=dict)
    underfit_threshold: float = 0.75

    @property
    def main_value(self) -> float:
        return self.metrics[self.main_metric]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong prediction: how sure the model was, the texts, what is right, what was said, and where it stands."""

    confidence: float
    texts: tuple[str, ...]
    expected: str
    predicted: str
    location: str


def worst_mistakes(mistakes: Iterable[Mistake], max_mistakes: int = 20) -> list[Mistake]:
    """Return the mistakes of which the model was surest; call it with every new one, and memory stays bounded."""
    return sorted(mistakes, key=lambda mistake: -mistake.confidence)[:max_mistakes]


class Head(Protocol):
    """What a task puts on an encoder. Returns what `Task` methods call outputs: (B, …), or (P, …) with places asked."""

    def positions(self, batch: Batch) -> torch.Tensor | None:
        """Return at which places (row * T + place) it looks at the last layer; None where it looks at all of them."""
        ...

    def __call__(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor: ...


class Task(Protocol):
    """The answers of a task. `labels` are learned from the training file or read back from a model folder."""

    name: ClassVar[str]
    head_kind: ClassVar[str]  # rows, places, choices, spans, translations: a family has names for the tensors of each
    default_window_rule: ClassVar[WindowRule]  # how long texts are cut where neither a person nor a folder says

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[Any]:
        """Yield the cases of a labelled file. `columns` names columns by their role, {"text": "sms"}, and what it lacks
        is recognised; "header" names all of them, with commas, where the file has no header. What was mended or left
        out is added to `counts`."""
        ...

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[Any]:
        """Yield cases without labels, one a line and at once: what there is to predict. A plain line is {"text": …}."""
        ...

    @classmethod
    def from_examples(cls, examples: Sequence[Any], settings: Mapping[str, Any]) -> Task:
        """Return the task with the labels that the training cases have; refuse what cannot be learned from."""
        ...

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        """Return the task that a model folder states: our bertworks.json, or only transformers' config.json."""
        ...

    def metadata(self) -> dict[str, Any]:
        """Return what bertworks.json has to keep of the task (not labels, which are in config.json)."""
        ...

    def config(self) -> dict[str, Any]:
        """Return what transformers' config.json has to say: id2label and so on."""
        ...

    def head(self, config: BertConfig) -> nn.Module:
        """Return the head, its weights to be drawn by `stack.initialise`."""
        ...

    @property
    def main_metric(self) -> str:
        """The figure of `score` to choose models by."""
        ...

    def featurize(self, example: Any, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        """Return the rows of a case with what is asked there; a case without a label has none either."""
        ...

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        """Return the labels of whole examples for a batch: {"class": (examples,)}."""
        ...

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the loss summed over all answers."""
        ...

    def num_targets(self, batch: Batch) -> int:
        """Return over how many answers `loss` sums."""
        ...

    def decode(self, example: Any, features: Features, outputs: Sequence[npt.NDArray[np.float32]]) -> Any:
        """Return the prediction of one case from the outputs of its rows, in their order; each is what the head says of
        that row: (C,), or (its places, C) where places are asked, or (its length, 2).

        Predictions are frozen dataclasses with `as_json() -> dict`.
        """
        ...

    def score(self, pairs: Iterable[tuple[Any, Any]]) -> TaskScores:
        """Return the scores of (case, prediction) pairs; one pass, in memory that does not grow with texts."""
        ...

    def calibrate(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Task:
        """Return the task with what is tuned on dev (temperature, null threshold); itself if there is nothing."""
        ...


@runtime_checkable
class GenerativeTask(Protocol):
    """A task that answers in pieces, one after the other: its head and the encoder's decoder are asked for each."""

    def sequence_loss(
        self, encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None
    ) -> torch.Tensor:
        """Return the summed loss of what a batch says is right: what `Task.loss` is given as outputs."""
        ...

    def generate(
        self, encoder: Encoder, head: nn.Module, batch: Batch, tokenizer: Tokenizer
    ) -> list[npt.NDArray[np.float32]]:
        """Return what is written for each row: what `Task.answer` is given as outputs."""
        ...


@runtime_checkable
class ScaledTask(Protocol):
    """A task whose head learns in a scale of its own, such as prices less their mean, and gives it up at the end."""

    def unscale(self, head: nn.Module) -> Task:
        """Change the head so that it says what is meant in the labels' own scale; return the task that goes with it."""
        ...
