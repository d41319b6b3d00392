"""What a frozen encoder says of the rows of a run, computed once: rows in, files on disk out; a Batch in, features out.

A row is known by what stands in it, so it does not matter who made it or in which batch it comes. Below the folder
each choice of model, rows, layers and precision has a folder of its own, named by the hash of all that:

  vectors.npy    (N, L, D) the chosen layers of the pieces that the head reads, row after row; memory-mapped
  progress.json  what it was made of, and how many rows are whole: a killed run goes on behind them, to the same bytes

N pieces, L layers, D width.
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
_DTYPES: dict[str, npt.DTypeLike] = {"full": np.float32, "half": np.float16}
# A portion is computed and recorded as a whole: so many rows, or numbers of vectors (128 MiB), whichever comes first.
_MAX_SEQUENCES = 1_024
_MAX_VALUES = 2**25
# How many seconds pass between two words on how far it is.
_REPORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _SequenceSpan:
    """A row, and that so many of its places are read from `first` on."""

    window: Window
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _SharedSequence:
    """A row that is computed once for all stretches of it, each with its number."""

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
    """The features of a run's rows. `fill` computes what is missing; then it answers for batches of such rows."""

    def __init__(
        self, folder: Path, predictor: Predictor, sequences: Iterable[InputSequence], precision: str = "full"
    ) -> None:
        head = predictor.module.head
        assert isinstance(head, RecurrentHead)
        self._predictor, self._head = predictor, head
        self._indices: dict[bytes, int] = {}
        self._spans: list[_SequenceSpan] = []
        for key, stretch in _iterate_spans(sequences, predictor.tokenizer.specials.pad):
            if self._indices.setdefault(key, len(self._spans)) == len(self._spans):
                self._spans.append(stretch)
        counts = [stretch.count for stretch in self._spans]
        self._starts: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._shape = head.num_layers, head.layer_hidden_size
        self._dtype = np.dtype(_DTYPES[precision])
        self._identity = {
            "model": _model_digest(predictor.module.encoder),
            "rows": hashlib.sha256(b"".join(self._indices)).hexdigest(),
            "strategy": head.settings.strategy,
            "precision": precision,
        }
        name = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = folder / name
        self._vectors: npt.NDArray[Any] | None = None

    @property
    def num_sequences(self) -> int:
        return len(self._indices)

    @property
    def description(self) -> str:
        """Where the features lie and how much room they take, in words."""
        size = int(self._starts[-1]) * int(np.prod(self._shape)) * self._dtype.itemsize
        return (
            f"'{self._identity['strategy']}' of {self.num_sequences:,} rows is kept in {self.folder} ({size / 1e6:,.1f} MB, "
            f"{self._identity['precision']} precision), which may be removed when the run is over"
        )

    def fill(self) -> Iterator[str]:
        """Compute what is not yet there, and say now and then how far it is."""
        done, told = self._num_done(), time.monotonic()
        for num_rows in self._compute_portions(done) if done < self.num_sequences else ():
            if time.monotonic() - told > _REPORT_SECONDS:
                told = time.monotonic()
                yield f"features of {num_rows:,} of {self.num_sequences:,} rows"
        self._spans = []  # they are needed no more
        try:
            self._vectors = np.load(self.folder / _VECTORS, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise FolderError(f"{self.folder} is damaged ({error}); remove it, and it is made anew") from error
        if self._vectors.shape != (self._starts[-1], *self._shape):
            raise FolderError(f"{self.folder} is damaged: it does not hold what was written; remove it")

    def __call__(self, batch: Batch) -> torch.Tensor | None:
        """Return (N, L, D), what the head takes of the rows of a batch; None if one of them is not known."""
        assert self._vectors is not None, "fill comes first"
        numbers = [self._indices.get(key) for key, _, _ in _keys(batch)]
        starts = self._starts
        found = [self._vectors[starts[number] : starts[number + 1]] for number in numbers if number is not None]
        if len(found) < len(numbers):
            return None
        return torch.from_numpy(np.concatenate(found, dtype=np.float32)).to(batch.input_ids.device)

    def _num_done(self) -> int:
        """Return how many rows the record says are whole."""
        if not (self.folder / _PROGRESS).is_file() or not (self.folder / _VECTORS).is_file():
            return 0
        found = read_json(self.folder / _PROGRESS, "the record of kept features")
        return int(found["num_rows"])

    def _compute_portions(self, num_done: int) -> Iterator[int]:
        """Write one portion after the other, and yield how many rows are there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            vectors = GrowingArray(self.folder / _VECTORS, self._dtype, self._shape, int(self._starts[num_done]))
        except OSError as error:
            raise explain_os_error(error, self.folder) from error
        try:
            while num_done < self.num_sequences:
                portion = range(num_done, self._portion_end(num_done))
                values = self._compute(portion)
                try:
                    vectors.append(np.concatenate(values))
                    vectors.flush()
                except OSError as error:
                    raise explain_os_error(error, self.folder) from error
                num_done = portion.stop
                write_json(self.folder / _PROGRESS, {**self._identity, "num_rows": num_done})
                yield num_done
        finally:
            vectors.close()

    def _portion_end(self, first: int) -> int:
        """Return where the portion ends that begins at row `first`; it has at least one row."""
        most = self._starts[first] + max(1, _MAX_VALUES // int(np.prod(self._shape)))
        end = int(np.searchsorted(self._starts, most, side="right")) - 1
        return min(max(end, first + 1), first + _MAX_SEQUENCES, self.num_sequences)

    def _compute(self, indices: range) -> list[npt.NDArray[np.float32]]:
        """Return the features of a portion. Sentences of one document often stand in the same row: it is read once."""
        shared: dict[tuple[bytes, bytes, str], _SharedSequence] = {}
        for number in indices:
            one = self._spans[number]
            key = (
                one.window.input_ids.tobytes(),
                one.window.token_type_ids.tobytes(),
                _format_unknown(one.window.unknown),
            )
            own = shared.setdefault(key, _SharedSequence(one.window, []))
            own.spans.append((number - indices.start, slice(one.first, one.first + one.count)))
        engine = TorchEngine(self._predictor.module.encoder, self._predictor.tokenizer)
        found: list[npt.NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * len(indices)
        self._predictor.module.encoder.eval()
        for encoded in engine.encode(shared.values()):
            for number, values in self._extract(encoded):
                found[number] = values
        return found

    def _extract(self, encoded_batch: EncodedBatch[_SharedSequence]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield each stretch of a batch's rows with its features: (its places, L, D)."""
        layers = self._head.strategy.select(encoded_batch.output.hidden_states)
        for row, start in zip(encoded_batch.sequences, encoded_batch.output.layout.starts.tolist(), strict=True):
            for number, span in row.spans:
                own = [layer[start + span.start : start + span.stop] for layer in layers]
                yield number, torch.stack(own, 1).float().cpu().numpy()


def _iterate_spans(sequences: Iterable[InputSequence], pad_id: int) -> Iterator[tuple[bytes, _SequenceSpan]]:
    """Yield each row with its key, as a batch with it would have it."""
    source = iter(sequences)
    while some := list(islice(source, _MAX_SEQUENCES)):
        for row, (key, first, count) in zip(some, _keys(batch_of_input_sequences(some, pad_id)), strict=True):
            yield key, _SequenceSpan(row.window, first, count)


def _keys(batch: Batch) -> Sequence[tuple[bytes, int, int]]:
    """Return for each row of a batch its key, the first place of it that is read, and how many are."""
    reading = packing_of(batch)
    ids, segments = batch.input_ids.cpu().numpy(), batch.token_type_ids.cpu().numpy()
    unknown: dict[int, dict[int, str]] = {}
    for at, word in batch.unknown.items():
        row, place = divmod(at, ids.shape[1])
        unknown.setdefault(row, {})[place] = word
    found = []
    told = (batch.lengths.tolist(), reading.first_positions.tolist(), reading.lengths.tolist())
    for row, (length, first, count) in enumerate(zip(*told, strict=True)):
        key = hashlib.blake2b(digest_size=16)
        key.update(np.array([length, first, count], dtype=np.int64).tobytes())
        key.update(ids[row, :length].tobytes())
        key.update(segments[row, :length].tobytes())
        key.update(_format_unknown(unknown.get(row, {})).encode())
        found.append((key.digest(), first, count))
    return found


def _format_unknown(unknown: Mapping[int, str]) -> str:
    """Return how the unknown words of a row are written, in one string; an empty one where there are none."""
    return "\n".join(f"{place} {word}" for place, word in sorted(unknown.items()))


def _model_digest(encoder: torch.nn.Module) -> str:
    """Return the hash of all that an encoder has learned."""
    found = hashlib.sha256()
    for name, values in encoder.state_dict().items():
        found.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        found.update(values.detach().cpu().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
