"""A stream of texts in, their vectors out, a portion at a time: of whole texts, of words or of pieces, with offsets.

A long text is read in overlapping windows, and each of its pieces counts once: in the window where it stands farthest
from the edges. The special pieces at the two ends of a text count for whole texts, as in sentence-transformers, and are
left out of pieces and words.

N rows of vectors, D their width, P pieces of a text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bertworks.disk import read_json
from bertworks.embeddings.pooling import Pooling, pooling_of
from bertworks.embeddings.strategies import STRATEGIES, Strategy
from bertworks.encoders.stack import Stack
from bertworks.engines.torch_engine import EncodedRows, TorchEngine
from bertworks.errors import FolderError, InputError
from bertworks.sampling.windows import WindowRule, Windows, windows_of
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Cut, Tokenizer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# A portion is read, computed and handed on as a whole, so these bound memory. Batches never reach over its end, and so
# a run that goes on after a portion computes the same bits as one that was never stopped.
_TEXTS = 1_024
_PIECES = 32_768
_NUMBERS = 2**24  # of all piece vectors of a portion: 64 MiB

_OVERLAP = 64
# What becomes of a text without a piece: whether it is a vector of its own or has some.
_EMPTY = {True: "empty texts (given the vector that the model has for no text)", False: "empty texts (no vectors)"}


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is asked of the texts: one vector for each of which `unit`, from which layers, how long texts are read."""

    unit: str = "texts"
    strategy: Strategy = STRATEGIES["last"]
    pooling: Pooling = field(default_factory=Pooling)
    rule: WindowRule = field(default_factory=WindowRule)


@dataclass(frozen=True, slots=True)
class Portion:
    """The vectors (N, D) of some texts in a row, how many of them each text has, and where in it (N, 2) they stand.

    `counts` says what happened to the texts on the way.
    """

    vectors: Floats
    num_rows: Ints
    offsets: Ints
    counts: Counts = field(default_factory=Counts)

    @property
    def num_texts(self) -> int:
        return len(self.num_rows)


def window_rule(
    pooling: Pooling, positions: int, truncate: bool = False, stored: WindowRule | None = None
) -> WindowRule:
    """Return the rule that is stored with a model, else windows as long as it was made for, never longer than that.

    With `truncate` there is only the first of them, whatever the model says.
    """
    stored = stored or WindowRule(positions, min(_OVERLAP, positions // 4))
    length = min(stored.length, pooling.length or positions, positions)
    return WindowRule(length, min(stored.overlap, length // 4), truncate or stored.truncate)


def stored_rule(folder: Path) -> WindowRule | None:
    """Return the window rule that a model folder's bertworks.json states; None where it states none."""
    path = folder / "bertworks.json"
    told = read_json(path, "a model folder") if path.is_file() else {}
    window = told.get("window") if isinstance(told, dict) else None
    if window is None:
        return None
    try:
        return WindowRule(**window)
    except TypeError:
        raise FolderError(
            f"{path}: 'window' is {window!r}; it should have length, overlap and truncate, or not be there"
        ) from None


def vectors_of(engine: TorchEngine, texts: Iterable[str], how: Extraction) -> Iterator[Portion]:
    """Yield the vectors of the texts in their order. Nothing is carried from one portion to the next."""
    make, whole = UNITS[how.unit]
    width = how.strategy.width(engine.encoder.sizes.widths)
    most = _PIECES if whole else min(_PIECES, _NUMBERS // width)
    for gathered in _gathered(_cut(texts, engine.tokenizer, how), most):
        yield make(engine, gathered, how)


def embed(encoder: Stack, tokenizer: Tokenizer, folder: Path, texts: Iterable[str], kind: str | None) -> Floats:
    """Return (texts, D): a vector a text, pooled in that way, or else as the model's folder says."""
    if isinstance(texts, str):
        raise InputError("one text was given where several are expected; put it into a list: [text]")
    how = _as_told(folder, encoder.sizes.positions, kind)
    width = encoder.sizes.width * len(how.pooling.kinds)
    portions = [portion.vectors for portion in vectors_of(TorchEngine(encoder, tokenizer), texts, how)]
    return np.concatenate([np.empty((0, width), dtype=np.float32), *portions])


@functools.lru_cache(maxsize=256)
def _as_told(folder: Path, positions: int, kind: str | None) -> Extraction:
    """Return how a folder's model makes vectors of texts. Its files are read once: for a short text that is long."""
    pooling = pooling_of(folder)
    pooling = pooling.of_kind(kind) if kind else pooling
    return Extraction(pooling=pooling, rule=window_rule(pooling, positions, stored=stored_rule(folder)))


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that was cut: its pieces, the rows they stand in, and what there is to say about that."""

    pieces: Cut
    windows: Windows
    told: Counts

    def __len__(self) -> int:
        return sum(map(len, self.windows.rows))


@dataclass(frozen=True, slots=True)
class _Row:
    """A row and the places of it that count for its text."""

    ids: Ints
    segments: Ints
    unknown: Mapping[int, str]
    kept: slice

    @property
    def num_kept(self) -> int:
        return int(self.kept.stop - self.kept.start)


def _cut(texts: Iterable[str], tokenizer: Tokenizer, how: Extraction) -> Iterator[_Text]:
    for text in texts:
        # Offsets are places of the text as it is, so only a text that becomes a single vector may be changed.
        pieces = tokenizer.cut(how.pooling.prepared(text) if how.unit == "texts" else text)
        windows = windows_of(tokenizer, [pieces], how.rule)
        told = Counts()
        if not text.strip() or not len(pieces):
            told[_EMPTY[UNITS[how.unit][1]]] += 1
        if pieces.unknown:
            told["words outside the vocabulary"] += len(pieces.unknown)
        if windows.num_cut:
            told["texts cut at their end"] += 1
            told["pieces cut"] += windows.num_cut
        if len(windows.rows) > 1:
            told["texts read in several windows"] += 1
        yield _Text(pieces, windows, told)


def _gathered(texts: Iterable[_Text], most: int) -> Iterator[list[_Text]]:
    """Yield runs of texts: as soon as there are many, or they have many pieces."""
    gathered: list[_Text] = []
    num_pieces = 0
    for text in texts:
        gathered.append(text)
        num_pieces += len(text)
        if len(gathered) == _TEXTS or num_pieces >= most:
            yield gathered
            gathered, num_pieces = [], 0
    if gathered:
        yield gathered


def _rows(windows: Windows, with_specials: bool) -> list[_Row]:
    """Return the rows of a text with their own places: each piece in one row, the special ones at its two ends."""
    last = len(windows.rows) - 1
    owners = windows.owners(0)  # never falls: windows are equally long
    bounds = np.searchsorted(owners, np.arange(last + 2)).tolist()
    rows = []
    for number, window in enumerate(windows.rows):
        (run,) = window.runs
        first, stop = (run.place + bound - run.first for bound in bounds[number : number + 2])
        if with_specials:
            first, stop = (first if number else 0), (stop if number < last else len(window))
        rows.append(_Row(window.ids, window.segments, window.unknown, slice(first, stop)))
    return rows


def _of_texts(engine: TorchEngine, texts: Sequence[_Text], how: Extraction) -> Portion:
    def read(found: EncodedRows[_Row]) -> Iterator[torch.Tensor]:
        for row, values in _row_values(found, how.strategy):
            yield how.pooling.share(values, row.kept)

    rows = [_rows(text.windows, with_specials=True) for text in texts]
    shares = engine.answers((row for own in rows for row in own), read)
    vectors = [how.pooling.join(list(islice(shares, len(own))), sum(row.num_kept for row in own)) for own in rows]
    ones = np.ones(len(texts), dtype=np.int64)
    nowhere = np.empty((0, 2), dtype=np.int64)
    return Portion(torch.stack(vectors).float().cpu().numpy(), ones, nowhere, _told(texts))


def _of_pieces(engine: TorchEngine, texts: Sequence[_Text], how: Extraction) -> Portion:
    values = list(_piece_values(engine, texts, how.strategy))
    offsets = [text.pieces.offsets[: len(own)] for text, own in zip(texts, values, strict=True)]
    return _portion(texts, values, offsets)


def _of_words(engine: TorchEngine, texts: Sequence[_Text], how: Extraction) -> Portion:
    (kind,) = how.pooling.kinds
    values, offsets = [], []
    for text, own in zip(texts, _piece_values(engine, texts, how.strategy), strict=True):
        begins = text.pieces.begins_word[: len(own)].copy()
        begins[:1] = True  # whatever a tokenizer says of a text's first piece
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(own))[: len(starts)]
        values.append(WORDS[kind](own, starts, ends) if len(starts) else own)
        places = text.pieces.offsets
        offsets.append(np.stack([places[starts, 0], places[ends - 1, 1]], axis=1))
    return _portion(texts, values, offsets)


def _mean_of_words(values: Floats, starts: Ints, ends: Ints) -> Floats:
    return (np.add.reduceat(values, starts) / (ends - starts)[:, None]).astype(np.float32)


# How the pieces (P, D) of a text become its words, which start and end at these pieces.
WORDS: dict[str, Callable[[Floats, Ints, Ints], Floats]] = {
    "mean": _mean_of_words,
    "first": lambda values, starts, ends: values[starts],
    "max": lambda values, starts, ends: np.maximum.reduceat(values, starts),
}

# What a vector can be of: who makes a portion of them, and whether a text has just one.
UNITS: dict[str, tuple[Callable[[TorchEngine, Sequence[_Text], Extraction], Portion], bool]] = {
    "texts": (_of_texts, True),
    "words": (_of_words, False),
    "pieces": (_of_pieces, False),
}


def _piece_values(engine: TorchEngine, texts: Sequence[_Text], strategy: Strategy) -> Iterator[Floats]:
    """Yield (P, D) for each text: its pieces, each from the window that owns it."""

    def read(found: EncodedRows[_Row]) -> Iterator[Floats]:
        for row, values in _row_values(found, strategy):
            yield values[row.kept].float().cpu().numpy()

    rows = [_rows(text.windows, with_specials=False) for text in texts]
    values = engine.answers((row for own in rows for row in own), read)
    for own in rows:
        yield np.concatenate(list(islice(values, len(own))))


def _row_values(found: EncodedRows[_Row], strategy: Strategy) -> Iterator[tuple[_Row, torch.Tensor]]:
    """Yield each row of a batch with what the layers made of its places: (T, D)."""
    features = strategy(found.encoded.layers)  # (N, D)
    for row, start in zip(found.rows, found.encoded.layout.starts.tolist(), strict=True):
        yield row, features[start : start + len(row.ids)]


def _portion(texts: Sequence[_Text], values: Sequence[Floats], offsets: Sequence[Ints]) -> Portion:
    num_rows = np.array([len(own) for own in values], dtype=np.int64)
    return Portion(np.concatenate(values), num_rows, np.concatenate(offsets), _told(texts))


def _told(texts: Sequence[_Text]) -> Counts:
    told = Counts()
    for text in texts:
        told.update(text.told)
    return told
