"""Embed a file: a model and texts in, their vectors on disk out: of whole texts, words or tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.datasets.texts import STANDARD_INPUT, texts_in
from bertworks.embeddings.formats import FORMATS, check_output
from bertworks.embeddings.pooling import Pooling
from bertworks.embeddings.store import StoreSettings, VectorStore
from bertworks.embeddings.strategies import get_strategy
from bertworks.embeddings.vectors import (
    UNITS,
    WORD_POOLINGS,
    Extraction,
    extract_vectors,
    resolve_window_rule,
    stored_window_rule,
)
from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import LoadedModel, load
from bertworks.progress import Progress, ProgressCallback
from bertworks.reading import convert_paths
from bertworks.vocabulary.text_coverage import CoverageWarning

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Arguments of `embed`. Without `pooling` that of the model folder is used; without `column` a line is a text."""

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
    prompt_name: str | None = None
    engine: str | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        convert_paths(self, "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedResult:
    """The output: numbers of texts and vectors, their size and pooling, and counts of what happened to the texts.

    `warnings` say that the vocabulary hardly reads the texts; after a resumed run, those that were embedded since.
    """

    output: Path
    num_texts: int
    num_rows: int
    vector_size: int
    pooling: Pooling
    counts: dict[str, int]
    num_resumed: int
    warnings: Sequence[CoverageWarning] = ()


def embed(request: EmbedRequest, on_progress: ProgressCallback = lambda progress: None) -> EmbedResult:
    """Write the vectors of the texts of a file. A killed run resumes when called again, with the same bytes."""
    _check(request)
    total = None
    if request.file != STANDARD_INPUT:  # a first pass is cheap, and finds a broken line early
        total = sum(1 for _ in texts_in(request.file, request.column))
    return embed_with_model(
        load(request.model, engine=request.engine, precision=request.precision), request, total, on_progress
    )


def embed_with_model(
    model: LoadedModel, request: EmbedRequest, total: int | None, on_progress: ProgressCallback
) -> EmbedResult:
    """Embed the texts of a file with a loaded model; `total` is their number, if known."""
    extraction = build_extraction(model, request)
    engine = TorchEngine(model.encoder, model.tokenizer, request.budget)
    vector_size = extraction.strategy.output_size(model.encoder.config.hidden_sizes)
    if request.unit == "texts":
        vector_size = extraction.pooling.output_size(vector_size)
    settings = StoreSettings(
        output=request.output,
        vector_size=vector_size,
        unit=request.unit,
        half=request.half,
        format=request.format,
        identity={**vector_metadata(model, extraction), "batch_tokens": request.budget, "precision": model.precision},
    )
    coverage = model.new_coverage()
    with VectorStore(settings) as store:
        texts = store.remaining(texts_in(request.file, request.column))
        for batch in extract_vectors(engine, texts, extraction, coverage):
            store.append(batch)
            on_progress(Progress("embed", store.num_texts, total, "texts"))
        if not store.num_texts:
            raise InputError(f"{request.file} contains no texts; give a file with at least one")
        store.finish()
        return EmbedResult(
            output=request.output,
            num_texts=store.num_texts,
            num_rows=store.num_rows,
            vector_size=vector_size,
            pooling=extraction.pooling,
            counts=dict(store.counts),
            num_resumed=store.num_resumed,
            warnings=coverage.warnings(),
        )


def build_extraction(model: LoadedModel, request: EmbedRequest) -> Extraction:
    """Return the settings of the extraction; raise a SettingsError if the model does not support them."""
    strategy = get_strategy(request.layers)
    strategy.check(model.encoder.config.hidden_sizes)
    model_pooling = model.pooling
    window_rule = resolve_window_rule(
        model_pooling, model.encoder.config.max_length, request.truncate, stored_window_rule(model.metadata)
    )
    if request.unit == "texts":
        pooling = model.text_extraction(request.pooling, request.truncate, request.prompt_name).pooling
    else:  # the pooling of a model folder applies to texts only; the default for words is the mean
        pooling = Pooling(kinds=(request.pooling or "mean",), is_explicit=True)
        if pooling.kinds[0] not in WORD_POOLINGS:
            Pooling().with_kind(pooling.kinds[0])  # raises if there is no such pooling
            raise SettingsError(
                f"--pooling {request.pooling} is for whole texts; for words choose one of: {', '.join(WORD_POOLINGS)}"
            )
    return Extraction(request.unit, strategy, pooling, window_rule)


def vector_metadata(model: LoadedModel, extraction: Extraction) -> dict[str, Any]:
    """Return everything that determines the values of vectors, for the metadata on disk."""
    pooling = extraction.pooling
    return {
        "model": fingerprint(model.encoder),
        "tokenizer": model.tokenizer.hash,
        "layers": extraction.strategy.name,
        "pooling": list(pooling.kinds) if extraction.unit != "tokens" else [],
        **({"modules": [module.name for module in pooling.modules]} if pooling.modules else {}),
        **({"prompt_length": pooling.prompt_length} if pooling.prompt_length else {}),
        "normalize": pooling.normalize,
        **({"truncate_dim": pooling.truncate_dim} if pooling.truncate_dim else {}),
        "lower_case": pooling.lower_case,
        "prompt": pooling.prompt,
        "window": [extraction.window_rule.max_length, extraction.window_rule.overlap, extraction.window_rule.truncate],
    }


def fingerprint(module: nn.Module | GraphEncoder) -> str:
    """Return sixteen hexadecimal digits of a hash over all weights, rounded to bf16: the same in any precision."""
    if isinstance(module, GraphEncoder):
        return module.fingerprint
    import torch

    weights_hash = hashlib.sha256()
    for name, values in sorted(module.state_dict().items()):
        weights_hash.update(f"{name} {tuple(values.shape)}\n".encode())
        rounded = values.bfloat16() if values.is_floating_point() else values
        weights_hash.update(rounded.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return weights_hash.hexdigest()[:16]


def _check(request: EmbedRequest) -> None:
    for name, value, choices in (("unit", request.unit, UNITS), ("format", request.format, FORMATS)):
        if value not in choices:
            raise SettingsError(f"there is no {name} '{value}'; choose one of: {', '.join(choices)}")
    if request.unit != "texts" and request.prompt_name is not None:
        raise SettingsError(f"--prompt-name is for whole texts, not for {request.unit}; remove it")
    if request.unit == "tokens" and request.pooling:
        raise SettingsError(
            "--pooling combines tokens, but --level tokens writes each of them; remove one of the two options"
        )
    if (
        request.file != STANDARD_INPUT
        and request.output.exists()
        and request.output.samefile(Path(request.file).expanduser())
    ):
        raise SettingsError(f"--output {request.output} is the input file; choose another path")
    check_output(request.output, request.unit, request.format)
