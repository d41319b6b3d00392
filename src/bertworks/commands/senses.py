"""Sentences with a word in several senses and some models in, where the word lies by each of them out, as a picture."""

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


@dataclass(frozen=True, slots=True)
class SensesRequest:
    """What to draw: a word, a table of sentences with their senses as labels, the models, and from which layers."""

    word: str
    file: Path
    models: tuple[str, ...]
    output: Path
    layers: str = "last"


def senses(request: SensesRequest) -> list[Panel]:
    """Write the picture, and return what it shows of each model."""
    strategy = get_strategy(request.layers)
    uses = read_uses(request.file, request.word)
    panels = []
    for name in request.models:
        model = load(name)
        strategy.check(model.encoder.config.hidden_sizes)
        how = Extraction(
            "pieces", strategy, Pooling(), resolve_window_rule(Pooling(), model.encoder.config.max_position_embeddings)
        )
        vectors = embed_uses(TorchEngine(model.encoder, model.tokenizer), uses, how)
        if not vectors.any():
            raise InputError(f"{name} has no vector for '{request.word}'; choose another word, or another model")
        panels.append(Panel(model.folder.name, measure_senses(vectors, [use.sense for use in uses])))
    write_text(request.output, draw_senses(request.word, uses, panels))
    return panels


def read_uses(file: Path, word: str) -> list[WordUse]:
    """Return the uses of a word in a table of texts with labels; a sentence without the word is refused."""
    uses = []
    for case in read_texts(file, {}, None):
        (text, *_) = case.texts
        span = find_word(word, text)
        if span is None:
            raise InputError(f"{case.location}: the word '{word}' does not stand in it; mend or remove the line")
        if not case.label:
            raise InputError(f"{case.location}: the sense is missing; write it into the column 'label'")
        uses.append(WordUse(case.label, text, *span))
    if len(uses) < 2:
        raise InputError(f"{file} holds {len(uses)} sentences; a picture needs at least two")
    return uses
