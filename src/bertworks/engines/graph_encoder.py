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

from bertworks.encoders.encoded import Encoded, Layout
from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import BertSizes, Stack
from bertworks.engines.onnx_graph import ENDS, LAST, LOGITS, STARTS, SUMMARY
from bertworks.errors import FolderError, SettingsError
from bertworks.sampling.batch import Batch

CANNOT = (
    "a model in {name} gives its last layer and answers only: middle layers, attention and explanations need the "
    "weights; use the folder that it was exported from, with --engine torch"
)
# Rows of different lengths are run apart where padding would be more than a fifth of the work, but not fewer pieces
# than this at once: smaller products run slower than padding costs.
_PADDED, _FEWEST = 1.25, 256
# Places whose scores over the whole vocabulary are computed at once: 60 MB for 30,522 pieces.
_BLANK_PLACES = 512

Ints = npt.NDArray[np.int64]


class Runtime(Protocol):
    """What computes a graph: rows in, the outputs that are wanted out. `digest` changes with any weight."""

    name: str
    outputs: tuple[str, ...]
    digest: bytes

    @property
    def num_at_once(self) -> int:
        """How many threads may call `run` at the same time."""
        ...

    def run(self, rows: tuple[Ints, Ints, Ints], wanted: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Return these outputs of ids, attention mask and segments, each (B, T)."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """Which outputs of a graph stand for the last layer, side by side if several, and for the summary of each row."""

    last: tuple[str, ...] = (LAST,)
    summary: str | None = SUMMARY


# What a head of each kind (see `onnx_graph.HEADS`) reads, where its product is done in the graph.
TAKEN = {
    "rows": Taken((), LOGITS),
    "places": Taken((LOGITS,), None),
    "spans": Taken((STARTS, ENDS), None),
    "blanks": Taken((LOGITS,), None),
}


class OnlyLast(tuple[torch.Tensor, ...]):
    """The layers of an encoder of which only the last is known; any other is refused when it is asked for."""

    runtime: str

    @classmethod
    def of(cls, last: torch.Tensor, num_layers: int, runtime: str) -> OnlyLast:
        """Return the layers of an encoder that has so many, the embeddings not counted."""
        found = cls((last,) * (num_layers + 1))
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
    raise FolderError(CANNOT.format(name=runtime))


class _Absent(nn.Module):
    """The place of a table that is inside a graph: its weight is empty, and tells the device."""

    def __init__(self, runtime: str, width: int) -> None:
        super().__init__()
        self.runtime = runtime
        self.weight = nn.Parameter(torch.empty(0, width), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> NoReturn:
        refuse(self.runtime)


class GraphEncoder(Stack):
    """A BERT whose layers are computed by a runtime. It has no weights to look at, only their digest.

    With the scores of blanks taken it answers with those instead of vectors, when it is asked for some.
    """

    def __init__(self, sizes: BertSizes, runtime: Runtime, taken: Taken | None = None) -> None:
        nn.Module.__init__(self)  # not Stack's: it has no layers
        self.sizes = sizes
        self.own_reads = "both"
        self.recomputes = False
        self.runtime = runtime
        self.taken = taken or Taken(summary=SUMMARY if SUMMARY in runtime.outputs else None)
        self.pieces = _Absent(runtime.name, sizes.width)  # type: ignore[assignment]
        self.register_buffer("digest", torch.tensor(list(runtime.digest), dtype=torch.uint8))
        self.eval()

    @property
    def num_at_once(self) -> int:
        return self.runtime.num_at_once

    @property
    def attends(self) -> bool:
        return False

    def laid(self, batch: Batch) -> Layout:
        if batch.reads not in (None, "both"):
            raise SettingsError(f"a graph in {self.runtime.name} reads both ways only; use --engine torch")
        return super().laid(batch)

    def __getattr__(self, name: str) -> Any:
        if name in ("layers", "positions", "segments", "norm", "pooler"):
            refuse(self.runtime.name)
        return super().__getattr__(name)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: Seeds | None = None,
        places: torch.Tensor | None = None,
    ) -> Encoded:
        """Return the last layer and the summary of each row; a graph computes all places, whatever is wanted."""
        layout = self.laid(batch)
        if self.taken is TAKEN["blanks"]:
            return Unscored((torch.empty(0, self.sizes.vocabulary),), None, layout, encoder=self, batch=batch)
        found = [self._run(batch, rows, layout.index is not None) for rows in _runs(layout)]
        last = torch.cat([one for one, _ in found]) if self.taken.last else torch.empty(0, self.sizes.width)
        summary = torch.cat([one for _, one in found if one is not None]) if self.taken.summary else None
        return Encoded(OnlyLast.of(last, self.sizes.num_layers, self.runtime.name), summary, layout)

    def outputs(self, batch: Batch, rows: slice, wanted: Sequence[str]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return outputs of some rows, as wide as the longest of them, and which of their places are real."""
        lengths = batch.lengths[rows]
        width = int(lengths.max()) if rows != slice(None) else batch.ids.shape[1]
        real = torch.arange(width) < lengths[:, None]  # (B, T)
        parts = (batch.ids[rows, :width], real.long(), batch.segments[rows, :width])
        ids, mask, segments = (np.ascontiguousarray(values.numpy()) for values in parts)
        found = self.runtime.run((ids, mask, segments), wanted)
        return [torch.from_numpy(values) for values in found], real

    def embed(self, batch: Batch, layout: Layout) -> NoReturn:
        refuse(self.runtime.name)

    def through(
        self, values: torch.Tensor, layout: Layout, seeds: Seeds | None = None, places: torch.Tensor | None = None
    ) -> NoReturn:
        refuse(self.runtime.name)

    def _run(self, batch: Batch, rows: slice, packs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        wanted = (*self.taken.last, *([self.taken.summary] if self.taken.summary else []))
        outputs, real = self.outputs(batch, rows, wanted)
        summary = outputs.pop() if self.taken.summary else None
        if not outputs:
            return torch.empty(0, self.sizes.width), summary
        last = outputs[0] if len(outputs) == 1 else torch.stack(outputs, -1)  # (B, T, D)
        return (last[real] if packs else last.flatten(0, 1)), summary


@dataclass(frozen=True, slots=True)
class Unscored(Encoded):
    """Scores over the whole vocabulary, computed when places are asked and a few rows at a time: all take gigabytes."""

    encoder: GraphEncoder | None = None
    batch: Batch | None = None

    def at(self, places: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return (P, V): the scores at the given places (row * T + place), which lie row by row."""
        assert self.encoder is not None
        assert self.batch is not None
        rows, width = self.batch.ids.shape
        step = max(1, _BLANK_PLACES // width)
        found = []
        for first in range(0, rows, step):
            own = places[(places >= first * width) & (places < (first + step) * width)] - first * width
            if len(own):
                (scores,), _ = self.encoder.outputs(self.batch, slice(first, first + step), (LOGITS,))
                found.append(scores[own // width, own % width])
        return torch.cat(found)


def _runs(layout: Layout) -> list[slice]:
    """Return the rows that are run together: neighbours of about equal length; all where padding is kept anyway."""
    if layout.index is None:
        return [slice(None)]
    lengths = layout.lengths.tolist()
    found: list[slice] = []
    first = num_pieces = longest = 0
    for row, length in enumerate(lengths):
        places = (row + 1 - first) * max(longest, length)
        if num_pieces >= _FEWEST and places > _PADDED * (num_pieces + length):
            found.append(slice(first, row))
            first, num_pieces, longest = row, 0, 0
        num_pieces, longest = num_pieces + length, max(longest, length)
    return [*found, slice(first, len(lengths))]
