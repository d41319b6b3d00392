"""Passage search: the text of a corpus in, an index on disk out; a query vector in, the most similar passages out.

    passages.jsonl   one {"text", "document", "sentence_index"} per line; the index is that of its first sentence
    offsets.npy      (N + 1,) byte offsets of the lines
    vectors.npy      (N, D) float16, normalized

Files are neither loaded whole nor memory-mapped: if one is truncated under a running server, a search fails, not the
process. N passages, D vector size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.corpus.text_shard import SplitDocument
from bertworks.disk import atomic_write
from bertworks.embeddings.store import StoreSettings, VectorStore
from bertworks.embeddings.vectors import Extraction, extract_vectors, resolve_window_rule, stored_window_rule
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError
from bertworks.inference.model import LoadedModel
from bertworks.vocabulary.text_coverage import TextCoverage

PASSAGES, OFFSETS, VECTORS = "passages.jsonl", "offsets.npy", "vectors.npy"
# Sentences are joined to passages of at most so many characters: enough to have a topic, few enough to be read at a
# glance. A longer sentence is a passage of its own.
_MAX_PASSAGE_CHARACTERS = 320
# Number of vectors that are compared at a time.
_BLOCK_SIZE = 16_384

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CorpusPassage:
    """Consecutive sentences of a document; `sentence_index` is the index of the first."""

    text: str
    document: str
    sentence_index: int


def passages_of(documents: Iterable[SplitDocument]) -> Iterator[CorpusPassage]:
    """Yield the passages of documents in order."""
    for document, _ in documents:
        text, first_index = "", 0
        for index, sentence in enumerate(document.sentences):
            if text.strip() and len(text) + len(sentence) > _MAX_PASSAGE_CHARACTERS:
                yield CorpusPassage(text.strip(), document.source, first_index)
                text, first_index = "", index
            text += sentence
        if text.strip():
            yield CorpusPassage(text.strip(), document.source, first_index)


def write_passages(folder: Path, documents: Iterable[SplitDocument]) -> int:
    """Write passages.jsonl and offsets.npy; return the number of passages."""
    offsets = [0]
    with atomic_write(folder / PASSAGES) as temporary, temporary.open("wb") as file:
        for passage in passages_of(documents):
            line = json.dumps(asdict(passage), ensure_ascii=False)
            file.write(line.encode("utf-8", "surrogatepass") + b"\n")
            offsets.append(file.tell())
    with atomic_write(folder / OFFSETS) as temporary, temporary.open("wb") as file:
        np.save(file, np.array(offsets, dtype=np.int64))
    return len(offsets) - 1


def write_vectors(
    folder: Path, model: LoadedModel, on_progress: Callable[[int], None], coverage: TextCoverage | None = None
) -> int:
    """Write the vectors of passages.jsonl, resuming an interrupted run; return the vector size.

    `coverage` counts how well the vocabulary reads the passages.
    """
    pooling = replace(model.pooling.untruncated(), normalize=True)
    window_rule = resolve_window_rule(
        pooling, model.encoder.config.max_length, model_rule=stored_window_rule(model.metadata)
    )
    extraction = Extraction(pooling=pooling, window_rule=window_rule)
    vector_size = pooling.output_size(extraction.strategy.output_size(model.encoder.config.hidden_sizes))
    identity = {"tokenizer": model.tokenizer.hash, "pooling": list(pooling.kinds)}
    settings = StoreSettings(
        output=folder / VECTORS, vector_size=vector_size, unit="texts", half=True, format="npy", identity=identity
    )
    with VectorStore(settings) as store:
        texts = store.remaining(_texts(folder / PASSAGES))
        for vectors in extract_vectors(TorchEngine(model.encoder, model.tokenizer), texts, extraction, coverage):
            store.append(vectors)
            on_progress(store.num_texts)
        store.finish()
    return vector_size


class PassageIndex:
    """The searchable passages of a corpus. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        try:
            offsets = np.load(folder / OFFSETS, allow_pickle=False)
        except (OSError, ValueError, EOFError, MemoryError) as error:
            raise FolderError(f"{folder / OFFSETS} cannot be read ({error}); build the bundle again") from None
        self._offsets: npt.NDArray[np.int64] = offsets
        self._passages = (folder / PASSAGES).open("rb")
        self._vectors = (folder / VECTORS).open("rb")
        np.lib.format.read_magic(self._vectors)
        shape, _, dtype = np.lib.format.read_array_header_1_0(self._vectors)
        self._data_offset = self._vectors.tell()
        self._vector_size = shape[-1]
        if shape != (len(self), self._vector_size) or dtype != np.float16:
            self.close()
            raise FolderError(f"{folder}: the passages and their vectors do not match; build the bundle again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def close(self) -> None:
        self._passages.close()
        self._vectors.close()

    def search(self, query: Floats, top_k: int) -> list[dict[str, Any]]:
        """Return the passages most similar to a query (D,), with their cosine similarities as "score"."""
        query = query / max(float(np.linalg.norm(query)), 1e-12)
        scores = np.empty(0, dtype=np.float32)
        indices = np.empty(0, dtype=np.int64)
        for start in range(0, len(self), _BLOCK_SIZE):
            block_scores = self._block(start) @ query
            scores = np.concatenate([scores, block_scores])
            indices = np.concatenate([indices, np.arange(start, start + len(block_scores))])
            order = np.lexsort((indices, -scores))[:top_k]
            scores, indices = scores[order], indices[order]
        return [
            {**self._passage(index), "score": score}
            for index, score in zip(indices.tolist(), scores.tolist(), strict=True)
        ]

    def _block(self, start: int) -> Floats:
        count, vector_bytes = min(_BLOCK_SIZE, len(self) - start), self._vector_size * 2
        data = _read(self._vectors.fileno(), self._data_offset + start * vector_bytes, count * vector_bytes)
        return np.frombuffer(data, dtype=np.float16).reshape(count, self._vector_size).astype(np.float32)

    def _passage(self, index: int) -> dict[str, Any]:
        start, end = self._offsets[index : index + 2].tolist()
        passage: dict[str, Any] = json.loads(_read(self._passages.fileno(), start, end - start))
        return passage


def _read(file: int, start: int, count: int) -> bytes:
    data = os.pread(file, count, start)
    if len(data) != count:
        raise FolderError("the search index was truncated while it was in use; build the bundle again")
    return data


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for line in file:
            yield str(json.loads(line)["text"])
