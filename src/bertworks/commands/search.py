"""A model, a file of texts and a query in, the nearest texts out: exact, by cosine, a block of vectors at a time.

B vectors of a block, D their width.
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

# Vectors that are compared at a time.
_BLOCK = 65_536


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a person asks for. `vectors` names where they lie, or shall be kept; None computes them anew."""

    model: str
    file: str
    query: str
    top: int = 5
    vectors: Path | None = None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A text that was found, its number in the file, counted from 1, and the cosine of the angle to the query."""

    number: int
    text: str
    cosine: float


def search(request: SearchRequest, watch: ProgressCallback = lambda progress: None) -> list[SearchHit]:
    """Return the `top` texts nearest to the query, the nearest first; of equally near ones the first in the file."""
    if request.top < 1:
        raise SettingsError(f"top is {request.top}; ask for at least one text")
    if not request.query.strip():
        raise InputError("the query is empty; write what to look for")
    if request.file == STANDARD_INPUT:
        raise InputError("the texts are read twice, which standard input cannot be; write them to a file and name it")
    if request.vectors and (request.vectors.is_dir() or request.vectors.suffix != ".npy"):
        raise SettingsError(f"--vectors {request.vectors} is not a .npy file, which whole texts have; name one")
    count, texts_sha256 = hash_texts(texts_in(request.file, request.column))
    model = load(request.model)
    asked = EmbedRequest(request.model, request.file, request.vectors or Path(), request.column)
    how = build_extraction(model, asked)
    engine = TorchEngine(model.encoder, model.tokenizer)
    (query,) = (portion.vectors[0] for portion in extract_vectors(engine, [request.query], how))
    if request.vectors is None:
        blocks = _compute_vectors(engine, asked, how, Progress("embed", 0, count, "texts"), watch)
    else:
        if not request.vectors.exists():
            embed_with_model(model, asked, count, watch)
        blocks = _load_vectors(
            request.vectors, {**vector_metadata(model, how), "texts": count, "texts_sha256": texts_sha256}, query
        )
    return _attach_texts(nearest(query, blocks, request.top), request)


def nearest(query: npt.NDArray[np.float32], blocks: Iterable[npt.NDArray[Any]], top: int) -> list[tuple[int, float]]:
    """Return the numbers and cosines of the vectors nearest to a query (D,), the nearest first, from blocks (B, D)."""
    query = query / max(float(np.linalg.norm(query)), 1e-12)
    best = np.empty(0, dtype=np.float32)
    numbers = np.empty(0, dtype=np.int64)
    start = 0
    for block in blocks:
        values = np.asarray(block, dtype=np.float32)
        lengths = np.maximum(np.linalg.norm(values, axis=1), 1e-12)
        best = np.concatenate([best, values @ query / lengths])
        numbers = np.concatenate([numbers, np.arange(start, start + len(values))])
        order = np.lexsort((numbers, -best))[:top]
        best, numbers = best[order], numbers[order]
        start += len(values)
    return list(zip(numbers.tolist(), best.tolist(), strict=True))


def _compute_vectors(
    engine: TorchEngine,
    embed_request: EmbedRequest,
    extraction: Extraction,
    progress: Progress,
    watch: ProgressCallback,
) -> Iterator[npt.NDArray[Any]]:
    done = progress.done
    for portion in extract_vectors(engine, texts_in(embed_request.file, embed_request.column), extraction):
        done += portion.num_texts
        watch(Progress(progress.stage, done, progress.total, progress.unit))
        yield portion.vectors


def _load_vectors(path: Path, expected: dict[str, Any], query: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[Any]]:
    """Yield blocks of vectors on disk; refused if they are of other texts or of another model."""
    facts = read_metadata(path) or {}  # vectors from elsewhere tell nothing, and only their shape can be checked
    for name, value in expected.items():
        if facts.get(name, value) != value:
            what = "texts" if name.startswith("texts") else name.replace("_", " ")
            raise FolderError(f"{path} was made with other {what}; name another with --vectors, or remove it")
    try:
        vectors = load_mapped(path)
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read as vectors ({error}); remove it, and it will be made anew") from error
    if vectors.shape != (expected["texts"], len(query)):
        raise FolderError(
            f"{path} holds an array of {vectors.shape}, but {expected['texts']} texts and this model make "
            f"{(expected['texts'], len(query))}; name another with --vectors, or remove it"
        )
    for start in range(0, len(vectors), _BLOCK):
        yield vectors[start : start + _BLOCK]


def _attach_texts(matches: list[tuple[int, float]], request: SearchRequest) -> list[SearchHit]:
    wanted = {number for number, _ in matches}
    texts = {at: text for at, text in enumerate(texts_in(request.file, request.column)) if at in wanted}
    return [SearchHit(number + 1, texts[number], cosine) for number, cosine in matches]
