"""A model and a file of texts in, their vectors on disk out: of whole texts, words or pieces."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertworks.datasets.texts import STANDARD_INPUT, texts_in
from bertworks.embeddings.formats import FORMATS, check_output
from bertworks.embeddings.pooling import Pooling, read_pooling
from bertworks.embeddings.store import StoreSettings, VectorStore
from bertworks.embeddings.strategies import get_strategy
from bertworks.embeddings.vectors import UNITS, Extraction, extract_vectors, read_window_rule, resolve_window_rule
from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import Model, load
from bertworks.progress import Progress, ProgressCallback


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """What a person asks for. `pooling` None is what the model's folder says; `column` None is a text a line."""

    model: str
    file: str
    output: Path
    column: str | None = None
    unit: str = "texts"
    layers: str = "last"
    pooling: str | None = None
    half: bool = False
    format: str = "npy"
    budget: int = TOKEN_BUDGET
    truncate: bool = False
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """What was made: how many texts and vectors, how wide, by which pooling, and what happened to the texts."""

    output: Path
    num_texts: int
    num_rows: int
    vector_size: int
    pooling: Pooling
    counts: dict[str, int]
    num_resumed: int


def embed(request: EmbedRequest, watch: ProgressCallback = lambda progress: None) -> EmbedResult:
    """Write the vectors of a file's texts. A killed run continues when called again, and its bytes are the same."""
    _check(request)
    total = None
    if request.file != STANDARD_INPUT:  # reading it once before costs little, and finds a broken line at once
        total = sum(1 for _ in texts_in(request.file, request.column))
    return embed_with_model(load(request.model, engine=request.engine), request, total, watch)


def embed_with_model(model: Model, request: EmbedRequest, total: int | None, watch: ProgressCallback) -> EmbedResult:
    """Do the same with a model that is loaded and a file that was looked at."""
    how = build_extraction(model, request)
    engine = TorchEngine(model.encoder, model.tokenizer, request.budget)
    width = how.strategy.output_size(model.encoder.config.hidden_sizes)
    if request.unit == "texts":
        width *= len(how.pooling.kinds)
    identity = {**vector_metadata(model, how), "batch_pieces": request.budget}
    settings = StoreSettings(request.output, width, request.unit, request.half, request.format, identity)
    with VectorStore(settings) as store:
        texts = store.remaining(texts_in(request.file, request.column))
        for portion in extract_vectors(engine, texts, how):
            store.append(portion)
            watch(Progress("embed", store.num_texts, total, "texts"))
        if not store.num_texts:
            raise InputError(f"{request.file} holds no texts; give a file with at least one")
        store.finish()
        return EmbedResult(
            request.output, store.num_texts, store.num_rows, width, how.pooling, dict(store.counts), store.num_resumed
        )


def build_extraction(model: Model, request: EmbedRequest) -> Extraction:
    """Return what is asked of the texts; refused if the model cannot give it."""
    strategy = get_strategy(request.layers)
    strategy.check(model.encoder.config.hidden_sizes)
    own = read_pooling(model.folder)
    rule = resolve_window_rule(
        own, model.encoder.config.max_position_embeddings, request.truncate, read_window_rule(model.folder)
    )
    if request.unit == "texts":
        pooling = own.with_kind(request.pooling) if request.pooling else own
    else:  # what a folder says about texts does not hold for words, of which the mean is the plainest
        pooling = Pooling().with_kind(request.pooling or "mean")
    return Extraction(request.unit, strategy, pooling, rule)


def vector_metadata(model: Model, extraction: Extraction) -> dict[str, Any]:
    """Return all that decides the values of vectors, for whoever asks later what they are of."""
    pooling = extraction.pooling
    return {
        "model": fingerprint(model.encoder),
        "tokenizer": model.tokenizer.hash,
        "layers": extraction.strategy.name,
        "pooling": list(pooling.kinds) if extraction.unit != "pieces" else [],
        "normalise": pooling.normalize,
        "lower_case": pooling.lower_case,
        "prompt": pooling.prompt,
        "window": [extraction.window_rule.max_length, extraction.window_rule.overlap, extraction.window_rule.truncate],
    }


def fingerprint(module: nn.Module) -> str:
    """Return sixteen hexadecimal digits that change with any weight."""
    found = hashlib.sha256()
    for name, values in sorted(module.state_dict().items()):
        found.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        found.update(values.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def _check(request: EmbedRequest) -> None:
    for what, value, known in (("unit", request.unit, UNITS), ("format", request.format, FORMATS)):
        if value not in known:
            raise SettingsError(f"there is no {what} '{value}'; choose one of: {', '.join(known)}")
    if request.unit == "pieces" and request.pooling:
        raise SettingsError("--pooling joins pieces, but --pieces asks for each of them; leave one out")
    if (
        request.file != STANDARD_INPUT
        and request.output.exists()
        and request.output.samefile(Path(request.file).expanduser())
    ):
        raise SettingsError(f"--out {request.output} is the file of texts itself; choose another name")
    check_output(request.output, request.unit, request.format)
