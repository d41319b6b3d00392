"""Cached features of a frozen encoder, computed once per run: sequences in, files out; a Batch in, features out.

A sequence is identified by a hash of its content, whoever made it and whatever batch it comes in. Each combination of
model, sequences, layers and precision has its own subfolder, named by their hash:

  vectors.npy    (N, L, D) the selected layers of the tokens that the head reads, sequence after sequence; memory-mapped
  progress.json  what it was computed from, and how many sequences are complete: an interrupted run resumes after them

N tokens, L layers, D hidden size.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.disk import explain_os_error, read_json, write_json
from bertworks.embeddings.store import GrowingArray
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine
from bertworks.errors import FolderError
from bertworks.inference.predictor import Predictor
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Window
from bertworks.tasks.batching import batch_of_input_sequences
from bertworks.tasks.contract import InputSequence
from bertworks.tasks.recurrent_head import RecurrentHead, packing_of

_VECTORS, _PROGRESS = "vectors.npy", "progress.json"
_DTYPES: dict[str, npt.DTypeLike] = {"fp32": np.float32, "fp16": np.float16}
# A chunk is computed and recorded as a whole: at most this many sequences, and this many values (128 MiB).
_MAX_SEQUENCES = 1_024
_MAX_VALUES = 2**25
# Seconds between two progress messages.
_REPORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _SequenceSpan:
    """A sequence, and the `count` positions from `first` on that the head reads."""

    window: Window
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _SharedSequence:
    """A sequence that is encoded once for several spans, each with the index of its result."""

    window: Window
    spans: list[tuple[int, slice]]

    @property
    def input_ids(self) -> npt.NDArray[np.int64]:
        return self.window.input_ids

    @property
    def token_type_ids(self) -> npt.NDArray[np.int64]:
        return self.window.token_type_ids

    @property
    def unknown(self) -> Mapping[int, str]:
        return self.window.unknown


class FeatureCache:
    """The features of a run's sequences. Call `fill` to compute what is missing, then call the cache with batches."""

    def __init__(
        self, folder: Path, predictor: Predictor, sequences: Iterable[InputSequence], precision: str = "fp32"
    ) -> None:
        head = predictor.module.head
        assert isinstance(head, RecurrentHead)
        self._predictor, self._head = predictor, head
        self._indices: dict[bytes, int] = {}
        self._spans: list[_SequenceSpan] = []
        for key, span in _iterate_spans(sequences, predictor.tokenizer.specials.pad):
            if self._indices.setdefault(key, len(self._spans)) == len(self._spans):
                self._spans.append(span)
        counts = [span.count for span in self._spans]
        self._starts: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._shape = head.num_layers, head.layer_hidden_size
        self._dtype = np.dtype(_DTYPES[precision])
        self._identity = {
            "model": _model_digest(predictor.module.encoder),
            "sequences": hashlib.sha256(b"".join(self._indices)).hexdigest(),
            "strategy": head.settings.strategy,
            "precision": precision,
            "compute_dtype": str(predictor.module.encoder.compute_dtype),
        }
        name = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = folder / name
        self._vectors: npt.NDArray[Any] | None = None

    @property
    def num_sequences(self) -> int:
        return len(self._indices)

    @property
    def description(self) -> str:
        """A sentence on where the features are and how large they are."""
        size = int(self._starts[-1]) * int(np.prod(self._shape)) * self._dtype.itemsize
        return (
            f"features '{self._identity['strategy']}' of {self.num_sequences:,} sequences are cached in {self.folder} "
            f"({size / 1e6:,.1f} MB, {self._identity['precision']}); remove it when the run is finished"
        )

    def fill(self) -> Iterator[str]:
        """Compute the missing features and yield progress messages."""
        num_done, last_report = self._num_done(), time.monotonic()
        for num_computed in self._compute_chunks(num_done) if num_done < self.num_sequences else ():
            if time.monotonic() - last_report > _REPORT_SECONDS:
                last_report = time.monotonic()
                yield f"features of {num_computed:,} of {self.num_sequences:,} sequences"
        self._spans = []  # free memory: not needed any more
        try:
            self._vectors = np.load(self.folder / _VECTORS, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise FolderError(f"{self.folder} is damaged ({error}); remove it to compute it again") from error
        if self._vectors.shape != (self._starts[-1], *self._shape):
            raise FolderError(
                f"{self.folder} is damaged: {_VECTORS} has the shape {self._vectors.shape}; remove it to recompute"
            )

    def __call__(self, batch: Batch) -> torch.Tensor | None:
        """Return the features (N, L, D) of a batch's sequences; None if one of them is not cached."""
        assert self._vectors is not None, "call fill first"
        indices = [self._indices.get(key) for key, _, _ in _keys(batch)]
        starts = self._starts
        features = [self._vectors[starts[index] : starts[index + 1]] for index in indices if index is not None]
        if len(features) < len(indices):
            return None
        return torch.from_numpy(np.concatenate(features, dtype=np.float32)).to(batch.input_ids.device)

    def _num_done(self) -> int:
        """Return how many sequences are complete on disk."""
        if not (self.folder / _PROGRESS).is_file() or not (self.folder / _VECTORS).is_file():
            return 0
        return int(read_json(self.folder / _PROGRESS, "the progress of cached features")["num_sequences"])

    def _compute_chunks(self, num_done: int) -> Iterator[int]:
        """Compute and write one chunk after the other, and yield how many sequences are complete."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            vectors = GrowingArray(self.folder / _VECTORS, self._dtype, self._shape, int(self._starts[num_done]))
        except OSError as error:
            raise explain_os_error(error, self.folder) from error
        try:
            while num_done < self.num_sequences:
                chunk = range(num_done, self._chunk_end(num_done))
                values = self._compute(chunk)
                try:
                    vectors.append(np.concatenate(values))
                    vectors.flush()
                except OSError as error:
                    raise explain_os_error(error, self.folder) from error
                num_done = chunk.stop
                write_json(self.folder / _PROGRESS, {**self._identity, "num_sequences": num_done})
                yield num_done
        finally:
            vectors.close()

    def _chunk_end(self, first: int) -> int:
        """Return the end of the chunk that starts at sequence `first`; it has at least one sequence."""
        max_tokens = self._starts[first] + max(1, _MAX_VALUES // int(np.prod(self._shape)))
        end = int(np.searchsorted(self._starts, max_tokens, side="right")) - 1
        return min(max(end, first + 1), first + _MAX_SEQUENCES, self.num_sequences)

    def _compute(self, indices: range) -> list[npt.NDArray[np.float32]]:
        """Return the features of a chunk. Sentences of a document often share a sequence, which is encoded once."""
        shared: dict[tuple[bytes, bytes, str], _SharedSequence] = {}
        for index in indices:
            span = self._spans[index]
            window = span.window
            key = (window.input_ids.tobytes(), window.token_type_ids.tobytes(), _format_unknown(window.unknown))
            sequence = shared.setdefault(key, _SharedSequence(window, []))
            sequence.spans.append((index - indices.start, slice(span.first, span.first + span.count)))
        engine = TorchEngine(self._predictor.module.encoder, self._predictor.tokenizer)
        features: list[npt.NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * len(indices)
        self._predictor.module.encoder.eval()
        for encoded_batch in engine.encode(shared.values()):
            for index, values in self._extract(encoded_batch):
                features[index] = values
        return features

    def _extract(self, encoded_batch: EncodedBatch[_SharedSequence]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the index of each span of a batch with its features (span's tokens, L, D)."""
        layers = self._head.strategy.select(encoded_batch.output.hidden_states)
        for sequence, start in zip(encoded_batch.sequences, encoded_batch.output.layout.starts.tolist(), strict=True):
            for index, span in sequence.spans:
                span_layers = [layer[start + span.start : start + span.stop] for layer in layers]
                yield index, torch.stack(span_layers, 1).float().cpu().numpy()


def _iterate_spans(sequences: Iterable[InputSequence], pad_id: int) -> Iterator[tuple[bytes, _SequenceSpan]]:
    """Yield each sequence with the key that it has in a batch."""
    source = iter(sequences)
    while chunk := list(islice(source, _MAX_SEQUENCES)):
        keys = _keys(batch_of_input_sequences(chunk, pad_id))
        for sequence, (key, first, count) in zip(chunk, keys, strict=True):
            yield key, _SequenceSpan(sequence, first, count)


def _keys(batch: Batch) -> Sequence[tuple[bytes, int, int]]:
    """Return for each sequence of a batch its key, the first position that the head reads, and how many it reads."""
    packing = packing_of(batch)
    input_ids, token_type_ids = batch.input_ids.cpu().numpy(), batch.token_type_ids.cpu().numpy()
    unknown: dict[int, dict[int, str]] = {}
    for flat_position, word in batch.unknown.items():
        index, position = divmod(flat_position, input_ids.shape[1])
        unknown.setdefault(index, {})[position] = word
    keys = []
    columns = (batch.lengths.tolist(), packing.first_positions.tolist(), packing.lengths.tolist())
    for index, (length, first, count) in enumerate(zip(*columns, strict=True)):
        key = hashlib.blake2b(digest_size=16)
        key.update(np.array([length, first, count], dtype=np.int64).tobytes())
        key.update(input_ids[index, :length].tobytes())
        key.update(token_type_ids[index, :length].tobytes())
        key.update(_format_unknown(unknown.get(index, {})).encode())
        keys.append((key.digest(), first, count))
    return keys


def _format_unknown(unknown: Mapping[int, str]) -> str:
    """Return the unknown words of a sequence with their positions as one string; empty if there are none."""
    return "\n".join(f"{position} {word}" for position, word in sorted(unknown.items()))


def _model_digest(encoder: torch.nn.Module) -> str:
    """Return the hash of an encoder's weights."""
    digest = hashlib.sha256()
    for name, values in encoder.state_dict().items():
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
