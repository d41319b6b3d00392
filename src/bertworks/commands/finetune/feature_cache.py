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

from bertworks.disk import explained, read_json, write_json
from bertworks.embeddings.store import GrowingArray
from bertworks.engines.torch_engine import EncodedRows, TorchEngine
from bertworks.errors import FolderError
from bertworks.inference.predictor import Predictor
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Window
from bertworks.tasks.batching import batch_of_asked
from bertworks.tasks.contract import Asked
from bertworks.tasks.recurrent_head import RecurrentHead, reading_of

_VECTORS, _PROGRESS = "vectors.npy", "progress.json"
_KINDS: dict[str, npt.DTypeLike] = {"full": np.float32, "half": np.float16}
# A portion is computed and recorded as a whole: so many rows, or numbers of vectors (128 MiB), whichever comes first.
_ROWS = 1_024
_NUMBERS = 2**25
# How many seconds pass between two words on how far it is.
_SILENCE = 10.0


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A row, and that so many of its places are read from `first` on."""

    window: Window
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _Shared:
    """A row that is computed once for all stretches of it, each with its number."""

    window: Window
    wanted: list[tuple[int, slice]]

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return self.window.ids

    @property
    def segments(self) -> npt.NDArray[np.int64]:
        return self.window.segments

    @property
    def unknown(self) -> Mapping[int, str]:
        return self.window.unknown


class KeptFeatures:
    """The features of a run's rows. `fill` computes what is missing; then it answers for batches of such rows."""

    def __init__(self, folder: Path, predictor: Predictor, rows: Iterable[Asked], precision: str = "full") -> None:
        head = predictor.module.head
        assert isinstance(head, RecurrentHead)
        self._predictor, self._head = predictor, head
        self._numbers: dict[bytes, int] = {}
        self._stretches: list[_Stretch] = []
        for key, stretch in _stretches(rows, predictor.tokenizer.specials.pad):
            if self._numbers.setdefault(key, len(self._stretches)) == len(self._stretches):
                self._stretches.append(stretch)
        counts = [stretch.count for stretch in self._stretches]
        self._starts: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._shape = head.num_layers, head.layer_width
        self._kind = np.dtype(_KINDS[precision])
        self._identity = {
            "model": _model_digest(predictor.module.encoder),
            "rows": hashlib.sha256(b"".join(self._numbers)).hexdigest(),
            "strategy": head.settings.strategy,
            "precision": precision,
        }
        name = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = folder / name
        self._vectors: npt.NDArray[Any] | None = None

    @property
    def num_rows(self) -> int:
        return len(self._numbers)

    @property
    def place(self) -> str:
        """Where the features lie and how much room they take, in words."""
        size = int(self._starts[-1]) * int(np.prod(self._shape)) * self._kind.itemsize
        return (
            f"'{self._identity['strategy']}' of {self.num_rows:,} rows is kept in {self.folder} ({size / 1e6:,.1f} MB, "
            f"{self._identity['precision']} precision), which may be removed when the run is over"
        )

    def fill(self) -> Iterator[str]:
        """Compute what is not yet there, and say now and then how far it is."""
        done, told = self._num_done(), time.monotonic()
        for num_rows in self._filled(done) if done < self.num_rows else ():
            if time.monotonic() - told > _SILENCE:
                told = time.monotonic()
                yield f"features of {num_rows:,} of {self.num_rows:,} rows"
        self._stretches = []  # they are needed no more
        try:
            self._vectors = np.load(self.folder / _VECTORS, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise FolderError(f"{self.folder} is damaged ({error}); remove it, and it is made anew") from error
        if self._vectors.shape != (self._starts[-1], *self._shape):
            raise FolderError(f"{self.folder} is damaged: it does not hold what was written; remove it")

    def __call__(self, batch: Batch) -> torch.Tensor | None:
        """Return (N, L, D), what the head takes of the rows of a batch; None if one of them is not known."""
        assert self._vectors is not None, "fill comes first"
        numbers = [self._numbers.get(key) for key, _, _ in _keys(batch)]
        starts = self._starts
        found = [self._vectors[starts[number] : starts[number + 1]] for number in numbers if number is not None]
        if len(found) < len(numbers):
            return None
        return torch.from_numpy(np.concatenate(found, dtype=np.float32)).to(batch.ids.device)

    def _num_done(self) -> int:
        """Return how many rows the record says are whole."""
        if not (self.folder / _PROGRESS).is_file() or not (self.folder / _VECTORS).is_file():
            return 0
        found = read_json(self.folder / _PROGRESS, "the record of kept features")
        return int(found["num_rows"])

    def _filled(self, done: int) -> Iterator[int]:
        """Write one portion after the other, and yield how many rows are there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            vectors = GrowingArray(self.folder / _VECTORS, self._kind, self._shape, int(self._starts[done]))
        except OSError as error:
            raise explained(error, self.folder) from error
        try:
            while done < self.num_rows:
                portion = range(done, self._end(done))
                values = self._computed(portion)
                try:
                    vectors.append(np.concatenate(values))
                    vectors.flush()
                except OSError as error:
                    raise explained(error, self.folder) from error
                done = portion.stop
                write_json(self.folder / _PROGRESS, {**self._identity, "num_rows": done})
                yield done
        finally:
            vectors.close()

    def _end(self, first: int) -> int:
        """Return where the portion ends that begins at row `first`; it has at least one row."""
        most = self._starts[first] + max(1, _NUMBERS // int(np.prod(self._shape)))
        end = int(np.searchsorted(self._starts, most, side="right")) - 1
        return min(max(end, first + 1), first + _ROWS, self.num_rows)

    def _computed(self, numbers: range) -> list[npt.NDArray[np.float32]]:
        """Return the features of a portion. Sentences of one document often stand in the same row: it is read once."""
        shared: dict[tuple[bytes, bytes, str], _Shared] = {}
        for number in numbers:
            one = self._stretches[number]
            key = one.window.ids.tobytes(), one.window.segments.tobytes(), _told(one.window.unknown)
            own = shared.setdefault(key, _Shared(one.window, []))
            own.wanted.append((number - numbers.start, slice(one.first, one.first + one.count)))
        engine = TorchEngine(self._predictor.module.encoder, self._predictor.tokenizer)
        found: list[npt.NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * len(numbers)
        self._predictor.module.encoder.eval()
        for encoded in engine.encode(shared.values()):
            for number, values in self._read(encoded):
                found[number] = values
        return found

    def _read(self, found: EncodedRows[_Shared]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield each stretch of a batch's rows with its features: (its places, L, D)."""
        layers = self._head.strategy.picked(found.encoded.layers)
        for row, start in zip(found.rows, found.encoded.layout.starts.tolist(), strict=True):
            for number, span in row.wanted:
                own = [layer[start + span.start : start + span.stop] for layer in layers]
                yield number, torch.stack(own, 1).float().cpu().numpy()


def _stretches(rows: Iterable[Asked], pad: int) -> Iterator[tuple[bytes, _Stretch]]:
    """Yield each row with its key, as a batch with it would have it."""
    source = iter(rows)
    while some := list(islice(source, _ROWS)):
        for row, (key, first, count) in zip(some, _keys(batch_of_asked(some, pad)), strict=True):
            yield key, _Stretch(row.window, first, count)


def _keys(batch: Batch) -> Sequence[tuple[bytes, int, int]]:
    """Return for each row of a batch its key, the first place of it that is read, and how many are."""
    reading = reading_of(batch)
    ids, segments = batch.ids.cpu().numpy(), batch.segments.cpu().numpy()
    unknown: dict[int, dict[int, str]] = {}
    for at, word in batch.unknown.items():
        row, place = divmod(at, ids.shape[1])
        unknown.setdefault(row, {})[place] = word
    found = []
    told = (batch.lengths.tolist(), reading.firsts.tolist(), reading.counts.tolist())
    for row, (length, first, count) in enumerate(zip(*told, strict=True)):
        key = hashlib.blake2b(digest_size=16)
        key.update(np.array([length, first, count], dtype=np.int64).tobytes())
        key.update(ids[row, :length].tobytes())
        key.update(segments[row, :length].tobytes())
        key.update(_told(unknown.get(row, {})).encode())
        found.append((key.digest(), first, count))
    return found


def _told(unknown: Mapping[int, str]) -> str:
    """Return how the unknown words of a row are written, in one string; an empty one where there are none."""
    return "\n".join(f"{place} {word}" for place, word in sorted(unknown.items()))


def _model_digest(encoder: torch.nn.Module) -> str:
    """Return the hash of all that an encoder has learned."""
    found = hashlib.sha256()
    for name, values in encoder.state_dict().items():
        found.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        found.update(values.detach().cpu().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
