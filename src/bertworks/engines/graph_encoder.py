"""Graph encoders: a graph in a runtime in, an Encoder out that maps a Batch to an Encoded with the last layer only.

Callers use it like any encoder. Other layers, attention weights and gradients stay inside the graph: asking for them
raises a FolderError.

B sequences, T positions, N tokens, D hidden size or outputs of a head, P target positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.engines.onnx_graph import END_LOGITS, LAST_HIDDEN_STATE, LOGITS, POOLER_OUTPUT, START_LOGITS
from bertworks.errors import FolderError, SettingsError
from bertworks.sampling.batch import Batch

UNSUPPORTED_MESSAGE = (
    "a model in {name} has only its last layer and predictions: other layers, attention weights and explanations need "
    "the original weights; use the folder that it was exported from, with --engine torch"
)
# Sequences of different lengths run separately if padding would be more than a fifth of the work, but never fewer
# tokens than this at once: smaller matmuls lose more than padding costs.
_MAX_PADDING_RATIO, _MIN_TOKENS = 1.25, 256
# Positions whose logits over the vocabulary are computed at once: 60 MB for 30,522 tokens.
_LOGIT_POSITIONS = 512

Ints = npt.NDArray[np.int64]


class Runtime(Protocol):
    """Runs a graph: sequences in, the named outputs out. `digest` is a hash of graph and weights."""

    name: str
    outputs: tuple[str, ...]
    digest: bytes

    @property
    def num_parallel_batches(self) -> int:
        """How many threads may call `run` at the same time."""
        ...

    def run(self, inputs: tuple[Ints, Ints, Ints], output_names: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Return the named outputs for input_ids, attention_mask and token_type_ids, each (B, T)."""
        ...


@dataclass(frozen=True, slots=True)
class GraphOutputs:
    """The outputs of a graph that serve as last hidden state (several are stacked) and as pooled output."""

    last_hidden_state: tuple[str, ...] = (LAST_HIDDEN_STATE,)
    pooled: str | None = POOLER_OUTPUT


# Head kind (see `onnx_graph.HEADS`) -> the graph outputs that replace hidden states: the head's linear is in the graph.
HEAD_OUTPUTS = {
    "sequence": GraphOutputs((), LOGITS),
    "tokens": GraphOutputs((LOGITS,), None),
    "spans": GraphOutputs((START_LOGITS, END_LOGITS), None),
    "mlm": GraphOutputs((LOGITS,), None),
}


class LastLayerOnly(tuple[torch.Tensor, ...]):
    """The hidden states of an encoder of which only the last layer is known; access to others is refused."""

    runtime: str

    @classmethod
    def from_last(cls, last_hidden_state: torch.Tensor, num_layers: int, runtime: str) -> LastLayerOnly:
        """Return the hidden states of the embeddings and `num_layers` layers."""
        layers = cls((last_hidden_state,) * (num_layers + 1))
        layers.runtime = runtime
        return layers

    def __getitem__(self, index: Any) -> Any:
        position = range(len(self))[index]
        if position not in (len(self) - 1, range(len(self) - 1, len(self))):
            refuse(self.runtime)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[torch.Tensor]:
        refuse(self.runtime)


def refuse(runtime: str) -> NoReturn:
    """Raise the error for what a graph does not provide."""
    raise FolderError(UNSUPPORTED_MESSAGE.format(name=runtime))


class _GraphEmbedding(nn.Module):
    """Stands for an embedding inside a graph: its weight is empty and only has the device."""

    def __init__(self, runtime: str, hidden_size: int) -> None:
        super().__init__()
        self.runtime = runtime
        self.weight = nn.Parameter(torch.empty(0, hidden_size), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> NoReturn:
        refuse(self.runtime)


class GraphEncoder(Encoder):
    """An encoder whose layers run in a runtime. It has no weights, only their digest.

    With the outputs of an MLM head it returns logits instead of hidden states.
    """

    def __init__(self, config: EncoderConfig, runtime: Runtime, graph_outputs: GraphOutputs | None = None) -> None:
        nn.Module.__init__(self)  # not Encoder's: there are no layers
        self.config = config
        self.attention = "bidirectional"
        self.activation_checkpointing = False
        self.runtime = runtime
        self.graph_outputs = graph_outputs or GraphOutputs(
            pooled=POOLER_OUTPUT if POOLER_OUTPUT in runtime.outputs else None
        )
        self.token_embeddings = _GraphEmbedding(runtime.name, config.hidden_size)  # type: ignore[assignment]
        self.register_buffer("digest", torch.tensor(list(runtime.digest), dtype=torch.uint8))
        self.eval()

    @property
    def num_parallel_batches(self) -> int:
        return self.runtime.num_parallel_batches

    @property
    def has_attention(self) -> bool:
        return False

    def create_layout(self, batch: Batch) -> BatchLayout:
        if batch.attention not in (None, "bidirectional"):
            raise SettingsError(f"a graph in {self.runtime.name} has bidirectional attention only; use --engine torch")
        return super().create_layout(batch)

    def __getattr__(self, name: str) -> Any:
        if name in ("layers", "position_embeddings", "token_type_embeddings", "norm", "pooler"):
            refuse(self.runtime.name)
        return super().__getattr__(name)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
        sparse_grad: bool = False,
    ) -> Encoded:
        """Return the last hidden state and the pooled output; a graph always computes all positions."""
        layout = self.create_layout(batch)
        if self.graph_outputs is HEAD_OUTPUTS["mlm"]:
            empty = torch.empty(0, self.config.vocab_size)
            return LazyLogits(hidden_states=(empty,), pooled=None, layout=layout, encoder=self, batch=batch)
        results = [self._run(batch, group, layout.index is not None) for group in _group_by_length(layout)]
        last = (
            torch.cat([hidden_state for hidden_state, _ in results])
            if self.graph_outputs.last_hidden_state
            else torch.empty(0, self.config.hidden_size)
        )
        pooled = torch.cat([part for _, part in results if part is not None]) if self.graph_outputs.pooled else None
        hidden_states = LastLayerOnly.from_last(last, self.config.depth, self.runtime.name)
        return Encoded(hidden_states=hidden_states, pooled=pooled, layout=layout)

    def compute_outputs(
        self, batch: Batch, sequences: slice, output_names: Sequence[str]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return outputs of some sequences, padded to the longest of them, and their attention mask."""
        lengths = batch.lengths[sequences]
        max_length = int(lengths.max()) if sequences != slice(None) else batch.input_ids.shape[1]
        mask = torch.arange(max_length) < lengths[:, None]  # (B, T)
        tensors = (batch.input_ids[sequences, :max_length], mask.long(), batch.token_type_ids[sequences, :max_length])
        input_ids, attention_mask, token_type_ids = (np.ascontiguousarray(values.numpy()) for values in tensors)
        outputs = self.runtime.run((input_ids, attention_mask, token_type_ids), output_names)
        return [torch.from_numpy(values) for values in outputs], mask

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> NoReturn:
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
        output_names = (
            *self.graph_outputs.last_hidden_state,
            *([self.graph_outputs.pooled] if self.graph_outputs.pooled else []),
        )
        outputs, mask = self.compute_outputs(batch, sequences, output_names)
        pooled = outputs.pop() if self.graph_outputs.pooled else None
        if not outputs:
            return torch.empty(0, self.config.hidden_size), pooled
        last = outputs[0] if len(outputs) == 1 else torch.stack(outputs, -1)  # (B, T, D)
        return (last[mask] if is_packed else last.flatten(0, 1)), pooled


@dataclass(frozen=True, slots=True)
class LazyLogits(Encoded):
    """Logits over the vocabulary, computed on `gather`, a few sequences at a time: all of them take gigabytes."""

    encoder: GraphEncoder | None = None
    batch: Batch | None = None

    def gather(self, positions: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return the logits (P, V) at flat positions (sequence * T + position), which must be ascending."""
        assert self.encoder is not None
        assert self.batch is not None
        num_sequences, length = self.batch.input_ids.shape
        step = max(1, _LOGIT_POSITIONS // length)
        results = []
        for first in range(0, num_sequences, step):
            start, end = first * length, (first + step) * length
            local = positions[(positions >= start) & (positions < end)] - start
            if len(local):
                (logits,), _ = self.encoder.compute_outputs(self.batch, slice(first, first + step), (LOGITS,))
                results.append(logits[local // length, local % length])
        return torch.cat(results)


def _group_by_length(layout: BatchLayout) -> list[slice]:
    """Return consecutive sequences of about equal length to run together; all of them if the layout is padded."""
    if layout.index is None:
        return [slice(None)]
    lengths = layout.lengths.tolist()
    groups: list[slice] = []
    first = num_tokens = longest = 0
    for index, length in enumerate(lengths):
        num_positions = (index + 1 - first) * max(longest, length)
        if num_tokens >= _MIN_TOKENS and num_positions > _MAX_PADDING_RATIO * (num_tokens + length):
            groups.append(slice(first, index))
            first, num_tokens, longest = index, 0, 0
        num_tokens, longest = num_tokens + length, max(longest, length)
    return [*groups, slice(first, len(lengths))]
