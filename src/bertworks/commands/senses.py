"""Word senses: sentences with an ambiguous word and models in, a plot of its vectors in each model out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertworks.datasets.labelled_texts import read_texts
from bertworks.disk import write_text
from bertworks.embeddings.pooling import Pooling
from bertworks.embeddings.senses import WordUse, embed_uses, find_word, measure_senses
from bertworks.embeddings.strategies import get_strategy
from bertworks.embeddings.vectors import Extraction, resolve_window_rule
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import InputError
from bertworks.inference.model import load
from bertworks.reports.senses import Panel, draw_senses


@dataclass(frozen=True, slots=True, kw_only=True)
class SensesRequest:
    """Arguments of `senses`: a word, a table of sentences labeled with its senses, the models and the layers."""

    word: str
    file: Path
    models: tuple[str, ...]
    output: Path
    layers: str = "last"


def senses(request: SensesRequest) -> list[Panel]:
    """Write the plot, and return the panel of each model."""
    strategy = get_strategy(request.layers)
    uses = read_uses(request.file, request.word)
    panels = []
    for name in request.models:
        model = load(name)
        strategy.check(model.encoder.config.hidden_sizes)
        window_rule = resolve_window_rule(Pooling(), model.encoder.config.max_length)
        extraction = Extraction("tokens", strategy, Pooling(), window_rule)
        vectors = embed_uses(TorchEngine(model.encoder, model.tokenizer), uses, extraction)
        if not vectors.any():
            raise InputError(f"{name} has no vector for '{request.word}'; choose another word, or another model")
        panels.append(Panel(model.folder.name, measure_senses(vectors, [use.sense for use in uses])))
    write_text(request.output, draw_senses(request.word, uses, panels))
    return panels


def read_uses(file: Path, word: str) -> list[WordUse]:
    """Read the uses of a word from a table of labeled texts; every sentence must contain the word."""
    uses = []
    for example in read_texts(file, {}, None):
        (text, *_) = example.texts
        span = find_word(word, text)
        if span is None:
            raise InputError(f"{example.location}: the word '{word}' does not occur; correct or remove the line")
        if not example.label:
            raise InputError(f"{example.location}: the sense is missing; write it into the column 'label'")
        uses.append(WordUse(example.label, text, *span))
    if len(uses) < 2:
        raise InputError(f"{file} has {len(uses)} sentences; a plot needs at least two")
    return uses
