"""Feature extraction: a stream of texts in, batches of vectors out: of whole texts, words or tokens, with offsets.

A long text is split into overlapping windows, and each token counts once: in the window where it is farthest from the
edges. The special tokens at the two ends of a text count for text vectors, as in sentence-transformers, but not for
word and token vectors.

N vectors, D vector size, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.pooling import Pooling
from bertworks.embeddings.strategies import STRATEGIES, Strategy
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine, to_numpy
from bertworks.errors import InputError, show_value
from bertworks.sampling.windows import WindowRule, Windows, make_text_windows, make_windows
from bertworks.text.document import Counts
from bertworks.vocabulary.text_coverage import TextCoverage
from bertworks.vocabulary.token_arrays import TokenizedText
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertworks.encoders.encoder import Encoder

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Texts are processed in groups; these limits bound memory. A model batch never contains texts of two groups, so a
# resumed run computes the same bits as an uninterrupted one.
_MAX_TEXTS = 1_024
_MAX_TOKENS = 32_768
_MAX_VALUES = 2**24  # of all token vectors of a group: 64 MiB

_OVERLAP = 64
# The count name of texts without tokens, by whether each text has exactly one vector.
_EMPTY_TEXT_COUNTS = {
    True: "empty texts (vector of the special tokens)",
    False: "empty texts (no vectors)",
}


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is extracted: one vector per `unit` (a key of UNITS), from which layers, and how long texts are split."""

    unit: str = "texts"
    strategy: Strategy = STRATEGIES["last"]
    pooling: Pooling = field(default_factory=Pooling)
    window_rule: WindowRule = field(default_factory=WindowRule)


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """The vectors of a group of texts.

    vectors    (N, D)
    num_rows   number of vectors per text
    offsets    (N, 2) start and end in the text; empty for text vectors
    counts     what happened to the texts: truncated, empty, …
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
    """Return the window rule stored with a model, else windows of the model's length, limited by its positions.

    With `truncate` only the first window is used.
    """
    model_rule = model_rule or WindowRule(max_position_embeddings, min(_OVERLAP, max_position_embeddings // 4))
    max_length = min(model_rule.max_length, pooling.max_length or max_position_embeddings, max_position_embeddings)
    is_truncated = (truncate or model_rule.truncate) and not pooling.is_unlimited
    return WindowRule(max_length, min(model_rule.overlap, max_length // 4), is_truncated)


def stored_window_rule(metadata: Mapping[str, Any]) -> WindowRule | None:
    """Return the window rule in the metadata of a model folder, or None."""
    window = metadata.get("window")
    return None if window is None else WindowRule(**window)


def extract_vectors(
    engine: TorchEngine, texts: Iterable[str], extraction: Extraction, coverage: TextCoverage | None = None
) -> Iterator[VectorBatch]:
    """Yield the vectors of the texts in order. The groups are independent of each other.

    The tokens of the texts are added to `coverage`.
    """
    extract, is_per_text = UNITS[extraction.unit]
    vector_size = extraction.strategy.output_size(engine.encoder.config.hidden_sizes)
    max_tokens = _MAX_TOKENS if is_per_text else min(_MAX_TOKENS, _MAX_VALUES // vector_size)
    tokenized = _tokenize_texts(texts, engine.tokenizer, extraction)
    if coverage is not None:
        tokenized = _count_tokens(tokenized, coverage)
    for group in _group_texts(tokenized, max_tokens):
        yield extract(engine, group, extraction)


def embed(encoder: Encoder, tokenizer: Tokenizer, texts: Iterable[str], extraction: Extraction) -> Floats:
    """Return (N, D): one vector per text."""
    if isinstance(texts, str | Mapping):
        raise InputError("a single text was given instead of several; put it into a list: [text]")
    vector_size = extraction.pooling.output_size(encoder.config.hidden_size)
    batches = [batch.vectors for batch in extract_vectors(TorchEngine(encoder, tokenizer), texts, extraction)]
    return np.concatenate([np.empty((0, vector_size), dtype=np.float32), *batches])


@dataclass(frozen=True, slots=True)
class _WindowedText:
    """A tokenized text, its windows, and counts of what happened to it."""

    tokens: TokenizedText
    windows: Windows
    counts: Counts

    def __len__(self) -> int:
        return sum(map(len, self.windows.sequences))


@dataclass(frozen=True, slots=True)
class _WindowSequence:
    """A window, the positions of it that count for its text, and the index in the text of its first position."""

    input_ids: Ints
    token_type_ids: Ints
    unknown: Mapping[int, str]
    positions: slice
    offset: int = field(default=0, kw_only=True)

    @property
    def num_positions(self) -> int:
        return int(self.positions.stop - self.positions.start)


def _tokenize_texts(texts: Iterable[str], tokenizer: Tokenizer, extraction: Extraction) -> Iterator[_WindowedText]:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {index} is {show_value(text)}, but must be a string; leave it out, or convert it")
        # Offsets refer to the original text, so only the text of a text vector may be changed.
        is_whole = extraction.unit == "texts"
        tokens = tokenizer.tokenize(extraction.pooling.prepare_text(text) if is_whole else text)
        rule = extraction.window_rule
        windows = make_text_windows(tokenizer, tokens, rule) if is_whole else make_windows(tokenizer, [tokens], rule)
        counts = Counts()
        if not text.strip() or not len(tokens):
            counts[_EMPTY_TEXT_COUNTS[UNITS[extraction.unit][1]]] += 1
        if tokens.unknown:
            counts["words outside the vocabulary"] += len(tokens.unknown)
        if windows.num_truncated:
            counts["texts truncated"] += 1
            counts["tokens truncated"] += windows.num_truncated
        if len(windows.sequences) > 1:
            counts["texts split into several windows"] += 1
        yield _WindowedText(tokens, windows, counts)


def _count_tokens(texts: Iterable[_WindowedText], coverage: TextCoverage) -> Iterator[_WindowedText]:
    for text in texts:
        coverage.add([text.tokens])
        yield text


def _group_texts(texts: Iterable[_WindowedText], max_tokens: int) -> Iterator[Iterator[_WindowedText]]:
    """Yield groups of consecutive texts, each to be consumed before the next."""
    source = iter(texts)
    for first in source:
        yield _take_group(chain([first], source), max_tokens)


def _take_group(texts: Iterable[_WindowedText], max_tokens: int) -> Iterator[_WindowedText]:
    """Yield the texts of a group, which is complete when it has _MAX_TEXTS texts or `max_tokens` tokens."""
    num_tokens = 0
    for number, text in enumerate(texts, 1):
        yield text
        num_tokens += len(text)
        if number == _MAX_TEXTS or num_tokens >= max_tokens:
            return


def _build_sequences(windows: Windows, pooling: Pooling) -> list[_WindowSequence]:
    """Return the windows of a text with the positions of each that count: every token once, and [CLS] and [SEP] once
    if the pooling is with special tokens."""
    last = len(windows.sequences) - 1
    owners = windows.owners(0)  # non-decreasing, since the windows are equally long
    bounds = np.searchsorted(owners, np.arange(last + 2)).tolist()
    sequences: list[_WindowSequence] = []
    for index, window in enumerate(windows.sequences):
        (span,) = window.spans
        start, stop = (span.position + bound - span.first for bound in bounds[index : index + 2])
        if pooling.with_specials:
            start = start if index else pooling.first_position(len(window))
            stop = stop if index < last else len(window)
        offset = sequences[-1].offset + sequences[-1].positions.stop - start if sequences else 0
        positions = slice(start, stop)
        sequences.append(
            _WindowSequence(window.input_ids, window.token_type_ids, window.unknown, positions, offset=offset)
        )
    return sequences


def _text_vectors(engine: TorchEngine, texts: Iterator[_WindowedText], extraction: Extraction) -> VectorBatch:
    read_texts: list[_WindowedText] = []
    text_sequences: list[list[_WindowSequence]] = []

    def sequences() -> Iterator[_WindowSequence]:
        """Tokenize texts while the first batches are computed."""
        for text in texts:
            read_texts.append(text)
            text_sequences.append(_build_sequences(text.windows, extraction.pooling))
            yield from text_sequences[-1]

    def pool(batch: EncodedBatch[_WindowSequence]) -> Iterator[Floats]:
        for sequence, values in _sequence_values(batch, extraction.strategy):
            yield extraction.pooling.pool(values, sequence.positions, sequence.offset)

    partials = list(engine.predict(sequences(), pool))
    vectors = _combine_windows(partials, text_sequences, extraction.pooling)
    ones = np.ones(len(read_texts), dtype=np.int64)
    no_offsets = np.empty((0, 2), dtype=np.int64)
    return VectorBatch(vectors, ones, no_offsets, _sum_counts(read_texts))


def _combine_windows(
    partials: Sequence[Floats], text_sequences: Sequence[Sequence[_WindowSequence]], pooling: Pooling
) -> Floats:
    """Return the vector of each text (N, D) from the partial results of its windows."""
    counts = [sum(sequence.num_positions for sequence in sequences) for sequences in text_sequences]
    if len(partials) == len(text_sequences):
        return pooling.combine_single(partials, counts)
    remaining = iter(partials)
    return np.stack(
        [
            pooling.combine(list(islice(remaining, len(sequences))), count)
            for sequences, count in zip(text_sequences, counts, strict=True)
        ]
    )


def _token_vectors(engine: TorchEngine, group: Iterator[_WindowedText], extraction: Extraction) -> VectorBatch:
    texts = list(group)
    values = list(_token_values(engine, texts, extraction.strategy))
    offsets = [text.tokens.offsets[: len(vectors)] for text, vectors in zip(texts, values, strict=True)]
    return _build_vector_batch(texts, values, offsets)


def _word_vectors(engine: TorchEngine, group: Iterator[_WindowedText], extraction: Extraction) -> VectorBatch:
    texts, (kind,) = list(group), extraction.pooling.kinds
    values, offsets = [], []
    for text, vectors in zip(texts, _token_values(engine, texts, extraction.strategy), strict=True):
        word_starts = text.tokens.word_starts[: len(vectors)].copy()
        word_starts[:1] = True  # some tokenizers do not mark the first token of a text
        starts = np.flatnonzero(word_starts)
        ends = np.append(starts[1:], len(vectors))[: len(starts)]
        values.append(WORD_POOLINGS[kind](vectors, starts, ends) if len(starts) else vectors)
        token_offsets = text.tokens.offsets
        offsets.append(np.stack([token_offsets[starts, 0], token_offsets[ends - 1, 1]], axis=1))
    return _build_vector_batch(texts, values, offsets)


def _mean_of_words(values: Floats, starts: Ints, ends: Ints) -> Floats:
    return (np.add.reduceat(values, starts) / (ends - starts)[:, None]).astype(np.float32)


# The token vectors (T, D) of a text, and the starts and ends of its words -> word vectors.
# "first" is the first token of a word, which is no [CLS].
WORD_POOLINGS: dict[str, Callable[[Floats, Ints, Ints], Floats]] = {
    "mean": _mean_of_words,
    "first": lambda values, starts, ends: values[starts],
    "max": lambda values, starts, ends: np.maximum.reduceat(values, starts),
}

# By unit: the function that extracts the vectors of a group, and whether each text has exactly one vector.
UNITS: dict[str, tuple[Callable[[TorchEngine, Iterator[_WindowedText], Extraction], VectorBatch], bool]] = {
    "texts": (_text_vectors, True),
    "words": (_word_vectors, False),
    "tokens": (_token_vectors, False),
}


def _token_values(engine: TorchEngine, texts: Sequence[_WindowedText], strategy: Strategy) -> Iterator[Floats]:
    """Yield the token vectors (T, D) of each text, each from the window that owns the token."""

    def select(batch: EncodedBatch[_WindowSequence]) -> Iterator[Floats]:
        for sequence, values in _sequence_values(batch, strategy):
            yield values[sequence.positions].copy()

    text_sequences = [_build_sequences(text.windows, Pooling(with_specials=False)) for text in texts]
    values = engine.predict((sequence for sequences in text_sequences for sequence in sequences), select)
    for sequences in text_sequences:
        yield np.concatenate(list(islice(values, len(sequences))))


def _sequence_values(
    batch: EncodedBatch[_WindowSequence], strategy: Strategy
) -> Iterator[tuple[_WindowSequence, Floats]]:
    """Yield each sequence of a batch with the features of its positions."""
    features = to_numpy(strategy(batch.output.hidden_states))  # of all tokens of the batch
    for sequence, start in zip(batch.sequences, batch.output.starts, strict=True):
        yield sequence, features[start : start + len(sequence.input_ids)]


def _build_vector_batch(
    texts: Sequence[_WindowedText], values: Sequence[Floats], offsets: Sequence[Ints]
) -> VectorBatch:
    num_rows = np.array(list(map(len, values)), dtype=np.int64)
    return VectorBatch(np.concatenate(values), num_rows, np.concatenate(offsets), _sum_counts(texts))


def _sum_counts(texts: Sequence[_WindowedText]) -> Counts:
    counts = Counts()
    for text in texts:
        counts.update(text.counts)
    return counts
