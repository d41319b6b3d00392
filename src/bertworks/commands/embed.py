"""A model and a file of texts in, their vectors on disk out: of whole texts, words or pieces."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertworks.datasets.texts import STANDARD_INPUT, texts_in
from bertworks.embeddings.formats import FORMATS, check_out
from bertworks.embeddings.pooling import Pooling, pooling_of
from bertworks.embeddings.store import StoreSettings, VectorStore
from bertworks.embeddings.strategies import strategy_of
from bertworks.embeddings.vectors import UNITS, Extraction, stored_rule, vectors_of, window_rule
from bertworks.engines.batching import BUDGET
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import Model, load
from bertworks.progress import Progress, Watch


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """What a person asks for. `pooling` None is what the model's folder says; `column` None is a text a line."""

    model: str
    file: str
    out: Path
    column: str | None = None
    unit: str = "texts"
    layers: str = "last"
    pooling: str | None = None
    half: bool = False
    format: str = "npy"
    budget: int = BUDGET
    truncate: bool = False
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """What was made: how many texts and vectors, how wide, by which pooling, and what happened to the texts."""

    out: Path
    num_texts: int
    num_rows: int
    width: int
    pooling: Pooling
    counts: dict[str, int]
    resumed: int


def embed(request: EmbedRequest, watch: Watch = lambda progress: None) -> Embedded:
    """Write the vectors of a file's texts. A killed run continues when called again, and its bytes are the same."""
    _check(request)
    total = None
    if request.file != STANDARD_INPUT:  # reading it once before costs little, and finds a broken line at once
        total = sum(1 for _ in texts_in(request.file, request.column))
    return embed_with(load(request.model, engine=request.engine), request, total, watch)


def embed_with(model: Model, request: EmbedRequest, total: int | None, watch: Watch) -> Embedded:
    """Do the same with a model that is loaded and a file that was looked at."""
    how = extraction(model, request)
    engine = TorchEngine(model.encoder, model.tokenizer, request.budget)
    width = how.strategy.width(model.encoder.sizes.widths)
    if request.unit == "texts":
        width *= len(how.pooling.kinds)
    identity = {**told(model, how), "batch_pieces": request.budget}
    settings = StoreSettings(request.out, width, request.unit, request.half, request.format, identity)
    with VectorStore(settings) as store:
        texts = store.remaining(texts_in(request.file, request.column))
        for portion in vectors_of(engine, texts, how):
            store.append(portion)
            watch(Progress("embed", store.num_texts, total, "texts"))
        if not store.num_texts:
            raise InputError(f"{request.file} holds no texts; give a file with at least one")
        store.finish()
        return Embedded(
            request.out, store.num_texts, store.num_rows, width, how.pooling, dict(store.counts), store.resumed
        )


def extraction(model: Model, request: EmbedRequest) -> Extraction:
    """Return what is asked of the texts; refused if the model cannot give it."""
    strategy = strategy_of(request.layers)
    strategy.check(model.encoder.sizes.widths)
    own = pooling_of(model.folder)
    rule = window_rule(own, model.encoder.sizes.positions, request.truncate, stored_rule(model.folder))
    if request.unit == "texts":
        pooling = own.of_kind(request.pooling) if request.pooling else own
    else:  # what a folder says about texts does not hold for words, of which the mean is the plainest
        pooling = Pooling().of_kind(request.pooling or "mean")
    return Extraction(request.unit, strategy, pooling, rule)


def told(model: Model, how: Extraction) -> dict[str, Any]:
    """Return all that decides the values of vectors, for whoever asks later what they are of."""
    pooling = how.pooling
    return {
        "model": fingerprint(model.encoder),
        "tokenizer": model.tokenizer.hash,
        "layers": how.strategy.name,
        "pooling": list(pooling.kinds) if how.unit != "pieces" else [],
        "normalise": pooling.normalise,
        "lower_case": pooling.lower_case,
        "prompt": pooling.prompt,
        "window": [how.rule.length, how.rule.overlap, how.rule.truncate],
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
        and request.out.exists()
        and request.out.samefile(Path(request.file).expanduser())
    ):
        raise SettingsError(f"--out {request.out} is the file of texts itself; choose another name")
    check_out(request.out, request.unit, request.format)
