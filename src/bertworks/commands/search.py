"""Semantic search: a model, a file of texts and a query in, the nearest texts out: exact, by cosine, block by block.

B vectors of a block, D vector size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.commands.embed import EmbedRequest, build_extraction, embed_with_model, vector_metadata
from bertworks.datasets.texts import STANDARD_INPUT, texts_in
from bertworks.embeddings.formats import load_mapped, read_metadata
from bertworks.embeddings.store import hash_texts
from bertworks.embeddings.vectors import Extraction, extract_vectors
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.model import load
from bertworks.progress import Progress, ProgressCallback

# Vectors compared at a time.
_BLOCK = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Arguments of `search`. `vectors` is the path to load vectors from or save them to; None does not save them."""

    model: str
    file: str
    query: str
    top_k: int = 5
    vectors: Path | None = None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A text, its number in the file, counted from 1, and its cosine similarity to the query."""

    number: int
    text: str
    cosine: float


def search(request: SearchRequest, on_progress: ProgressCallback = lambda progress: None) -> list[SearchHit]:
    """Return the `top` texts nearest to the query, the nearest first; ties are in the order of the file."""
    if request.top_k < 1:
        raise SettingsError(f"top_k is {request.top_k}; it must be at least 1")
    if not request.query.strip():
        raise InputError("the query is empty; give at least one word")
    if request.file == STANDARD_INPUT:
        raise InputError("the texts are read twice, which is not possible with standard input; write them to a file")
    if request.vectors and (request.vectors.is_dir() or request.vectors.suffix != ".npy"):
        raise SettingsError(f"--vectors {request.vectors} is not a .npy file; give the path of one")
    count, texts_sha256 = hash_texts(texts_in(request.file, request.column))
    model = load(request.model)
    embed_request = EmbedRequest(
        model=request.model, file=request.file, output=request.vectors or Path(), column=request.column
    )
    extraction = build_extraction(model, embed_request)
    engine = TorchEngine(model.encoder, model.tokenizer)
    (query,) = (batch.vectors[0] for batch in extract_vectors(engine, [request.query], extraction))
    if request.vectors is None:
        blocks = _compute_vectors(engine, embed_request, extraction, Progress("embed", 0, count, "texts"), on_progress)
    else:
        if not request.vectors.exists():
            embed_with_model(model, embed_request, count, on_progress)
        expected = {**vector_metadata(model, extraction), "texts": count, "texts_sha256": texts_sha256}
        blocks = _load_vectors(request.vectors, expected, query)
    return _attach_texts(nearest(query, blocks, request.top_k), request)


def nearest(query: npt.NDArray[np.float32], blocks: Iterable[npt.NDArray[Any]], top: int) -> list[tuple[int, float]]:
    """Return the indices and cosines of the vectors in blocks (B, D) nearest to a query (D,), the nearest first."""
    query = query / max(float(np.linalg.norm(query)), 1e-12)
    cosines = np.empty(0, dtype=np.float32)
    indices = np.empty(0, dtype=np.int64)
    start = 0
    for block in blocks:
        values = np.asarray(block, dtype=np.float32)
        lengths = np.maximum(np.linalg.norm(values, axis=1), 1e-12)
        cosines = np.concatenate([cosines, values @ query / lengths])
        indices = np.concatenate([indices, np.arange(start, start + len(values))])
        order = np.lexsort((indices, -cosines))[:top]
        cosines, indices = cosines[order], indices[order]
        start += len(values)
    return list(zip(indices.tolist(), cosines.tolist(), strict=True))


def _compute_vectors(
    engine: TorchEngine,
    embed_request: EmbedRequest,
    extraction: Extraction,
    progress: Progress,
    on_progress: ProgressCallback,
) -> Iterator[npt.NDArray[Any]]:
    num_done = progress.done
    for batch in extract_vectors(engine, texts_in(embed_request.file, embed_request.column), extraction):
        num_done += batch.num_texts
        on_progress(Progress(progress.stage, num_done, progress.total, progress.unit))
        yield batch.vectors


def _load_vectors(path: Path, expected: dict[str, Any], query: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[Any]]:
    """Yield blocks of vectors on disk; raise a FolderError if they are of other texts or of another model."""
    metadata = read_metadata(path) or {}  # without metadata only the shape can be checked
    for name, value in expected.items():
        if metadata.get(name, value) != value:
            label = "texts" if name.startswith("texts") else name.replace("_", " ")
            raise FolderError(f"{path} was computed with other {label}; give another path with --vectors, or remove it")
    try:
        vectors = load_mapped(path)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} cannot be read as vectors ({error}); remove it, and it will be computed again"
        ) from error
    if vectors.shape != (expected["texts"], len(query)):
        raise FolderError(
            f"{path} has the shape {vectors.shape}, but {expected['texts']} texts and this model need "
            f"{(expected['texts'], len(query))}; give another path with --vectors, or remove it"
        )
    for start in range(0, len(vectors), _BLOCK):
        yield vectors[start : start + _BLOCK]


def _attach_texts(matches: list[tuple[int, float]], request: SearchRequest) -> list[SearchHit]:
    indices = {index for index, _ in matches}
    texts = {index: text for index, text in enumerate(texts_in(request.file, request.column)) if index in indices}
    return [SearchHit(index + 1, texts[index], cosine) for index, cosine in matches]
