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
from bertworks.embeddings.pooling import Pooling, read_pooling
from bertworks.embeddings.strategies import STRATEGIES, Strategy
from bertworks.encoders.stack import Encoder
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine
from bertworks.errors import FolderError, InputError
from bertworks.sampling.windows import WindowRule, Windows, make_windows
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# A portion is read, computed and handed on as a whole, so these bound memory. Batches never reach over its end, and so
# a run that goes on after a portion computes the same bits as one that was never stopped.
_MAX_TEXTS = 1_024
_MAX_TOKENS = 32_768
_MAX_VALUES = 2**24  # of all piece vectors of a portion: 64 MiB

_OVERLAP = 64
# What becomes of a text without a piece: whether it is a vector of its own or has some.
_EMPTY_TEXT_COUNTS = {
    True: "empty texts (given the vector that the model has for no text)",
    False: "empty texts (no vectors)",
}


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is asked of the texts: one vector for each of which `unit`, from which layers, how long texts are read."""

    unit: str = "texts"
    strategy: Strategy = STRATEGIES["last"]
    pooling: Pooling = field(default_factory=Pooling)
    window_rule: WindowRule = field(default_factory=WindowRule)


@dataclass(frozen=True, slots=True)
class VectorBatch:
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


def resolve_window_rule(
    pooling: Pooling, max_position_embeddings: int, truncate: bool = False, model_rule: WindowRule | None = None
) -> WindowRule:
    """Return the rule that is stored with a model, else windows as long as it was made for, never longer than that.

    With `truncate` there is only the first of them, whatever the model says.
    """
    model_rule = model_rule or WindowRule(max_position_embeddings, min(_OVERLAP, max_position_embeddings // 4))
    length = min(model_rule.max_length, pooling.max_length or max_position_embeddings, max_position_embeddings)
    return WindowRule(length, min(model_rule.overlap, length // 4), truncate or model_rule.truncate)


def read_window_rule(folder: Path) -> WindowRule | None:
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


def extract_vectors(engine: TorchEngine, texts: Iterable[str], extraction: Extraction) -> Iterator[VectorBatch]:
    """Yield the vectors of the texts in their order. Nothing is carried from one portion to the next."""
    make, whole = UNITS[extraction.unit]
    width = extraction.strategy.output_size(engine.encoder.config.hidden_sizes)
    most = _MAX_TOKENS if whole else min(_MAX_TOKENS, _MAX_VALUES // width)
    for gathered in _group_texts(_tokenize_texts(texts, engine.tokenizer, extraction), most):
        yield make(engine, gathered, extraction)


def embed(encoder: Encoder, tokenizer: Tokenizer, folder: Path, texts: Iterable[str], kind: str | None) -> Floats:
    """Return (texts, D): a vector a text, pooled in that way, or else as the model's folder says."""
    if isinstance(texts, str):
        raise InputError("one text was given where several are expected; put it into a list: [text]")
    how = _load_extraction(folder, encoder.config.max_position_embeddings, kind)
    width = encoder.config.hidden_size * len(how.pooling.kinds)
    portions = [portion.vectors for portion in extract_vectors(TorchEngine(encoder, tokenizer), texts, how)]
    return np.concatenate([np.empty((0, width), dtype=np.float32), *portions])


@functools.lru_cache(maxsize=256)
def _load_extraction(folder: Path, max_position_embeddings: int, kind: str | None) -> Extraction:
    """Return how a folder's model makes vectors of texts. Its files are read once: for a short text that is long."""
    pooling = read_pooling(folder)
    pooling = pooling.with_kind(kind) if kind else pooling
    return Extraction(
        pooling=pooling,
        window_rule=resolve_window_rule(pooling, max_position_embeddings, model_rule=read_window_rule(folder)),
    )


@dataclass(frozen=True, slots=True)
class _WindowedText:
    """A text that was cut: its pieces, the rows they stand in, and what there is to say about that."""

    tokens: TokenizedText
    windows: Windows
    counts: Counts

    def __len__(self) -> int:
        return sum(map(len, self.windows.sequences))


@dataclass(frozen=True, slots=True)
class _WindowSequence:
    """A row and the places of it that count for its text."""

    input_ids: Ints
    token_type_ids: Ints
    unknown: Mapping[int, str]
    positions: slice

    @property
    def num_positions(self) -> int:
        return int(self.positions.stop - self.positions.start)


def _tokenize_texts(texts: Iterable[str], tokenizer: Tokenizer, extraction: Extraction) -> Iterator[_WindowedText]:
    for text in texts:
        # Offsets are places of the text as it is, so only a text that becomes a single vector may be changed.
        pieces = tokenizer.tokenize(extraction.pooling.prepare_text(text) if extraction.unit == "texts" else text)
        windows = make_windows(tokenizer, [pieces], extraction.window_rule)
        told = Counts()
        if not text.strip() or not len(pieces):
            told[_EMPTY_TEXT_COUNTS[UNITS[extraction.unit][1]]] += 1
        if pieces.unknown:
            told["words outside the vocabulary"] += len(pieces.unknown)
        if windows.num_truncated:
            told["texts cut at their end"] += 1
            told["pieces cut"] += windows.num_truncated
        if len(windows.sequences) > 1:
            told["texts read in several windows"] += 1
        yield _WindowedText(pieces, windows, told)


def _group_texts(texts: Iterable[_WindowedText], max_tokens: int) -> Iterator[list[_WindowedText]]:
    """Yield runs of texts: as soon as there are many, or they have many pieces."""
    gathered: list[_WindowedText] = []
    num_pieces = 0
    for text in texts:
        gathered.append(text)
        num_pieces += len(text)
        if len(gathered) == _MAX_TEXTS or num_pieces >= max_tokens:
            yield gathered
            gathered, num_pieces = [], 0
    if gathered:
        yield gathered


def _build_sequences(windows: Windows, with_specials: bool) -> list[_WindowSequence]:
    """Return the rows of a text with their own places: each piece in one row, the special ones at its two ends."""
    last = len(windows.sequences) - 1
    owners = windows.owners(0)  # never falls: windows are equally long
    bounds = np.searchsorted(owners, np.arange(last + 2)).tolist()
    rows = []
    for number, window in enumerate(windows.sequences):
        (run,) = window.spans
        first, stop = (run.position + bound - run.first for bound in bounds[number : number + 2])
        if with_specials:
            first, stop = (first if number else 0), (stop if number < last else len(window))
        rows.append(_WindowSequence(window.input_ids, window.token_type_ids, window.unknown, slice(first, stop)))
    return rows


def _text_vectors(engine: TorchEngine, texts: Sequence[_WindowedText], extraction: Extraction) -> VectorBatch:
    def read(found: EncodedBatch[_WindowSequence]) -> Iterator[torch.Tensor]:
        for row, values in _sequence_values(found, extraction.strategy):
            yield extraction.pooling.pool(values, row.positions)

    rows = [_build_sequences(text.windows, with_specials=True) for text in texts]
    shares = engine.predict((row for own in rows for row in own), read)
    vectors = [
        extraction.pooling.combine(list(islice(shares, len(own))), sum(row.num_positions for row in own))
        for own in rows
    ]
    ones = np.ones(len(texts), dtype=np.int64)
    nowhere = np.empty((0, 2), dtype=np.int64)
    return VectorBatch(torch.stack(vectors).float().cpu().numpy(), ones, nowhere, _sum_counts(texts))


def _token_vectors(engine: TorchEngine, texts: Sequence[_WindowedText], extraction: Extraction) -> VectorBatch:
    values = list(_token_values(engine, texts, extraction.strategy))
    offsets = [text.tokens.offsets[: len(own)] for text, own in zip(texts, values, strict=True)]
    return _build_vector_batch(texts, values, offsets)


def _word_vectors(engine: TorchEngine, texts: Sequence[_WindowedText], extraction: Extraction) -> VectorBatch:
    (kind,) = extraction.pooling.kinds
    values, offsets = [], []
    for text, own in zip(texts, _token_values(engine, texts, extraction.strategy), strict=True):
        begins = text.tokens.begins_word[: len(own)].copy()
        begins[:1] = True  # whatever a tokenizer says of a text's first piece
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(own))[: len(starts)]
        values.append(WORD_POOLINGS[kind](own, starts, ends) if len(starts) else own)
        places = text.tokens.offsets
        offsets.append(np.stack([places[starts, 0], places[ends - 1, 1]], axis=1))
    return _build_vector_batch(texts, values, offsets)


def _mean_of_words(values: Floats, starts: Ints, ends: Ints) -> Floats:
    return (np.add.reduceat(values, starts) / (ends - starts)[:, None]).astype(np.float32)


# How the pieces (P, D) of a text become its words, which start and end at these pieces.
WORD_POOLINGS: dict[str, Callable[[Floats, Ints, Ints], Floats]] = {
    "mean": _mean_of_words,
    "first": lambda values, starts, ends: values[starts],
    "max": lambda values, starts, ends: np.maximum.reduceat(values, starts),
}

# What a vector can be of: who makes a portion of them, and whether a text has just one.
UNITS: dict[str, tuple[Callable[[TorchEngine, Sequence[_WindowedText], Extraction], VectorBatch], bool]] = {
    "texts": (_text_vectors, True),
    "words": (_word_vectors, False),
    "pieces": (_token_vectors, False),
}


def _token_values(engine: TorchEngine, texts: Sequence[_WindowedText], strategy: Strategy) -> Iterator[Floats]:
    """Yield (P, D) for each text: its pieces, each from the window that owns it."""

    def read(found: EncodedBatch[_WindowSequence]) -> Iterator[Floats]:
        for row, values in _sequence_values(found, strategy):
            yield values[row.positions].float().cpu().numpy()

    rows = [_build_sequences(text.windows, with_specials=False) for text in texts]
    values = engine.predict((row for own in rows for row in own), read)
    for own in rows:
        yield np.concatenate(list(islice(values, len(own))))


def _sequence_values(
    batch: EncodedBatch[_WindowSequence], strategy: Strategy
) -> Iterator[tuple[_WindowSequence, torch.Tensor]]:
    """Yield each row of a batch with what the layers made of its places: (T, D)."""
    features = strategy(batch.output.hidden_states)  # (N, D)
    for row, start in zip(batch.sequences, batch.output.layout.starts.tolist(), strict=True):
        yield row, features[start : start + len(row.input_ids)]


def _build_vector_batch(
    texts: Sequence[_WindowedText], values: Sequence[Floats], offsets: Sequence[Ints]
) -> VectorBatch:
    num_rows = np.array([len(own) for own in values], dtype=np.int64)
    return VectorBatch(np.concatenate(values), num_rows, np.concatenate(offsets), _sum_counts(texts))


def _sum_counts(texts: Sequence[_WindowedText]) -> Counts:
    told = Counts()
    for text in texts:
        told.update(text.counts)
    return told
