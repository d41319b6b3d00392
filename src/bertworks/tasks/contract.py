"""The contract of a task: labelled files -> features; outputs of a head -> predictions, scores and explanations.

A task is one frozen dataclass in one file and one line in `tasks.registry.TASKS`. It answers for its data, its input
fields (in `predict` and over HTTP), its head, its predictions, its scores, its attribution targets and its submission
format, and knows nothing of training loops, checkpoints or servers. `Task` documents what every task has; the optional
parts are `ExplainableTask`, `TableTask`, `LabelledTask`, `GenerativeTask`, `ScaledTask`, `ConsistentTask`,
`WeightedTask` and `tasks.baselines.BaselineTask`. Nobody inherits from them.

B sequences of T positions, N tokens, U units (an example, or one of its choices), P target positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from bertworks.datasets.files import Record
from bertworks.sampling.windows import Window, WindowRule
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertworks.encoders.config import EncoderConfig
    from bertworks.encoders.encoded import Encoded
    from bertworks.encoders.encoder import Encoder
    from bertworks.encoders.layers import DropoutSeeds
    from bertworks.sampling.batch import Batch
    from bertworks.tasks.beam_search_settings import BeamSearchSettings

Outputs = npt.NDArray[np.float32]


class TaskExample(Protocol):
    """One example as its task reads it, before tokenization. Each task has its own frozen dataclass."""

    @property
    def id(self) -> str: ...
    @property
    def location(self) -> str:
        """Where it comes from, such as "train.tsv, line 5"; error messages begin with it."""
        ...

    @property
    def texts(self) -> tuple[str, ...]:
        """All its texts, to detect the same example in two files."""
        ...

    @property
    def label(self) -> Any:
        """The gold label, None if unknown."""
        ...


@runtime_checkable
class ExampleGroup(Protocol):
    """A TaskExample that holds several examples, as a document does sentences: `examples` are the texts of each."""

    @property
    def examples(self) -> tuple[tuple[str, ...], ...]: ...


def examples_in(example: Any) -> tuple[tuple[str, ...], ...]:
    """Return the texts of each example in a TaskExample: one, unless it is an ExampleGroup."""
    return example.examples if isinstance(example, ExampleGroup) else (example.texts,)


@dataclass(frozen=True, slots=True)
class InputFields:
    """The fields of one input, all required: ("question", "context").

    names           in the order in which plain texts fill them
    min_list_items  the last field is a list of at least this many texts; 0: it is one text
    """

    names: tuple[str, ...]
    min_list_items: int = 0

    @property
    def list_name(self) -> str | None:
        """The field that is a list of texts, if there is one."""
        return self.names[-1] if self.min_list_items else None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSequence(Window):
    """A model input with its targets.

    unit        which unit of the example it belongs to (0, except for choices)
    labels      targets of the whole sequence, by name: {"start": 7}
    positions   (P,) the positions that are predicted; `targets` (P,) their labels or token ids
    target      of a sequence-to-sequence task: the decoder's input, as far as it is known; `positions` are in it
    """

    unit: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    positions: npt.NDArray[np.int64] | None = None
    targets: npt.NDArray[np.int64] | None = None
    target: Window | None = None

    @classmethod
    def from_window(
        cls,
        window: Window,
        unit: int = 0,
        labels: Mapping[str, int] | None = None,
        positions: npt.NDArray[np.int64] | None = None,
        targets: npt.NDArray[np.int64] | None = None,
        target: Window | None = None,
    ) -> InputSequence:
        return cls(
            input_ids=window.input_ids,
            token_type_ids=window.token_type_ids,
            spans=window.spans,
            unknown=window.unknown,
            unit=unit,
            labels=labels or {},
            positions=positions,
            targets=targets,
            target=target,
        )

    @property
    def num_tokens(self) -> int:
        return len(self) + (0 if self.target is None else len(self.target))

    @property
    def num_positions(self) -> int:
        return 0 if self.positions is None else len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A featurized TaskExample, ready to be batched.

    num_units       how many units its sequences form: the number of choices, else 1
    num_truncated   tokens that were dropped because the window rule truncates
    num_examples    how many examples its sequences hold: more than one for an ExampleGroup
    parts           what can be trained on separately, together all the sequences; empty if it cannot be divided
    is_trainable    False where there is nothing to train on: a sentence pair too long to translate in one sequence
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
        return sum(sequence.num_tokens for sequence in self.sequences)

    @property
    def training_parts(self) -> tuple[Features, ...]:
        """What training samples one by one."""
        return self.parts or ((self,) if self.is_trainable else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """Named metrics, of which `main_metric` selects the best model (higher is better).

    details             for the report, each where it applies: "labels", "confusion" (C, C), "bins" of a reliability
                        diagram (sums of count, confidence, accuracy), "types" or "matches" (by class), "mistakes"
    loss                the mean loss, if the predictions tell it: the lower one of two equal models is the better
    underfit_threshold  a model whose main metric is lower than this on its own training examples has not learned them
    confidence_label    what `Mistake.confidence` measures
    """

    metrics: Mapping[str, float]
    main_metric: str
    details: Mapping[str, Any] = field(default_factory=dict)
    loss: float | None = None
    underfit_threshold: float = 0.75
    confidence_label: str = "confidence"

    @property
    def main_value(self) -> float:
        return self.metrics[self.main_metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A wrong prediction: its confidence, the texts, the expected and the predicted label, and the location."""

    confidence: float
    texts: tuple[str, ...]
    expected: str
    predicted: str
    location: str


def worst_mistakes(mistakes: Iterable[Mistake], max_mistakes: int = 20) -> list[Mistake]:
    """Return the mistakes with the highest confidence; called for each new one, it keeps memory bounded."""
    return sorted(mistakes, key=lambda mistake: -mistake.confidence)[:max_mistakes]


@dataclass(frozen=True, slots=True)
class PredictionContext:
    """A prediction to explain: the example, its features, and the outputs of the head for each sequence."""

    example: Any
    features: Features
    outputs: Sequence[Outputs]
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class SourceText:
    """One text of an example with its tokens, under a title for readers: "question"."""

    title: str
    text: str
    tokens: TokenizedText


@dataclass(frozen=True, slots=True)
class AttributionTarget:
    """The scalar that integrated gradients explain: a linear combination of the outputs.

    coefficients   for each sequence, the coefficient of each output, in the outputs' shape; None if all are 0
    sources        for each sequence and each of its spans: the index of the text, and the index of that text's first
                   token among the tokens that the span counts
    """

    name: str
    texts: tuple[SourceText, ...]
    coefficients: tuple[npt.NDArray[Any] | None, ...]
    sources: tuple[tuple[tuple[int, int], ...], ...]


class Head(Protocol):
    """The module a task puts on an encoder. Its outputs are (B, …), or (P, …) where positions are predicted."""

    def positions(self, batch: Batch) -> torch.Tensor | None:
        """Return the positions (sequence * T + position) of the last layer that it reads; None for all of them."""
        ...

    def __call__(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor: ...


class Task(Protocol):
    """What every task answers. Its fields (labels and so on) come from the training examples or a model folder."""

    name: ClassVar[str]
    head_kind: ClassVar[str]  # sequence, tokens, choices, spans, translation: keys of `Family.heads`; or one of its own
    default_window_rule: ClassVar[WindowRule]  # how long texts are split if neither the user nor the folder says
    input_fields: ClassVar[tuple[InputFields, ...]]  # alternatives, accepted by `predict`, `explain` and HTTP

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[Any]:
        """Yield the examples of a labelled file.

        `columns` maps roles to column names, {"text": "sms"}; missing roles are recognized by common names. "header"
        holds all column names, comma-separated, for a file without a header. Repaired and skipped records are added
        to `counts`.
        """
        ...

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[Any]:
        """Yield one example without a label per record, lazily: the inputs of `predict`. A plain line is {"text": …};
        any of `input_fields` is accepted."""
        ...

    @classmethod
    def from_examples(cls, examples: Sequence[Any], settings: Mapping[str, Any]) -> Task:
        """Build the task from its training examples (labels and so on); raise InputError if they cannot be learned."""
        ...

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        """Build the task of a model folder: from bertworks.json, or from transformers' config.json alone."""
        ...

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        """Whether a config.json of transformers, whose architecture has this head, is for this task."""
        ...

    def metadata(self) -> dict[str, Any]:
        """Return the task's keys of bertworks.json (labels are in config.json)."""
        ...

    def config(self) -> dict[str, Any]:
        """Return the task's keys of transformers' config.json: id2label and so on."""
        ...

    def head(self, config: EncoderConfig) -> nn.Module:
        """Return the head; `init_weights` draws its weights."""
        ...

    @property
    def main_metric(self) -> str:
        """The metric of `score` that selects the best model."""
        ...

    def featurize(self, example: Any, tokenizer: Tokenizer, window_rule: WindowRule) -> Features:
        """Tokenize an example and split it into windows; without a label there are no targets."""
        ...

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        """Return the labels of whole examples for a batch: {"class": (examples,)}."""
        ...

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the loss, summed over all targets."""
        ...

    def num_targets(self, batch: Batch) -> int:
        """Return the number of targets over which `loss` sums."""
        ...

    def decode(self, example: Any, features: Features, outputs: Sequence[Outputs]) -> Any:
        """Return the prediction of an example from the outputs of each of its sequences, in order.

        The outputs of a sequence are (C,), or (P, C) where positions are predicted, or (T, 2) for spans. A prediction
        is a frozen dataclass whose `to_dict()` is the JSON that `predict` prints and the server returns.
        """
        ...

    def score(self, pairs: Iterable[tuple[Any, Any]]) -> TaskScores:
        """Return the scores of (example, prediction) pairs, in one pass and bounded memory."""
        ...

    def calibrate(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Task:
        """Return the task with what is tuned on dev (temperature, null threshold); itself if there is nothing."""
        ...

    def submission_value(self, prediction: Any) -> str | float:
        """Return what a benchmark's submission file holds for a prediction."""
        ...


@runtime_checkable
class ExplainableTask(Protocol):
    """A task whose predictions integrated gradients can explain."""

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        """Return the scalar to explain; without a `target` it is the prediction itself.

        It is the score of the target minus the mean score of the alternatives: adding a constant to all scores changes
        no probability, so a score alone means nothing.
        """
        ...


@runtime_checkable
class TableTask(Protocol):
    """A task whose files are tables of texts and labels."""

    @classmethod
    def columns_in(cls, path: Path, columns: Mapping[str, str]) -> dict[str, str]:
        """Return the `columns` of `read` with all roles: those that were named, and those that are recognized."""
        ...


@runtime_checkable
class LabelledTask(Protocol):
    """A task that predicts one of a fixed set of labels."""

    @property
    def labels(self) -> tuple[str, ...]: ...


@runtime_checkable
class GenerativeTask(Protocol):
    """A task whose output is generated token by token with the encoder's decoder."""

    @property
    def search_settings(self) -> BeamSearchSettings: ...

    def with_search_settings(self, settings: BeamSearchSettings) -> Task:
        """Return the task with another beam search."""
        ...

    def sequence_loss(
        self, encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None
    ) -> torch.Tensor:
        """Return the summed loss of the batch's target sequences: passed to `Task.loss` as its outputs."""
        ...

    def generate(self, encoder: Encoder, head: nn.Module, batch: Batch, tokenizer: Tokenizer) -> list[Outputs]:
        """Return the generated output of each sequence: passed to `Task.decode` as its outputs."""
        ...


@runtime_checkable
class ScaledTask(Protocol):
    """A task whose head is trained on standardized labels."""

    def unscale(self, head: nn.Module) -> Task:
        """Fold mean and deviation into the head's weights; return the task that goes with it."""
        ...


@runtime_checkable
class ConsistentTask(Protocol):
    """A task that R-Drop can regularize: two passes with different dropout should predict the same."""

    def divergence(self, outputs: torch.Tensor, others: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return how far two outputs for the same batch are apart, summed over the targets of `loss`."""
        ...


@runtime_checkable
class WeightedTask(Protocol):
    """A task whose loss takes class weights."""

    def with_class_weights(self, weights: str, examples: Sequence[Any]) -> Task:
        """Return the task with weights of its classes: "balanced" for these examples, or given as "spam=3,ham=1"."""
        ...
