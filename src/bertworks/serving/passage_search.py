"""The text of a corpus in, passages with their vectors on disk out; a query's vector in, the nearest passages out.

    passages.jsonl   one {"text", "document", "place"} a line; `place` is the number of its first sentence
    offsets.npy      (N + 1,) where the lines begin, in bytes
    vectors.npy      (N, D) in half precision, each of length 1

Nothing is loaded whole, and nothing is mapped: a file that is cut short under a running server is an error of one
search, not the end of the process. N passages, D width.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.corpus.text_shard import SplitDocument
from bertworks.disk import atomic_write, read_json
from bertworks.embeddings.formats import sidecar_path
from bertworks.embeddings.pooling import read_pooling
from bertworks.embeddings.store import StoreSettings, VectorStore
from bertworks.embeddings.vectors import Extraction, extract_vectors, read_window_rule, resolve_window_rule
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError
from bertworks.inference.model import Model

PASSAGES, OFFSETS, VECTORS = "passages.jsonl", "offsets.npy", "vectors.npy"
# Sentences are put together to passages of at most so many characters: long enough to tell what they are about, short
# enough to be read at a glance. A longer sentence is a passage by itself.
_MAX_PASSAGE_CHARACTERS = 320
# Vectors that are compared at a time.
_BLOCK_SIZE = 16_384

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CorpusPassage:
    """A few sentences of a document in a row; `place` counts the sentences before them."""

    text: str
    document: str
    sentence_index: int


def passages_of(documents: Iterable[SplitDocument]) -> Iterator[CorpusPassage]:
    """Yield the passages of documents, in their order."""
    for document, _ in documents:
        text, first = "", 0
        for number, sentence in enumerate(document.sentences):
            if text.strip() and len(text) + len(sentence) > _MAX_PASSAGE_CHARACTERS:
                yield CorpusPassage(text.strip(), document.source, first)
                text, first = "", number
            text += sentence
        if text.strip():
            yield CorpusPassage(text.strip(), document.source, first)


def write_passages(folder: Path, documents: Iterable[SplitDocument]) -> int:
    """Write passages.jsonl and offsets.npy; return how many passages there are."""
    offsets = [0]
    with atomic_write(folder / PASSAGES) as temporary, temporary.open("wb") as file:
        for passage in passages_of(documents):
            told = {"text": passage.text, "document": passage.document, "place": passage.sentence_index}
            file.write(json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
            offsets.append(file.tell())
    with atomic_write(folder / OFFSETS) as temporary, temporary.open("wb") as file:
        np.save(file, np.array(offsets, dtype=np.int64))
    return len(offsets) - 1


def write_vectors(folder: Path, model: Model, watch: Callable[[int], None]) -> int:
    """Write the vectors of passages.jsonl, and go on where a killed run stood; return their width."""
    pooling = replace(read_pooling(model.folder), normalize=True)
    rule = resolve_window_rule(
        pooling, model.encoder.config.max_position_embeddings, model_rule=read_window_rule(model.folder)
    )
    how = Extraction(pooling=pooling, window_rule=rule)
    width = how.strategy.output_size(model.encoder.config.hidden_sizes) * len(pooling.kinds)
    identity = {"tokenizer": model.tokenizer.hash, "pooling": list(pooling.kinds)}
    with VectorStore(StoreSettings(folder / VECTORS, width, "texts", True, "npy", identity)) as store:
        texts = store.remaining(_texts(folder / PASSAGES))
        for portion in extract_vectors(TorchEngine(model.encoder, model.tokenizer), texts, how):
            store.append(portion)
            watch(store.num_texts)
        store.finish()
    return width


class PassageIndex:
    """The passages of a corpus, to be searched. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        facts = read_json(sidecar_path(folder / VECTORS), "the facts about the vectors of a corpus")
        self.width = int(facts["width"])
        offsets = np.load(folder / OFFSETS, allow_pickle=False)
        self._offsets: npt.NDArray[np.int64] = offsets
        self._passages = (folder / PASSAGES).open("rb")
        self._vectors = (folder / VECTORS).open("rb")
        np.lib.format.read_magic(self._vectors)
        shape, _, dtype = np.lib.format.read_array_header_1_0(self._vectors)
        self._data_offset = self._vectors.tell()
        if shape != (len(self), self.width) or dtype != np.float16:
            self.close()
            raise FolderError(f"{folder}: the passages and their vectors do not fit; make the bundle anew")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def close(self) -> None:
        self._passages.close()
        self._vectors.close()

    def search(self, query: Floats, top: int) -> list[dict[str, Any]]:
        """Return the passages nearest to a query (D,), the nearest first, with the cosine of the angle to it."""
        query = query / max(float(np.linalg.norm(query)), 1e-12)
        best = np.empty(0, dtype=np.float32)
        numbers = np.empty(0, dtype=np.int64)
        for start in range(0, len(self), _BLOCK_SIZE):
            scores = self._block(start) @ query
            best = np.concatenate([best, scores])
            numbers = np.concatenate([numbers, np.arange(start, start + len(scores))])
            order = np.lexsort((numbers, -best))[:top]
            best, numbers = best[order], numbers[order]
        return [
            {**self._passage(number), "score": score}
            for number, score in zip(numbers.tolist(), best.tolist(), strict=True)
        ]

    def _block(self, start: int) -> Floats:
        count = min(_BLOCK_SIZE, len(self) - start)
        data = _read(self._vectors.fileno(), self._data_offset + start * self.width * 2, count * self.width * 2)
        return np.frombuffer(data, dtype=np.float16).reshape(count, self.width).astype(np.float32)

    def _passage(self, number: int) -> dict[str, Any]:
        start, end = self._offsets[number : number + 2].tolist()
        found: dict[str, Any] = json.loads(_read(self._passages.fileno(), start, end - start))
        return found


def _read(file: int, start: int, count: int) -> bytes:
    data = os.pread(file, count, start)
    if len(data) != count:
        raise FolderError("the index of the corpus was cut short while it was in use; make the bundle anew")
    return data


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for line in file:
            yield str(json.loads(line)["text"])
