"""Graph encoders: a graph in a runtime in, an encoder out that maps token sequences to the last layer, in numpy.

Callers use it like any encoder. Other layers, attention weights and gradients stay inside the graph: asking for them
raises a FolderError.

B sequences, T positions, N tokens, D hidden size or outputs of a head, P target positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from bertworks.engines.graph_names import END_LOGITS, LAST_HIDDEN_STATE, LOGITS, POOLER_OUTPUT, START_LOGITS
from bertworks.errors import FolderError, InputError
from bertworks.sampling.padding import PaddedSequences, TokenSequence, pad_sequences

if TYPE_CHECKING:
    from bertworks.encoders.config import EncoderConfig
    from bertworks.models.graph_config import GraphConfig

UNSUPPORTED_MESSAGE = (
    "a model in {name} has only its last layer and predictions: other layers, attention weights and explanations need "
    "the original weights; use the folder that it was exported from, with --engine torch"
)
# Sequences of different lengths run separately if padding would be more than a fifth of the work, but never fewer
# tokens than this at once: smaller matmuls lose more than padding costs.
_MAX_PADDING_RATIO, _MIN_TOKENS = 1.25, 256
# Positions whose logits over the vocabulary are computed at once: 60 MB for 30,522 tokens.
_LOGIT_POSITIONS = 512
# What an encoder in PyTorch has besides, as code that inspects or trains it asks for it.
_INSIDE = frozenset(
    ("attention_weights", "create_layout", "device", "embed", "embedding_components", "forward_layers", "layers",
     "norm", "parameters", "pooler", "position_embeddings", "state_dict", "token_embeddings", "token_type_embeddings")
)  # fmt: skip

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Runtime(Protocol):
    """Runs a graph: sequences in, the named outputs out. `digest` is a hash of graph and weights."""

    name: str
    outputs: tuple[str, ...]
    digest: bytes

    @property
    def num_parallel_batches(self) -> int:
        """How many threads may call `run` at the same time."""
        ...

    def run(self, inputs: tuple[Ints, Ints, Ints], output_names: Sequence[str]) -> list[Floats]:
        """Return the named outputs for input_ids, attention_mask and token_type_ids, each (B, T)."""
        ...


@dataclass(frozen=True, slots=True)
class GraphOutputs:
    """The outputs of a graph that serve as last hidden state (several are stacked) and as pooled output."""

    last_hidden_state: tuple[str, ...] = (LAST_HIDDEN_STATE,)
    pooled: str | None = POOLER_OUTPUT

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.last_hidden_state, *([self.pooled] if self.pooled else []))


# Head kind (see `onnx_graph.HEADS`) -> the graph outputs that replace hidden states: the head's linear is in the graph.
HEAD_OUTPUTS = {
    "sequence": GraphOutputs((), LOGITS),
    "tokens": GraphOutputs((LOGITS,), None),
    "spans": GraphOutputs((START_LOGITS, END_LOGITS), None),
    "mlm": GraphOutputs((LOGITS,), None),
}


class LastLayerOnly(tuple[Floats, ...]):
    """The hidden states of an encoder of which only the last layer is known; access to others is refused."""

    runtime: str

    @classmethod
    def from_last(cls, last_hidden_state: Floats, num_layers: int, runtime: str) -> LastLayerOnly:
        """Return the hidden states of the embeddings and `num_layers` layers."""
        layers = cls((last_hidden_state,) * (num_layers + 1))
        layers.runtime = runtime
        return layers

    def __getitem__(self, index: Any) -> Any:
        position = range(len(self))[index]
        if position not in (len(self) - 1, range(len(self) - 1, len(self))):
            refuse(self.runtime)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Floats]:
        refuse(self.runtime)


def refuse(runtime: str) -> NoReturn:
    """Raise the error for what a graph does not provide."""
    raise FolderError(UNSUPPORTED_MESSAGE.format(name=runtime))


@dataclass(frozen=True, slots=True)
class GraphEncoded:
    """The output of a graph, named as in `encoders.encoded.Encoded`.

    hidden_states   the last layer (N, D), or the outputs of a token head; other layers are refused
    pooled          (B, D) the pooled output, or the outputs of a head on it
    starts          the index of the first token of each sequence among the N tokens
    """

    hidden_states: LastLayerOnly
    pooled: Floats | None
    starts: list[int]

    @property
    def last_hidden_state(self) -> Floats:
        last: Floats = self.hidden_states[-1]
        return last


class GraphEncoder:
    """An encoder whose layers run in a runtime. It has no weights, only their digest."""

    attention = "bidirectional"
    has_attention = False
    reads_characters = False

    def __init__(
        self, config: EncoderConfig | GraphConfig, runtime: Runtime, graph_outputs: GraphOutputs | None = None
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.graph_outputs = graph_outputs or GraphOutputs(
            pooled=POOLER_OUTPUT if POOLER_OUTPUT in runtime.outputs else None
        )

    @property
    def num_parallel_batches(self) -> int:
        return self.runtime.num_parallel_batches

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of a hash of graph and weights: `embed` resumes an output only with the same."""
        digest, hidden_size = self.runtime.digest, self.config.hidden_size
        content = f"digest ({len(digest)},)\n".encode() + digest
        content += f"token_embeddings.weight (0, {hidden_size})\n".encode()
        return hashlib.sha256(content).hexdigest()[:16]

    def __getattr__(self, name: str) -> Any:
        if name in _INSIDE:
            refuse(self.runtime.name)
        raise AttributeError(f"a graph encoder has no attribute '{name}'")

    def encode_sequences(self, sequences: Sequence[TokenSequence], pad: int) -> GraphEncoded:
        """Return the last hidden state and the pooled output of sequences; a graph always computes all positions."""
        padded = self._pad(sequences, pad)
        results = [self._run(padded, group) for group in _group_by_length(padded.lengths.tolist())]
        last, pooled = (
            np.concatenate([result[index] for result in results]) if has_output else None
            for index, has_output in enumerate((self.graph_outputs.last_hidden_state, self.graph_outputs.pooled))
        )
        if last is None:
            last = np.empty((0, self.config.hidden_size), dtype=np.float32)
        layers = LastLayerOnly.from_last(last, self.config.depth, self.runtime.name)
        return GraphEncoded(layers, pooled, (np.cumsum(padded.lengths) - padded.lengths).tolist())

    def mlm_logits(self, sequences: Sequence[TokenSequence], positions: Sequence[Ints], pad: int) -> Floats:
        """Return the logits (P, V) at the positions of each sequence, a few sequences at a time: all take gigabytes."""
        indices = [index for index, own_positions in enumerate(positions) if len(own_positions)]
        longest = max(len(sequence.input_ids) for sequence in sequences)
        step = max(1, _LOGIT_POSITIONS // longest)
        results: list[Floats] = []
        for first in range(0, len(indices), step):
            chosen = indices[first : first + step]
            padded = self._pad([sequences[index] for index in chosen], pad)
            (logits,) = self._compute(padded, slice(None), (LOGITS,))
            results += [logits[row, positions[index]] for row, index in enumerate(chosen)]
        return np.concatenate(results)

    def _pad(self, sequences: Sequence[TokenSequence], pad: int) -> PaddedSequences:
        padded = pad_sequences(sequences, pad)
        length, max_length = padded.input_ids.shape[1], self.config.max_length
        if length > max_length:
            raise InputError(
                f"a sequence of {length} tokens is longer than the {max_length} positions of this model; split the "
                f"text into windows, or choose a smaller --max-length"
            )
        return padded

    def _run(self, padded: PaddedSequences, sequences: slice) -> tuple[Floats, Floats]:
        """Return the last hidden state (n, D) of the tokens of some sequences, and their pooled output (b, D)."""
        outputs = self._compute(padded, sequences, self.graph_outputs.names)
        pooled = outputs.pop() if self.graph_outputs.pooled else np.empty(0, dtype=np.float32)
        if not outputs:
            return np.empty(0, dtype=np.float32), pooled
        last = outputs[0] if len(outputs) == 1 else np.stack(outputs, -1)  # (b, t, D)
        lengths = padded.lengths[sequences]
        is_full = lengths.sum() == last.shape[0] * last.shape[1]
        mask = np.arange(last.shape[1]) < lengths[:, None]
        return (last.reshape(-1, last.shape[2]) if is_full else last[mask]), pooled

    def _compute(self, padded: PaddedSequences, sequences: slice, output_names: Sequence[str]) -> list[Floats]:
        """Return outputs of some sequences, padded to the longest of them."""
        max_length = int(padded.lengths[sequences].max())
        arrays = (padded.input_ids, padded.attention_mask, padded.token_type_ids)
        input_ids, attention_mask, token_type_ids = (
            np.ascontiguousarray(values[sequences, :max_length]) for values in arrays
        )
        return self.runtime.run((input_ids, attention_mask, token_type_ids), output_names)


def _group_by_length(lengths: Sequence[int]) -> list[slice]:
    """Return consecutive sequences of about equal length to run together."""
    groups: list[slice] = []
    first = num_tokens = longest = 0
    for index, length in enumerate(lengths):
        num_positions = (index + 1 - first) * max(longest, length)
        if num_tokens >= _MIN_TOKENS and num_positions > _MAX_PADDING_RATIO * (num_tokens + length):
            groups.append(slice(first, index))
            first, num_tokens, longest = index, 0, 0
        num_tokens, longest = num_tokens + length, max(longest, length)
    return [*groups, slice(first, len(lengths))]
