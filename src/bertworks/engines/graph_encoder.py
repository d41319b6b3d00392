"""A graph in a runtime in, an encoder like any other out: a Batch in, an Encoded with the last layer and no other out.

Whoever feeds an encoder need not know where it is computed. What lies between its layers stays inside the graph, so
that middle layers, attention and gradients are refused in one sentence.

B rows of T places; N pieces; D width, or the outputs of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.engines.onnx_graph import END_LOGITS, LAST_HIDDEN_STATE, LOGITS, POOLER_OUTPUT, START_LOGITS
from bertworks.errors import FolderError, SettingsError
from bertworks.sampling.batch import Batch

UNSUPPORTED_MESSAGE = (
    "a model in {name} gives its last layer and answers only: middle layers, attention and explanations need the "
    "weights; use the folder that it was exported from, with --engine torch"
)
# Rows of different lengths are run apart where padding would be more than a fifth of the work, but not fewer pieces
# than this at once: smaller products run slower than padding costs.
_MAX_PADDING_RATIO, _MIN_TOKENS = 1.25, 256
# Places whose scores over the whole vocabulary are computed at once: 60 MB for 30,522 pieces.
_LOGIT_POSITIONS = 512

Ints = npt.NDArray[np.int64]


class Runtime(Protocol):
    """What computes a graph: rows in, the outputs that are wanted out. `digest` changes with any weight."""

    name: str
    outputs: tuple[str, ...]
    digest: bytes

    @property
    def num_parallel_batches(self) -> int:
        """How many threads may call `run` at the same time."""
        ...

    def run(self, inputs: tuple[Ints, Ints, Ints], output_names: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Return these outputs of ids, attention mask and segments, each (B, T)."""
        ...


@dataclass(frozen=True, slots=True)
class GraphOutputs:
    """Which outputs of a graph stand for the last layer, side by side if several, and for the summary of each row."""

    last_hidden_state: tuple[str, ...] = (LAST_HIDDEN_STATE,)
    pooled: str | None = POOLER_OUTPUT


# What a head of each kind (see `onnx_graph.HEADS`) reads, where its product is done in the graph.
HEAD_OUTPUTS = {
    "rows": GraphOutputs((), LOGITS),
    "places": GraphOutputs((LOGITS,), None),
    "spans": GraphOutputs((START_LOGITS, END_LOGITS), None),
    "blanks": GraphOutputs((LOGITS,), None),
}


class LastLayerOnly(tuple[torch.Tensor, ...]):
    """The layers of an encoder of which only the last is known; any other is refused when it is asked for."""

    runtime: str

    @classmethod
    def from_last(cls, last_hidden_state: torch.Tensor, num_layers: int, runtime: str) -> LastLayerOnly:
        """Return the layers of an encoder that has so many, the embeddings not counted."""
        found = cls((last_hidden_state,) * (num_layers + 1))
        found.runtime = runtime
        return found

    def __getitem__(self, index: Any) -> Any:
        picked = range(len(self))[index]
        if picked not in (len(self) - 1, range(len(self) - 1, len(self))):
            refuse(self.runtime)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[torch.Tensor]:
        refuse(self.runtime)


def refuse(runtime: str) -> NoReturn:
    """Say what a graph cannot do, and who can."""
    raise FolderError(UNSUPPORTED_MESSAGE.format(name=runtime))


class _MissingTable(nn.Module):
    """The place of a table that is inside a graph: its weight is empty, and tells the device."""

    def __init__(self, runtime: str, hidden_size: int) -> None:
        super().__init__()
        self.runtime = runtime
        self.weight = nn.Parameter(torch.empty(0, hidden_size), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> NoReturn:
        refuse(self.runtime)


class GraphEncoder(Encoder):
    """A BERT whose layers are computed by a runtime. It has no weights to look at, only their digest.

    With the scores of blanks taken it answers with those instead of vectors, when it is asked for some.
    """

    def __init__(self, config: BertConfig, runtime: Runtime, graph_outputs: GraphOutputs | None = None) -> None:
        nn.Module.__init__(self)  # not Stack's: it has no layers
        self.config = config
        self.attention = "both"
        self.activation_checkpointing = False
        self.runtime = runtime
        self.graph_outputs = graph_outputs or GraphOutputs(
            pooled=POOLER_OUTPUT if POOLER_OUTPUT in runtime.outputs else None
        )
        self.token_embeddings = _MissingTable(runtime.name, config.hidden_size)  # type: ignore[assignment]
        self.register_buffer("digest", torch.tensor(list(runtime.digest), dtype=torch.uint8))
        self.eval()

    @property
    def num_parallel_batches(self) -> int:
        return self.runtime.num_parallel_batches

    @property
    def has_attention(self) -> bool:
        return False

    def create_layout(self, batch: Batch) -> BatchLayout:
        if batch.attention not in (None, "both"):
            raise SettingsError(f"a graph in {self.runtime.name} reads both ways only; use --engine torch")
        return super().create_layout(batch)

    def __getattr__(self, name: str) -> Any:
        if name in ("layers", "positions", "segments", "norm", "pooler"):
            refuse(self.runtime.name)
        return super().__getattr__(name)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return the last layer and the summary of each row; a graph computes all places, whatever is wanted."""
        layout = self.create_layout(batch)
        if self.graph_outputs is HEAD_OUTPUTS["blanks"]:
            return LazyLogits((torch.empty(0, self.config.vocab_size),), None, layout, encoder=self, batch=batch)
        found = [self._run(batch, rows, layout.index is not None) for rows in _group_by_length(layout)]
        last = (
            torch.cat([one for one, _ in found])
            if self.graph_outputs.last_hidden_state
            else torch.empty(0, self.config.hidden_size)
        )
        summary = torch.cat([one for _, one in found if one is not None]) if self.graph_outputs.pooled else None
        return Encoded(LastLayerOnly.from_last(last, self.config.num_hidden_layers, self.runtime.name), summary, layout)

    def compute_outputs(
        self, batch: Batch, sequences: slice, output_names: Sequence[str]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return outputs of some rows, as wide as the longest of them, and which of their places are real."""
        lengths = batch.lengths[sequences]
        width = int(lengths.max()) if sequences != slice(None) else batch.input_ids.shape[1]
        real = torch.arange(width) < lengths[:, None]  # (B, T)
        parts = (batch.input_ids[sequences, :width], real.long(), batch.token_type_ids[sequences, :width])
        ids, mask, segments = (np.ascontiguousarray(values.numpy()) for values in parts)
        found = self.runtime.run((ids, mask, segments), output_names)
        return [torch.from_numpy(values) for values in found], real

    def embed(self, batch: Batch, layout: BatchLayout) -> NoReturn:
        refuse(self.runtime.name)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> NoReturn:
        refuse(self.runtime.name)

    def _run(self, batch: Batch, sequences: slice, is_packed: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        wanted = (
            *self.graph_outputs.last_hidden_state,
            *([self.graph_outputs.pooled] if self.graph_outputs.pooled else []),
        )
        outputs, real = self.compute_outputs(batch, sequences, wanted)
        summary = outputs.pop() if self.graph_outputs.pooled else None
        if not outputs:
            return torch.empty(0, self.config.hidden_size), summary
        last = outputs[0] if len(outputs) == 1 else torch.stack(outputs, -1)  # (B, T, D)
        return (last[real] if is_packed else last.flatten(0, 1)), summary


@dataclass(frozen=True, slots=True)
class LazyLogits(Encoded):
    """Scores over the whole vocabulary, computed when places are asked and a few rows at a time: all take gigabytes."""

    encoder: GraphEncoder | None = None
    batch: Batch | None = None

    def gather(self, positions: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return (P, V): the scores at the given places (row * T + place), which lie row by row."""
        assert self.encoder is not None
        assert self.batch is not None
        rows, width = self.batch.input_ids.shape
        step = max(1, _LOGIT_POSITIONS // width)
        found = []
        for first in range(0, rows, step):
            own = positions[(positions >= first * width) & (positions < (first + step) * width)] - first * width
            if len(own):
                (scores,), _ = self.encoder.compute_outputs(self.batch, slice(first, first + step), (LOGITS,))
                found.append(scores[own // width, own % width])
        return torch.cat(found)


def _group_by_length(layout: BatchLayout) -> list[slice]:
    """Return the rows that are run together: neighbours of about equal length; all where padding is kept anyway."""
    if layout.index is None:
        return [slice(None)]
    lengths = layout.lengths.tolist()
    found: list[slice] = []
    first = num_pieces = longest = 0
    for row, length in enumerate(lengths):
        places = (row + 1 - first) * max(longest, length)
        if num_pieces >= _MIN_TOKENS and places > _MAX_PADDING_RATIO * (num_pieces + length):
            found.append(slice(first, row))
            first, num_pieces, longest = row, 0, 0
        num_pieces, longest = num_pieces + length, max(longest, length)
    return [*found, slice(first, len(lengths))]
